// What programs that emulate kernels read: operands, and the kernel's parameters in order, each a kind and its value: an operand's
// name: nothing;  int N;  float BITS. Comes after the kernel's header.
#pragma once
#include <fstream>
#include <string>
#include <vector>

namespace sassafras {

struct Any { // a parameter's value, whatever its type
    std::string kind;
    long long number = 0;
    u16 *pointer = nullptr;
    operator int() const { return want("int"), (int)number; }
    operator long long() const { return want("int"), number; }
    operator float() const { return want("float"), as_float((u32)number); }
    operator u16 *() const { return want("pointer"), pointer; }
    operator const u16 *() const { return want("pointer"), pointer; }
    operator const long long *() const { return want("pointer"), (const long long *)pointer; }
    void want(const char *wanted) const {
        if (kind != wanted) emulator::fail("host and kernel disagree on a parameter");
    }
};

template <class Problem, size_t... I> Problem problem(const std::vector<Any> &p, std::index_sequence<I...>) {
    if (p.size() != sizeof...(I)) emulator::fail("host and kernel disagree on the number of parameters");
    return Problem{p[I]...};
}

// Named operands, each a file ("-": null). The last one is written back, and how often each of its elements was stored to a file of the
// same name with ".stores".
struct Operands {
    std::vector<std::string> names, files;
    std::vector<u16 *> buffers;

    Operands(std::ifstream &job, std::vector<std::string> named) : names(std::move(named)), files(names.size()), buffers(names.size()) {
        for (size_t i = 0; i < names.size(); ++i) {
            job >> files[i];
            if (files[i] == "-") continue;
            std::ifstream file(files[i], std::ios::binary);
            const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
            buffers[i] = (u16 *)std::aligned_alloc(256, (data.size() + 255) / 256 * 256);
            std::memcpy(buffers[i], data.data(), data.size());
            const emulator::Range range{(char *)buffers[i], (char *)buffers[i] + data.size()};
            if (i + 1 == names.size()) emulator::writable = range;
            else emulator::readable.push_back(range);
        }
        emulator::stores.assign(size() / 2, 0);
    }
    size_t size() const { return emulator::writable.end - emulator::writable.begin; }
    std::vector<Any> parameters(std::ifstream &job) const {
        std::vector<Any> found;
        for (std::string kind; job >> kind;) {
            Any value{"pointer"};
            const auto name = std::find(names.begin(), names.end(), kind);
            if (name != names.end()) value.pointer = buffers[name - names.begin()];
            else job >> value.number, value.kind = kind;
            found.push_back(value);
        }
        return found;
    }
    void write() const {
        std::ofstream(files.back(), std::ios::binary).write(emulator::writable.begin, (std::streamsize)size());
        std::ofstream(files.back() + ".stores", std::ios::binary).write((char *)emulator::stores.data(), (std::streamsize)(size() / 2));
    }
};

} // namespace sassafras
