// usage: PROGRAM JOB
// Runs attention of one query row on the CPU. JOB is a text file of whitespace-separated words:
//   instance  grid x y z  cluster  threads  shared_bytes  policy  seed  files of q k v mask c ("-": null)
//   then the kernel's parameters (emulated_job.hpp)
// INSTANCES is a list of X(number, type).
#include "sm90_decode_attention.cuh"
#include "emulated_job.hpp"

using namespace sassafras;

int main(int, char **argv) {
    std::ifstream job(argv[1]);
    int instance, threads, shared_bytes, policy, seed;
    Dim grid{}, cluster{};
    job >> instance >> grid.x >> grid.y >> grid.z >> cluster.x >> threads >> shared_bytes >> policy >> seed;
    emulator::policy = (emulator::Policy)policy;
    emulator::dice.seed(seed);
    const Operands operands(job, {"q", "k", "v", "mask", "c"});
    emulator::once = true;
    const auto given = problem<DecodeAttentionProblem>(operands.parameters(job), std::make_index_sequence<20>());
#define X(id, type)                                                                                                    \
    if (instance == id) {                                                                                              \
        using Kernel = type;                                                                                           \
        if (Kernel::SHARED_BYTES != shared_bytes || Kernel::THREADS != threads) emulator::fail("host and kernel disagree"); \
        emulator::launch_clusters(grid, cluster, threads, shared_bytes, policy == emulator::RANDOM, [&] { Kernel::run(given); }); \
    }
    INSTANCES
#undef X
    operands.write();
    return 0;
}
