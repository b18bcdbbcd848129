// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>

#include "../../comm/host_ranks_of.hpp"
#include "../../core/tuning.hpp"
#include "parts.hpp"
#include "staging.hpp"

namespace hvd::inline v0::detail {

// One rank's part of a collective, cut into rounds: round k moves chunk k of every part of the
// tensor. The parts are those of the ranks if the collective has any, or else there is one part.
class staged_parts {
public:
    staged_parts() = default;

    void add(const std::byte* first, std::size_t bytes) { parts_.push_back({first, bytes}); }
    std::size_t count() const { return parts_.size(); }

    // Returns the bytes of part `p` in this round, which takes at most `most` bytes of each.
    std::size_t bytes(std::size_t p, std::size_t round, std::size_t most) const {
        const std::size_t done = round * most, all = parts_[p].bytes;
        return all <= done ? 0 : all - done < most ? all - done : most;
    }

    std::size_t rounds(std::size_t most) const {
        std::size_t longest = 0;
        for (const part& p : parts_) longest = p.bytes > longest ? p.bytes : longest;
        return (longest + most - 1) / most;
    }

    // Returns the bytes of the longest round, which is the first.
    std::size_t most_bytes(std::size_t most) const {
        std::size_t sum = 0;
        for (std::size_t p = 0; p < parts_.size(); ++p) sum += bytes(p, 0, most);
        return sum;
    }

    // Calls `f` with each part of the round. They follow each other in the chunk.
    template <class F>
    void each(std::size_t round, std::size_t most, F&& f) const {
        std::size_t at = 0;
        for (std::size_t p = 0; p < parts_.size(); ++p) {
            const std::size_t n = bytes(p, round, most);
            f(staged_part{parts_[p].first + round * most, at, n});
            at += n;
        }
    }

private:
    struct part {
        const std::byte* first;
        std::size_t bytes;
    };
    std::vector<part> parts_;
};

// A call for the host's session. `given` elements leave from `in`, and `taken` elements come to
// `out`. Both are memory that the host's backend reaches.
class host_call {
public:
    host_call(const collective_call& call, collective kind, std::byte* in, std::size_t given,
              std::byte* out, std::size_t taken, int rank)
        : group_{call.reduce, call.callable, call.element_bytes, 0,
                 given,       nullptr,       call.entry.id,      false},
          output_{out, taken, rank} {
        static_cast<collective_call&>(op) = call;
        op.counts = op.receive_counts = {};
        op.entry.kind = kind;
        op.entry.count = given;
        op.in = in;
        op.out = out;
        op.unchecked = true;
        if (call.reduces()) {
            op.groups = &group_;
            op.group_count = 1;
        } else if (kind != collective::broadcast && (kind != collective::gather || is_root(rank))) {
            check_size();
        }
    }
    host_call(const host_call&) = delete;
    host_call& operator=(const host_call&) = delete;

    bool is_root(int rank) const { return op.entry.root == rank; }

    operation op;

private:
    // Checks the size of the result: if the ranks disagree, it may exceed the output.
    void check_size() {
        op.self = this;
        op.provide = [](void* self, slice<const std::size_t> counts) {
            const host_call& call = *static_cast<host_call*>(self);
            return detail::provide(call.output_, counts, call.op.entry);
        };
    }

    reduction_group group_;
    given_memory output_;
};

// Collectives of device tensors over a communicator of the host. Enqueuing a collective moves it.
// Its request is only for the last copies to the GPU.
template <class Host>
class staged_session : public device_session {
public:
    // The bytes of one chunk, for the parts of all ranks together.
    static constexpr std::size_t chunk_bytes = tuning::staged_chunk_bytes;

    staged_session(communicator<Host> host, int device, const communicator_options& options)
        : device_session(host.rank(), host.size(), device, options),
          host_(std::move(host)),
          staging_((current_device(device, host_.rank()), host_.rank())) {}
    ~staged_session() {
        stop_watching();
        staging_.finish();
    }

    // Makes a session with its own communicator, split from `bootstrap`. **Collective**.
    static std::shared_ptr<staged_session> make(communicator<Host>& bootstrap,
                                                const communicator_options& options) {
        constexpr const char* name = "a communicator of staged tensors";
        meet(bootstrap, name, options);
        auto host = own_duplicate(bootstrap);
        return make_on_all(bootstrap, name, options, [&] {
            return std::make_shared<staged_session>(
                std::move(host), device_of_this_thread(bootstrap.rank()), options);
        });
    }

    void enqueue(std::span<const collective_call> calls, const char* label, cudaStream_t stream,
                 time_point limit) override {
        refuse_if_broken(label);
        try {
            for (const collective_call& call : calls) on_host([&] { run(call, stream, limit); });
        } catch (const cuda_error& e) {  // the host's communicator knows nothing of it
            staging_.finish();
            give_up(e.what());
            throw;
        } catch (...) {
            staging_.finish();
            throw;
        }
    }

    // The host compares headers for every call that the peers make.
    void post_refusal(const call_header& mine, time_point limit) override {
        if (size() == 1 || broken()) return;
        on_host([&] { access::session_of(host_).post_refusal(mine, limit); });
    }

    bool compares(collective) const override { return true; }

    // The peers wait for the host's communicator, which tells them when it ends.
    void give_up(std::string_view why) noexcept override {
        const inside turn(*this);
        device_session::give_up(why);
        host_ = {};
    }

    communicator<Host>& host() { return host_; }

protected:
    // Moves one collective through the host.
    virtual void run(const collective_call& call, cudaStream_t stream, time_point limit) {
        if (size() == 1 && !call.reduces()) return copy_alone(call, stream, rank());
        wait(mark(stream), name_of(call.entry.kind),
             limit);  // earlier work on the stream may be late
        if (call.entry.kind == collective::barrier) {
            host_call barrier(call, call.entry.kind, nullptr, 0, nullptr, 0, rank());
            return run_on_host(barrier.op, limit);
        }
        compare(call, limit);
        switch (call.entry.kind) {
            case collective::allreduce:
            case collective::reduce: return reduce_all(call, stream, limit);
            case collective::reduce_scatter: return reduce_parts(call, stream, limit);
            default: return move(call, stream, limit);
        }
    }

private:
    void gather_headers(table<call_header>& all, time_point limit) override {
        on_host([&] {
            all = access::session_of(host_).exchange_headers(all[std::size_t(rank())], limit);
        });
    }

    // A refusal by the host is no failure, and its communicator works on. If it does not, no later
    // call can be made, and other calls under way, in NCCL, would not end by themselves.
    template <class F>
    void on_host(F&& f) {
        try {
            f();
        } catch (...) {
            if (!broken() && static_cast<call_driver&>(access::session_of(host_)).is_broken())
                give_up(what_of(std::current_exception()));
            throw;
        }
    }

    // The host compares reductions chunk by chunk. A rank with more chunks than the others would
    // learn it only from their next call. For movements the host sees only bytes.
    void compare(const collective_call& call, time_point limit) {
        const bool is_small =
            !call.counts.empty() || call.entry.count * call.element_bytes < most_of(call);
        if (call.reduces() && is_small) return;
        agree(*this, header_of({&call, 1}, size()), limit);
    }

    void run_on_host(operation& op, time_point limit) {
        access::run(host_, op, options_until(limit).timeout);
    }

    void reduce_on_host(const collective_call& call, collective kind, int root, std::byte* data,
                        std::size_t bytes, time_point limit) {
        const std::size_t count = bytes / call.element_bytes;
        host_call on_host(call, kind, data, count, data, count, rank());
        on_host.op.entry.root = root;
        run_on_host(on_host.op, limit);
    }

    // Returns the bytes of whole elements that a chunk holds of each part: of every rank's part, or
    // of the only one.
    std::size_t most_of(const collective_call& call) const {
        const bool one = call.entry.kind == collective::allreduce ||
                         call.entry.kind == collective::reduce ||
                         call.entry.kind == collective::broadcast;
        const std::size_t elements =
            chunk_bytes / (one ? 1 : std::size_t(size())) / call.element_bytes;
        return (elements > 0 ? elements : 1) * call.element_bytes;
    }

    void reduce_all(const collective_call& call, cudaStream_t stream, time_point limit) {
        const std::size_t most = most_of(call), bytes = call.entry.count * call.element_bytes;
        staged_parts in, out;
        in.add(call.in, bytes);
        out.add(call.out,
                call.entry.kind == collective::reduce && call.entry.root != rank() ? 0 : bytes);
        staging_.run(
            in.rounds(most), in.most_bytes(most), stream,
            [&](std::size_t round, auto&& copy) { in.each(round, most, copy); },
            [&](std::size_t round, std::byte* chunk) {
                reduce_on_host(call, call.entry.kind, call.entry.root, chunk,
                               in.bytes(0, round, most), limit);
            },
            [&](std::size_t round, auto&& copy) { out.each(round, most, copy); });
    }

    // Reduces each rank's part to that rank.
    void reduce_parts(const collective_call& call, cudaStream_t stream, time_point limit) {
        const std::size_t most = most_of(call);
        const staged_parts in = parts_of(call).send;
        const auto each = [&](std::size_t round, auto&& f) {
            std::size_t p = 0;
            in.each(round, most, [&](const staged_part& piece) { f(int(p++), piece); });
        };
        staging_.run(
            in.rounds(most), in.most_bytes(most), stream,
            [&](std::size_t round, auto&& copy) { in.each(round, most, copy); },
            [&](std::size_t round, std::byte* chunk) {
                each(round, [&](int p, const staged_part& piece) {
                    if (piece.bytes > 0)
                        reduce_on_host(call, collective::reduce, p, chunk + piece.at, piece.bytes,
                                       limit);
                });
            },
            [&](std::size_t round, auto&& copy) {
                each(round, [&](int p, const staged_part& piece) {
                    if (p == rank())
                        copy(staged_part{call.out + round * most, piece.at, piece.bytes});
                });
            });
    }

    // The parts that go to each rank and come from each, as in an alltoall. A broadcast is an
    // allgather in which only the root has elements.
    struct exchange {
        staged_parts send, receive;
    };

    void move(const collective_call& call, cudaStream_t stream, time_point limit) {
        const std::size_t most = most_of(call);
        const exchange x = parts_of(call);
        const std::size_t room = x.send.most_bytes(most) / 64 * 64 +
                                 64;  // received parts do not overlap those that are sent
        staging_.run(
            rounds_of(call, x, most, limit), room + x.receive.most_bytes(most), stream,
            [&](std::size_t round, auto&& copy) { x.send.each(round, most, copy); },
            [&](std::size_t round, std::byte* chunk) {
                move_chunk(call, x, round, most, chunk, chunk + room, limit);
            },
            [&](std::size_t round, auto&& copy) {
                x.receive.each(round, most, [&](staged_part p) {
                    p.at += room;
                    copy(p);
                });
            });
    }

    exchange parts_of(const collective_call& call) const {
        const call_parts p{call, size()};
        const int me = rank();
        exchange x;
        for (int part = 0; part < p.parts(); ++part)
            x.send.add(call.in + p.given_at(me, part), p.gives(me) ? p.given(me, part) : 0);
        if (!p.takes_parts()) x.receive.add(call.out, p.copies(me) ? p.taken_by(me) : 0);
        for (int from = 0; p.takes_parts() && from < size(); ++from)
            x.receive.add(call.out + p.taken_at(from), p.copies(me) ? p.taken(from) : 0);
        return x;
    }

    // Returns the rounds of all ranks. Not every rank sees the longest part of a collective whose
    // parts differ.
    std::size_t rounds_of(const collective_call& call, const exchange& x, std::size_t most,
                          time_point limit) {
        std::uint64_t rounds = x.send.rounds(most) > x.receive.rounds(most)
                                   ? x.send.rounds(most)
                                   : x.receive.rounds(most);
        if (!call.counts.empty() && call.entry.kind != collective::allgather)
            host_.allreduce(rounds, max, {.timeout = options_until(limit).timeout});
        return std::size_t(rounds);
    }

    // Moves a chunk. Counts are elements, so that all ranks compare their own calls.
    void move_chunk(const collective_call& call, const exchange& x, std::size_t round,
                    std::size_t most, std::byte* from, std::byte* to, time_point limit) {
        std::vector<std::size_t> counts;
        std::size_t given = 0, taken = 0;
        for (std::size_t p = 0; p < x.send.count(); ++p)
            given += counts.emplace_back(x.send.bytes(p, round, most) / call.element_bytes);
        for (std::size_t p = 0; p < x.receive.count(); ++p)
            taken += x.receive.bytes(p, round, most) / call.element_bytes;
        const collective kind = call.entry.kind;
        const bool is_root = call.entry.root == rank();
        if (kind == collective::broadcast) {  // in place, in the half that has the bytes
            (is_root ? to : from) = is_root ? from : to;
            given = taken = given + taken;
        }
        host_call on_host(call, kind, from, given, to, taken, rank());
        if (kind == collective::alltoall || (kind == collective::scatter && is_root))
            on_host.op.counts = counts;
        run_on_host(on_host.op, limit);
    }

    communicator<Host> host_;
    staging staging_;
};

}  // namespace hvd::inline v0::detail
