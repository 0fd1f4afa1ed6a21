// Stands in for kernels/ptx_sums.cuh on the CPU. Comes after hopper_emulator.hpp.
#pragma once

namespace sassafras {

inline void load_partial_in_order(float (&v)[4], const float *from) {
    emulator::check_predecessors(); // another launch has left them
    load_partial(v, from);
}

} // namespace sassafras
