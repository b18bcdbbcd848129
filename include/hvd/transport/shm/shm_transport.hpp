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
// Tensors that every rank can reach are reduced where they lie: each rank reduces its slice of all
// of them, and writes the result to all of them. Others go through the windows; choose() says how.
// All algorithms reduce in rank order.
class shm_transport final : public shm_exchange {
public:
    shm_transport(const shm_region& region, int rank, int number = -1)
        : shm_exchange(region, rank, number), slice_room_(share_of_window(size_)) {}

    bool choose(const operation& op) override {
        algorithm_ = algorithm::by_groups;
        is_list_ = op.tensor_count > 0;
        if (op.entry.kind != collective::allreduce || op.group_count == 0) return false;
        bool converts = false;
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const reduction_group& g = op.groups[i];
            if (g.element_bytes > slice_room_) return false;
            converts = converts || g.id == dtype::float16 || g.id == dtype::bfloat16;
            total_bytes_ = g.offset + g.count * g.element_bytes;
        }
        // Between two ranks little more moves where both reduce the whole. More ranks repeat much
        // work, which pays for small tensors, since they wait for each other only once. An update
        // needs slices, since each rank has the state of its slice alone.
        std::size_t most_by_all = converts ? tuning::most_by_two_16_bit : SIZE_MAX;
        if (size_ > 2)
            most_by_all =
                (crowded_ ? tuning::most_by_all_crowded : tuning::most_by_all) / std::size_t(size_);
        if (op.update != nullptr || total_bytes_ > most_by_all) algorithm_ = algorithm::slices;
        else if (total_bytes_ > window_bytes_) algorithm_ = algorithm::chunks_by_all;
        else algorithm_ = algorithm::whole_by_all;
        if (algorithm_ == algorithm::slices && (is_list_ || op.update != nullptr))
            make_room(scratch_, (op.update != nullptr ? 2 : 1) * slice_room_);
        return is_list_;
    }

    // Shows the tensors of an allreduce together with the header, so that the ranks need not wait a
    // second time, unless they must be packed first.
    void begin(const operation& op) override {
        show(op.entry);
        const bool at_hand = is_list_ || op.pack == nullptr;
        const bool copies =
            algorithm_ == algorithm::whole_by_all && total_bytes_ < tuning::least_in_place;
        if (algorithm_ != algorithm::by_groups && at_hand && !op.only_agree && !op.entry.refused &&
            (copies || !show_places(op)))
            offer_data(op);
        next_ = &shm_transport::take_headers;
        arrive();
    }

    void allreduce(operation& op) override {
        if (algorithm_ == algorithm::by_groups) return transport::allreduce(op);
        op_ = &op;
        next_ = static_cast<round>(&shm_transport::first_round);
        if (op.update != nullptr) op.updated = true;
    }

private:
    enum class algorithm {
        by_groups,      // elements are larger than a window's share: as every transport can do it
        whole_by_all,   // the tensor fits into a window, and every rank reduces all of it
        chunks_by_all,  // it goes through the windows in chunks, and every rank reduces all of each
        slices,  // each rank reduces its slice of a chunk while the next chunk is on its way, so
                 // that main memory is read once and written once
    };

    // Elements of one group that go through the windows together. Rank p reduces the p-th slice.
    struct chunk {
        std::size_t group = 0, first = 0, count = 0;
    };

    void offer_data(const operation& op) {
        if (algorithm_ != algorithm::whole_by_all) fill_chunk(op, chunk_at(op, 0, 0));
        else if (!is_list_) copy_bytes(window(rank_), op.in, total_bytes_);
        else
            for (std::size_t i = 0; i < op.group_count; ++i)
                gather_bytes(op, op.groups[i].offset, op.groups[i].bytes(),
                             window(rank_) + op.groups[i].offset);
        fill_of(rank_).what = content::data;
    }

    bool first_round() {
        const operation& op = *op_;
        done_ = 0;
        if (all_filled(content::places)) {
            next_ = &shm_transport::finish;
            reach([&] { reduce_in_place(op); });
            return true;
        }
        if (!all_filled(content::data)) {  // some could not offer theirs, or not in the same way
            take_window();
            offer_data(op);
            arrive();
            return true;
        }
        if (algorithm_ == algorithm::whole_by_all) {
            for (std::size_t i = 0; i < op.group_count; ++i) {
                const reduction_group& g = op.groups[i];
                const std::size_t bytes = g.count * g.element_bytes;
                if (is_list_) reduce_segments(op, g, g.offset, bytes, g.offset);
                else reduce_windows(op, g, op.in + g.offset, op.out + g.offset, bytes, g.offset);
            }
            return false;
        }
        next_ = static_cast<round>(&shm_transport::next_chunk);
        before_ = {};
        now_ = chunk_at(op, 0, 0);
        return next_chunk();
    }

    // Reduces bytes of a group that all ranks have in their windows, from `at` on.
    void reduce_windows(const operation& op, const reduction_group& g, const std::byte* in,
                        std::byte* out, std::size_t bytes, std::size_t at) {
        for (int p = 0; p < size_; ++p) inputs_[p] = p == rank_ ? in : window(p) + at;
        const std::size_t n = bytes / g.element_bytes;
        reduce_range(op.reduction_of(g, n, out), 0, n);
    }

    // The same for bytes that may lie in several tensors of a list.
    void reduce_segments(const operation& op, const reduction_group& g, std::size_t begin,
                         std::size_t bytes, std::size_t at) {
        for (list_segment s(op, begin, bytes); s.next(); at += s.bytes)
            reduce_windows(op, g, s.in, s.out, s.bytes, at);
    }

    // ---- where the tensors lie ------------------------------------------------------------------

    // Shows two places of each tensor: where it is read and where it is written.
    bool show_places(const operation& op) {
        if (size_ == 1) {
            // nobody else has to find the tensors
        } else if (op.tensor_count == 0) {
            const std::byte* const out = op.update != nullptr ? op.update->targets[0].data : op.out;
            if (!show_place(0, op.in, total_bytes_) || !show_place(1, out, total_bytes_))
                return false;
        } else {
            const tensor_ref* const targets =
                op.update != nullptr ? op.update->targets.data() : op.tensors;
            if (2 * op.tensor_count > room_for_places()) return false;
            for (std::size_t i = 0; i < op.tensor_count; ++i)
                if (!show_place(2 * i, op.tensors[i].data, op.tensors[i].bytes()) ||
                    !show_place(2 * i + 1, targets[i].data, op.tensors[i].bytes()))
                    return false;
        }
        fill_of(rank_).what = content::places;
        return true;
    }

    void reduce_in_place(const operation& op) {
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const reduction_group& g = op.groups[i];
            const std::size_t begin = g.offset + g.begin_of(rank_, size_) * g.element_bytes,
                              bytes = g.count_of(rank_, size_) * g.element_bytes;
            for (list_segment s(op, begin, bytes); s.next();) {
                for (int p = 0; p < size_; ++p) {
                    inputs_[p] = p == rank_ ? s.in : at_place(p, 2 * s.tensor) + s.at;
                    outputs_[std::size_t(p)] =
                        p == rank_ ? s.out : at_place(p, 2 * s.tensor + 1) + s.at;
                }
                reduce_to_outputs(op, g, s);
            }
        }
        check_update(op);
    }

    // Reduces a segment of every rank to all of them. It uses up the inputs.
    void reduce_to_outputs(const operation& op, const reduction_group& g, const list_segment& s) {
        const bool updates = op.update != nullptr;
        const bool streaming = streaming_pays(size_, total_bytes_, s.in == s.out || updates);
        current_ = s.out;
        guard([&] {
            reduce_to_places(g.function,
                             {g.op, nullptr, size_, size_, nullptr, s.bytes / g.element_bytes,
                              op.entry.prescale, op.entry.postscale},
                             g.element_bytes, inputs_, outputs_.data(), size_, streaming,
                             updates ? reduced_hook{&update_block, this} : reduced_hook{});
        });
    }

    static void update_block(void* self, std::size_t at, std::size_t bytes, std::byte* values) {
        auto& t = *static_cast<shm_transport*>(self);
        t.update(bytes, values, t.current_ + at);
    }

    // An update that fails, as for want of memory, leaves slices of all ranks as they were. The
    // ranks do not agree on it, unless user code runs in the call anyway. So this rank gives up
    // before it arrives, and no rank takes the call for done.
    void check_update(const operation& op) {
        if (failure && !op.fallible) [[unlikely]]
            std::rethrow_exception(take_failure());
    }

    void update(std::size_t bytes, std::byte* values, const std::byte* current) {
        op_->update->apply(op_->update->self, done_, bytes, values, current);
        done_ += bytes;
    }

    // ---- chunks ---------------------------------------------------------------------------------

    chunk chunk_at(const operation& op, std::size_t group, std::size_t first) const {
        while (group < op.group_count && first >= op.groups[group].count) {
            ++group;
            first = 0;
        }
        if (group == op.group_count) return {group, 0, 0};
        const reduction_group& g = op.groups[group];
        const std::size_t most = slice_room_ / g.element_bytes * std::size_t(size_);
        return {group, first, g.count - first < most ? g.count - first : most};
    }

    // The p-th slice of a chunk: where it begins in the operation's bytes, and its size.
    struct range {
        std::size_t begin, bytes;
    };
    range slice_of(const operation& op, const chunk& c, int p) const {
        const reduction_group& g = op.groups[c.group];
        const std::size_t begin = even_part(c.count, p, size_),
                          end = even_part(c.count, p + 1, size_);
        return {g.offset + (c.first + begin) * g.element_bytes, (end - begin) * g.element_bytes};
    }
    std::byte* slice_in_window(int owner, int p, std::uint64_t ago = 0) const {
        return window(owner, ago) + std::size_t(p) * slice_room_;
    }

    // Fills the window with a chunk: all of it, or all but this rank's own slice, whose place is
    // for its result.
    void fill_chunk(const operation& op, const chunk& c) {
        const reduction_group& g = op.groups[c.group];
        if (algorithm_ == algorithm::chunks_by_all)
            return gather_bytes(op, g.offset + c.first * g.element_bytes, c.count * g.element_bytes,
                                window(rank_));
        for (int p = 0; p < size_; ++p) {
            if (p == rank_) continue;
            const range theirs = slice_of(op, c, p);
            gather_bytes(op, theirs.begin, theirs.bytes, slice_in_window(rank_, p));
        }
    }

    // All ranks have filled their windows with the chunk `now_`, and reduced their slices of the
    // chunk before it.
    bool next_chunk() {
        const operation& op = *op_;
        const bool by_all = algorithm_ == algorithm::chunks_by_all;
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
            return reduce_segments(op, g, g.offset + c.first * g.element_bytes,
                                   c.count * g.element_bytes, 0);
        const range own = slice_of(op, c, rank_);
        const bool direct = op.tensor_count == 0 && op.update == nullptr;  // no copy is needed
        std::byte* const result = direct ? op.out + own.begin : scratch_.data();
        if (op.tensor_count > 0) gather_bytes(op, own.begin, own.bytes, result);
        const std::byte* const mine = op.tensor_count == 0 ? op.in + own.begin : result;
        for (int p = 0; p < size_; ++p) inputs_[p] = p == rank_ ? mine : slice_in_window(p, rank_);
        const std::size_t n = own.bytes / g.element_bytes;
        reduce_range(op.reduction_of(g, n, result), 0, n);
        if (op.update != nullptr) {
            std::byte* const current = scratch_.data() + slice_room_;
            gather_targets(op, own.begin, own.bytes, current);
            guard([&] { update(own.bytes, result, current); });
            check_update(op);
        }
        // The kernel does not write into the window itself: its stores would wait, one by one, for
        // lines that the peers have read.
        copy_bytes(slice_in_window(rank_, rank_), result, own.bytes);
        if (!direct) scatter_bytes(op, own.begin, own.bytes, result);
    }

    // Takes the others' slices of a chunk from the windows of `ago` fillings before this one.
    void take_results(const operation& op, const chunk& c, std::uint64_t ago) {
        for (int i = 1; i < size_; ++i) {
            const int p = (rank_ + i) % size_;
            const range theirs = slice_of(op, c, p);
            scatter_bytes(op, theirs.begin, theirs.bytes, slice_in_window(p, p, ago));
        }
    }

    // Each rank's slice of a chunk has this room in every window, at the same place, whatever its
    // size. The result of a slice is read there while the rest of the window is filled again.
    const std::size_t slice_room_;
    algorithm algorithm_ = algorithm::by_groups;  // of the present call, as chosen
    bool is_list_ = false;
    std::size_t total_bytes_ = 0;
    const operation* op_ = nullptr;
    chunk before_, now_;
    table<std::byte*> outputs_{std::size_t(size_)};
    std::vector<std::byte> scratch_;      // a slice, and what it replaces
    const std::byte* current_ = nullptr;  // where an update goes
    std::size_t done_ = 0;                // bytes of this rank's slices that are updated
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
