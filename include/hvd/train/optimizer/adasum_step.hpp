// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "../gradients/adasum.hpp"
#include "../gradients/any_communicator.hpp"
#include "../gradients/options.hpp"
#include "../gradients/registry.hpp"

namespace hvd::inline v0::detail {

// A step that one rank has taken by itself. It is withheld until the ranks have combined its
// changes, so that a failure leaves the parameters as they were before.
class withheld_step {
public:
    explicit withheld_step(const parameter_list& parameters) : parameters_(parameters) {}

    // **Collective**. `step` is this rank's own, which may fail there alone.
    template <class Comm, class Step>
    void combine(Comm& comm, std::string_view name, Step step, step_question* question = nullptr) {
        const auto list = [&](adasum_tensors& changes) {
            keep();
            make(step);
            take_back();
            for_each([&](const registered_parameter& p, std::byte*, std::byte* kept) {
                if (!p.travels()) return;
                const flat_tensor change(kept, p.value.size(), p.value.kind());
                changes.add(change.ref(), change);
            });
        };
        combine_by_adasum(comm, {.name = name}, list, question);
        take();
    }

private:
    void keep() {
        for (const auto& p : parameters_)
            kept_.emplace_back(p.value.data(), p.value.data() + (p.frozen ? 0 : p.value.bytes()));
    }

    template <class Step>
    void make(Step step) {
        try {
            step();
        } catch (...) {
            for_each([](const registered_parameter& p, std::byte* now, const std::byte* kept) {
                std::memcpy(now, kept, p.value.bytes());
            });
            throw;
        }
    }

    // Keeps the new values of local parameters, and the changes of the others.
    void take_back() {
        for_each([](const registered_parameter& p, std::byte* now, std::byte* kept) {
            std::swap_ranges(now, now + p.value.bytes(), kept);
            if (p.travels()) p.value.kind().subtract(kept, now, p.value.size());
        });
    }

    void take() {
        for_each([](const registered_parameter& p, std::byte* now, const std::byte* kept) {
            if (p.travels()) p.value.kind().add(now, kept, p.value.size());
            else std::memcpy(now, kept, p.value.bytes());
        });
    }

    // Calls f with each parameter that is stepped, its memory and what is kept of it.
    template <class F>
    void for_each(F f) {
        for (std::size_t i = 0; i < kept_.size(); ++i)
            if (!kept_[i].empty()) f(parameters_[i], parameters_[i].value.data(), kept_[i].data());
    }

    const parameter_list& parameters_;
    std::vector<std::vector<std::byte>> kept_;
};

// The needs of such a step: those of an optimizer, with a factor for its gradients.
struct withheld_arguments {
    const parameter_list& parameters;
    std::string_view name;
    void (*step)(void* optimizer, double factor);
    void* optimizer;
    double factor;
    step_question* question;
};

template <class Calls>
void step_by_adasum(Calls& calls, const withheld_arguments& of) {
    withheld_step(of.parameters)
        .combine(calls, of.name, [&] { of.step(of.optimizer, of.factor); }, of.question);
}

// On a communicator of the host the operation knows the function: see options.hpp.
template <class Calls>
auto adasum_stepper(const Calls&, gradient_op) {
    return &step_by_adasum<Calls>;
}
inline withheld_stepper adasum_stepper(const any_communicator&, gradient_op op) {
    return code_of_options::by_adasum(op);
}

}  // namespace hvd::inline v0::detail
