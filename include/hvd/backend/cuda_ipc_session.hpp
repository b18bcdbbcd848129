// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../kernel/reduction.hpp"
#include "device_session.hpp"
#include "host_ranks.hpp"
#include "ipc_events.hpp"
#include "ipc_memory.hpp"
#include "ipc_message.hpp"
#include "ipc_schedule.hpp"


namespace hvd {
inline namespace v0 {
namespace detail {

// Ranks of one node whose streams meet by events and whose kernels reach each other's memory: windows, which this
// session has on every rank, and arenas. Nothing waits on the device but for events that the host knows to be recorded.
// A rank that is alone has none of it.
class cuda_ipc_session final : public device_session {
public:
    cuda_ipc_session(int rank, int size, int device, const communicator_options& options)
        : device_session(rank, size, device, options),
          room_(whole_units(options.device_window_bytes > ipc_unit * std::size_t(size) ? options.device_window_bytes : ipc_unit * std::size_t(size))) {}
    ~cuda_ipc_session() { end(); }

    // With the other ranks, by the links that it keeps: makes what they reach of each other.
    void connect(std::unique_ptr<host_ranks> calls, std::unique_ptr<host_ranks> farewell) {
        calls_ = std::move(calls);
        farewell_ = std::move(farewell);
        const time_point limit = limit_for({});
        const current_device here(device(), rank());
        linked([&] {
            ipc_home own;
            calls_->on_all(name, limit, [&] { own = ipc_home::of_this_rank(device(), rank()); });
            homes_ = calls_->all(own, limit);
            calls_->on_all(name, limit, [&] {
                if (size() > most_reduced_ranks)
                    throw usage_error(rank(), text("hvd: ", name, " on rank ", rank(), ": ", size(), " ranks, it takes up to ", most_reduced_ranks));
                reach_all(homes_, device(), rank());
            });
            ipc_events::offer events{};
            calls_->on_all(name, limit, [&] {
                events_.create(rank());
                events = events_.exported(homes_, rank());
                window_.allocate(2 * room_, rank());
            });
            const auto offers = calls_->all(events, limit);
            calls_->on_all(name, limit, [&] { events_.open(offers, homes_, rank()); });
            share(window_, limit);
        });
    }

    // Its links are those of the new communicator, too.
    std::unique_ptr<host_ranks> split_link(bool farewell, int color, int key) {
        std::unique_ptr<host_ranks> part;
        linked([&] { part = (farewell ? farewell_ : calls_)->split(color, key); });
        return part;
    }

    void enqueue(std::span<const device_call> calls, const char* label, cudaStream_t stream, time_point limit) override {
        refuse_if_broken(label);
        if (size() == 1) {
            for (const device_call& call : calls) alone(call, label, stream);
            return;
        }
        parts_.clear();
        for (const device_call& call : calls) parts_.push_back({call, size()});
        guarded([&] {
            if (last_) last_.make_wait(stream, rank());
            try {
                move_all(label, stream, limit);
            } catch (...) {
                mark_last(stream);
                throw;
            }
            last_.record(stream, rank());
        });
    }

    void check(const device_call& call, const char* label) const override {
        if (!call.reduces()) return;
        const dtype id = numbers_of(call.id, call.op).id;
        const bool scaled = call.prescale != 1 || call.postscale != 1;
        if (scaled && (id < dtype::float16 || id > dtype::float64))
            throw usage_error(rank(), text("hvd: ", label, " on rank ", rank(), ": ", op_names[call.op], " of ", dtype_name(call.id), " can't be scaled by ",
                                           call.prescale, " and ", call.postscale, " by hvd's kernel: only floats are"));
        if (!has_reductions() && (size() > 1 || scaled))
            throw usage_error(rank(), text("hvd: ", label, " on rank ", rank(), ": this program has no kernel that reduces: compile a .cu file with "
                                           "hvd/kernel/kernels.cuh into it"));
    }

    void agree(const record& mine, time_point limit) override {
        refuse_if_broken("agreement");
        if (size() == 1) return check_records(0, {mine});
        std::vector<record> all;
        linked([&] { all = calls_->all(mine, limit); });
        check_records(rank(), all);
    }

    // Peers that wait on the host are told when the link ends.
    void give_up(std::string_view why) noexcept override {
        device_session::give_up(why);
        calls_ = {};
    }

    std::span<std::byte> open_arena(std::size_t bytes) override {
        auto arena = std::make_unique<ipc_memory>();
        record mine = arena_record(bytes);
        const current_device here(device(), rank());
        try {
            if (bytes > 0) arena->allocate(bytes, rank());
        } catch (const cuda_error& e) {
            mine.refused = true;
            store(mine.text, text("hvd: device_arena of ", bytes, " bytes: ", e.what()));
        }
        agree(mine, limit_for({}));
        arenas_.push_back(std::move(arena));
        ipc_memory& memory = *arenas_.back();
        if (size() > 1 && bytes > 0) linked([&] { share(memory, limit_for({})); });
        const std::span<std::byte> all(memory.own(), bytes);
        add_arena(all);
        return all;
    }

    // With the other ranks. Where they do not come, the memory stays until the session ends.
    void close_arena(std::span<std::byte> memory) noexcept override {
        remove_arena(memory.data());
        if (memory.empty()) return;
        for (auto& arena : arenas_) {
            if (arena == nullptr || arena->own() != memory.data()) continue;
            const time_point limit = now() + options().destructor_deadline.nanoseconds();
            try {
                const current_device here(device(), rank());
                if (size() > 1) {
                    if (broken() || !finish(limit)) return;
                    arena->close();
                    linked([&] { calls_->all('e', limit); });
                }
                arena = {};
            } catch (...) {  // the communicator is given up, and says so at its next call
            }
            return;
        }
    }

private:
    static constexpr const char* name = "communicator<cuda_ipc>";

    // Of a call that failed: it may have begun to use the window.
    void mark_last(cudaStream_t stream) noexcept {
        try {
            last_.record(stream, rank());
        } catch (const cuda_error& e) {
            give_up(e.what());
        }
    }

    // The host's communicator fails for good.
    template <class F>
    void linked(F&& f) {
        try {
            f();
        } catch (const usage_error&) {
            throw;
        } catch (const error& e) {
            give_up(e.what());
            throw;
        }
    }

    void share(ipc_memory& memory, time_point limit) {
        const current_device here(device(), rank());
        ipc_memory::offer mine{};
        calls_->on_all(name, limit, [&] { mine = memory.exported(homes_, rank()); });
        const auto offers = calls_->all(mine, limit);
        calls_->on_all(name, limit, [&] { memory.open(offers, homes_, rank()); });
    }

    void alone(const device_call& call, const char* label, cudaStream_t stream) {
        check(call, label);
        guarded([&] {
            if (!call.reduces() || (call.prescale == 1 && call.postscale == 1)) return copy_alone(call, stream, rank());
            reduction_launch l = launch_of(call);
            l.in[0] = call.in;
            l.out[l.places++] = call.out;
            launch(l, call.bytes_of(0), stream);
        });
    }

    // Each step ends with a meeting; the window's halves take turns, so that the next step's input is there by then.
    void move_all(const char* label, cudaStream_t stream, time_point limit) {
        const bool uneven = has_uneven_exchange(), early = describe(label) && !uneven;
        std::vector<ipc_step> steps;
        if (early) steps = cut_into_steps(parts_, room_);
        if (!steps.empty()) bring_in(steps[0], 0, stream);
        meet(stream, limit);
        if (uneven) exchange_counts(limit);
        if (!early) steps = needs_window() ? cut_into_steps(parts_, room_) : one_step(parts_);
        if (uneven && needs_window() && !steps.empty()) {
            bring_in(steps[0], 0, stream);
            meet_again(stream, limit);
        }
        for (std::size_t s = 0; s < steps.size(); ++s) {
            for (const ipc_piece& piece : steps[s]) move(piece, s % 2, stream);
            if (s + 1 < steps.size()) bring_in(steps[s + 1], (s + 1) % 2, stream);
            meet_again(stream, limit);
            bring_out(steps[s], s % 2, stream);
        }
    }

    // Its ranks know only after a meeting how it is cut.
    bool has_uneven_exchange() const {
        for (const ipc_parts& p : parts_)
            if (p.is_uneven_exchange()) return true;
        return false;
    }

    // Says what this rank is about to do; gives whether it has a tensor that goes through the window.
    bool describe(const char* label) {
        const std::size_t n = parts_.size();
        places_.assign(n * std::size_t(size()), {});
        mine_ = {};
        mine_.what = record_of(parts_);
        bool through_window = false;
        for (std::size_t c = 0; c < n; ++c) {
            refuse_unsuitable(parts_[c].call, label);
            const ipc_places p = places_of(parts_[c]);
            through_window = through_window || p.in.arena == ipc_place::window || p.out.arena == ipc_place::window;
            places_[std::size_t(rank()) * n + c] = p;
            if (c < ipc_message::most_places) mine_.places[c] = p;
        }
        return through_window;
    }

    void refuse_unsuitable(const device_call& call, const char* label) {
        try {
            check(call, label);
        } catch (const usage_error& e) {
            if (std::exchange(mine_.what.refused, true)) return;
            store(mine_.what.text, e.what());
        }
    }

    ipc_places places_of(const ipc_parts& p) const {
        ipc_places result;
        if (p.gives(rank())) result.in = place_of(p.call.in, p.given_by(rank()), !p.overwrites_input(rank()));
        if (p.is_given(rank())) result.out = place_of(p.call.out, p.taken_by(rank()), true);
        return result;
    }

    ipc_place place_of(const std::byte* data, std::size_t bytes, bool may_stay) const {
        if (bytes == 0) return {};
        for (std::size_t a = 0; may_stay && a < arenas_.size(); ++a)
            if (arenas_[a] != nullptr && arenas_[a]->has(data, bytes)) return {std::int32_t(a), std::uint64_t(data - arenas_[a]->own())};
        return {ipc_place::window, 0};
    }

    // The ranks compare their calls and learn each other's places; then the stream waits for what theirs had to do before.
    void meet(cudaStream_t stream, time_point limit) {
        events_.record(stream, rank());
        std::vector<ipc_message> all;
        linked([&] { all = calls_->all(mine_, limit); });
        std::vector<record> records;
        for (const ipc_message& m : all) records.push_back(m.what);
        check_records(rank(), records);
        const std::size_t n = parts_.size(), first = n < ipc_message::most_places ? n : ipc_message::most_places;
        for (std::size_t r = 0; r < all.size(); ++r)
            for (std::size_t c = 0; c < first; ++c) places_[r * n + c] = all[r].places[c];
        if (n > first) exchange_places(first, limit);
        events_.make_wait(stream, rank());
    }

    void exchange_places(std::size_t first, time_point limit) {
        const std::size_t n = parts_.size(), more = n - first;
        std::vector<ipc_places> all(more * std::size_t(size()));
        const std::span own(places_.data() + std::size_t(rank()) * n + first, more);
        linked([&] { calls_->allgather(std::as_bytes(own), reinterpret_cast<std::byte*>(all.data()), limit); });
        for (std::size_t r = 0; r < std::size_t(size()); ++r)
            for (std::size_t c = 0; c < more; ++c) places_[r * n + first + c] = all[r * more + c];
    }

    // What each rank sends to each, which must be what that one expects.
    void exchange_counts(time_point limit) {
        const std::size_t n = std::size_t(size());
        counts_.clear();
        for (ipc_parts& p : parts_) {
            if (!p.is_uneven_exchange()) continue;
            std::vector<std::uint64_t> own(p.call.counts.begin(), p.call.counts.end()), all(2 * n * n), sent;
            own.insert(own.end(), p.call.receive_counts.begin(), p.call.receive_counts.end());
            linked([&] { calls_->allgather(std::as_bytes(std::span(own)), reinterpret_cast<std::byte*>(all.data()), limit); });
            for (std::size_t from = 0; from < n; ++from)
                for (std::size_t to = 0; to < n; ++to) {
                    const std::uint64_t given = sent.emplace_back(all[2 * n * from + to]), taken = all[2 * n * to + n + from];
                    if (given != taken) throw_unequal(int(from), given, int(to), taken);
                }
            counts_.push_back(std::move(sent));
            p.sent = counts_.back().data();
        }
    }

    [[gnu::cold, noreturn]] void throw_unequal(int from, std::uint64_t given, int to, std::uint64_t taken) const {
        const message values[] = {text("sends ", given, " to rank ", to), text("expects ", taken, " from rank ", from)};
        const mismatch_error::entry table[] = {{from, values[0]}, {to, values[1]}};
        throw mismatch_error(rank(), text("hvd: alltoall on rank ", rank(), ": ranks disagree on count: rank ", from, " ", values[0], ", rank ", to, " ", values[1]),
                             "count", table);
    }

    void meet_again(cudaStream_t stream, time_point limit) {
        events_.record(stream, rank());
        linked([&] { calls_->all('m', limit); });
        events_.make_wait(stream, rank());
    }

    bool needs_window() const {
        for (const auto& [in, out] : places_)
            if (in.arena == ipc_place::window || out.arena == ipc_place::window) return true;
        return false;
    }

    const ipc_places& places(const ipc_piece& piece, int r) const { return places_[std::size_t(r) * parts_.size() + piece.call]; }

    // Where this rank sees a piece of another's.
    std::byte* reached(const ipc_piece& piece, std::size_t half, const ipc_place& place, int r, int part) const {
        if (place.arena == ipc_place::window) return window_.of(r) + half * room_ + piece.base + std::size_t(part) * piece.stride;
        return arenas_[std::size_t(place.arena)]->of(r) + place.offset + parts_[piece.call].given_at(r, part) + piece.first;
    }

    std::size_t bytes_of(const ipc_piece& piece, std::size_t all) const {
        return all <= piece.first ? 0 : all - piece.first < piece.most ? all - piece.first : piece.most;
    }

    void bring_in(const ipc_step& step, std::size_t half, cudaStream_t stream) {
        for (const ipc_piece& piece : step) {
            const ipc_parts& p = parts_[piece.call];
            const ipc_place& place = places(piece, rank()).in;
            for (int part = 0; place.arena == ipc_place::window && part < p.parts(); ++part)
                copy_async(reached(piece, half, place, rank(), part), p.call.in + p.given_at(rank(), part) + piece.first,
                           bytes_of(piece, p.given(rank(), part)), cudaMemcpyDeviceToDevice, stream, rank());
        }
    }

    void bring_out(const ipc_step& step, std::size_t half, cudaStream_t stream) {
        for (const ipc_piece& piece : step) {
            const ipc_place& place = places(piece, rank()).out;
            if (place.arena != ipc_place::window) continue;
            copy_async(parts_[piece.call].call.out + piece.first, reached(piece, half, place, rank(), 0), piece.most, cudaMemcpyDeviceToDevice, stream, rank());
        }
    }

    void move(const ipc_piece& piece, std::size_t half, cudaStream_t stream) {
        const ipc_parts& p = parts_[piece.call];
        if (p.call.reduces()) return reduce(piece, half, stream);
        const int part = p.has_parts() ? rank() : 0;
        for (int from = 0; p.copies(rank()) && from < size(); ++from) {
            if (!p.gives(from) || p.given(from, part) <= piece.first) continue;
            const std::byte* const source = reached(piece, half, places(piece, from).in, from, part);
            std::byte* const target = p.call.out + p.taken_at(from) + piece.first;
            if (source != target) copy_async(target, source, bytes_of(piece, p.given(from, part)), cudaMemcpyDeviceToDevice, stream, rank());
        }
    }

    // This rank's slice, for all; or its part, for itself.
    void reduce(const ipc_piece& piece, std::size_t half, cudaStream_t stream) {
        const ipc_parts& p = parts_[piece.call];
        const bool scatters = p.call.kind == collective::reduce_scatter;
        const int part = scatters ? rank() : 0;
        const std::size_t bytes = bytes_of(piece, p.given(rank(), part));
        const ipc_slice slice = scatters ? ipc_slice{0, bytes} : slice_of(bytes, rank(), size());
        if (slice.begin == slice.end) return;
        reduction_launch l = launch_of(p.call);
        for (int r = 0; r < size(); ++r) l.in[r] = reached(piece, half, places(piece, r).in, r, part) + slice.begin;
        for (int r = 0; r < size(); ++r)
            if (p.is_given(r)) l.out[l.places++] = reached(piece, half, places(piece, r).out, r, 0) + slice.begin;
        if (scatters) l.out[l.places++] = p.call.out + piece.first;
        launch(l, slice.end - slice.begin, stream);
    }

    reduction_launch launch_of(const device_call& call) const {
        reduction_launch l{};
        const reduced_numbers numbers = numbers_of(call.id, call.op);
        l.id = numbers.id;
        l.op = numbers.op;
        l.ranks = size();
        l.divisor = call.op == op::average::id ? size() : 0;
        l.mode = rounding(call.mode > 0 ? call.mode - 1 : 0);
        l.prescale = call.prescale;
        l.postscale = call.postscale;
        return l;
    }

    void launch(reduction_launch& l, std::size_t bytes, cudaStream_t stream) {
        l.count = bytes / bytes_of_number(l.id);
        l.head = head_of(l);
        if (l.count > 0) check_cuda(launch_reduction(l, stream), "launch of hvd's reduction kernel", rank());
    }

    // Whether all that this rank has enqueued is done.
    bool finish(time_point limit) noexcept {
        backoff pauses(false);
        while (last_) {
            try {
                if (last_.reached(rank())) return true;
            } catch (const cuda_error&) {  // until the limit, then: nothing is known of it
            }
            if (pauses.pause() && now() > limit) return false;
        }
        return true;
    }

    // What peers may still use is not freed before they say that they don't; where they say nothing, it never is.
    void end() noexcept {
        if (farewell_ == nullptr) return;
        calls_ = {};
        const time_point limit = now() + options().destructor_deadline.nanoseconds();
        try {
            const current_device here(device(), rank());
            if (finish(limit)) {
                for_all_memory([](ipc_memory& m) { m.close(); });
                events_.close();
                farewell_->all('e', limit);
                return;
            }
        } catch (...) {
        }
        for_all_memory([](ipc_memory& m) { m.keep(); });
        events_.keep();
    }

    template <class F>
    void for_all_memory(F&& f) {
        f(window_);
        for (const auto& arena : arenas_)
            if (arena != nullptr) f(*arena);
    }

    std::unique_ptr<host_ranks> calls_, farewell_;  // null when alone; the first also when given up
    std::size_t room_;  // of each half of the window
    std::vector<ipc_home> homes_;
    ipc_events events_;
    ipc_memory window_;
    std::vector<std::unique_ptr<ipc_memory>> arenas_;  // by number; null when closed
    cuda_event last_;  // the end of the latest call: the next one, on any stream, does not touch the window before
    // Of the calls being enqueued.
    std::vector<ipc_parts> parts_;
    std::vector<ipc_places> places_;  // of rank 0's calls, of rank 1's, …
    ipc_message mine_{};
    std::vector<std::vector<std::uint64_t>> counts_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
