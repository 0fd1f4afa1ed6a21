// usage: PROGRAM instance m n k lda ldb ldc log2_warps_m log2_warps_n per_slice cluster grid_y grid_z threads
//                shared_bytes a.bin b.bin c.bin
// Runs one launch of an instance on the CPU. INSTANCES is a list of X(number, type, problem): a Lean<...> or
// Staged<...>, and the name of the parameters to pass it, `lean` or `staged`.
#include "sm90_gemm_small.cuh"
#include "sm90_gemm_fallback.cuh"

static void file(const char *path) {
    FILE *f = std::fopen(path, "rb");
    if (!f) emulator::fail("cannot open an input");
    std::fseek(f, 0, SEEK_END);
    const size_t size = std::ftell(f);
    std::rewind(f);
    char *raw = (char *)std::aligned_alloc(256, (size + 255) / 256 * 256);
    if (std::fread(raw, 1, size, f) != size) emulator::fail("cannot read an input");
    std::fclose(f);
    emulator::readable.push_back({raw, raw + size});
}

int main(int argc, char **argv) {
    using namespace sassafras;
    if (argc != 19) emulator::fail("wrong number of arguments");
    auto number = [&](int i) { return std::atoi(argv[i]); };
    file(argv[16]);
    file(argv[17]);
    FILE *out = std::fopen(argv[18], "rb");
    std::fseek(out, 0, SEEK_END);
    const size_t size = std::ftell(out);
    std::fclose(out);
    std::vector<uint16_t> storage(size / 2 + 128, 0x7e00);
    char *c = (char *)(((uintptr_t)storage.data() + 127) / 128 * 128);
    emulator::writable = {c, c + size};
    emulator::stores.assign(size / 2, 0);

    const u16 *a = (const u16 *)emulator::readable[0].begin, *b = (const u16 *)emulator::readable[1].begin;
    LeanProblem lean{a, b, (u16 *)c, number(2), number(3), number(4), number(5), number(6), number(7),
                     number(8), number(9), number(10)};
    StagedProblem staged{a, b, (u16 *)c, number(2), number(3), number(4), number(5), number(6), number(7), number(10)};
    auto launch = [&](auto kernel) {
        emulator::launch(Dim{(unsigned)number(11), (unsigned)number(12), (unsigned)number(13)},
                         (unsigned)number(14), (size_t)number(15), kernel);
    };
    bool found = false;
#define X(id, type, problem)                                                                                     \
    if (number(1) == id) {                                                                                      \
        launch([&] { type::run(problem); });                                                                    \
        found = true;                                                                                           \
    }
    INSTANCES
#undef X
    if (!found) emulator::fail("no such instance");
    out = std::fopen(argv[18], "wb");
    std::fwrite(c, 1, size, out);
    std::fclose(out);
    return 0;
}
