// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "../gradients/gradients.hpp"
#include "calls.hpp"

namespace hvd::inline v0 {
namespace detail {

// Gradients of a tape, each under its name.
template <class Backend>
class named_gradients {
public:
    named_gradients(engine<Backend>& on, const gradient_options& o) : engine_(on), o_(o) {}

    template <class View>
    void reduce(std::string_view name, const View& gradient) {
        if (o_.codec == hvd::codec::none)
            return submit(name, gradient, {.prescale = o_.prescale, .postscale = o_.postscale});
        const std::vector<flat_tensor> list = {flat_tensor(flat_view(gradient))};
        const auto wire = std::make_shared<gradient_wire>(o_.codec, size_of(list));
        wire->encode(list, o_.prescale);
        with_wire_type<Backend>(
            o_.codec, [&]<class Half>(Half) { submit(name, wire->template as<Half>(), {}); });
        decode_.push_back([wire, list, scale = o_.postscale] { wire->decode(list, scale); });
    }

    // Waits for all, also if one fails.
    void wait() {
        std::exception_ptr first;
        for (request& r : requests_) try {
                r.wait();
            } catch (...) {
                if (!first) first = std::current_exception();
            }
        if (first) std::rethrow_exception(first);
        for (auto& decode : decode_) decode();
    }

private:
    template <class X>
    void submit(std::string_view name, X&& x, named_options how) {
        how.priority = -int(requests_.size());
        requests_.push_back(o_.op == hvd::average ? engine_.allreduce(name, x, average, how)
                                                  : engine_.allreduce(name, x, sum, how));
    }

    engine<Backend>& engine_;
    const gradient_options& o_;
    std::vector<std::function<void()>> decode_;
    std::vector<request> requests_;
};

}  // namespace detail

/// Combines the gradients of a backward pass over all ranks of an engine, in place, as one group
/// that travels under the name "training: gradients".
template <class Backend, class Views>
void distributed_gradients(engine<Backend>& on, const Views& gradients,
                           const gradient_options& o = {}) {
    detail::engine_calls calls(on);
    detail::check_wire<Backend>(calls, o.codec);
    distributed_gradients(calls, gradients, o);
}

/// Combines gradients by their names, so that the ranks may give them in different orders.
///
/// @tparam Names a contiguous range of texts: the names of the gradients, equal on all ranks.
/// @tparam Views a contiguous range of `tensor_view`s, as many.
/// **Completion**: done on return. @throws as `engine::allreduce`; hvd::usage_error for Adasum and
/// if there are not as many names as gradients, of which no other rank is told. Horovod:
/// `DistributedGradientTape`.
/// @snippet tests/train/engine_snippets.cpp named_gradients
template <class Backend, class Names, class Views>
    requires std::convertible_to<decltype(*std::data(std::declval<const Names&>())),
                                 std::string_view>
void distributed_gradients(engine<Backend>& on, const Names& names, const Views& gradients,
                           const gradient_options& o = {}) {
    const std::size_t count = std::size(gradients);
    if (std::size(names) != count)
        detail::refuse(on.rank(), "there are ", std::size(names), " names and ", count,
                       " gradients");
    if (o.op == hvd::adasum)
        detail::refuse(on.rank(), "Adasum combines gradients in one order: leave their names out");
    if (!detail::reduces_wire_of<Backend>(o.codec)) detail::refuse(on.rank(), detail::no_wire_text);
    detail::named_gradients<Backend> all(on, o);
    for (std::size_t i = 0; i < count; ++i)
        all.reduce(std::data(names)[i], std::data(gradients)[i]);
    all.wait();
}

/// Combines all gradients but those of local parameters, as `partial_distributed_gradients` does on
/// a communicator.
template <class Backend, class Values, class Views>
void partial_distributed_gradients(engine<Backend>& on, const Values& parameters,
                                   const Views& gradients, const local_parameters& local,
                                   const gradient_options& o = {}) {
    const std::size_t count = std::size(parameters);
    if (count != std::size(gradients)) {
        const auto why = detail::text("there are ", count, " parameters and ", std::size(gradients),
                                      " gradients");
        on.refuse("training: gradients", std::string_view(why));
        detail::refuse(on.rank(), std::string_view(why));
    }
    detail::engine_calls calls(on);
    detail::check_wire<Backend>(calls, o.codec);
    partial_distributed_gradients(calls, parameters, gradients, local, o);
}

}  // namespace hvd::inline v0
