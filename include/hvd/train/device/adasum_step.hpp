// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../gradients/registry.hpp"
#include "../optimizer/adasum_step.hpp"
#include "host_calls.hpp"
#include "mirror.hpp"

namespace hvd::inline v0::detail {

// Lets the optimizer step on the device with this rank's gradients, then combines its changes on
// the host. If that fails, the parameters are as before.
template <class T, class Comm, class Step>
void step_by_adasum(host_calls<Comm>& calls, const parameter_list& parameters,
                    std::string_view name, cudaStream_t stream, Step step) {
    std::vector<tensor_view<T, device>> values;
    for (const auto& p : parameters) values.push_back(p.value.as<T, device>());
    host_mirror mirror(calls.channel().session(), values);
    parameter_list on_host;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& p = parameters[i];
        on_host.push_back({.name = p.name,
                           .value = flat_tensor(mirror.tensors()[i]),
                           .kind = p.kind,
                           .frozen = p.frozen});
    }
    mirror.fetch(stream);
    try {
        withheld_step(on_host).combine(calls, name, [&] {
            step();
            mirror.fetch(stream);
        });
    } catch (...) {
        mirror.store(stream);
        throw;
    }
    mirror.store(stream);
}

}  // namespace hvd::inline v0::detail
