// usage: PROGRAM JOB
// Runs kernels that work row by row on the CPU. JOB is a text file of whitespace-separated words:
//   instance  grid x y  threads  shared_bytes  files of a b norm bias c ("-": null)
//   then the kernel's parameters (emulated_job.hpp)
// INSTANCES is a list of X(number, type, problem).
#include "sm90_rows.cuh"
#include "emulated_job.hpp"

using namespace sassafras;

constexpr auto counted(const RmsNormProblem *) { return std::make_index_sequence<8>(); }
constexpr auto counted(const LayerNormProblem *) { return std::make_index_sequence<9>(); }
constexpr auto counted(const GatedProblem *) { return std::make_index_sequence<7>(); }
static void tell(const RmsNormProblem &given) { emulator::fixed_early = given.early; }
static void tell(const LayerNormProblem &given) { emulator::fixed_early = given.early; }
static void tell(const GatedProblem &) {}

int main(int, char **argv) {
    std::ifstream job(argv[1]);
    int instance, threads, shared_bytes;
    Dim grid{};
    job >> instance >> grid.x >> grid.y >> threads >> shared_bytes;
    const Operands operands(job, {"a", "b", "norm", "bias", "c"});
    const std::vector<Any> parameters = operands.parameters(job);
#define X(id, type)                                                                                                    \
    if (instance == id) {                                                                                              \
        using Kernel = type;                                                                                           \
        if (Kernel::SHARED_BYTES != shared_bytes || Kernel::THREADS != threads) emulator::fail("host and kernel disagree"); \
        const auto given = problem<Kernel::Problem>(parameters, counted((Kernel::Problem *)nullptr));                  \
        tell(given);                                                                                                   \
        emulator::launch_clusters(grid, Dim{}, threads, shared_bytes, false, [&] { Kernel::run(given); });             \
    }
    INSTANCES
#undef X
    operands.write();
    return 0;
}
