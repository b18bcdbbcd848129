// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

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
template <class T>
class withheld_step {
public:
    // Construct it before the step.
    explicit withheld_step(const parameter_list<T>& parameters) : parameters_(parameters) {
        for (const auto& p : parameters) {
            const auto values = elements(p.value);
            kept_.emplace_back(values.begin(), p.frozen ? values.begin() : values.end());
        }
    }

    // Call it after the step. It keeps the new values of local parameters, and the changes of the
    // others.
    void take_back() {
        for_each([](const registered_parameter<T>& p, T& now, T& kept) {
            std::swap(now, kept);
            if (p.travels()) kept = from_double<T>(as_double(kept) - as_double(now));
        });
    }

    template <class Comm>
    void combine(Comm& comm, std::string_view name) {
        std::vector<tensor_view<T>> changes;
        for (std::size_t i = 0; i < kept_.size(); ++i)
            if (parameters_[i].travels()) changes.push_back(view(kept_[i].data(), kept_[i].size()));
        adasum_allreduce(comm, fuse(changes), {.name = name});
    }

    void take() {
        for_each([](const registered_parameter<T>& p, T& now, T& kept) {
            now = p.travels() ? from_double<T>(as_double(now) + as_double(kept)) : kept;
        });
    }

private:
    template <class F>
    void for_each(F f) {
        for (std::size_t i = 0; i < kept_.size(); ++i)
            for (std::size_t k = 0; k < kept_[i].size(); ++k)
                f(parameters_[i], parameters_[i].value.data()[k], kept_[i][k]);
    }

    const parameter_list<T>& parameters_;
    std::vector<std::vector<T>> kept_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
