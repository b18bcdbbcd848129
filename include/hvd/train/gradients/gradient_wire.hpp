// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include "../../core/concepts.hpp"
#include "elements.hpp"
#include "options.hpp"

namespace hvd::inline v0::detail {

// True if the backend reduces the elements that a codec makes. Not every backend can.
template <class Half, class Backend>
constexpr bool reduces_wire =
    reducible<Half, op::sum, Backend> && reducible<Half, op::average, Backend>;

template <class Backend>
constexpr bool reduces_wire_of(gradient_codec codec) {
    if (codec.travels_as<float16>()) return reduces_wire<float16, Backend>;
    return codec == hvd::codec::none || reduces_wire<bfloat16, Backend>;
}

constexpr const char* no_wire_text =
    "this backend does not reduce 16-bit floats, which the codec makes of gradients";

// Calls f with a 16-bit float of the codec's type. It is not called without a codec.
template <class Backend, class F>
void with_wire_type(gradient_codec codec, F f) {
    if constexpr (reduces_wire<float16, Backend>)
        if (codec.travels_as<float16>()) f(float16(0.0f));
    if constexpr (reduces_wire<bfloat16, Backend>)
        if (codec.travels_as<bfloat16>()) f(bfloat16(0.0f));
}

// Gradients side by side as the 16-bit floats of a codec.
class gradient_wire {
public:
    gradient_wire() = default;
    gradient_wire(gradient_codec codec, std::size_t count) : codec_(codec), halves_(count) {}

    explicit operator bool() const { return codec_ != hvd::codec::none; }

    template <class Half>
    tensor_view<Half> as() {
        return {reinterpret_cast<Half*>(halves_.data()), {halves_.size()}};
    }
    flat_tensor tensor() {
        return {reinterpret_cast<std::byte*>(halves_.data()), halves_.size(),
                *code_of_options::functions(codec_).halves};
    }

    void encode(const std::vector<flat_tensor>& gradients, double scale) {
        auto* to = reinterpret_cast<std::byte*>(halves_.data());
        for (const flat_tensor& g : gradients) {
            encode_elements(code_of_options::functions(codec_), g.kind(), g.data(), g.size(), to,
                            scale);
            to += g.size() * sizeof(std::uint16_t);
        }
    }
    void decode(const std::vector<flat_tensor>& gradients, double scale) const {
        auto* from = reinterpret_cast<const std::byte*>(halves_.data());
        for (const flat_tensor& g : gradients) {
            decode_elements(code_of_options::functions(codec_), g.kind(), from, g.size(), g.data(),
                            scale);
            from += g.size() * sizeof(std::uint16_t);
        }
    }

private:
    gradient_codec codec_ = hvd::codec::none;
    std::vector<std::uint16_t> halves_;
};

// Flat views of the gradients of a list.
template <class Views>
std::vector<flat_tensor> flat_list(const Views& gradients) {
    std::vector<flat_tensor> all;
    for (std::size_t i = 0; i < std::size(gradients); ++i)
        all.push_back(flat_tensor(flat_view(std::data(gradients)[i])));
    return all;
}
inline std::size_t size_of(const std::vector<flat_tensor>& tensors) {
    std::size_t elements = 0;
    for (const flat_tensor& t : tensors) elements += t.size();
    return elements;
}

}  // namespace hvd::inline v0::detail
