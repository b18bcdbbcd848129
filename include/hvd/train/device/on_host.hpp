// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

#include "../gradients/registry.hpp"
#include "mirror.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A copy on the host of a distributed optimizer on the device, with the members that checkpoints
// and broadcasts of state use. The slots of the optimizer itself have the state meanwhile.
template <class O, class T>
class optimizer_on_host {
public:
    optimizer_on_host(device_session& session, const parameter_list<T, device>& parameters,
                      O& optimizer)
        : parameters_(parameters), optimizer_(optimizer), values_(session, values_of(parameters)) {}

    O& optimizer() { return optimizer_; }
    host_mirror<T>& values() { return values_; }

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
    bool is_local(std::size_t i) const {
        return i < parameters_.size() && parameters_[i].kind == parameter_kind::local;
    }

private:
    static std::vector<tensor_view<T, device>> values_of(const parameter_list<T, device>& all) {
        std::vector<tensor_view<T, device>> values;
        for (const auto& p : all) values.push_back(p.value);
        return values;
    }

    const parameter_list<T, device>& parameters_;
    O& optimizer_;
    host_mirror<T> values_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
