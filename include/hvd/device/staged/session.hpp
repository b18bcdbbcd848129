// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>

#include "../../comm/host_ranks_of.hpp"
#include "../../comm/made_on_all.hpp"
#include "../../core/tuning.hpp"
#include "../cuda_ipc/message.hpp"
#include "../host_reduction.hpp"
#include "staging.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What one rank has of a collective, cut into rounds: chunk k of every part of the tensor. Parts
// are the ranks' of a collective that has some, else there is one.
class staged_parts {
public:
    staged_parts() = default;

    void add(const std::byte* first, std::size_t bytes) { parts_.push_back({first, bytes}); }
    std::size_t count() const { return parts_.size(); }

    // Of part `p` in this round, which takes `most` bytes of each.
    std::size_t bytes(std::size_t p, std::size_t round, std::size_t most) const {
        const std::size_t done = round * most, all = parts_[p].bytes;
        return all <= done ? 0 : all - done < most ? all - done : most;
    }

    std::size_t rounds(std::size_t most) const {
        std::size_t longest = 0;
        for (const part& p : parts_) longest = p.bytes > longest ? p.bytes : longest;
        return (longest + most - 1) / most;
    }

    // What the longest round, which is the first, takes.
    std::size_t most_bytes(std::size_t most) const {
        std::size_t sum = 0;
        for (std::size_t p = 0; p < parts_.size(); ++p) sum += bytes(p, 0, most);
        return sum;
    }

    // Calls `f` with each piece of the round; they follow each other in the chunk.
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

// The collective of bytes on a communicator of the host. A scatter is the alltoall in which only
// the root sends.
template <class Comm>
void move_bytes(Comm& comm, const device_call& call, int rank, tensor_view<std::byte> in,
                tensor_view<std::byte> out, std::span<const std::size_t> counts,
                const hvd::options& o) {
    switch (call.kind) {
        case collective::broadcast:
            return comm.broadcast(call.root == rank ? in : out, root{call.root}, o);
        case collective::allgather: return comm.allgather(in, into(out), o);
        case collective::gather: return comm.gather(in, into(out), root{call.root}, o);
        default: return comm.alltoall(in, counts, into(out), o);
    }
}

// Collectives of device tensors over a communicator of the host. Enqueuing one moves it: the
// request that it gives is for the last copies up.
template <class Host>
class staged_session : public device_session {
public:
    // Bytes of one chunk, all ranks' parts together.
    static constexpr std::size_t chunk_bytes = tuning::staged_chunk_bytes;

    staged_session(communicator<Host> host, int device, const communicator_options& options)
        : device_session(host.rank(), host.size(), device, options),
          host_(std::move(host)),
          staging_((current_device(device, host_.rank()), host_.rank())) {}
    ~staged_session() { staging_.finish(); }

    // With a communicator of its own out of `bootstrap`. **Collective**.
    static std::shared_ptr<staged_session> make(communicator<Host>& bootstrap,
                                                const communicator_options& options) {
        meet_before_making(bootstrap, options);
        auto host = bootstrap.split(0, bootstrap.rank());
        return made_on_all(bootstrap, "a communicator of staged tensors", options.deadline, [&] {
            return std::make_shared<staged_session>(
                std::move(host), device_of_this_thread(bootstrap.rank()), options);
        });
    }

    void enqueue(std::span<const device_call> calls, const char* label, cudaStream_t stream,
                 time_point limit) override {
        refuse_if_broken(label);
        try {
            for (const device_call& call : calls) on_host([&] { run(call, stream, limit); });
        } catch (const cuda_error& e) {  // the host's communicator knows nothing of it
            staging_.finish();
            give_up(e.what());
            throw;
        } catch (...) {
            staging_.finish();
            throw;
        }
    }

    void agree(const call_header& mine, time_point limit) override {
        refuse_if_broken("agreement");
        std::vector<call_header> all(static_cast<std::size_t>(size()));
        const auto bytes = [](call_header* r, std::size_t n) {
            return tensor_view<std::byte>(reinterpret_cast<std::byte*>(r),
                                          {n * sizeof(call_header)});
        };
        call_header own = mine;
        on_host([&] {
            host_.allgather(bytes(&own, 1), into(bytes(all.data(), all.size())),
                            options_until(limit));
        });
        check_headers(rank(), all);
    }

    // The host's headers are compared whatever its peers call first.
    void post_refusal(const call_header& mine, time_point limit) override {
        if (size() == 1 || broken()) return;
        on_host([&] {
            run_refused(access::session_of(host_), mine.text, options_until(limit).deadline);
        });
    }

    // The peers wait for the host's communicator, which tells them when it ends.
    void give_up(std::string_view why) noexcept override {
        device_session::give_up(why);
        host_ = {};
    }

    communicator<Host>& host() { return host_; }

protected:
    // Moves one collective through the host.
    virtual void run(const device_call& call, cudaStream_t stream, time_point limit) {
        if (size() == 1 && !call.reduces()) return copy_alone(call, stream, rank());
        wait(mark(stream), collective_names[std::size_t(call.kind)],
             limit);  // what is before it on the stream may be late
        if (call.kind == collective::barrier) return host_.barrier(options_until(limit));
        compare(call, limit);
        switch (call.kind) {
            case collective::allreduce:
            case collective::reduce: return reduce_all(call, stream, limit);
            case collective::reduce_scatter: return reduce_parts(call, stream, limit);
            default: return move(call, stream, limit);
        }
    }

private:
    // What the host refuses is no failure, and its communicator works on. Where it does not, no
    // later call can be made, and what is under way elsewhere, in NCCL, would not end by itself.
    template <class F>
    void on_host(F&& f) {
        try {
            f();
        } catch (const error& e) {
            if (!broken() && static_cast<call_driver&>(access::session_of(host_)).is_broken())
                give_up(e.what());
            throw;
        }
    }

    // The host compares what it reduces, chunk by chunk: a rank that has more of them than the
    // others would be told by their next call. Of what it moves it sees only bytes.
    void compare(const device_call& call, time_point limit) {
        const bool is_small =
            !call.counts.empty() || call.count * call.element_bytes < most_of(call);
        if (call.reduces() && is_small) return;
        const ipc_parts parts{call, size()};
        agree(header_of({&parts, 1}), limit);
    }

    void reduce_on_host(const device_call& call, collective kind, std::byte* data,
                        std::size_t bytes, int root, time_point limit) {
        const reduce_options o{.prescale = call.prescale,
                               .postscale = call.postscale,
                               .deadline = options_until(limit).deadline};
        call.reduce_on_host(
            {&host_, kind, data, bytes / call.element_bytes, root, call.function, o});
    }

    // Bytes of whole elements that a chunk has of each part: of every rank's, or of the one there
    // is.
    std::size_t most_of(const device_call& call) const {
        const bool one = call.kind == collective::allreduce || call.kind == collective::reduce ||
                         call.kind == collective::broadcast;
        const std::size_t elements =
            chunk_bytes / (one ? 1 : std::size_t(size())) / call.element_bytes;
        return (elements > 0 ? elements : 1) * call.element_bytes;
    }

    void reduce_all(const device_call& call, cudaStream_t stream, time_point limit) {
        const std::size_t most = most_of(call), bytes = call.count * call.element_bytes;
        staged_parts in, out;
        in.add(call.in, bytes);
        out.add(call.out, call.kind == collective::reduce && call.root != rank() ? 0 : bytes);
        staging_.run(
            in.rounds(most), in.most_bytes(most), stream,
            [&](std::size_t round, auto&& copy) { in.each(round, most, copy); },
            [&](std::size_t round, std::byte* chunk) {
                reduce_on_host(call, call.kind, chunk, in.bytes(0, round, most), call.root, limit);
            },
            [&](std::size_t round, auto&& copy) { out.each(round, most, copy); });
    }

    // Each rank's part is reduced to it.
    void reduce_parts(const device_call& call, cudaStream_t stream, time_point limit) {
        const std::size_t most = most_of(call);
        staged_parts in;
        const std::byte* part = call.in;
        for (int p = 0; p < size(); part += call.bytes_of(p++)) in.add(part, call.bytes_of(p));
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
                        reduce_on_host(call, collective::reduce, chunk + piece.at, piece.bytes, p,
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

    // What is sent to each rank and comes from each, as an alltoall has it; a broadcast is an
    // allgather in which only the root has something.
    struct exchange {
        staged_parts send, receive;
    };

    void move(const device_call& call, cudaStream_t stream, time_point limit) {
        const std::size_t most = most_of(call);
        const exchange x = parts_of(call);
        const std::size_t room =
            x.send.most_bytes(most) / 64 * 64 + 64;  // what comes is apart from what goes
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

    exchange parts_of(const device_call& call) const {
        exchange x;
        const bool is_root = call.root == rank();
        const std::size_t own = call.bytes_of(rank());
        const std::byte *in = call.in, *out = call.out;
        switch (call.kind) {
            case collective::broadcast:
                x.send.add(in, is_root ? own : 0);
                x.receive.add(out, is_root ? 0 : own);
                break;
            case collective::allgather:
            case collective::gather:
                x.send.add(in, own);
                for (int p = 0; p < size(); out += call.bytes_of(p++))
                    x.receive.add(
                        out, call.kind == collective::allgather || is_root ? call.bytes_of(p) : 0);
                break;
            case collective::scatter:
                for (int p = 0; p < size(); in += call.bytes_of(p++))
                    x.send.add(in, is_root ? call.bytes_of(p) : 0);
                x.receive.add(out, own);
                break;
            default:  // alltoall
                for (int p = 0; p < size(); in += call.bytes_of(p++))
                    x.send.add(in, call.bytes_of(p));
                for (int p = 0; p < size(); out += call.received_from(p++) * call.element_bytes)
                    x.receive.add(out, call.received_from(p) * call.element_bytes);
        }
        return x;
    }

    // Not every rank sees the longest part of a collective whose parts differ.
    std::size_t rounds_of(const device_call& call, const exchange& x, std::size_t most,
                          time_point limit) {
        std::uint64_t rounds = x.send.rounds(most) > x.receive.rounds(most)
                                   ? x.send.rounds(most)
                                   : x.receive.rounds(most);
        if (!call.counts.empty() && call.kind != collective::allgather)
            host_.allreduce(rounds, max, {.deadline = options_until(limit).deadline});
        return std::size_t(rounds);
    }

    void move_chunk(const device_call& call, const exchange& x, std::size_t round, std::size_t most,
                    std::byte* from, std::byte* to, time_point limit) {
        std::vector<std::size_t> counts;
        std::size_t sent = 0, received = 0;
        for (std::size_t p = 0; p < x.send.count(); ++p)
            sent += counts.emplace_back(x.send.bytes(p, round, most));
        for (std::size_t p = 0; p < x.receive.count(); ++p)
            received += x.receive.bytes(p, round, most);
        move_bytes(host_, call, rank(), {from, {sent}}, {to, {received}}, counts,
                   options_until(limit));
    }

    communicator<Host> host_;
    staging staging_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
