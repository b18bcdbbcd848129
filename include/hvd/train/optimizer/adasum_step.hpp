// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "../gradients/adasum.hpp"
#include "../gradients/registry.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A step that one rank has taken by itself. It is withheld until the ranks have combined its
// changes, so that a failure leaves the parameters as they were before.
class withheld_step {
public:
    // Construct it before the step.
    explicit withheld_step(const parameter_list& parameters) : parameters_(parameters) {
        for (const auto& p : parameters)
            kept_.emplace_back(p.value.data(), p.value.data() + (p.frozen ? 0 : p.value.bytes()));
    }

    // Call it after the step. It keeps the new values of local parameters, and the changes of the
    // others.
    void take_back() {
        for_each([](const registered_parameter& p, std::byte* now, std::byte* kept) {
            std::swap_ranges(now, now + p.value.bytes(), kept);
            if (p.travels()) p.value.kind().subtract(kept, now, p.value.size());
        });
    }

    template <class Comm>
    void combine(Comm& comm, std::string_view name, step_question* question = nullptr) {
        std::vector<flat_tensor> changes;
        std::vector<tensor_ref> described;
        for_each([&](const registered_parameter& p, std::byte*, std::byte* kept) {
            if (!p.travels()) return;
            changes.emplace_back(kept, p.value.size(), p.value.kind());
            described.push_back(changes.back().ref());
        });
        const reduce_options o{.name = name};
        agree_on_adasum(comm, described, o, question);
        if (!changes.empty()) combine_by_adasum(comm, changes, o);
    }

    void take() {
        for_each([](const registered_parameter& p, std::byte* now, const std::byte* kept) {
            if (p.travels()) p.value.kind().add(now, kept, p.value.size());
            else std::memcpy(now, kept, p.value.bytes());
        });
    }

private:
    // Calls f with each parameter that is stepped, its memory and what is kept of it.
    template <class F>
    void for_each(F f) {
        for (std::size_t i = 0; i < kept_.size(); ++i)
            if (!kept_[i].empty()) f(parameters_[i], parameters_[i].value.data(), kept_[i].data());
    }

    const parameter_list& parameters_;
    std::vector<std::vector<std::byte>> kept_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
