// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Files with random changes: each is read whole or refused, and nothing is read beside memory.
// HVD_TEST_FUZZ is the number of files, and 3,000 if it is not set.

#include <cstdlib>
#include <fstream>
#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>
#include <random>

#include "hvd_test.hpp"
#include "temporary_directory.hpp"

namespace checkpoint_fuzz_tests {

namespace {

using bytes = std::string;

bytes content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Files that hvd or other programs write.
std::vector<bytes> seeds(const std::string& path) {
    std::vector<bytes> all;
    std::vector<float> w = {1, 2, 3, 4, 5, 6};
    std::vector<hvd::bfloat16> half(3);
    std::vector<double> steps = {1};
    std::vector<std::uint8_t> none;
    hvd::write_safetensors(
        path,
        std::vector{hvd::named("model.w", hvd::view(w.data(), hvd::shape(2, 3))),
                    hvd::named("half", half), hvd::named("steps", steps), hvd::named("none", none)},
        {{"optimizer.rate", "0.5"}, {"hvd.slots", "by name"}});
    all.push_back(content(path));
    hvd::write_safetensors(path, {});
    all.push_back(content(path));
    const bytes header = R"({"a":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"BOOL","shape":[],"data_offsets":[4,5]}})";
    const std::uint64_t length = header.size();
    all.push_back(bytes(reinterpret_cast<const char*>(&length), 8) + header + "12345");
    return all;
}

const std::vector<bytes> words = {"{",
                                  "}",
                                  "[",
                                  "]",
                                  "\"",
                                  ",",
                                  ":",
                                  "-1",
                                  "1e9",
                                  "F64",
                                  "BOOL",
                                  "null",
                                  "\\u00",
                                  "[[[[[[",
                                  "9999",
                                  "999999",
                                  "18446744073709551615",
                                  "0",
                                  "shape",
                                  "\xff",
                                  "dtype",
                                  "data_offsets"};

template <class Random>
void change(bytes& file, Random& random) {
    const auto below = [&](std::size_t n) { return n == 0 ? 0 : std::size_t(random() % n); };
    const std::size_t at = below(file.size() + 1), length = below(12);
    switch (below(6)) {
        case 0:
            if (at < file.size()) file[at] = char(random());
            break;
        case 1:
            if (at < file.size()) file[at] = char(file[at] ^ (1 << below(8)));
            break;
        case 2: file.erase(at, length); break;
        case 3: file.insert(at, words[below(words.size())]); break;
        case 4: file.insert(at, file.substr(below(file.size() + 1), length)); break;
        default:
            if (!file.empty()) file[below(file.size() < 9 ? file.size() : 9)] = char(random());
    }
}

// Reads all tensors of a file into memory of their sizes.
void read_all(const std::string& path) {
    const hvd::safetensors_file file(path);
    for (const auto& [name, entry] : file.tensors()) {
        std::vector<std::byte> memory(entry.bytes);
        const hvd::named_tensor t{name, entry.type, entry.shape, memory.data(), memory.size()};
        if (entry.type == hvd::dtype::user) CHECK_THROWS_AS(file.read(t), hvd::checkpoint_error);
        else file.read(t);
    }
}

}  // namespace

TEST_CASE("files with random changes are read or refused") {
    const hvd_test::temporary_directory folder;
    const std::string path = (folder / "c").string();
    const char* const wanted = std::getenv("HVD_TEST_FUZZ");
    const long files = wanted == nullptr ? 3000 : std::atol(wanted);
    const auto from = seeds(path);
    std::size_t read = 0, refused = 0;
    for (long i = 0; i < files; ++i) {
        std::mt19937_64 random{std::uint64_t(i)};
        bytes file = from[random() % from.size()];
        for (std::uint64_t n = 1 + random() % 4; n > 0; --n) change(file, random);
        // Half of the changed headers have their right length, so that more than that is read.
        if (file.size() > 8 && random() % 2 == 0) {
            const std::size_t end = file.rfind('}');
            const std::uint64_t length = end == file.npos || end < 8 ? 0 : end - 7;
            file.replace(0, 8, reinterpret_cast<const char*>(&length), 8);
        }
        std::ofstream(path, std::ios::binary) << file;
        INFO("file ", i);
        try {
            read_all(path);
            ++read;
        } catch (const hvd::checkpoint_error& e) {
            CHECK(std::string_view(e.what()).starts_with(path));
            ++refused;
        }
    }
    CHECK(read > 0);
    CHECK(refused > read / 10);
}

}  // namespace checkpoint_fuzz_tests
