// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

#include "../gradients/buffers.hpp"
#include "../gradients/registry.hpp"
#include "mirror.hpp"

namespace hvd::inline v0::detail {

// A copy on the host of a distributed optimizer on the device, with the members that checkpoints
// and broadcasts of state use. The slots of the optimizer itself have the state meanwhile.
template <class O, class T>
class optimizer_on_host {
public:
    optimizer_on_host(device_session& session, const parameter_list& parameters,
                      const registered_buffers<device>& buffers, O& optimizer)
        : parameters_(parameters),
          buffers_(buffers),
          optimizer_(optimizer),
          values_(session, values_of(parameters)),
          floats_(session, buffers.views_of(float())),
          doubles_(session, buffers.views_of(double())) {}

    O& optimizer() { return optimizer_; }

    void fetch(cudaStream_t stream) {
        for_each_mirror([&](auto& mirror) { mirror.fetch(stream); });
    }
    void store(cudaStream_t stream) {
        for_each_mirror([&](auto& mirror) { mirror.store(stream); });
    }

    template <class F>
    void for_each_shared(F f) const {
        for (std::size_t i = 0; i < parameters_.size(); ++i)
            if (!is_local(i)) f(parameters_[i].name, values_.tensors()[i], parameters_[i].shape);
    }
    template <class F>
    void for_each_parameter(F f) const {
        for (std::size_t i = 0; i < parameters_.size(); ++i)
            f(parameters_[i].name, values_.tensors()[i], parameters_[i].shape);
    }
    template <class F>
    void for_each_buffer(F f) const {
        std::size_t number[2] = {};
        buffers_.for_each_buffer(
            [&](const std::string& name, const auto& value, const auto& shape) {
                if constexpr (std::is_same_v<element_of<decltype(value)>, float>)
                    f(name, floats_.tensors()[number[0]++], shape);
                else f(name, doubles_.tensors()[number[1]++], shape);
            });
    }
    bool is_local(std::size_t i) const {
        return i < parameters_.size() && parameters_[i].kind == parameter_kind::local;
    }

private:
    static std::vector<tensor_view<T, device>> values_of(const parameter_list& all) {
        std::vector<tensor_view<T, device>> values;
        for (const auto& p : all) values.push_back(p.value.as<T, device>());
        return values;
    }

    template <class F>
    void for_each_mirror(F f) {
        f(values_);
        if (!floats_.tensors().empty()) f(floats_);
        if (!doubles_.tensors().empty()) f(doubles_);
    }

    const parameter_list& parameters_;
    const registered_buffers<device>& buffers_;
    O& optimizer_;
    host_mirror<T> values_;
    host_mirror<float> floats_;  // the buffers
    host_mirror<double> doubles_;
};

}  // namespace hvd::inline v0::detail
