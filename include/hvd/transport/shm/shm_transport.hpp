// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../kernel/places.hpp"
#include "../list_segment.hpp"
#include "shm_exchange.hpp"

namespace hvd::inline v0::detail {

// Moves data between the ranks of one node, who have memory in common.
//
// Tensors that every rank can reach are reduced where they lie: each rank reduces its slice of all
// of them, and writes the result to all of them. Others go through the windows; choose() says how.
// All algorithms reduce in rank order.
class shm_transport final : public shm_exchange {
public:
    shm_transport(const shm_region& region, int rank, const int* numbers = nullptr)
        : shm_exchange(region, rank, numbers), slice_room_(share_of_window(size_)) {}

    bool choose(const operation& op) override {
        algorithm_ = algorithm::by_groups;
        is_list_ = op.tensor_count > 0;
        brought = all_have_room = false;
        moves_ = op.entry.kind != collective::allreduce;
        carries = moves_ && chooses_to_bring(op);
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
        std::size_t most_by_all =
            converts ? tuned_.unstable.most_by_two_16_bit : tuned_.unstable.most_by_two;
        if (size_ > 2)
            most_by_all =
                (crowded_ ? tuned_.unstable.most_by_all_crowded : tuned_.unstable.most_by_all) /
                std::size_t(size_);
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
            algorithm_ == algorithm::whole_by_all && total_bytes_ < tuned_.unstable.least_in_place;
        if (algorithm_ != algorithm::by_groups && at_hand && !op.only_agree && !op.entry.refused &&
            (copies || !show_places(op)))
            show_data(op);
        op_ = &op;
        next_ = moves_ ? static_cast<round>(&shm_transport::take_headers_and_data)
                       : static_cast<round>(&shm_transport::take_headers);
        if (carries && !op.entry.refused) return begin_carried(op);
        arrive();
    }

    bool has_brought(int peer) override { return shows_data(peer); }

    block brought_from(const operation& op, int peer) override {
        switch (op.entry.kind) {
            case collective::alltoall: return part_by_counts(op, peer);
            case collective::scatter:
                return peer == op.entry.root ? part_by_counts(op, peer) : block{};
            default: {
                const std::size_t bytes = bytes_given(op, agreed ? op.entry : *headers[peer]);
                return {kept_piece(peer, bytes), bytes};
            }
        }
    }
    void skip() override { next_ = static_cast<round>(&shm_transport::end_of_skipped); }

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

    // ---- data that goes with the header, in calls other than allreduce -------------------------

    bool chooses_to_bring(const operation& op) {
        apart = false;
        deposits_ = is_deposited(op);
        return deposits_ || may_bring(op);
    }

    // Small tensors of a call with a root have a place of their own, so that their rank may leave.
    // In a reduce all ranks choose alike. In other calls a rank that stays does as before.
    bool is_deposited(const operation& op) const {
        if (op.entry.root < 0 || numbers_ != nullptr || size_ == 1 || op.only_agree ||
            op.entry.refused || op.entry.fused || op.entry.plan != 0 || op.take != nullptr ||
            !op.packs_again)
            return false;
        const bool is_root = rank_ == op.entry.root;
        const std::size_t bytes = bytes_given(op, op.entry);
        if (bytes > tuning::deposit_bytes) return false;
        switch (op.entry.kind) {
            case collective::reduce:
                return !op.fallible && bytes > 0 &&
                       bytes <= tuning::most_by_root / std::size_t(size_);
            case collective::broadcast: return is_root && leaves(op);
            case collective::scatter:
                return is_root && leaves(op) && bytes + bytes_of_counts() <= tuning::deposit_bytes;
            case collective::gather: return !is_root && leaves(op);
            default: return false;
        }
    }
    bool leaves(const operation& op) const { return op.may_leave && !has_to_meet(); }

    // This rank waits for those whose data it needs.
    void begin_carried(const operation& op) {
        const int root = op.entry.root;
        const bool reduces = op.entry.kind == collective::reduce, is_root = rank_ == root,
                   from_root = op.entry.kind == collective::broadcast ||
                               op.entry.kind == collective::scatter;
        if (!deposits_) {
            bring(op);
            if (!from_root || is_root || numbers_ != nullptr || !leaves(op)) return arrive();
            next_ = static_cast<round>(&shm_transport::take_from_root);
            return arrive_for(root);
        }
        if (reduces && is_root) return arrive();
        const bool goes = leaves(op);
        deposit(op, goes ? content::left : content::deposited);
        if (!goes) return arrive();
        next_ = static_cast<round>(&shm_transport::leave_call);
        arrive_alone(from_root);
    }

    void deposit(const operation& op, content what) {
        const std::size_t bytes = bytes_given(op, op.entry),
                          head = op.counts.empty() ? 0 : bytes_of_counts();
        step_line& line = next_line();
        std::byte* const piece =
            head + bytes <= sizeof line.small ? line.small : region_.deposit(rank_, step() + 1);
        copy_bytes(piece, reinterpret_cast<const std::byte*>(op.counts.data()), head);
        if (op.counts.empty()) copy_bytes(piece, op.in, bytes);
        else fill_parts(op, piece + head);
        line.what = what;
    }

    bool leave_call() {
        agreed = brought = true;
        return end_apart();
    }
    bool end_apart() {
        go_apart();
        keep_chunks();
        return await_room();
    }

    // The root may have left, if its header is like this rank's. All others wait for all.
    bool take_from_root() {
        const int root = op_->entry.root;
        if (line_of(root).what == content::left && agrees_with(root)) {
            headers[root] = header_of(root);
            return leave_call();
        }
        await_others();
        next_ = static_cast<round>(&shm_transport::take_headers_and_data);
        return true;
    }

    // A tensor that fits into half a window, with counts, unless all ranks can reach it, and it is
    // large enough for that. One that is reduced is small, since every rank reads all of it.
    bool may_bring(const operation& op) const {
        if (op.only_agree || op.entry.refused || !op.packs_again) return false;
        const std::size_t bytes = bytes_given(op, op.entry);
        switch (op.entry.kind) {
            case collective::reduce:
                if (op.fallible) return false;  // user code runs on every rank
                [[fallthrough]];
            case collective::reduce_scatter:
                return bytes > 0 && bytes <= (crowded_ ? tuned_.unstable.most_by_all_crowded
                                                       : tuned_.unstable.most_by_all) /
                                                 std::size_t(size_);
            case collective::scatter:
                if (rank_ != op.entry.root) return true;  // it says what it has room for
                [[fallthrough]];
            case collective::broadcast:
            case collective::allgather:
            case collective::gather:
            case collective::alltoall:
                return bytes <= window_bytes_ / 2 && !is_read_privately(op, bytes) &&
                       (bytes < tuned_.unstable.least_in_place ||
                        !region_.reachable().find(op.in, bytes));
            default: return false;
        }
    }

    // Ranks that each give their own tensor are sooner better off to read each other's memory.
    bool is_read_privately(const operation& op, std::size_t bytes) const {
        const bool gathers =
            op.entry.kind == collective::allgather || op.entry.kind == collective::gather;
        if (crowded_ && op.entry.kind == collective::allgather) return false;
        return region_.reads_private() &&
               bytes / (gathers ? 1 : 2) >= tuned_.unstable.least_private;
    }

    void bring(const operation& op) {
        const bool scatters = op.entry.kind == collective::scatter;
        if (rank_ != op.entry.root && (scatters || op.entry.kind == collective::broadcast)) {
            if (op.has_room) show_room(op.room);
            return;
        }
        const bool has_room = op.has_room || op.group_count > 0 || !makes_result(op.entry.kind);
        const bool has_counts = scatters || (op.entry.kind == collective::alltoall && !op.has_room);
        const std::size_t bytes = bytes_given(op, op.entry),
                          head = has_counts ? bytes_of_counts() : 0;
        std::byte* const piece = room_for(head + bytes);
        if (piece == nullptr) return;
        copy_bytes(piece, reinterpret_cast<const std::byte*>(op.counts.data()), head);
        if (op.counts.empty()) fill_piece_with(op.in, bytes, piece);
        else fill_parts(op, piece + head);
        show_piece(has_room ? content::data_and_room : content::data, head + bytes);
    }

    void fill_piece_with(const std::byte* data, std::size_t bytes, std::byte* piece) {
        if (bytes < tuning::least_store_choice) return copy_bytes(piece, data, bytes);
        stores_.fill(bytes, [&](store_kind kind) { store_bytes(kind, piece, data, bytes); });
    }
    // The place of this rank's own part stays as it is.
    void fill_parts(const operation& op, std::byte* piece) {
        std::size_t at = 0;
        for (int p = 0; p < size_; ++p) {
            const std::size_t bytes = op.counts[std::size_t(p)] * op.element_bytes;
            if (p != rank_) copy_bytes(piece + at, op.in + at, bytes);
            at += bytes;
        }
    }

    void show_room(std::size_t elements) {
        std::memcpy(room_for(sizeof elements), &elements, sizeof elements);
        show_piece(content::data_and_room, sizeof elements);
    }

    bool end_of_skipped() { return false; }

    bool take_headers_and_data() {
        take_headers();
        has_met();
        const int root = op_->entry.root;
        if (!agreed || root >= 0)
            for (int p = 0; p < size_; ++p)
                if (line_of(p).what == content::left) {
                    go_apart();
                    keep_chunks();
                }
        switch (op_->entry.kind) {
            case collective::reduce:  // only the root reads
                brought = true;
                for (int p = 0; p < size_; ++p)
                    brought = brought && ((p == root && deposits_) || shows_data(p));
                break;
            case collective::reduce_scatter:
            case collective::allgather:
            case collective::gather:
            case collective::alltoall:
                brought = true;
                for (int p = 0; p < size_; ++p) brought = brought && shows_data(p);
                all_have_room = brought && agreed && all_show(content::data_and_room);
                break;
            case collective::broadcast:
            case collective::scatter:
                brought = root >= 0 && root < size_ && shows_data(root);
                all_have_room = brought && all_show(content::data_and_room);
                break;
            default: break;
        }
        return false;
    }
    bool shows_data(int peer) const { return line_of(peer).what >= content::data; }

    // A rank's part of what a peer gives to all ranks, by the counts that come first. Without them
    // all parts are of one size.
    block part_by_counts(const operation& op, int peer) {
        const bool scatters = op.entry.kind == collective::scatter,
                   has_counts = scatters || line_of(peer).what == content::data;
        const std::size_t bytes = bytes_given(op, *headers[peer]),
                          each = bytes / std::size_t(size_);
        if (!has_counts) return {kept_piece(peer, bytes) + std::size_t(rank_) * each, each};
        const std::byte* const counts = given_piece(peer, bytes_of_counts() + bytes);
        std::size_t before = 0, mine = 0, left = bytes / op.element_bytes;
        for (int p = 0; p < size_; ++p) {
            std::size_t count;
            std::memcpy(&count, counts + std::size_t(p) * sizeof count, sizeof count);
            if (count > left) [[unlikely]]
                refuse_shown_by(peer);
            left -= count;
            if (p < rank_) before += count;
            if (p == rank_) mine = count;
            if (scatters && p != peer && all_have_room) all_have_room = room_of(p) == count;
        }
        return {kept_piece(peer, bytes_of_counts() + bytes) + bytes_of_counts() +
                    before * op.element_bytes,
                mine * op.element_bytes};
    }
    std::size_t room_of(int peer) const {
        std::size_t elements;
        std::memcpy(&elements, piece_of(peer, sizeof elements), sizeof elements);
        return elements;
    }

    // A small piece lies in the line of its step, which is written again before a rank reads what
    // lies there, where ranks tell each other first whether they have room. A larger one stays:
    // the ring has room for what comes next.
    std::byte* kept_piece(int peer, std::size_t bytes) {
        const auto* const piece = given_piece(peer, bytes);
        small_piece& kept = kept_[std::size_t(peer)];
        if (all_have_room || bytes > sizeof kept) return const_cast<std::byte*>(piece);
        std::memcpy(&kept, piece, bytes);
        return kept.bytes;
    }

    const std::byte* given_piece(int peer, std::size_t bytes) const {
        const step_line& line = line_of(peer);
        const bool is_deposit = line.what >= content::deposited;
        if (!is_deposit || bytes <= sizeof line.small) return piece_of(peer, bytes);
        if (bytes > tuning::deposit_bytes) [[unlikely]]
            refuse_shown_by(peer);
        return region_.deposit(peer, step());
    }

    static bool makes_result(collective kind) { return kind != collective::broadcast; }
    static std::size_t bytes_given(const operation& op, const call_header& entry) {
        return op.group_count > 0 ? bytes_of_groups(op)
                                  : std::size_t(entry.count) * op.element_bytes;
    }
    std::size_t bytes_of_counts() const { return std::size_t(size_) * sizeof(std::size_t); }

    void show_data(const operation& op) {
        if (algorithm_ != algorithm::whole_by_all) {
            if (std::byte* const window = first_window()) {
                next_to_[filled] = chunk_at(op, 0, 0);
                fill_chunk(op, window);
                show_first_chunk();
            }
        } else if (std::byte* const piece = room_for(total_bytes_)) {
            if (total_bytes_ < tuning::least_store_choice && !is_list_)
                copy_bytes(piece, op.in, total_bytes_);
            else stores_.fill(total_bytes_, [&](store_kind kind) { fill_piece(op, piece, kind); });
            show_piece(content::data, total_bytes_);
        }
    }

    void fill_piece(const operation& op, std::byte* piece, store_kind kind) {
        if (!is_list_) return store_bytes(kind, piece, op.in, total_bytes_);
        for (std::size_t i = 0; i < op.group_count; ++i)
            gather_bytes(op, op.groups[i].offset, op.groups[i].bytes(), piece + op.groups[i].offset,
                         kind);
    }

    bool first_round() {
        const operation& op = *op_;
        done_ = 0;
        if (all_show(content::places)) {
            next_ = &shm_transport::finish;
            reach([&] {
                reduce_in_place(op);
                return true;
            });
            return true;
        }
        if (!all_show(content::data)) {  // some could not show theirs, or not in the same way
            show_nothing();
            show_data(op);
            arrive();
            return true;
        }
        if (algorithm_ == algorithm::whole_by_all) {
            for (int p = 0; p < size_; ++p) sources_[p] = piece_of(p, total_bytes_);
            if (total_bytes_ < tuning::least_store_choice) reduce_pieces(op);
            else stores_.read(total_bytes_, [&] { reduce_pieces(op); });
            return false;
        }
        next_to_[reduced] = next_to_[taken] = chunk_at(op, 0, 0);
        const bool by_all = algorithm_ == algorithm::chunks_by_all;
        return begin_chunks(
            chunks_of(op), static_cast<work>(&shm_transport::fill_next_chunk),
            by_all ? nullptr : static_cast<work>(&shm_transport::reduce_slice_of_chunk),
            by_all ? static_cast<work>(&shm_transport::reduce_chunk)
                   : static_cast<work>(&shm_transport::take_results));
    }

    void reduce_pieces(const operation& op) {
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const reduction_group& g = op.groups[i];
            if (is_list_) reduce_segments(op, g, g.offset, g.bytes(), g.offset);
            else reduce_sources(op, g, op.in + g.offset, op.out + g.offset, g.count, g.offset);
        }
    }

    // Reduces n elements of a group that lie in `sources_`, from `at` bytes on.
    void reduce_sources(const operation& op, const reduction_group& g, const std::byte* in,
                        std::byte* out, std::size_t n, std::size_t at) {
        for (int p = 0; p < size_; ++p) inputs_[p] = p == rank_ ? in : sources_[p] + at;
        reduce_inputs(op, g, n, out);
    }

    // The same for bytes that may lie in several tensors of a list.
    void reduce_segments(const operation& op, const reduction_group& g, std::size_t begin,
                         std::size_t bytes, std::size_t at) {
        for (list_segment s(op, begin, bytes); s.next(); at += s.bytes)
            reduce_sources(op, g, s.in, s.out, s.bytes / g.element_bytes, at);
    }

    // ---- where the tensors lie ------------------------------------------------------------------

    // Shows two places of each tensor: where it is read and where it is written.
    bool show_places(const operation& op) {
        place_count_ = 2 * (op.tensor_count == 0 ? 1 : op.tensor_count);
        if (place_count_ > room_for_places()) return false;
        std::byte* const piece = room_for(place_count_ * sizeof(place));
        if (piece == nullptr) return false;
        if (size_ == 1) {
            // nobody else has to find the tensors
        } else if (op.tensor_count == 0) {
            const std::byte* const out = op.update != nullptr ? op.update->targets[0].data : op.out;
            if (!show_place(piece, 0, op.in, total_bytes_) ||
                !show_place(piece, 1, out, total_bytes_))
                return false;
        } else {
            const tensor_ref* const targets =
                op.update != nullptr ? op.update->targets.data() : op.tensors;
            for (std::size_t i = 0; i < op.tensor_count; ++i)
                if (!show_place(piece, 2 * i, op.tensors[i].data, op.tensors[i].bytes()) ||
                    !show_place(piece, 2 * i + 1, targets[i].data, op.tensors[i].bytes()))
                    return false;
        }
        show_piece(content::places, place_count_ * sizeof(place));
        return true;
    }

    void reduce_in_place(const operation& op) {
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const reduction_group& g = op.groups[i];
            const std::size_t begin = g.offset + g.begin_of(rank_, size_) * g.element_bytes,
                              bytes = g.count_of(rank_, size_) * g.element_bytes;
            for (list_segment s(op, begin, bytes); s.next();) {
                for (int p = 0; p < size_; ++p) {
                    const std::size_t end = s.at + s.bytes;
                    inputs_[p] =
                        p == rank_ ? s.in : at_place(p, 2 * s.tensor, place_count_, end) + s.at;
                    outputs_[std::size_t(p)] =
                        p == rank_ ? s.out
                                   : at_place(p, 2 * s.tensor + 1, place_count_, end) + s.at;
                }
                reduce_to_outputs(op, g, s);
            }
        }
        check_update(op);
    }

    // Reduces a segment of every rank to all of them. It uses up the inputs.
    void reduce_to_outputs(const operation& op, const reduction_group& g, const list_segment& s) {
        const bool updates = op.update != nullptr;
        const bool streaming = streaming_pays(size_, total_bytes_, s.in == s.out || updates,
                                              tuned_.unstable.streaming_from);
        current_ = s.out;
        place_ = s.place();
        guard([&] {
            reduce_to_places(g.function,
                             {g.op, nullptr, size_, size_, nullptr, s.bytes / g.element_bytes,
                              op.prescale(g), op.postscale(g)},
                             g.element_bytes, inputs_, outputs_.data(), size_, streaming,
                             updates ? reduced_hook{&update_block, this} : reduced_hook{});
        });
    }

    static void update_block(void* self, std::size_t at, std::size_t bytes, std::byte* values) {
        auto& t = *static_cast<shm_transport*>(self);
        t.update(t.place_ + at, bytes, values, t.current_ + at);
    }

    // An update that fails, as for want of memory, leaves slices of all ranks as they were. The
    // ranks do not agree on it, unless user code runs in the call anyway. So this rank gives up
    // before it arrives, and no rank takes the call for done.
    void check_update(const operation& op) {
        if (failure && !op.fallible) [[unlikely]]
            std::rethrow_exception(take_failure());
    }

    // An update has one group, which begins with the operation.
    void update(std::size_t place, std::size_t bytes, std::byte* values, const std::byte* current) {
        op_->update->apply(op_->update->self, done_, place, bytes, values, current);
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
        const std::size_t most = most_of(g);
        return {group, first, g.count - first < most ? g.count - first : most};
    }
    // The elements of a group in one chunk.
    std::size_t most_of(const reduction_group& g) const {
        return slice_room_ / g.element_bytes * std::size_t(size_);
    }

    std::uint64_t chunks_of(const operation& op) const {
        std::uint64_t chunks = 0;
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const std::size_t most = most_of(op.groups[i]);
            chunks += op.groups[i].count / most + (op.groups[i].count % most == 0 ? 0 : 1);
        }
        return chunks;
    }

    // Returns the next chunk that comes to a stage.
    chunk take_chunk(stage s) {
        chunk& next = next_to_[s];
        const chunk now = next;
        next = chunk_at(*op_, now.group, now.first + now.count);
        return now;
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
    std::byte* slice_in(std::byte* window, int p) const {
        return window + std::size_t(p) * slice_room_;
    }

    // Fills a window with a chunk: all of it, or all but this rank's own slice, whose place is for
    // its result.
    void fill_chunk(const operation& op, std::byte* window) {
        const chunk c = next_to_[filled];
        const reduction_group& g = op.groups[c.group];
        next_to_[filled] = chunk_at(op, c.group, c.first + c.count);
        const std::size_t bytes = c.count * g.element_bytes;
        stores_.fill(bytes, [&](store_kind kind) {
            if (algorithm_ == algorithm::chunks_by_all)
                return gather_bytes(op, g.offset + c.first * g.element_bytes, bytes, window, kind);
            for (int p = 0; p < size_; ++p) {
                if (p == rank_) continue;
                const range theirs = slice_of(op, c, p);
                gather_bytes(op, theirs.begin, theirs.bytes, slice_in(window, p), kind);
            }
        });
    }
    void fill_next_chunk(std::uint64_t i) { fill_chunk(*op_, chunk_of(rank_, i)); }

    void reduce_chunk(std::uint64_t i) {
        const chunk c = take_chunk(taken);
        const reduction_group& g = op_->groups[c.group];
        const std::size_t bytes = c.count * g.element_bytes;
        for (int p = 0; p < size_; ++p) sources_[p] = chunk_of(p, i);
        stores_.read(bytes, [&] {
            reduce_segments(*op_, g, g.offset + c.first * g.element_bytes, bytes, 0);
        });
    }

    void reduce_slice_of_chunk(std::uint64_t i) {
        const operation& op = *op_;
        const chunk c = take_chunk(reduced);
        const reduction_group& g = op.groups[c.group];
        const range own = slice_of(op, c, rank_);
        const bool direct = op.tensor_count == 0 && op.update == nullptr;  // no copy is needed
        std::byte* const result = direct ? op.out + own.begin : scratch_.data();
        if (op.tensor_count > 0) gather_bytes(op, own.begin, own.bytes, result);
        const std::byte* const mine = op.tensor_count == 0 ? op.in + own.begin : result;
        for (int p = 0; p < size_; ++p)
            inputs_[p] = p == rank_ ? mine : slice_in(chunk_of(p, i), rank_);
        const std::size_t n = own.bytes / g.element_bytes;
        reduce_inputs(op, g, n, result);
        if (op.update != nullptr) {
            std::byte* const current = scratch_.data() + slice_room_;
            gather_targets(op, own.begin, own.bytes, current);
            guard([&] { update(own.begin, own.bytes, result, current); });
            check_update(op);
        }
        // The kernel does not write into the window itself: its stores would wait, one by one, for
        // lines that the peers have read.
        store_bytes(stores_.best(), slice_in(chunk_of(rank_, i), rank_), result, own.bytes);
        if (!direct) scatter_bytes(op, own.begin, own.bytes, result);
    }

    // Takes the others' slices of a chunk from their windows.
    void take_results(std::uint64_t i) {
        const chunk c = take_chunk(taken);
        const reduction_group& g = op_->groups[c.group];
        stores_.read(c.count * g.element_bytes, [&] {
            for (int j = 1; j < size_; ++j) {
                const int p = (rank_ + j) % size_;
                const range theirs = slice_of(*op_, c, p);
                scatter_bytes(*op_, theirs.begin, theirs.bytes, slice_in(chunk_of(p, i), p));
            }
        });
    }

    struct small_piece {
        std::byte bytes[sizeof(step_line::small)];
    };
    table<small_piece> kept_{std::size_t(size_)};  // by rank

    // Each rank's slice of a chunk has this room in every window, at the same place, whatever its
    // size.
    const std::size_t slice_room_;
    algorithm algorithm_ = algorithm::by_groups;  // of the present call, as chosen
    bool moves_ = false;                          // its data may go with the header
    bool deposits_ = false;                       // and they have a place of their own
    bool is_list_ = false;
    std::size_t total_bytes_ = 0;
    const operation* op_ = nullptr;
    chunk next_to_[3];             // by stage
    std::size_t place_count_ = 0;  // that each rank shows
    table<const std::byte*> source_table_{std::size_t(size_)};
    const std::byte** const sources_ = source_table_.data();  // what is reduced, by rank
    table<std::byte*> outputs_{std::size_t(size_)};
    std::vector<std::byte> scratch_;      // a slice, and what it replaces
    const std::byte* current_ = nullptr;  // where an update goes
    std::size_t place_ = 0;               // its place in the operation
    std::size_t done_ = 0;                // bytes of this rank's slices that are updated
};

}  // namespace hvd::inline v0::detail
