// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "../../protocol/step_question.hpp"
#include "any_communicator.hpp"
#include "gradient_wire.hpp"
#include "registry.hpp"
#include "slices.hpp"

namespace hvd::inline v0::detail {

// The needs of a bucket that makes its error feedback.
struct feedback_arguments {
    const std::vector<std::size_t>& members;
    parameter_list& parameters;
    const optimizer_options& options;
    // A question, if there is one, is put to each rank behind its slices.
    shared<step_question> question;
};

// The error feedback of a bucket. Buckets without it do not compile it.
template <class Calls>
class bucket_feedback {
public:
    virtual ~bucket_feedback() = default;
    // **Collective**: the ranks agree on the plans.
    virtual void make_plans(Calls& comm, gradient_op op, const reduce_options& scales) = 0;
    virtual bool is_under_way() const = 0;
    virtual void begin_epoch(std::uint64_t epoch) = 0;
    virtual void start() = 0;
    virtual void wait() = 0;
    // Rounds this rank's slice and sends it. The residuals that this makes wait for commit().
    virtual void send_back() = 0;
    virtual void finish() = 0;
    // The step with these gradients was made: what it lost is added to the next one.
    virtual void commit() = 0;
};

// The gradients of a bucket with error feedback. Their sum travels in float, so that nothing is
// lost before one rank has the mean of a slice. This rank alone rounds it to 16 bits, with the
// residual that it keeps of its slice, and the rounded slices travel to all.
//
// A 16-bit sum would be rounded wherever a backend adds up a part of the ranks, and nobody would
// know these errors.
template <class Calls>
class feedback_wire final : public bucket_feedback<Calls> {
public:
    // Makes the residuals of the members, which have zeros at first.
    feedback_wire(const Calls& comm, const feedback_arguments& from)
        : codec_(code_of_options::functions(from.options.codec)), question_(from.question) {
        const auto& members = from.members;
        parameter_list& parameters = from.parameters;
        constexpr std::size_t vector = 16 / sizeof(feedback_element);
        std::vector<std::size_t> sizes;
        for (const std::size_t i : members) sizes.push_back(parameters[i].gradient.size());
        const int rank = comm.rank();
        const std::size_t own = for_each_slice<feedback_element>(
            sizes, comm.size(),
            [&](std::size_t n, int r, owned_slice s, std::size_t place) {
                auto& p = parameters[members[n]];
                pieces_.push_back(
                    {p.gradient.at(s.begin), s.count, place, nullptr, &p.gradient.kind()});
                if (r != rank) return;
                p.residual.resize(s.count);
                pieces_.back().residual = p.residual.data();
            },
            question_ ? vector : 0);
        sum_.resize(own * std::size_t(comm.size()));
        rounded_.resize(sum_.size());
        mean_.resize(own);
        next_residual_.resize(own);
        own_rounded_.resize(own);
        begin_ = own * std::size_t(rank);
    }

    void make_plans(Calls& comm, gradient_op op, const reduce_options& scales) override {
        reduce_ = op == hvd::average
                      ? comm.plan_reduce_scatter(sum_, average, into(mean_), scales)
                      : comm.plan_reduce_scatter(sum_, hvd::sum, into(mean_), scales);
        gather_ = comm.plan_allgather(own_rounded_, into(rounded_), {.name = "rounded gradients"});
    }

    bool is_under_way() const override { return bool(running_); }

    void begin_epoch(std::uint64_t epoch) override { reduce_.begin_epoch(epoch); }

    void start() override {
        for (const piece& p : pieces_)
            p.kind->to_floats(p.gradient, p.count, sum_.data() + p.place);
        if (question_) ask();
        running_ = reduce_.run_async();
    }
    void wait() override {
        running_.wait();
        if (question_) question_->settle(mean_.back() != 0);
    }

    void send_back() override {
        for_each_own([&](const piece& p, float* next) {
            std::copy(p.residual, p.residual + p.count, next);
        });
        codec_.encode_with_residuals(mean_.data(), mean_.size(),
                                     reinterpret_cast<std::byte*>(own_rounded_.data()),
                                     next_residual_.data());
        // A gradient of 16 bits rounds once more, if its type is not the codec's.
        for_each_own([&](const piece& p, float* next) {
            if (p.kind->bytes == sizeof(feedback_element))
                add_losses(codec_, *p.kind, half(own_rounded_, p.place - begin_), p.count, next);
        });
        running_ = gather_.run_async();
    }

    void finish() override {
        if (!running_) return;  // send_back() has failed
        running_.wait();
        for (const piece& p : pieces_)
            decode_elements(codec_, *p.kind, half(rounded_, p.place), p.count, p.gradient, 1);
    }

    void commit() override {
        for_each_own([&](const piece& p, const float* next) {
            std::copy(next, next + p.count, p.residual);
        });
    }

private:
    // A slice of a gradient.
    struct piece {
        std::byte* gradient;
        std::size_t count;
        std::size_t place;  // in the slices of all ranks
        float* residual;    // null for slices of other ranks
        const element_kind* kind;
    };

    // The answer is finite, since a communicator with check_finite looks at the sum's inputs. In
    // float no scale or mean makes a zero of it.
    void ask() {
        const float answer = question_->ask() ? std::numeric_limits<float>::max() : 0;
        for (std::size_t end = mean_.size(); end <= sum_.size(); end += mean_.size())
            sum_[end - 1] = answer;
    }

    template <class F>
    void for_each_own(F f) {
        for (const piece& p : pieces_)
            if (p.residual != nullptr) f(p, next_residual_.data() + (p.place - begin_));
    }

    static const std::byte* half(const std::vector<feedback_element>& all, std::size_t place) {
        return reinterpret_cast<const std::byte*>(all.data() + place);
    }

    const wire_codec& codec_;
    shared<step_question> question_;
    std::vector<piece> pieces_;
    std::size_t begin_ = 0;                          // the place of this rank's slices
    std::vector<float> sum_, mean_, next_residual_;  // the sum of all ranks' slices; own slices
    std::vector<feedback_element> own_rounded_, rounded_;  // in the codec's type
    plan_of<Calls> reduce_, gather_;
    request running_;
};

// The address of this is in a codec with error feedback.
template <class>
owner<bucket_feedback<any_communicator>> make_feedback(const any_communicator& comm,
                                                       const feedback_arguments& from) {
    return owner<feedback_wire<any_communicator>>::make(comm, from);
}

// Error feedback by the calls of an engine.
template <class Calls>
owner<bucket_feedback<Calls>> feedback_on(const Calls& calls, const feedback_arguments& from) {
    return owner<feedback_wire<Calls>>::make(calls, from);
}
inline owner<bucket_feedback<any_communicator>> feedback_on(const any_communicator& calls,
                                                            const feedback_arguments& from) {
    return code_of_options::feedback(from.options.codec)(calls, from);
}

}  // namespace hvd::inline v0::detail
