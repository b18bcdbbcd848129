// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../gradients/registry.hpp"
#include "gradients.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A bucket of gradients on the device that one plan reduces, on the communicator's own stream. It
// starts behind the streams that wrote its gradients.
template <class Comm, class T>
class device_bucket {
public:
    // **Collective**: the ranks agree on the plan.
    device_bucket(Comm& comm, std::vector<std::size_t> members,
                  const parameter_list<T, device>& parameters, const optimizer_options& options,
                  const device_plan_options& scales)
        : members_(std::move(members)) {
        std::vector<tensor_view<T, device>> gradients;
        for (const std::size_t i : members_) gradients.push_back(parameters[i].gradient);
        auto plan = with_plan_codec(options.codec, [&](auto codec) {
            const auto tensors = fuse(std::span(gradients));
            return options.op == gradient_op::average
                       ? comm.plan_allreduce(tensors, average, scales, codec)
                       : comm.plan_allreduce(tensors, sum, scales, codec);
        });
        plan_ = ordered_plan(device_access::session_of(comm), std::move(plan));
    }

    const std::vector<std::size_t>& members() const { return members_; }

    // A gradient of the bucket is written by what `stream` has been given.
    void follow(cudaStream_t stream) {
        for (const cudaStream_t s : writers_)
            if (s == stream) return;
        writers_.push_back(stream);
    }

    void start() { plan_.start(std::exchange(writers_, {})); }

    // Makes later work of `stream` wait for the bucket.
    void finish(cudaStream_t stream) { plan_.finish(stream); }

private:
    std::vector<std::size_t> members_;
    std::vector<cudaStream_t> writers_;
    ordered_plan plan_;
};

// The buckets of a step. They start in a fixed order, since calls are matched by order.
template <class Comm, class T>
class device_buckets {
public:
    std::size_t size() const { return buckets_.size(); }
    std::size_t started() const { return started_; }

    // **Collective**.
    void add(Comm& comm, std::vector<std::size_t> members,
             const parameter_list<T, device>& parameters, const optimizer_options& options,
             const device_plan_options& scales) {
        buckets_.emplace_back(comm, std::move(members), parameters, options, scales);
    }
    void clear() {
        buckets_.clear();
        started_ = 0;
    }

    void follow(std::size_t parameter, cudaStream_t stream) {
        for (auto& bucket : buckets_)
            for (const std::size_t i : bucket.members())
                if (i == parameter) return bucket.follow(stream);
    }

    // Starts buckets in order, while `complete` says that all members of the next are ready.
    template <class Complete>
    void start_while(Complete complete) {
        for (; started_ < buckets_.size() && complete(buckets_[started_].members()); ++started_)
            buckets_[started_].start();
    }

    // Starts the rest behind the stream, and makes its later work wait for all.
    void finish(cudaStream_t stream) {
        for (std::size_t b = started_; b < buckets_.size(); ++b) buckets_[b].follow(stream);
        start_while([](const auto&) { return true; });
        started_ = 0;
        for (auto& bucket : buckets_) bucket.finish(stream);
    }

private:
    std::vector<device_bucket<Comm, T>> buckets_;
    std::size_t started_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
