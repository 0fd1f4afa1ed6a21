// usage: PROGRAM JOB
// Runs rotary embedding with a cache's row on the CPU. JOB is a text file of whitespace-separated words:
//   instance  grid x y  threads  shared_bytes  where in the file out keys, values and c begin, in elements
//   the files of q, k, v, cos, sin, at, q_norm, k_norm ("-": none) and out
//   then the kernel's parameters (emulated_job.hpp)
// INSTANCES is a list of X(number, type). Status 4: it trapped.
#include "sm90_turned.cuh"
#include "emulated_job.hpp"

using namespace sassafras;

int main(int, char **argv) {
    std::ifstream job(argv[1]);
    int instance, threads, shared_bytes;
    Dim grid{};
    size_t keys, values, c;
    job >> instance >> grid.x >> grid.y >> threads >> shared_bytes >> keys >> values >> c;
    Operands operands(job, {"q", "k", "v", "cos", "sin", "at", "q_norm", "k_norm", "out"});
    u16 *const out = operands.buffers.back();
    operands.names.insert(operands.names.end(), {"keys", "values", "c"});
    operands.buffers.insert(operands.buffers.end(), {out + keys, out + values, out + c});
    const auto parameters = operands.parameters(job);
    emulator::once = true;
    const auto given = problem<TurnedProblem>(parameters, std::make_index_sequence<29>());
#define X(id, type)                                                                                                    \
    if (instance == id) {                                                                                              \
        using Kernel = type;                                                                                           \
        if (Kernel::SHARED_BYTES != shared_bytes || Kernel::THREADS != threads) emulator::fail("host and kernel disagree"); \
        emulator::launch_clusters(grid, Dim{}, threads, shared_bytes, false, [&] { Kernel::run(given); });             \
    }
    INSTANCES
#undef X
    operands.write();
    return emulator::trapped ? 4 : 0;
}
