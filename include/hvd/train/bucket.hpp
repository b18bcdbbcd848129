// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../comm/communicator.hpp"
#include "gradient_wire.hpp"
#include "optimizer_options.hpp"
#include "tensors.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Gradients that are reduced by one call: a plan, begun by the last of them that is ready.
template <class Comm, class T>
class gradient_bucket {
public:
    // **Collective**: the ranks agree on the plan.
    gradient_bucket(Comm& comm, std::vector<std::size_t> members,
                    std::vector<tensor_view<T>> gradients, const optimizer_options& options,
                    const reduce_options& scales)
        : members_(std::move(members)),
          gradients_(std::move(gradients)),
          codec_(options.codec),
          scales_(scales) {
        std::size_t count = 0;
        for (const auto& g : gradients_) count += g.size();
        const auto plan_of = [&](auto&& tensors, const reduce_options& o) {
            return options.op == gradient_op::average ? comm.plan_allreduce(tensors, average, o)
                                                      : comm.plan_allreduce(tensors, sum, o);
        };
        if (codec_ == gradient_codec::none) plan_ = plan_of(fuse(std::span(gradients_)), scales);
        with_wire([&](auto& wire) {
            wire = {count, options.error_feedback};
            plan_ = plan_of(wire.elements(), {.name = scales.name});
        });
    }

    const std::vector<std::size_t>& members() const { return members_; }

    void start() {
        with_wire([&](auto& wire) { wire.encode(gradients_, scales_.prescale); });
        running_ = plan_.run_async();
    }

    void finish() {
        running_.wait();
        with_wire([&](auto& wire) { wire.decode(gradients_, scales_.postscale); });
    }

private:
    // f with what the gradients travel in; not called where they travel as they are.
    template <class F>
    void with_wire(F f) {
        if (codec_ == gradient_codec::float16) f(float16s_);
        if (codec_ == gradient_codec::bfloat16) f(bfloat16s_);
    }

    std::vector<std::size_t> members_;
    std::vector<tensor_view<T>> gradients_;
    gradient_codec codec_;
    reduce_options scales_;
    gradient_wire<float16> float16s_;
    gradient_wire<bfloat16> bfloat16s_;
    plan<typename Comm::backend_type> plan_;
    request running_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
