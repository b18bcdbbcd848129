// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <zlib.h>

#include <string>

#include "dataset.hpp"
#include "fixtures.hpp"
#include "idx.hpp"

namespace {

using namespace fashion_mnist;
using namespace std::string_literals;
using fixtures::read_file;
using fixtures::write_file;

const std::string two_by_three =
    "\0\0\x08\x02\0\0\0\x02\0\0\0\x03"
    "abcdef"s;

void write_gz(const std::filesystem::path& path, const std::string& bytes) {
    const gzFile file = gzopen(path.c_str(), "wb");
    REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) > 0);
    REQUIRE(gzclose(file) == Z_OK);
}

std::string why_refused(const std::filesystem::path& path) {
    try {
        read_idx(path);
    } catch (const file_error& error) {
        const std::string text = error.what();
        CHECK(text.starts_with(path.string() + ": "));
        return text.substr(path.string().size() + 2);
    }
    return "read";
}

std::string big_endian(std::size_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
    return bytes;
}

std::string images(std::size_t count, std::size_t side = image_side) {
    return "\0\0\x08\x03"s + big_endian(count) + big_endian(side) + big_endian(side) +
           std::string(count * side * side, 'x');
}

std::string labels(std::size_t count, char label = 1) {
    return "\0\0\x08\x01"s + big_endian(count) + std::string(count, label);
}

}  // namespace

TEST_CASE("an IDX file is read, compressed or not") {
    const fixtures::temporary_directory directory;
    write_gz(directory / "array.gz", two_by_three);
    write_file(directory / "array", two_by_three);
    for (const char* name : {"array.gz", "array"}) {
        const idx_array array = read_idx(directory / name);
        CHECK(array.shape == std::vector<std::size_t>{2, 3});
        CHECK(std::string(array.values.begin(), array.values.end()) == "abcdef");
    }
}

TEST_CASE("a missing IDX file is refused with the system's reason") {
    const fixtures::temporary_directory directory;
    CHECK(why_refused(directory / "absent.gz") == "No such file or directory");
}

TEST_CASE("a foreign file is refused") {
    const fixtures::temporary_directory directory;
    write_file(directory / "text", "a text that has nothing to do with it");
    CHECK(why_refused(directory / "text") == "not an IDX file");
    write_gz(directory / "floats.gz", "\0\0\x0d\x01\0\0\0\x01"s + "1234");
    CHECK(why_refused(directory / "floats.gz") == "an IDX file, but not of unsigned bytes");
    write_gz(directory / "huge.gz", "\0\0\x08\x02\xff\xff\xff\xff\xff\xff\xff\xff"s);
    CHECK(why_refused(directory / "huge.gz") == "its header asks for more than 1 GiB");
}

TEST_CASE("a torn IDX file is refused wherever it ends") {
    const fixtures::temporary_directory directory;
    for (std::size_t size = 0; size < two_by_three.size(); ++size) {
        write_file(directory / "torn", two_by_three.substr(0, size));
        CHECK(why_refused(directory / "torn") == "ends too early: the file is torn");
    }
    write_gz(directory / "whole.gz", two_by_three);
    const std::string whole = read_file(directory / "whole.gz");
    for (std::size_t size = 2; size < whole.size(); ++size) {
        CAPTURE(size);
        write_file(directory / "torn.gz", whole.substr(0, size));
        CHECK(why_refused(directory / "torn.gz") != "read");
    }
}

TEST_CASE("a damaged or lengthened IDX file is refused") {
    const fixtures::temporary_directory directory;
    write_gz(directory / "longer.gz", two_by_three + "g");
    CHECK(why_refused(directory / "longer.gz") == "longer than its header says");

    write_gz(directory / "damaged.gz", two_by_three);
    std::string bytes = read_file(directory / "damaged.gz");
    bytes[bytes.size() - 8] ^= 1;  // the checksum
    write_file(directory / "damaged.gz", bytes);
    CHECK(why_refused(directory / "damaged.gz").starts_with("damaged ("));
}

TEST_CASE("images and labels that do not belong together are refused") {
    const fixtures::temporary_directory directory;
    const auto load = [&](const std::string& image_file, const std::string& label_file) {
        write_gz(directory / "train-images-idx3-ubyte.gz", image_file);
        write_gz(directory / "train-labels-idx1-ubyte.gz", label_file);
        return load_dataset(directory / "", "train");
    };
    CHECK(load(images(3), labels(3)).size() == 3);
    CHECK_THROWS_WITH_AS(load(images(3), labels(4)), doctest::Contains("4 labels for 3 images"),
                         file_error);
    CHECK_THROWS_WITH_AS(load(images(3, 27), labels(3)), doctest::Contains("28 x 28"), file_error);
    CHECK_THROWS_WITH_AS(load(labels(3), labels(3)), doctest::Contains("28 x 28"), file_error);
    CHECK_THROWS_WITH_AS(load(images(3), images(3)), doctest::Contains("hold labels"), file_error);
    CHECK_THROWS_WITH_AS(load(images(3), labels(3, 10)), doctest::Contains("above 9"), file_error);
}
