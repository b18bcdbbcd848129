// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace fashion_mnist {

/// A file is missing, damaged or of another format. The text is "file: reason".
class file_error : public std::runtime_error {
public:
    file_error(const std::filesystem::path& file, const std::string& reason)
        : std::runtime_error(file.string() + ": " + reason) {}
};

/// An array of bytes as in the files of MNIST, slowest dimension first.
struct idx_array {
    std::vector<std::size_t> shape;
    std::vector<std::uint8_t> values;
};

/// Reads a file through zlib, compressed or not.
class gz_reader {
public:
    explicit gz_reader(const std::filesystem::path& path)
        : path_(path), file_(gzopen(path.c_str(), "rb")) {
        if (!file_) throw file_error(path_, std::strerror(errno));
    }

    /// Fills `bytes`, or throws.
    void read(std::span<std::uint8_t> bytes) {
        while (!bytes.empty()) {
            const auto request = std::min<std::size_t>(bytes.size(), 1u << 20);
            const int got = gzread(file_.get(), bytes.data(), static_cast<unsigned>(request));
            if (got <= 0) fail();
            bytes = bytes.subspan(static_cast<std::size_t>(got));
        }
    }

    /// Throws if anything follows, or if the checksum at the end does not agree.
    void expect_end() {
        std::uint8_t byte;
        const int got = gzread(file_.get(), &byte, 1);
        if (got > 0) throw file_error(path_, "longer than its header says");
        int code = Z_OK;
        gzerror(file_.get(), &code);
        if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) fail();
    }

    [[noreturn]] void fail() const {
        int code = Z_OK;
        const std::string text = gzerror(file_.get(), &code);
        if (code == Z_ERRNO) throw file_error(path_, std::strerror(errno));
        if (code == Z_OK || code == Z_BUF_ERROR || code == Z_STREAM_END)
            throw file_error(path_, "ends too early: the file is torn");
        throw file_error(path_, "damaged (" + text + ")");
    }

private:
    struct close {
        void operator()(gzFile_s* file) const { gzclose_r(file); }
    };
    std::filesystem::path path_;
    std::unique_ptr<gzFile_s, close> file_;
};

/// Reads an IDX file of unsigned bytes.
///
/// @throws file_error naming the file and what is wrong with it.
inline idx_array read_idx(const std::filesystem::path& path) {
    constexpr std::uint8_t unsigned_byte = 0x08;
    // checked before the header of an unknown file is trusted
    constexpr std::size_t most_bytes = std::size_t(1) << 30;

    gz_reader file(path);
    std::uint8_t magic[4];
    file.read(magic);
    if (magic[0] != 0 || magic[1] != 0 || magic[3] == 0) throw file_error(path, "not an IDX file");
    if (magic[2] != unsigned_byte) throw file_error(path, "an IDX file, but not of unsigned bytes");

    idx_array array;
    std::size_t count = 1;
    for (int dimension = 0; dimension < magic[3]; ++dimension) {
        std::uint8_t big_endian[4];
        file.read(big_endian);
        std::size_t extent = 0;
        for (const std::uint8_t byte : big_endian) extent = extent << 8 | byte;
        if (extent != 0 && count > most_bytes / extent)
            throw file_error(path, "its header asks for more than 1 GiB");
        count *= extent;
        array.shape.push_back(extent);
    }
    array.values.resize(count);
    file.read(array.values);
    file.expect_end();
    return array;
}

}  // namespace fashion_mnist
