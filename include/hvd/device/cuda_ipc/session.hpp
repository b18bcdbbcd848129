// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../session.hpp"
#include "group.hpp"
#include "reach.hpp"
#include "schedule.hpp"
#include "side_stream.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Ranks of one node whose streams meet, and whose kernels reach each other's memory. Streams meet
// by signals, or else by events: then the device only waits for events that the host knows to be
// recorded. With signals, small calls are compared only later, when a rank comes by. A rank that is
// alone reaches no other memory.
class cuda_ipc_session final : public device_session {
public:
    cuda_ipc_session(int rank, int size, int device, const communicator_options& options)
        : device_session(rank, size, device, options),
          room_(room_for(size, options.device_window_bytes)) {}
    ~cuda_ipc_session() {
        stop_watching();
        end();
    }

    // Connects to the other ranks by the endpoints, which it keeps.
    void connect(std::unique_ptr<host_ranks> calls, std::unique_ptr<host_ranks> farewell) {
        const current_device here(device(), rank());
        linked([&] {
            reach_.connect(std::move(calls), std::move(farewell), device(), own_stream(), room_,
                           limit_for({}));
        });
    }

    // Returns an endpoint for a communicator of some of the ranks.
    std::unique_ptr<host_ranks> split_endpoint(bool farewell, int color, int key) {
        const inside turn(*this);
        // The host's communicator knows nothing of calls that ranks have only enqueued.
        if (!farewell && reach_.signals().are_used())
            agree(*this, agreement_header("split"), limit_for({}));
        std::unique_ptr<host_ranks> part;
        linked([&] { part = (farewell ? reach_.farewell() : reach_.calls()).split(color, key); });
        return part;
    }

    void enqueue(std::span<const collective_call> calls, const char* label, cudaStream_t stream,
                 time_point limit) override {
        enqueue_calls(calls, label, stream, limit, false);
    }
    void enqueue_ahead(std::span<const collective_call> calls, const char* label,
                       cudaStream_t stream, time_point limit) override {
        enqueue_calls(calls, label, stream, limit, reach_.signals().are_used());
    }

    void check(const collective_call& call, const char* label) const override {
        if (!call.reduces()) return;
        const dtype id = numbers_of(call.entry.id, call.entry.op).id;
        const bool scaled = call.entry.prescale != 1 || call.entry.postscale != 1;
        if (scaled && (id < dtype::float16 || id > dtype::float64))
            throw usage_error(
                rank(),
                text("hvd: ", label, " on rank ", rank(), ": ", op_names[call.entry.op], " of ",
                     dtype_name(call.entry.id), " can't be scaled by ", call.entry.prescale,
                     " and ", call.entry.postscale, " by hvd's kernel: only floats are"));
        if (!has_reductions() && (size() > 1 || scaled))
            throw usage_error(rank(), no_kernels(label, rank()));
    }

    void post_refusal(const call_header& mine, time_point limit) override {
        if (size() == 1 || broken()) return;
        meet_alone(mine, limit);
    }

    bool compares(collective) const override { return true; }

    void give_up(std::string_view why) noexcept override {
        const inside turn(*this);
        device_session::give_up(why);
        reach_.signals().release(destructor_limit());
        reach_.leave();
    }

    std::uint64_t latest_call() const override { return reach_.signals().turns(); }

    void conclude(std::uint64_t call, const char* label) override {
        const inside turn(*this);
        if (!reach_.signals().are_used()) return;
        if (const int r = reach_.signals().released_by(call); r >= 0) lose(r, label);
        compare(label);
        reach_.signals().calls().throw_failure_of(call);
    }

    bool leave_to_stream(std::uint64_t call, const char* label) override {
        const inside turn(*this);
        conclude(call, label);
        return reach_.signals().are_used() && reach_.signals().calls().leave_to_stream(call);
    }

    void compare_now(const char* label, time_point limit) override {
        const inside turn(*this);
        if (!reach_.signals().are_used()) return;
        wait_until([&] { return compare(label); }, label, limit);
        conclude(latest_call(), label);
    }

    void look_for_errors(const char* label) override {
        refuse_if_broken(label);
        if (!reach_.signals().are_used()) return;
        compare(label);
        if (const int r = reach_.signals().missing(); r >= 0) lose(r, label);
    }

    std::span<std::byte> open_arena(std::size_t bytes) override {
        auto arena = std::make_unique<ipc_memory>();
        const current_device here(device(), rank());
        agree_on_arena(bytes, [&] { arena->allocate(bytes, rank()); });
        ipc_memory& memory = reach_.add_arena(std::move(arena));
        if (size() > 1 && bytes > 0) linked([&] { reach_.share(memory, limit_for({})); });
        const std::span<std::byte> all(memory.own(), bytes);
        add_arena(all);
        return all;
    }

    // Closes the arena with the other ranks. If they do not come, the memory stays until the
    // session ends.
    void close_arena(std::span<std::byte> memory) noexcept override {
        const inside turn(*this);
        remove_arena(memory.data());
        const auto arena = reach_.find_arena(memory.data());
        const time_point limit = destructor_limit();
        if (memory.empty() || arena == nullptr || broken()) return;
        try {
            const current_device here(device(), rank());
            if (!finish(limit)) return;
            (*arena)->close();
            if (size() > 1) linked([&] { reach_.calls().all('e', limit); });
            *arena = {};
        } catch (...) {  // the communicator is given up, and reports it at its next call
        }
    }

private:
    void enqueue_calls(std::span<const collective_call> calls, const char* label,
                       cudaStream_t stream, time_point limit, bool ahead) {
        refuse_if_broken(label);
        if (size() == 1) {
            for (const collective_call& call : calls) alone(call, label, stream);
            return;
        }
        guarded([&] {
            if (last_) last_.make_wait(stream, rank());
            try {
                move_all(calls, label, stream, limit, ahead);
            } catch (...) {
                mark_last(stream);
                // No stream of the caller's comes after the own one, which may still copy tensors.
                if (stream == own_stream() && !broken()) finish(limit);
                throw;
            }
            last_.record(stream, rank());
        });
    }

    // An agreement meets as a call does, so that both learn of a rank that makes the other one.
    void gather_headers(table<call_header>& all, time_point limit) override {
        std::size_t r = 0;
        for (const ipc_message& met : meet_alone(all[std::size_t(rank())], limit))
            copy_header(all[r++], met.header);
    }

    // Meets without a call. The own stream takes its place between the calls of other streams: an
    // event may not be recorded again before its earlier record is reached.
    std::vector<ipc_message> meet_alone(const call_header& header, time_point limit) {
        ipc_message mine{};
        mine.header = header;
        const current_device here(device(), rank());
        return guarded([&] {
            if (last_) last_.make_wait(own_stream(), rank());
            auto all = exchange(mine, own_stream(), limit);
            last_.record(own_stream(), rank());
            return all;
        });
    }

    // A host's communicator that fails does so for good. A refusal is no failure.
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

    void alone(const collective_call& call, const char* label, cudaStream_t stream) {
        check(call, label);
        guarded([&] {
            if (!call.reduces() || (call.entry.prescale == 1 && call.entry.postscale == 1))
                return copy_alone(call, stream, rank());
            reduction_launch l = launch_of(call, size());
            l.in[0] = call.in;
            l.out[l.places++] = call.out;
            launch(l, call.bytes_of(0), stream, rank());
        });
    }

    // A meeting comes before each step. Meanwhile another stream empties the other half of the
    // window and fills it for the next step. The last step needs one behind it only where tensors
    // are read or written in place. The halves take turns with the meetings, also from call to
    // call: before one is filled again, the ranks have met after its last use. This rank's first
    // input is there before the ranks meet, if it is known to go through the window.
    void move_all(std::span<const collective_call> calls, const char* label, cudaStream_t stream,
                  time_point limit, bool ahead) {
        describe(calls, label);
        const bool uneven = group_.has_uneven_exchange(), early = group_.needs_window() && !uneven;
        std::vector<ipc_step> steps;
        if (early) steps = cut_into_steps(group_.parts(), room_);
        if (!steps.empty()) bring_in(steps[0], 1 - half_, stream);
        if (ahead && group_.is_known() && steps.size() <= 1) {
            post(group_.message(), label, limit);
            meet(stream, limit);
        } else {
            meet_first(uneven, stream, limit);
        }
        if (!early)
            steps = group_.needs_window() ? cut_into_steps(group_.parts(), room_)
                                          : one_step(group_.parts());
        if (uneven && group_.needs_window() && !steps.empty()) {
            bring_in(steps[0], 1 - half_, stream);
            meet(stream, limit);
        }
        for (std::size_t s = 0; s < steps.size(); ++s) {
            const std::size_t half = half_;
            const bool last = s + 1 == steps.size();
            if (steps.size() > 1) {
                const cudaStream_t beside = beside_.fork(stream, rank());
                if (s > 0) bring_out(steps[s - 1], 1 - half, beside);
                if (!last) bring_in(steps[s + 1], 1 - half, beside);
            }
            for (const ipc_piece& piece : steps[s]) move(piece, half, stream);
            if (steps.size() > 1) beside_.join(stream, rank());
            if (!last || group_.stays_in_place()) meet(stream, limit);
            if (last) bring_out(steps[s], half, stream);
        }
    }

    void describe(std::span<const collective_call> calls, const char* label) {
        group_.begin(calls, size());
        for (std::size_t c = 0; c < calls.size(); ++c) {
            try {
                check(calls[c], label);
            } catch (const usage_error& e) {
                group_.refuse(e.what());
            }
            const call_parts& p = group_.parts(c);
            if (is_small(p, room_)) group_.put_small(c, rank());
            else group_.put(c, rank(), reach_.places_of(p));
        }
    }

    // The ranks compare their calls and learn each other's places, and the stream waits for the
    // earlier work of theirs.
    void meet_first(bool uneven, cudaStream_t stream, time_point limit) {
        const bool more = group_.learn(rank(), exchange(group_.message(), stream, limit));
        if (more) linked([&] { group_.exchange_places(reach_.calls(), limit); });
        if (!uneven) return;
        linked([&] { group_.exchange_counts(reach_.calls(), limit); });
        group_.learn_counts(rank());
    }

    // The streams meet: what this one does later comes after what the others' have been given.
    void meet(cudaStream_t stream, time_point limit) {
        if (reach_.signals().are_used()) {
            half_ = 1 - half_;
            reach_.signals().meet(stream);
        } else {
            meet_by_events('m', stream, limit);
        }
    }

    // The same, and each rank tells the others something on the host, also in a refused call.
    std::vector<ipc_message> exchange(const ipc_message& mine, cudaStream_t stream,
                                      time_point limit) {
        if (!reach_.signals().are_used()) return meet_by_events(mine, stream, limit);
        const message label = mine.header.label();
        std::vector<ipc_message> all;
        post(mine, label.c_str(), limit, &all);
        meet(stream, limit);
        wait_until([&] { return compare(label.c_str()); }, label.c_str(), limit);
        return all;
    }

    template <class T>
    std::vector<T> meet_by_events(const T& mine, cudaStream_t stream, time_point limit) {
        half_ = 1 - half_;
        reach_.events().record(stream, rank());
        std::vector<T> all;
        linked([&] { all = reach_.calls().all(mine, limit); });
        reach_.events().make_wait(stream, rank());
        return all;
    }

    // Shows the others a call that takes the next turn.
    void post(const ipc_message& mine, const char* label, time_point limit,
              std::vector<ipc_message>* answers = nullptr) {
        ipc_signals& signals = reach_.signals();
        const auto has_room = [&] {
            compare(label);
            if (const int r = signals.not_coming(); r >= 0) lose(r, label);
            return signals.calls().has_room();
        };
        wait_until(has_room, label, limit);
        signals.calls().post(mine, signals.turns() + 1, answers);
    }

    template <class F>
    void wait_until(F&& done, const char* label, time_point limit) {
        backoff pauses(false);
        while (!done()) {
            if (!pauses.pause()) continue;
            look_for_errors(label);
            if (must_end(limit)) expire(label);
        }
    }

    bool compare(const char* label) {
        const auto fail = [&](const char* why) { give_up(why); };
        const bool all = reach_.signals().calls().compare(fail);
        refuse_if_broken(label);
        return all;
    }

    [[gnu::cold, noreturn]] void lose(int peer, const char* label) {
        const auto what = text("hvd: ", label, " on rank ", rank(), ": rank ", peer,
                               " has left the communicator or given it up");
        give_up(what);
        throw peer_error(rank(), what, {});
    }

    // The end of a failed call, which may have begun to use the window.
    void mark_last(cudaStream_t stream) noexcept {
        try {
            beside_.join(stream, rank());
            last_.record(stream, rank());
        } catch (const cuda_error& e) {
            give_up(e.what());
        }
    }

    // Returns the address at which this rank sees a piece of another's.
    std::byte* seen(const ipc_piece& piece, std::size_t half, const ipc_place& place, int r,
                    int part) const {
        if (place.arena == ipc_place::window)
            return reach_.in_window(r, half) + piece.base + std::size_t(part) * piece.stride;
        return reach_.in_arena(r, place) + group_.parts(piece.call).given_at(r, part) + piece.first;
    }

    // The bytes of an input's part that no other rank reads, or this rank's slice of an output.
    // They stay where they are if the kernel's vectors are aligned there.
    ipc_slice kept(const ipc_piece& piece, int part, const std::byte* tensor) const {
        const call_parts& p = group_.parts(piece.call);
        const std::size_t bytes = piece.bytes_of(p.given(rank(), part));
        const bool aligned = reinterpret_cast<std::uintptr_t>(tensor) % 16 == 0;
        if (p.has_parts())
            return part == rank() && (aligned || !p.call.reduces()) ? ipc_slice{0, bytes}
                                                                    : ipc_slice{0, 0};
        return p.call.reduces() && aligned && !is_small(p, room_) ? slice_of(bytes, rank(), size())
                                                                  : ipc_slice{0, 0};
    }

    const std::byte* own_part(const ipc_piece& piece, int part) const {
        const call_parts& p = group_.parts(piece.call);
        return p.call.in + p.given_at(rank(), part) + piece.first;
    }

    // Returns the address at which this rank reads its own input.
    const std::byte* own_input(const ipc_piece& piece, std::size_t half, int part) const {
        const std::byte* const own = own_part(piece, part);
        const ipc_slice here = kept(piece, part, own);
        return here.begin < here.end
                   ? own
                   : seen(piece, half, group_.places(piece.call, rank()).in, rank(), part);
    }

    // Returns the address at which this rank writes its slice of its own output.
    std::byte* own_output(const ipc_piece& piece, std::size_t half) const {
        std::byte* const own = group_.parts(piece.call).call.out + piece.first;
        const ipc_slice here = kept(piece, 0, own);
        return here.begin < here.end
                   ? own
                   : seen(piece, half, group_.places(piece.call, rank()).out, rank(), 0);
    }

    void bring_in(const ipc_step& step, std::size_t half, cudaStream_t stream) {
        if (reach_.signals().are_used()) reach_.signals().announce();
        for (const ipc_piece& piece : step) {
            const call_parts& p = group_.parts(piece.call);
            const ipc_place& place = group_.places(piece.call, rank()).in;
            for (int part = 0; place.arena == ipc_place::window && part < p.parts(); ++part) {
                const std::byte* const own = own_part(piece, part);
                copy_around(kept(piece, part, own), seen(piece, half, place, rank(), part), own,
                            piece.bytes_of(p.given(rank(), part)), stream, rank());
            }
        }
    }

    void bring_out(const ipc_step& step, std::size_t half, cudaStream_t stream) const {
        for (const ipc_piece& piece : step) {
            const ipc_place& place = group_.places(piece.call, rank()).out;
            if (place.arena != ipc_place::window) continue;
            std::byte* const out = group_.parts(piece.call).call.out + piece.first;
            copy_around(kept(piece, 0, out), out, seen(piece, half, place, rank(), 0), piece.most,
                        stream, rank());
        }
    }

    void move(const ipc_piece& piece, std::size_t half, cudaStream_t stream) const {
        const call_parts& p = group_.parts(piece.call);
        if (p.call.reduces()) return reduce(piece, half, stream);
        const int part = p.has_parts() ? rank() : 0;
        for (int k = 0; p.copies(rank()) && k < size(); ++k) {
            const int from = (rank() + k) % size();  // no two ranks read from one at a time
            if (!p.gives(from) || p.given(from, part) <= piece.first) continue;
            copy_apart(p.call.out + p.taken_at(from) + piece.first,
                       from == rank()
                           ? own_input(piece, half, part)
                           : seen(piece, half, group_.places(piece.call, from).in, from, part),
                       piece.bytes_of(p.given(from, part)), stream, rank());
        }
    }

    // Reduces this rank's slice for all, or its part for itself. Each rank reduces all of a small
    // tensor that it takes.
    void reduce(const ipc_piece& piece, std::size_t half, cudaStream_t stream) const {
        const call_parts& p = group_.parts(piece.call);
        const bool scatters = p.call.entry.kind == collective::reduce_scatter,
                   alone = scatters || is_small(p, room_);
        if (alone && p.taken_by(rank()) == 0) return;
        const int part = scatters ? rank() : 0;
        const std::size_t bytes = piece.bytes_of(p.given(rank(), part));
        const ipc_slice slice = alone ? ipc_slice{0, bytes} : slice_of(bytes, rank(), size());
        if (slice.begin == slice.end) return;
        reduction_launch l = launch_of(p.call, size());
        for (int r = 0; r < size(); ++r) {
            const ipc_places& places = group_.places(piece.call, r);
            l.in[r] = seen(piece, half, places.in, r, part) + slice.begin;
            if (p.is_given(r) && !alone)
                l.out[l.places++] =
                    (r == rank() ? own_output(piece, half) : seen(piece, half, places.out, r, 0)) +
                    slice.begin;
        }
        l.in[rank()] = own_input(piece, half, part) + slice.begin;
        if (alone) l.out[l.places++] = p.call.out + piece.first;
        launch(l, slice.end - slice.begin, stream, rank());
    }

    // Waits until everything that this rank has enqueued is done. It returns false otherwise.
    bool finish(time_point limit) noexcept {
        backoff pauses(false);
        while (last_) {
            try {
                if (last_.reached(rank())) return true;
            } catch (const cuda_error&) {  // the state is unknown: go on until the limit
            }
            if (pauses.pause() && now() > limit) return false;
        }
        return true;
    }

    void end() noexcept {
        const time_point limit = destructor_limit();
        reach_.leave();
        try {
            const current_device here(device(), rank());
            // A stream may wait for a call that does not come.
            const auto freed = [&] { return reach_.signals().release(now()); };
            reach_.end(finish(limit) || (freed() && finish(destructor_limit())), limit);
        } catch (...) {
            reach_.end(false, limit);
        }
    }

    std::size_t room_;      // bytes of each half of the window
    std::size_t half_ = 0;  // the half since the latest meeting, the same on all ranks
    ipc_reach reach_;
    // The end of the latest call. The next one, on any stream, does not touch the window before.
    cuda_event last_;
    ipc_group group_;
    side_stream beside_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
