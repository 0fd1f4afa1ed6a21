// Stands in for kernels/ptx_turned.cuh on the CPU. Comes after hopper_emulator.hpp.
#pragma once
#include "ptx_hopper.cuh"

namespace emulator {
static bool trapped = false;
}

namespace sassafras {

inline void trap() {
    using namespace emulator;
    trapped = true;
    lane_ends();
    lane->done = true;
    lane->fiber->begun = false; // the next lane begins it anew
    yield();
}

} // namespace sassafras
