// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/lean/finite.hpp"
#include "../nccl/communicator.hpp"
#include "../staged/communicator.hpp"
#include "policy.hpp"

namespace hvd::inline v0::detail {

// Runs two halves inside the node around one step between the nodes.
template <class Device, class Host>
class hierarchical_session final : public staged_session<Host> {
    using base = staged_session<Host>;

public:
    hierarchical_session(communicator<Host> host, communicator<Device> local,
                         std::shared_ptr<base> cross, std::vector<int> places, int device,
                         const communicator_options& options)
        : base(std::move(host), device, options),
          local_(std::move(local)),
          cross_(std::move(cross)),
          places_(std::move(places)) {}

    ~hierarchical_session() { this->stop_watching(); }

    // `own` are options of the backend inside the nodes.
    template <class... Own>
    static std::shared_ptr<hierarchical_session> make(communicator<Host>& bootstrap,
                                                      const communicator_options& options,
                                                      const Own&... own) {
        constexpr const char* name = "a hierarchical communicator";
        meet(bootstrap, name, options);
        const int place[2] = {bootstrap.local_rank(), bootstrap.cross_rank()};
        auto places = bootstrap.allgather(place).values;
        auto host = own_duplicate(bootstrap), node = bootstrap.local(), same = bootstrap.cross();
        // A half that fails on one node is told to the others, which have theirs.
        auto local = make_on_all(bootstrap, name, options,
                                 [&] { return communicator<Device>(node, options, own...); });
        auto cross =
            make_on_all(bootstrap, name, options, [&] { return base::make(same, options); });
        if (!bootstrap.is_homogeneous()) places.clear();
        return make_on_all(bootstrap, name, options, [&] {
            return std::make_shared<hierarchical_session>(
                std::move(host), std::move(local), std::move(cross), std::move(places),
                device_of_this_thread(bootstrap.rank()), options);
        });
    }

    auto own_options() const { return device_access::session_of(local_)->own_options(); }

    // The factors of a sum are applied in the step between the nodes, which the host does without
    // rounding twice. Only a power of two is applied in the node, where 16-bit floats are summed in
    // their own type.
    void check(const collective_call& call, const char* label) const override {
        if (!by_halves(call.entry.kind) ||
            (is_one(call.entry.prescale) && is_one(call.entry.postscale)))
            return;
        const bool adds = call.entry.op == op::average::id || call.entry.op == op::sum::id;
        const bool is_float = call.entry.id >= dtype::float16 && call.entry.id <= dtype::float64;
        if (!adds || !is_float)
            throw usage_error(this->rank(),
                              text("hvd: ", label, " on rank ", this->rank(), ": a hierarchical ",
                                   op_names[call.entry.op], " of ", dtype_name(call.entry.id),
                                   " can't be scaled by ", call.entry.prescale, " and ",
                                   call.entry.postscale, ": only sums and averages of floats are"));
    }

    // NCCL's half compares nothing, so the peers would not come to the host.
    void post_refusal(const call_header& mine, time_point limit) override {
        if (compares(mine.kind)) base::post_refusal(mine, limit);
    }
    bool compares(collective kind) const override { return !by_halves(kind); }

    // Another thread may be inside NCCL's half.
    void abort_calls() noexcept override {
        local_.abort();
        base::abort_calls();
    }

    // A node that has lost a rank is no use to the others.
    void give_up(std::string_view why) noexcept override {
        const typename base::inside turn(*this);
        base::give_up(why);
        local_.abort();
        if (cross_ != nullptr) cross_->give_up(why);
    }

    // NCCL's half may be given up first.
    void stop_too(const std::shared_ptr<stop_word>& word) override {
        base::stop_too(word);
        own(local_).stop_too(word);
    }

    void end_calls_if(const std::function<message()>& reason) override {
        base::end_calls_if(reason);
        own(local_).end_calls_if(reason);
        cross_->end_calls_if(reason);
    }

    void look_for_errors(const char* label) override {
        base::look_for_errors(label);
        try {
            const device_session::inside turn(own(local_));
            own(local_).look_for_errors(label);
        } catch (...) {
            give_up(what_of(std::current_exception()));
            throw;
        }
    }

protected:
    void end_kernels() noexcept override {
        own(local_).cut_off("a call");
        if (cross_ != nullptr) cross_->cut_off("a call");
    }

private:
    static device_session& own(const communicator<Device>& comm) {
        return *device_access::session_of(comm);
    }

    // Threads that end calls find this one inside each half.
    void enqueue_in_node(const collective_call& step, const char* label, cudaStream_t stream,
                         time_point limit) {
        const device_session::inside turn(own(local_));
        own(local_).enqueue({&step, 1}, label, stream, limit);
    }

    bool is_one_node() const { return cross_->size() == 1; }

    // NCCL scales 16-bit floats with hvd's kernels. The host does it without.
    bool is_for_nccl(const collective_call& call) const {
        return is_one_node() && (has_kernels() || call.element_bytes > 2);
    }

    bool by_halves(collective kind) const {
        return !places_.empty() && local_.size() > 1 &&
               (kind == collective::allreduce || kind == collective::broadcast);
    }

    void run(const collective_call& call, cudaStream_t stream, time_point limit) override {
        if (!by_halves(call.entry.kind)) return base::run(call, stream, limit);
        check(call, name_of(call.entry.kind));
        try {
            if (call.entry.kind == collective::broadcast) broadcast(call, stream, limit);
            else if (is_for_nccl(call)) enqueue_in_node(call, "allreduce", stream, limit);
            else allreduce(call, stream, limit);
        } catch (...) {  // this node is a step behind the others, or its ranks are
            give_up(what_of(std::current_exception()));
            throw;
        }
    }

    // Returns the factor that keeps the sums inside the nodes small. It is the power of two of the
    // prescale and the mean, which rounds nothing and needs no kernel.
    double before_nodes(const collective_call& call) const {
        const bool average = call.entry.op == op::average::id;
        const double power =
            plain_power(power_below(call.entry.prescale) *
                        (average ? factor_before_mean(call.entry.id, this->size()) : 1));
        return power < 1 ? power : 1;
    }

    // Waits for NCCL first, which may fail or be late before the host can go on.
    void between_nodes(const collective_call& step, const char* label, cudaStream_t stream,
                       time_point limit) {
        this->wait(this->mark(stream), label, limit);
        const device_session::inside turn(*cross_);
        cross_->enqueue({&step, 1}, label, stream, limit);
    }

    void allreduce(const collective_call& call, cudaStream_t stream, time_point limit) {
        const bool average = call.entry.op == op::average::id;
        const double before = before_nodes(call);
        const int ranks = local_.size(), me = local_.rank();
        const std::size_t all = call.entry.count;
        std::vector<std::size_t> counts;
        for (int p = 0; p < ranks; ++p)
            counts.push_back(even_part(all, p + 1, ranks) - even_part(all, p, ranks));

        collective_call step = call;
        step.entry.kind = collective::reduce_scatter;
        step.entry.prescale = before;
        step.entry.postscale = 1;
        if (average) step.entry.op = op::sum::id;
        step.out = call.out + even_part(all, me, ranks) * call.element_bytes;
        step.entry.count = counts.back();
        if (counts.front() > counts.back()) step.counts = counts;
        enqueue_in_node(step, "allreduce", stream, limit);

        collective_call between = call;
        between.in = between.out = step.out;
        between.entry.count = counts[std::size_t(me)];
        between.entry.prescale /= before;
        if (average) between.entry.postscale *= double(cross_->size()) / this->size();
        between_nodes(between, "allreduce", stream, limit);

        step.entry.kind = collective::allgather;
        step.in = step.out;
        step.out = call.out;
        enqueue_in_node(step, "allreduce", stream, limit);
    }

    // Broadcasts to the ranks with the root's number on their nodes, and from them to their nodes.
    void broadcast(const collective_call& call, cudaStream_t stream, time_point limit) {
        collective_call step = call;
        const int number = places_[2 * std::size_t(call.entry.root)];
        if (local_.rank() == number && !is_one_node()) {
            step.entry.root = places_[2 * std::size_t(call.entry.root) + 1];
            between_nodes(step, "broadcast", stream, limit);
        }
        step.entry.root = number;
        enqueue_in_node(step, "broadcast", stream, limit);
    }

    communicator<Device> local_;
    std::shared_ptr<base> cross_;
    std::vector<int>
        // each rank's number on its node, and its node's number; empty if nodes differ in size
        places_;
};

}  // namespace hvd::inline v0::detail
