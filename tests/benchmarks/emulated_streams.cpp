// usage: PROGRAM JOB
// Runs benchmarks/hgemm_streams.cu on the CPU. JOB is a text file of whitespace-separated words:
//   grid  cluster  shared_bytes  policy(0 late, 1 random, 2 eager)  seed  fault
//   the fields of Pattern
//   of both tensor maps: rank  extents  strides in bytes  box  swizzle (three dimensions each, absent ones 1)
//   files: matrix  small  sums
#include "hopper_emulator.hpp"
#include <fstream>
#include <iterator>

namespace sassafras { // instead of hgemm_streams_hints.cuh: hints change nothing here
inline u64 policy(int) { return 0; }
inline void copy_tile_hinted(u32 to, const TensorMap *map, int x, int y, u32 barrier, u64) { copy_tile(to, map, x, y, barrier); }
inline void copy_tile_hinted(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier, u64) {
    copy_tile(to, map, x, y, z, barrier);
}
inline void copy_tile_multicast_hinted(u32 to, const TensorMap *map, int x, int y, u32 barrier, u16 mask, u64) {
    copy_tile_multicast(to, map, x, y, barrier, mask);
}
} // namespace sassafras

#define SASSAFRAS_EMULATED
#define __grid_constant__
#define __launch_bounds__(...)
#include "hgemm_streams.cu"

using namespace sassafras;

static std::vector<char> contents(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

int main(int, char **argv) {
    std::ifstream job(argv[1]);
    auto number = [&] {
        long long value;
        if (!(job >> value)) emulator::fail("the job is too short");
        return value;
    };
    Dim grid{}, cluster{};
    grid.x = (unsigned)number();
    cluster.x = (unsigned)number();
    const size_t shared_bytes = number();
    emulator::policy = (emulator::Policy)number();
    emulator::dice.seed((unsigned)number());
    emulator::fault = (emulator::Fault)number();
    Pattern pattern;
    for (size_t i = 0; i < sizeof(Pattern) / sizeof(int); ++i) ((int *)&pattern)[i] = (int)number();
    TensorMap maps[2];
    for (TensorMap &map : maps) {
        map.rank = (int)number();
        for (long long &extent : map.extent) extent = number();
        map.layers = number();
        map.stride = number();
        map.apart = number();
        for (int &extent : map.box) extent = (int)number();
        map.deep = (int)number();
        map.swizzle = (int)number();
    }
    std::string files[3];
    for (std::string &name : files) job >> name;
    std::vector<char> operands[2] = {contents(files[0]), contents(files[1])};
    for (int i = 0; i < 2; ++i) {
        maps[i].base = operands[i].data();
        emulator::readable.push_back({operands[i].data(), operands[i].data() + operands[i].size()});
    }
    std::vector<u32> sums(grid.x * 128, 0xdeaddead);
    emulator::scratch = {{(char *)sums.data(), (char *)(sums.data() + sums.size())}};
    emulator::launch_clusters(grid, cluster, 160, shared_bytes, true, [&] { stream(pattern, &maps[0], &maps[1], sums.data()); });
    std::ofstream(files[2], std::ios::binary).write((char *)sums.data(), (std::streamsize)(4 * sums.size()));
    return 0;
}
