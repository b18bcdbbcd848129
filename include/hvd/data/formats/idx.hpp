// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "input_file.hpp"

namespace hvd::inline v0::data {

/// An array in the format of MNIST (IDX), not compressed. A sample is a slice along the first
/// dimension, as a vector of its elements.
/// **Threads**: several threads read at once.
/// @snippet tests/data/snippets.cpp idx
template <class T = std::uint8_t>
    requires std::is_arithmetic_v<T>
class idx_file {
public:
    /// @throws hvd::data::file_error for a file that is absent, of another format or element type,
    /// or of another size than its header says.
    explicit idx_file(std::string path) : file_(std::move(path)) { read_header(); }

    std::size_t size() const { return shape_[0]; }
    /// The extents of the whole array, the number of samples first.
    const std::vector<std::size_t>& shape() const { return shape_; }

    std::vector<T> read(std::size_t i) const {
        file_.require_sample(i, size());
        std::vector<T> sample(elements_);
        file_.read(header_bytes() + std::uint64_t(i) * elements_ * sizeof(T), sample.data(),
                   elements_ * sizeof(T));
        for (T& element : sample) element = from_big_endian(element);
        return sample;
    }

private:
    static constexpr std::uint8_t code_of_elements() {
        if constexpr (std::same_as<T, std::uint8_t>) return 0x08;
        else if constexpr (std::same_as<T, std::int8_t>) return 0x09;
        else if constexpr (std::same_as<T, std::int16_t>) return 0x0b;
        else if constexpr (std::same_as<T, std::int32_t>) return 0x0c;
        else if constexpr (std::same_as<T, float>) return 0x0d;
        else {
            static_assert(std::same_as<T, double>, "hvd: IDX has no elements of this type");
            return 0x0e;
        }
    }

    static T from_big_endian(T element) {
        if constexpr (sizeof(T) > 1 && std::endian::native == std::endian::little) {
            unsigned char bytes[sizeof(T)];
            std::memcpy(bytes, &element, sizeof(T));
            for (std::size_t i = 0; i < sizeof(T) / 2; ++i)
                std::swap(bytes[i], bytes[sizeof(T) - 1 - i]);
            std::memcpy(&element, bytes, sizeof(T));
        }
        return element;
    }

    std::uint64_t header_bytes() const { return 4 + 4 * shape_.size(); }

    void read_header() {
        std::uint8_t magic[4] = {};
        if (file_.size() < sizeof magic)
            file_.refuse("not an IDX file: it has ", file_.size(), " bytes");
        file_.read(0, magic, sizeof magic);
        if (magic[0] == 0x1f && magic[1] == 0x8b) file_.refuse("compressed: gunzip it first");
        if (magic[0] != 0 || magic[1] != 0 || magic[3] == 0) file_.refuse_at(0, "not an IDX file");
        if (magic[2] != code_of_elements())
            file_.refuse_at(2, "elements of the type ", int(magic[2]), ", and ",
                            int(code_of_elements()), " was expected");
        shape_.resize(magic[3]);
        if (file_.size() < header_bytes())
            file_.refuse("torn: its header alone would have ", header_bytes(), " bytes, it has ",
                         file_.size());
        read_shape();
    }

    void read_shape() {
        std::uint64_t bytes = sizeof(T);
        elements_ = 1;
        for (std::size_t d = 0; d < shape_.size(); ++d) {
            std::uint8_t extent[4];
            file_.read(4 + 4 * d, extent, sizeof extent);
            for (const std::uint8_t byte : extent) shape_[d] = shape_[d] << 8 | byte;
            if (__builtin_mul_overflow(bytes, std::uint64_t(shape_[d]), &bytes))
                file_.refuse_at(4 + 4 * d, "its header asks for more than 2^64 bytes");
        }
        if (bytes != file_.size() - header_bytes())
            file_.refuse("its header asks for ", bytes, " bytes of elements, it has ",
                         file_.size() - header_bytes());
        // An array without elements may have samples. They are empty.
        for (std::size_t d = 1; d < shape_.size(); ++d) elements_ *= bytes == 0 ? 0 : shape_[d];
    }

    hvd::detail::input_file file_;
    std::vector<std::size_t> shape_;
    std::size_t elements_ = 0;  // of a sample
};

}  // namespace hvd::inline v0::data
