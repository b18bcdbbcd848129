// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../kernel/places.hpp"
#include "../list_segment.hpp"
#include "shm_exchange.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Moves data between the ranks of one node, who have memory in common.
//
// An allreduce takes the shortest of three ways, which all reduce in rank order:
// - a small tensor is in the window when its rank enters, and every rank reduces all of it;
// - tensors that every rank can reach stay where they are: each rank reduces its slice of all of
//   them, and writes the result to all of them;
// - others go through the windows in chunks: each rank reduces its part of a chunk while the next
//   one is on its way, so that main memory is read once and written once.
class shm_transport final : public shm_exchange {
public:
    using shm_exchange::shm_exchange;

    void enter(const call_header& mine) override {
        step_ = step::enter;
        shm_exchange::enter(mine);
    }

    // With what the first step needs, so that it need not wait for the ranks a second time.
    void enter_call(const operation& op, const call_header& mine) override {
        step_ = step::enter;
        show(mine);
        if (op.entry.kind == collective::allreduce && !op.only_agree && !op.entry.refused &&
            reduces_to_all(op) && is_at_hand(op))
            offer(op);
        arrive();
    }

    void exchange(const block* send, const block* receive) override {
        step_ = step::exchange;
        guarded([&] { shm_exchange::exchange(send, receive); });
    }

    void combine(const block* send, const reduction& job) override {
        step_ = step::exchange;
        guarded([&] { shm_exchange::combine(send, job); });
    }

    bool reduces_to_all(const operation& op) const override {
        for (const reduction_group& g : op.groups)
            if (g.element_bytes > part_bytes()) return false;
        return !op.groups.empty();
    }

    bool takes_lists() const override { return true; }

    void reduce_to_all(operation& op) override {
        step_ = step::allreduce;
        op_ = &op;
        stage_ = stage::first;
        if (op.update != nullptr) op.updated = true;
    }

    bool next() override {
        return guarded([&] { return go_on(); });
    }

private:
    enum class step { enter, exchange, allreduce };
    enum class stage { first, chunks, last };

    // Elements of one group that go through the windows together; rank p reduces the p-th part.
    struct chunk {
        std::size_t group = 0, first = 0, count = 0;
    };

    bool go_on() {
        switch (step_) {
            case step::enter: {
                for (int p = 0; p < size_; ++p) headers[std::size_t(p)] = &entry_of(p);
                return false;
            }
            case step::exchange: return next_exchange();
            case step::allreduce: return next_allreduce();
        }
        return false;
    }

    static std::size_t total_bytes(const operation& op) {
        const reduction_group& last = op.groups.back();
        return last.offset + last.count * last.element_bytes;
    }

    // Whether its data can be read before all ranks have entered: it need not be packed first.
    static bool is_at_hand(const operation& op) {
        return !op.tensors.empty() || op.pack == nullptr;
    }

    // Every rank reduces all of it, instead of its part: between two ranks little more moves that
    // way, and small tensors are worth the work, for all wait once only. Waiting is dear where
    // ranks have to give way to each other, and so is computing with 16-bit floats. With an update
    // each has its part, and the state of its part alone.
    bool is_reduced_by_all(const operation& op) const {
        if (op.update != nullptr) return false;
        if (size_ <= 2) return !is_computing(op) || total_bytes(op) <= tuning::most_by_two_16_bit;
        const std::size_t most = crowded_ ? tuning::most_by_all_crowded : tuning::most_by_all;
        return total_bytes(op) <= most / std::size_t(size_);
    }
    static bool is_computing(const operation& op) {
        for (const reduction_group& g : op.groups)
            if (g.id == dtype::float16 || g.id == dtype::bfloat16) return true;
        return false;
    }
    bool fits_window(const operation& op) const {
        return total_bytes(op) <= region_.window_bytes();
    }
    bool is_small(const operation& op) const { return is_reduced_by_all(op) && fits_window(op); }

    void offer(const operation& op) {
        if ((total_bytes(op) < tuning::least_in_place && is_small(op)) || !show_places(op))
            offer_data(op);
    }

    void offer_data(const operation& op) {
        if (is_small(op)) fill_whole(op);
        else fill_chunk(op, chunk_at(op, 0, 0));
        my_fill().what = content::data;
    }

    bool next_allreduce() {
        switch (stage_) {
            case stage::first: return next_first();
            case stage::chunks: return next_chunk();
            case stage::last: break;  // the peers are done with this rank's tensors
        }
        return false;
    }

    bool next_first() {
        const operation& op = *op_;
        done_ = 0;
        if (all_filled(content::places)) {
            reach([&] { reduce_in_place(op); });
            stage_ = stage::last;
            arrive();
            return true;
        }
        if (!all_filled(content::data)) {  // some could not offer theirs, or not in the same way
            take_window();
            offer_data(op);
            arrive();
            return true;
        }
        if (is_small(op)) {
            reduce_whole(op);
            return false;
        }
        stage_ = stage::chunks;
        before_ = {};
        now_ = chunk_at(op, 0, 0);
        return next_chunk();
    }

    // ---- small ----------------------------------------------------------------------------------

    void fill_whole(const operation& op) {
        for (const reduction_group& g : op.groups)
            gather_bytes(op, g.offset, g.count * g.element_bytes, window(rank_) + g.offset);
    }

    void reduce_whole(const operation& op) {
        for (const reduction_group& g : op.groups)
            reduce_windows(op, g, g.offset, g.count * g.element_bytes, g.offset);
    }

    // Bytes of a group that all ranks have in their windows, from `at` on.
    void reduce_windows(const operation& op, const reduction_group& g, std::size_t begin,
                        std::size_t bytes, std::size_t at) {
        for_each_list_segment(op, begin, bytes, [&](const list_segment& s) {
            for (int p = 0; p < size_; ++p)
                inputs_[std::size_t(p)] = p == rank_ ? s.in : window(p) + at;
            reduce_range(job_of(op, g, s.bytes / g.element_bytes, s.out), 0,
                         s.bytes / g.element_bytes);
            at += s.bytes;
        });
    }

    static reduction job_of(const operation& op, const reduction_group& g, std::size_t count,
                            std::byte* out) {
        return {g.function,        g.op, g.element_bytes, count, out, op.entry.prescale,
                op.entry.postscale};
    }

    // ---- where the tensors lie ------------------------------------------------------------------

    // Two places of each tensor: where it is read and where it is written.
    bool show_places(const operation& op) {
        if (size_ == 1) {
            // alone: nobody has to find it
        } else if (op.tensors.empty()) {
            const std::byte* const out = op.update != nullptr ? op.update->targets[0].data : op.out;
            if (!show_place(0, op.in, total_bytes(op)) || !show_place(1, out, total_bytes(op)))
                return false;
        } else {
            const slice<const tensor_ref> targets =
                op.update != nullptr ? op.update->targets : op.tensors;
            if (2 * op.tensors.size() > room_for_places()) return false;
            for (std::size_t i = 0; i < op.tensors.size(); ++i)
                if (!show_place(2 * i, op.tensors[i].data, op.tensors[i].bytes()) ||
                    !show_place(2 * i + 1, targets[i].data, op.tensors[i].bytes()))
                    return false;
        }
        my_fill().what = content::places;
        return true;
    }

    bool show_place(std::size_t index, const std::byte* data, std::size_t bytes) {
        const place where = place_of(data, bytes);
        put_place(index, where);
        return where || bytes == 0;
    }

    void reduce_in_place(const operation& op) {
        for (const reduction_group& g : op.groups) {
            const std::size_t begin = g.offset + g.begin_of(rank_, size_) * g.element_bytes;
            for_each_list_segment(
                op, begin, g.count_of(rank_, size_) * g.element_bytes, [&](const list_segment& s) {
                    for (int p = 0; p < size_; ++p) {
                        inputs_[std::size_t(p)] =
                            p == rank_ ? s.in : at_place(p, 2 * s.tensor) + s.at;
                        outputs_[std::size_t(p)] =
                            p == rank_ ? s.out : at_place(p, 2 * s.tensor + 1) + s.at;
                    }
                    const bool streaming = streaming_pays(size_, total_bytes(op),
                                                          s.in == s.out || op.update != nullptr);
                    current_ = s.out;
                    reduce_range_to_places(
                        job_of(op, g, s.bytes / g.element_bytes, nullptr), outputs_.data(),
                        streaming,
                        op.update != nullptr ? reduced_hook{&update_block, this} : reduced_hook{});
                });
        }
    }

    // The whole job, to several places; uses up the inputs.
    void reduce_range_to_places(const reduction& job, std::byte* const* places, bool streaming,
                                const reduced_hook& hook) {
        guard([&] {
            reduce_to_places(
                job.function,
                {job.op, nullptr, size_, size_, nullptr, job.count, job.prescale, job.postscale},
                job.element_bytes, inputs_.data(), places, size_, streaming, hook);
        });
    }

    static void update_block(void* self, std::size_t at, std::size_t bytes, std::byte* values) {
        auto& t = *static_cast<shm_transport*>(self);
        t.update(bytes, values, t.current_ + at);
    }

    void update(std::size_t bytes, std::byte* values, const std::byte* current) {
        op_->update->apply(op_->update->self, done_, bytes, values, current);
        done_ += bytes;
    }

    // ---- chunks ---------------------------------------------------------------------------------

    // Each rank's part of a chunk has the same place in every window, whatever its size: there its
    // result is read while the rest of the window is filled again.
    std::size_t part_bytes() const {
        return region_.window_bytes() / std::size_t(size_) / tuning::cache_line *
               tuning::cache_line;
    }

    chunk chunk_at(const operation& op, std::size_t group, std::size_t first) const {
        while (group < op.groups.size() && first >= op.groups[group].count) {
            ++group;
            first = 0;
        }
        if (group == op.groups.size()) return {group, 0, 0};
        const reduction_group& g = op.groups[group];
        const std::size_t most = part_bytes() / g.element_bytes * std::size_t(size_);
        return {group, first, g.count - first < most ? g.count - first : most};
    }

    // The p-th part of a chunk: from where in the operation's bytes, and how many.
    struct part {
        std::size_t begin, bytes;
    };
    part part_of(const operation& op, const chunk& c, int p) const {
        const reduction_group& g = op.groups[c.group];
        const std::size_t begin = even_part(c.count, p, size_),
                          end = even_part(c.count, p + 1, size_);
        return {g.offset + (c.first + begin) * g.element_bytes, (end - begin) * g.element_bytes};
    }
    std::byte* part_in_window(int owner, int p, std::uint64_t ago = 0) const {
        return window(owner, ago) + std::size_t(p) * part_bytes();
    }

    // All of it, or all but this rank's own part, whose place is for its result.
    void fill_chunk(const operation& op, const chunk& c) {
        const reduction_group& g = op.groups[c.group];
        if (is_reduced_by_all(op))
            return gather_bytes(op, g.offset + c.first * g.element_bytes, c.count * g.element_bytes,
                                window(rank_));
        for (int p = 0; p < size_; ++p) {
            if (p == rank_) continue;
            const part theirs = part_of(op, c, p);
            gather_bytes(op, theirs.begin, theirs.bytes, part_in_window(rank_, p));
        }
    }

    // All have filled their windows with the chunk `now_`, and reduced their parts of the one
    // before it.
    bool next_chunk() {
        const operation& op = *op_;
        const bool by_all = is_reduced_by_all(op);
        const chunk after =
            now_.count > 0 ? chunk_at(op, now_.group, now_.first + now_.count) : now_;
        if (now_.count > 0) reduce_chunk(op, now_, by_all);
        if (before_.count > 0) take_results(op, before_, now_.count > 0 ? 1 : 0);
        if (now_.count == 0 || (by_all && after.count == 0)) return false;
        if (after.count > 0) {
            take_window();
            fill_chunk(op, after);
        }
        if (!by_all) before_ = now_;
        now_ = after;
        arrive();
        return true;
    }

    void reduce_chunk(const operation& op, const chunk& c, bool by_all) {
        const reduction_group& g = op.groups[c.group];
        if (by_all)
            return reduce_windows(op, g, g.offset + c.first * g.element_bytes,
                                  c.count * g.element_bytes, 0);
        const part own = part_of(op, c, rank_);
        const bool direct =
            op.tensors.empty() && op.update == nullptr;  // from and to where it lies
        if (!direct) scratch_.resize((op.update != nullptr ? 2 : 1) * part_bytes());
        std::byte* const result = direct ? op.out + own.begin : scratch_.data();
        if (!op.tensors.empty()) gather_bytes(op, own.begin, own.bytes, result);
        const std::byte* const mine = op.tensors.empty() ? op.in + own.begin : result;
        for (int p = 0; p < size_; ++p)
            inputs_[std::size_t(p)] = p == rank_ ? mine : part_in_window(p, rank_);
        reduce_range(job_of(op, g, own.bytes / g.element_bytes, result), 0,
                     own.bytes / g.element_bytes);
        if (op.update != nullptr) {
            std::byte* const current = scratch_.data() + part_bytes();
            gather_targets(op, own.begin, own.bytes, current);
            guard([&] { update(own.bytes, result, current); });
        }
        // Not by the kernel at once: its stores would wait for lines that the peers have read, one
        // by one.
        copy_bytes(part_in_window(rank_, rank_), result, own.bytes);
        if (!direct) scatter_bytes(op, own.begin, own.bytes, result);
    }

    // The others' parts of a chunk, from the windows of `ago` fillings before this one.
    void take_results(const operation& op, const chunk& c, std::uint64_t ago) {
        for (int i = 1; i < size_; ++i) {
            const int p = (rank_ + i) % size_;
            const part theirs = part_of(op, c, p);
            scatter_bytes(op, theirs.begin, theirs.bytes, part_in_window(p, p, ago));
        }
    }

    step step_ = step::enter;
    stage stage_ = stage::first;
    const operation* op_ = nullptr;
    chunk before_, now_;
    table<std::byte*> outputs_{std::size_t(size_)};
    std::vector<std::byte> scratch_;      // a part, and what is there where it goes
    const std::byte* current_ = nullptr;  // where an update goes
    std::size_t done_ = 0;                // bytes of this rank's slices that are updated
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
