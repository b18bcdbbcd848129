// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "../train/checkpoint/safetensors_file.hpp"

namespace hvd::inline v0::data {

/// A tensor of a safetensors file. A sample is a slice along its first dimension, as a vector of
/// its elements. It needs nlohmann-json.
/// **Threads**: several threads read at once.
template <class T>
    requires(!std::same_as<T, bool>)
class safetensors_rows {
public:
    /// @throws hvd::checkpoint_error for a file that is absent, torn or inconsistent, and for one
    /// without such a tensor of these elements, with at least one dimension.
    safetensors_rows(std::string path, std::string_view tensor) : file_(std::move(path)) {
        const auto found = file_.tensors().find(std::string(tensor));
        if (found == file_.tensors().end())
            hvd::detail::refuse_file(file_.path(), "has no tensor \"", tensor, "\"");
        const safetensors_file::entry& entry = found->second;
        if (entry.type != dtype_traits<T>::id)
            hvd::detail::refuse_file(file_.path(), "tensor \"", tensor, "\" is of ",
                                     entry.type_name.c_str(), ", and of ",
                                     dtype_name(dtype_traits<T>::id), " was expected");
        if (entry.shape.empty())
            hvd::detail::refuse_file(file_.path(), "tensor \"", tensor,
                                     "\" has no dimension for samples");
        first_ = entry.first;
        shape_ = entry.shape;
        elements_ = shape_[0] == 0 ? 0 : entry.bytes / sizeof(T) / shape_[0];
    }

    std::size_t size() const { return shape_[0]; }
    /// The shape of the whole tensor, the number of samples first.
    const std::vector<std::size_t>& shape() const { return shape_; }

    std::vector<T> read(std::size_t i) const {
        if (i >= size()) hvd::detail::refuse_file(file_.path(), "sample ", i, " of ", size());
        std::vector<T> sample(elements_);
        file_.read_bytes(first_ + i * elements_ * sizeof(T), sample.data(), elements_ * sizeof(T));
        return sample;
    }

private:
    safetensors_file file_;
    std::size_t first_ = 0;     // byte of the file
    std::size_t elements_ = 0;  // of a sample
    std::vector<std::size_t> shape_;
};

}  // namespace hvd::inline v0::data
