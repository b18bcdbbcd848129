// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/tuning.hpp"
#include "../protocol/failure_notice.hpp"
#include "chunks.hpp"
#include "endpoint.hpp"
#include "message_memory.hpp"
#include "node_map.hpp"
#include "transport.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Moves data by messages between every two ranks. An endpoint needs no more than that, and hvd does
// so where no two ranks have memory in common. Reductions are direct exchanges: each rank receives
// its slice of every other rank's tensor and reduces it in rank order, so that the bits are those
// of the other transports.
template <endpoint Endpoint>
class endpoint_transport final : public transport {
public:
    explicit endpoint_transport(Endpoint& endpoint)
        : transport(endpoint.rank(), endpoint.size()),
          endpoint_(endpoint),
          notices_(endpoint),
          arrived_(endpoint),
          headers_of_all_(std::size_t(endpoint.size())) {
        int here = 0;
        for (int p = 0; p < size_; ++p) here += node_of(endpoint, p) == node_of(endpoint, rank_);
        processors_each = processor_set::of_this_thread().count() / here;
    }

    // Every rank sends its header to every other rank. A rank that refuses the call says so in its
    // header, so that nobody moves data for that call.
    void exchange_headers(const call_header& mine) override {
        step_ = step::headers;
        headers_of_all_[std::size_t(rank_)] = mine;
        for (int p = 0; p < size_; ++p) {
            headers[p] = &headers_of_all_[std::size_t(p)];
            if (p == rank_) continue;
            receive_from(p, header_of(p));
            send_to(p, header_of(rank_));
        }
    }

    void alltoallv(const block* send, const block* receive) override {
        step_ = step::alltoallv;
        send_ = send;
        receive_ = receive;
        chunks_ = 0;
        post_chunks_of_pairs();
    }

    void reduce_scatter(const block* send, const reduction& job) override {
        step_ = step::reduce_scatter;
        send_ = send;
        job_ = job;
        chunks_ = 0;
        longest_ = longest_of(send, size_);
        chunk_bytes_ = chunk_for(job.element_bytes);
        room_ = smaller(chunk_bytes_, own_bytes());
        this->guarded([&] { arrived_.reserve(2 * room_ * std::size_t(size_)); });
        post_chunk();
    }

    bool ready() override {
        return this->guarded([&] { return bool(endpoint_.poll()); });
    }

    bool hopeless() override {
        return this->guarded([&] { return notices_.heard(); });
    }

    [[gnu::cold]] std::vector<int> missing() override { return notices_.pending(); }

    [[gnu::cold]] void fail(verdict) override {
        if (!notices_.heard() && !notices_.keep_pending()) return;
        lost = true;
        endpoint_.cancel();
        throw peer_error(rank_,
                         text("hvd: ", headers_of_all_[std::size_t(rank_)].label(), " on rank ",
                              rank_, ": ", notices_.why()),
                         notices_.missing());
    }

    void leave(std::string_view reason) noexcept override {
        depart_or_notify(notices_, reason, lost);
    }

protected:
    bool advance() override {
        if (step_ == step::headers) return false;
        if (step_ == step::alltoallv) return post_chunks_of_pairs();
        const bool more = chunks_ * chunk_bytes_ < longest_;
        if (more) post_chunk();
        reduce_arrived(chunks_ - (more ? 2 : 1));
        return more;
    }

private:
    enum class step { headers, alltoallv, reduce_scatter };

    block header_of(int rank) {
        return {reinterpret_cast<std::byte*>(&headers_of_all_[std::size_t(rank)]),
                sizeof(call_header)};
    }
    static std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }
    std::size_t own_bytes() const { return job_.count * job_.element_bytes; }

    void cancel() noexcept override { endpoint_.cancel(); }

    void send_to(int peer, const block& b) {
        if (b.bytes > 0) this->guarded([&] { endpoint_.send(peer, b.data, b.bytes); });
    }
    void receive_from(int peer, const block& b) {
        if (b.bytes > 0) this->guarded([&] { endpoint_.recv(peer, b.data, b.bytes); });
    }

    // Every pair of ranks goes on by itself, since some pairs have more chunks than others.
    bool post_chunks_of_pairs() {
        bool any = false;
        for (int i = 1; i < size_; ++i) {
            const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
            const block in = chunk_of(receive_[from], chunks_, tuning::chunk_of_exchange);
            const block out = chunk_of(send_[to], chunks_, tuning::chunk_of_exchange);
            receive_from(from, in);
            send_to(to, out);
            any |= in.bytes + out.bytes > 0;
        }
        ++chunks_;
        return any;
    }

    // There is memory for two chunks of each rank: while one comes the other is reduced.
    std::byte* room_for(int peer, std::size_t index) {
        return arrived_.data() + (2 * std::size_t(peer) + index % 2) * room_;
    }

    void post_chunk() {
        for (int i = 1; i < size_; ++i) {
            const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
            receive_from(from, {room_for(from, chunks_),
                                chunk_of(send_[rank_], chunks_, chunk_bytes_).bytes});
            send_to(to, chunk_of(send_[to], chunks_, chunk_bytes_));
        }
        ++chunks_;
    }

    void reduce_arrived(std::size_t index) {
        const block mine = chunk_of(send_[rank_], index, chunk_bytes_);
        for (int p = 0; p < size_; ++p) inputs_[p] = p == rank_ ? mine.data : room_for(p, index);
        reduce_range(job_, index * chunk_bytes_ / job_.element_bytes,
                     mine.bytes / job_.element_bytes);
    }

    Endpoint& endpoint_;
    notice_exchange<Endpoint> notices_;
    message_memory<Endpoint> arrived_;
    step step_ = step::headers;
    table<call_header> headers_of_all_;
    const block* send_ = nullptr;
    const block* receive_ = nullptr;
    reduction job_{};
    std::size_t chunks_ = 0, longest_ = 0, chunk_bytes_ = 1, room_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
