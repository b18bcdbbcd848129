// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../../protocol/step_question.hpp"
#include "any_communicator.hpp"
#include "feedback_wire.hpp"
#include "gradient_wire.hpp"
#include "options.hpp"
#include "registry.hpp"

namespace hvd::inline v0::detail {

// A bucket of gradients that one call reduces. The call is a plan, which starts when the last of
// them is ready.
template <class Calls>
class gradient_bucket {
public:
    // Makes the memory of the bucket. A question, if there is one, goes with the gradients.
    [[gnu::cold]] gradient_bucket(const Calls& comm, std::vector<std::size_t> members,
                                  parameter_list& parameters, const optimizer_options& options,
                                  const reduce_options& scales, shared<step_question> question)
        : members_(std::move(members)),
          op_(options.op),
          scales_(scales),
          question_(std::move(question)) {
        if (options.codec.keeps_residual()) {
            feedback_ = feedback_on(comm, {members_, parameters, options, std::move(question_)});
            return;
        }
        inputs_ = owner<bucket_inputs>::make(options.check_finite);
        for (const std::size_t i : members_) {
            gradients_.push_back(parameters[i].gradient);
            inputs_->add(parameters[i].gradient, parameters[i].name);
        }
        if (question_) {
            answer_.resize(gradients_.front().kind().bytes);
            gradients_.push_back(flat_tensor(answer_.data(), 1, gradients_.front().kind()));
        }
        if (options.codec != hvd::codec::none)
            wire_ = gradient_wire(options.codec, size_of(gradients_));
    }

    // **Collective**: the ranks agree on the plan.
    [[gnu::cold]] void make_plan(Calls& comm) {
        if (feedback_) return feedback_->make_plans(comm, op_, scales_);
        if (!wire_) {
            plan_ = comm.plan_gradients(gradients_, op_, scales_, inputs_.get());
            return;
        }
        const flat_tensor halves = wire_.tensor();
        plan_ = comm.plan_gradients({&halves, 1}, op_, {.name = scales_.name}, inputs_.get());
    }

    const std::vector<std::size_t>& members() const { return members_; }

    // True if the call was started, and nobody has waited for it.
    bool is_under_way() const { return feedback_ ? feedback_->is_under_way() : bool(running_); }

    void begin_epoch(std::uint64_t epoch) {
        feedback_ ? feedback_->begin_epoch(epoch) : plan_.begin_epoch(epoch);
    }

    template <class Place>
    static void follow(Place) {}  // the host has written the gradients

    void start() {
        if (feedback_) return feedback_->start();
        if (question_)
            gradients_.back().kind().put(answer_.data(), question_->ask() ? step_question::yes : 0);
        if (wire_) wire_.encode(gradients_, scales_.prescale);
        running_ = plan_.run_async();
    }

    // Waits until the gradients are reduced. With error feedback a second call brings the results.
    void wait() {
        if (feedback_) return feedback_->wait();
        running_.wait();
        if (wire_) wire_.decode(gradients_, scales_.postscale);
        if (question_) question_->settle(gradients_.back().kind().get(answer_.data()) != 0);
    }
    void send_back() {
        if (feedback_) feedback_->send_back();
    }
    template <class Place>
    void finish(Place) {
        if (feedback_) feedback_->finish();
    }

    // The step with these gradients was made.
    void commit() {
        if (feedback_) feedback_->commit();
    }

private:
    std::vector<std::size_t> members_;
    gradient_op op_;
    std::vector<flat_tensor> gradients_;  // and the answer, if there is a question
    reduce_options scales_;
    shared<step_question> question_;
    owner<bucket_inputs> inputs_;             // the plan has its address
    std::vector<std::byte> answer_;           // one element
    gradient_wire wire_;                      // false: the gradients travel as they are
    owner<bucket_feedback<Calls>> feedback_;  // instead of the others
    plan_of<Calls> plan_;
    request running_;
};

}  // namespace hvd::inline v0::detail
