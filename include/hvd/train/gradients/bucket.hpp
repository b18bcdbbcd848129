// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../../protocol/step_question.hpp"
#include "../calls.hpp"
#include "feedback_wire.hpp"
#include "gradient_wire.hpp"
#include "options.hpp"
#include "registry.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A bucket of gradients that one call reduces. The call is a plan, which starts when the last of
// them is ready.
template <class Comm, class T>
class gradient_bucket {
public:
    // **Collective**: the ranks agree on the plan. A question, if there is one, goes with the
    // gradients. It is not for error feedback.
    gradient_bucket(Comm& comm, std::vector<std::size_t> members, parameter_list<T>& parameters,
                    const optimizer_options& options, const reduce_options& scales,
                    shared<step_question> question)
        : members_(std::move(members)),
          codec_(options.codec),
          scales_(scales),
          question_(std::move(question)) {
        if (options.error_feedback) {
            feedback_.emplace(comm, members_, parameters, options, scales);
            return;
        }
        for (const std::size_t i : members_) gradients_.push_back(parameters[i].gradient);
        if (question_) {
            answer_.resize(1);
            gradients_.push_back(flat_view(answer_));
        }
        std::size_t count = 0;
        for (const auto& g : gradients_) count += g.size();
        const auto plan_of = [&](auto&& tensors, const reduce_options& o) {
            return options.op == gradient_op::average ? comm.plan_allreduce(tensors, average, o)
                                                      : comm.plan_allreduce(tensors, sum, o);
        };
        if (codec_ == gradient_codec::none) plan_ = plan_of(fuse(std::span(gradients_)), scales);
        with_wire([&](auto& wire) {
            wire = std::remove_cvref_t<decltype(wire)>(count);
            plan_ = plan_of(wire.elements(), {.name = scales.name});
        });
    }

    const std::vector<std::size_t>& members() const { return members_; }

    // True if the call was started, and nobody has waited for it.
    bool is_under_way() const { return feedback_ ? feedback_->is_under_way() : bool(running_); }

    void begin_epoch(std::uint64_t epoch) {
        feedback_ ? feedback_->begin_epoch(epoch) : plan_.begin_epoch(epoch);
    }

    void start() {
        if (feedback_) return feedback_->start();
        if (question_) answer_[0] = from_double<T>(question_->ask() ? yes : 0);
        with_wire([&](auto& wire) { wire.encode(gradients_, scales_.prescale); });
        running_ = plan_.run_async();
    }

    // Waits until the gradients are reduced. With error feedback a second call brings the results.
    void wait() {
        if (feedback_) return feedback_->wait();
        running_.wait();
        with_wire([&](auto& wire) { wire.decode(gradients_, scales_.postscale); });
        if (question_) question_->settle(as_double(answer_[0]) != 0);
    }
    void send_back() {
        if (feedback_) feedback_->send_back();
    }
    void finish() {
        if (feedback_) feedback_->finish();
    }

    // The step with these gradients was made.
    void commit() {
        if (feedback_) feedback_->commit();
    }

private:
    // No scale, mean or 16-bit codec makes a zero of it.
    static constexpr double yes = std::numeric_limits<double>::infinity();

    // Calls f with the wire format of the gradients. It is not called for gradients that travel
    // unchanged.
    template <class F>
    void with_wire(F f) {
        with_wire_type<typename Comm::backend_type>(
            codec_, [&](auto narrow) { f(std::get<gradient_wire<decltype(narrow)>>(wires_)); });
    }

    std::vector<std::size_t> members_;
    std::vector<tensor_view<T>> gradients_;  // and the answer, if there is a question
    gradient_codec codec_;
    reduce_options scales_;
    shared<step_question> question_;
    std::vector<T> answer_;                                              // one element
    std::tuple<gradient_wire<float16>, gradient_wire<bfloat16>> wires_;  // at most one is in use
    std::optional<feedback_wire<Comm, T>> feedback_;                     // instead of the others
    plan_of<Comm> plan_;
    request running_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
