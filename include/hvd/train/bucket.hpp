// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../comm/communicator.hpp"
#include "../core/half.hpp"
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
                    std::vector<tensor_view<T>> gradients, gradient_codec codec, gradient_op op,
                    const reduce_options& scales)
        : members_(std::move(members)), gradients_(std::move(gradients)), codec_(codec) {
        std::size_t count = 0;
        for (const auto& g : gradients_) count += g.size();
        const auto plan_of = [&](auto&& tensors) {
            return op == gradient_op::average ? comm.plan_allreduce(tensors, average, scales)
                                              : comm.plan_allreduce(tensors, sum, scales);
        };
        if (codec_ == gradient_codec::float16) float16s_.resize(count);
        if (codec_ == gradient_codec::bfloat16) bfloat16s_.resize(count);
        plan_ = codec_ == gradient_codec::float16    ? plan_of(float16s_)
                : codec_ == gradient_codec::bfloat16 ? plan_of(bfloat16s_)
                                                     : plan_of(fuse(std::span(gradients_)));
    }

    const std::vector<std::size_t>& members() const { return members_; }

    void start() {
        encode(float16s_);
        encode(bfloat16s_);
        running_ = plan_.run_async();
    }

    void finish() {
        running_.wait();
        decode(float16s_);
        decode(bfloat16s_);
    }

private:
    template <class Half>
    void encode(std::vector<Half>& wire) {
        if (wire.empty()) return;
        auto to = wire.begin();
        for (const auto& g : gradients_)
            for (const T& x : elements(g)) *to++ = Half(float(as_double(x)));
    }

    template <class Half>
    void decode(const std::vector<Half>& wire) {
        if (wire.empty()) return;
        auto from = wire.begin();
        for (const auto& g : gradients_)
            for (T& x : elements(g)) x = from_double<T>(float(*from++));
    }

    std::vector<std::size_t> members_;
    std::vector<tensor_view<T>> gradients_;
    gradient_codec codec_;
    std::vector<float16> float16s_;
    std::vector<bfloat16> bfloat16s_;
    plan<typename Comm::backend_type> plan_;
    request running_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
