// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <utility>

#include "../calls.hpp"
#include "flat_allreduce.hpp"

namespace hvd::inline v0::detail {

// The calls of training on a communicator of the host. They are the same for all backends, so that
// what stands on them is compiled once. It keeps the communicator's session.
class any_communicator : public allreduce_calls<any_communicator, any_backend>,
                         public reduce_scatter_calls<any_communicator, any_backend>,
                         public broadcast_calls<any_communicator, any_backend>,
                         public allgather_calls<any_communicator, any_backend>,
                         public alltoall_calls<any_communicator, any_backend>,
                         public plan_calls<any_communicator, any_backend> {
public:
    using backend_type = any_backend;

    explicit any_communicator(shared<detail::session> of) : session_(std::move(of)) {}
    template <class Backend>
    explicit any_communicator(communicator<Backend>& of)
        : session_(of ? shared<detail::session>(&access::session_of(of))
                      : shared<detail::session>()) {}

    explicit operator bool() const noexcept { return bool(session_); }
    int rank() const noexcept { return !session_ ? -1 : session_->rank(); }
    int size() const noexcept { return !session_ ? 0 : session_->size(); }

    // Plans the reduction of tensors of one type, which are a list or one.
    plan<any_backend> plan_gradients(std::span<const flat_tensor> list, gradient_op how,
                                     const reduce_options& o,
                                     const bucket_inputs* inputs = nullptr) {
        auto made =
            make(collective::allreduce, o, [&] { return flat_allreduce(list, how, o, inputs); });
        if (inputs != nullptr && inputs->checks_finite)
            static_cast<call_driver&>(*session_).take_finite_checks();
        return made;
    }

    // False if the backend tells the peers nothing of a call that this rank refuses.
    bool tells_peers() const { return static_cast<const call_driver&>(*session_).compares_calls(); }

    void make_progress() { static_cast<call_driver&>(*session_).make_progress(true); }

private:
    friend struct access;

    shared<detail::session> session_;
};

// The maximum of few numbers over the ranks. They are reduced by plain code, which gives the same
// bits, so that no kernels are compiled for them.
template <class T>
struct few_maxima : call {
    few_maxima(std::span<T> numbers, const reduce_options& o)
        : call(collective::allreduce, o.name) {
        describe(view(numbers.data(), numbers.size()));
        describe_operation(op, hvd::max, 1, 1);
        op.in = op.out = reinterpret_cast<std::byte*>(numbers.data());
        group_ = {[](const reduce_args& args) {
                      reduce_plain<T, op::max>(args, 0, args.count, args.out);
                  },
                  op.callable,
                  sizeof(T),
                  0,
                  numbers.size(),
                  nullptr,
                  dtype_traits<T>::id,
                  false};
        op.groups = &group_;
        op.group_count = 1;
    }

private:
    reduction_group group_;
};

template <class Calls, class T>
void reduce_maxima(Calls& calls, std::span<T> numbers, const reduce_options& o) {
    if constexpr (std::is_same_v<Calls, any_communicator>) {
        few_maxima<T> call(numbers, o);
        run_call(calls, call, o);
    } else {
        calls.allreduce(view(numbers.data(), numbers.size()), max, o);
    }
}

// A reduction that is made again and again: a plan of a communicator, or a tensor of an engine.
template <class Calls>
using plan_of = decltype(std::declval<Calls&>().plan_gradients({}, hvd::sum, {}));

}  // namespace hvd::inline v0::detail
