// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "../gradients/bucket_members.hpp"
#include "../gradients/registry.hpp"
#include "feedback.hpp"
#include "gradients.hpp"
#include "shard.hpp"

namespace hvd::inline v0::detail {

// A bucket of gradients on the device that one plan reduces, on the communicator's own stream. It
// starts behind the streams that wrote its gradients.
template <class Comm, class T>
class device_bucket {
public:
    // **Collective**: the ranks agree on the plan.
    device_bucket(Comm& comm, std::vector<std::size_t> members, const parameter_list& parameters,
                  const optimizer_options& options, const device_plan_options& scales)
        : members_(std::move(members)) {
        if constexpr (std::is_same_v<T, float>)
            if (options.codec.keeps_residual()) {
                feedback_.emplace(comm, members_, parameters, options, scales);
                return;
            }
        std::vector<tensor_view<T, device>> gradients, values;
        for (const std::size_t i : members_) {
            gradients.push_back(parameters[i].gradient.as<T, device>());
            values.push_back(parameters[i].value.as<T, device>());
        }
        if (options.shard_state) {
            shard(comm, gradients, values, options.op, scales);
            return;
        }
        auto plan = with_plan_codec(options.codec, [&](auto codec) {
            const auto tensors = fuse(std::span(gradients));
            return options.op == hvd::average ? comm.plan_allreduce(tensors, average, scales, codec)
                                              : comm.plan_allreduce(tensors, sum, scales, codec);
        });
        plan_ = ordered_plan(device_access::session_of(comm), std::move(plan));
    }

    const std::vector<std::size_t>& members() const { return members_; }

    void begin_epoch(std::uint64_t epoch) {
        feedback_ ? feedback_->begin_epoch(epoch) : plan_.begin_epoch(epoch);
    }

    // A gradient of the bucket is written by what `stream` has been given. The stream of a thread
    // is another one for the thread that starts the bucket.
    void follow(cudaStream_t stream) {
        if (stream == cudaStreamPerThread)
            return feedback_ ? feedback_->follow(stream) : plan_.follow(stream);
        for (const cudaStream_t s : writers_)
            if (s == stream) return;
        writers_.push_back(stream);
    }

    void start() {
        if (feedback_) return feedback_->start(std::exchange(writers_, {}));
        plan_.start(std::exchange(writers_, {}), [&](cudaStream_t own) {
            if (shard_) shard_->pack_gradients(own);
        });
    }

    // The host waits for nothing.
    static void wait() {}
    static void send_back() {}

    // Makes later work of `stream` wait for the bucket.
    void finish(cudaStream_t stream) {
        feedback_ ? feedback_->finish(stream) : plan_.finish(stream);
    }

    // Calls f with the bucket's error feedback, if it has one.
    template <class F>
    void with_feedback(F f) {
        if (feedback_) f(*feedback_);
    }

    // With sharded state: the reduced gradient of this rank's slice of the n-th member.
    tensor_view<T, device> gradient_slice(std::size_t n, std::size_t count) const {
        return shard_->gradient(n, count);
    }

    // With sharded state: sends every rank the new values of all slices. The parameters take them
    // then, unless the launch is stopped.
    void send_values(cudaStream_t stream) {
        shard_->pack_values(stream);
        gather_.start({&stream, 1});
        gather_.finish(stream);
    }
    void take_values(cudaStream_t stream, const std::uint32_t* stop) {
        shard_->unpack_values(stream, stop);
    }

private:
    void shard(Comm& comm, const std::vector<tensor_view<T, device>>& gradients,
               const std::vector<tensor_view<T, device>>& values, gradient_op op,
               const device_plan_options& scales) {
        const auto& session = device_access::session_of(comm);
        shard_.emplace(*session, gradients, values);
        const auto reduced_by = [&](const auto& operation) {
            return comm.plan_reduce_scatter(shard_->gradients(), operation,
                                            into(shard_->own_gradients()), scales);
        };
        plan_ = ordered_plan(session, op == hvd::average ? reduced_by(average) : reduced_by(sum));
        gather_ =
            ordered_plan(session, comm.plan_allgather(shard_->own_values(), into(shard_->values()),
                                                      {.name = "parameters"}));
    }

    std::vector<std::size_t> members_;
    std::vector<cudaStream_t> writers_;
    std::optional<shard_buffers<T>> shard_;
    std::optional<device_feedback<Comm>> feedback_;  // instead of the plan
    ordered_plan plan_, gather_;  // last: they wait for their runs before the buffers go
};

}  // namespace hvd::inline v0::detail
