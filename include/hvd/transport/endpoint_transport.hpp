// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/tuning.hpp"
#include "../protocol/failure_notice.hpp"
#include "chunks.hpp"
#include "endpoint.hpp"
#include "message_memory.hpp"
#include "node_map.hpp"
#include "packets.hpp"
#include "transport.hpp"

namespace hvd::inline v0::detail {

// An endpoint may sleep until something has come, or some time has passed.
template <class Endpoint>
concept sleeps = requires(Endpoint& l, std::int64_t nanoseconds) { l.sleep(nanoseconds); };

template <class Endpoint>
sleep_end sleep_at([[maybe_unused]] Endpoint& endpoint, [[maybe_unused]] std::int64_t nanoseconds) {
    if constexpr (sleeps<Endpoint>) {
        endpoint.sleep(nanoseconds);
        return sleep_end::over;
    } else {
        return sleep_end::not_begun;
    }
}

// Moves data by messages between every two ranks. An endpoint needs no more than that, and hvd does
// so where no two ranks have memory in common. Reductions are direct exchanges: each rank receives
// its slice of every other rank's tensor and reduces it in rank order, so that the bits are those
// of the other transports.
template <endpoint Endpoint>
class endpoint_transport final : public transport {
public:
    // `agrees`: it exchanges headers, too.
    explicit endpoint_transport(Endpoint& endpoint, bool agrees = true)
        : transport(endpoint.rank(), endpoint.size()),
          endpoint_(endpoint),
          notices_(endpoint),
          arrived_(endpoint),
          headers_of_all_(std::size_t(size_)),
          most_carried_(agrees ? most_carried<Endpoint>(size_ - 1, tuned_) : 0),
          agrees_(agrees),
          packets_(endpoint, agrees ? std::size_t(size_) : 0, 1, most_carried_) {
        int here = 0;
        for (int p = 0; p < size_; ++p) {
            here += node_of(endpoint, p) == node_of(endpoint, rank_);
            headers[p] = &headers_of_all_[std::size_t(p)];
        }
        processors_each = processor_set::of_this_thread().count() / here;
    }

    void prepare(const tuning_options& t) override {
        if (agrees_) packets_.prepare(most_carried<Endpoint>(size_ - 1, t));
    }
    void retune(const tuning_options& t) noexcept override {
        transport::retune(t);
        if (!agrees_) return;
        most_carried_ = most_carried<Endpoint>(size_ - 1, t);
        packets_.resize(most_carried_);
    }

    // A small tensor goes with the header: that of every rank if it is reduced, and the root's if
    // it is sent to all.
    bool choose(const operation& op) override {
        const std::size_t bytes = bytes_to_carry(op);
        carries = bytes > 0 && bytes <= most_carried_;
        return false;
    }

    void begin(const operation& op) override {
        const bool gives = carries && !op.entry.refused &&
                           (op.entry.kind != collective::broadcast || op.entry.root == rank_);
        post_headers(op.entry,
                     gives ? block{const_cast<std::byte*>(op.in), bytes_to_carry(op)} : block{});
    }

    void exchange_headers(const call_header& mine) override { post_headers(mine, {}); }

    void exchange_header(const call_header& mine, int peer) override {
        notices_.begin_message();
        step_ = step::one_header;
        peer_ = peer;
        copy_header(headers_of_all_[std::size_t(rank_)], mine);
        packets_.fill(1, [&](int) -> const call_header& { return mine; }, {});
        this->guarded([&] {
            packets_.receive(peer, std::size_t(peer));
            packets_.send(peer);
        });
    }

    void allreduce(operation& op) override {
        if (!carries) return transport::allreduce(op);
        step_ = step::carried;
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const reduction_group& g = op.groups[i];
            for (int p = 0; p < size_; ++p)
                inputs_[p] = (p == rank_ ? op.in : carried_by(p, bytes_of_groups(op))) + g.offset;
            reduce_inputs(op, g, g.count, op.out + g.offset);
        }
    }

    void broadcast(const block& whole, int root) override {
        if (!carries) return transport::broadcast(whole, root);
        step_ = step::carried;
        if (rank_ != root) copy_bytes(whole.data, carried_by(root, whole.bytes), whole.bytes);
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
        chunk_bytes_ = chunk_for(job.element_bytes, tuned_.chunk_bytes);
        room_ = smaller(chunk_bytes_, own_bytes());
        this->guarded([&] { arrived_.reserve(2 * room_ * std::size_t(size_)); });
        post_chunk();
    }

    bool ready() override {
        return this->guarded([&] { return bool(endpoint_.poll()); });
    }

    sleep_end sleep(std::int64_t nanoseconds) override { return sleep_at(endpoint_, nanoseconds); }

    bool hopeless() override {
        return this->guarded([&] { return notices_.received(); });
    }

    [[gnu::cold]] bool abandoned() override {
        return this->guarded([&] { return notices_.anyone_left(); });
    }

    [[gnu::cold]] void tell_unmade(std::uint64_t context) noexcept override {
        notices_.tell_unmade(context);
    }
    [[gnu::cold]] bool is_unmade(std::uint64_t context) override {
        return this->guarded([&] { return notices_.is_unmade(context); });
    }

    [[gnu::cold]] std::vector<int> missing() override { return notices_.pending(); }

    [[gnu::cold]] void fail(verdict reason) override {
        if (!notices_.received() || !notices_.knows_reason()) {
            const std::vector<int> waits_for = missing();
            if (!notices_.alarmed() && waits_for.empty()) return;
            notices_.confer(waits_for, reason == verdict::expired);
        }
        lost = true;
        found_death = notices_.knows_death();
        endpoint_.cancel();
        notices_.throw_reason(headers_of_all_[std::size_t(rank_)].label());
    }

    void leave(std::string_view reason) noexcept override {
        depart_or_notify(notices_, reason, lost);
    }

protected:
    bool advance() override {
        if (step_ == step::headers) return read_headers();
        if (step_ == step::one_header) return read_header_of(peer_);
        if (step_ == step::carried) return false;
        if (step_ == step::alltoallv) return post_chunks_of_pairs();
        const bool more = chunks_ * chunk_bytes_ < longest_;
        if (more) post_chunk();
        reduce_arrived(chunks_ - (more ? 2 : 1));
        return more;
    }

private:
    // Nothing moves in a carried step: the data has come with the headers.
    enum class step { headers, one_header, carried, alltoallv, reduce_scatter };

    // Every rank sends its header to every other rank. A rank that refuses the call says so in its
    // header, so that nobody moves data for that call.
    void post_headers(const call_header& mine, const block& data) {
        notices_.begin_call();
        step_ = step::headers;
        copy_header(headers_of_all_[std::size_t(rank_)], mine);
        packets_.fill(1, [&](int) -> const call_header& { return mine; }, data);
        this->guarded([&] {
            for (int i = 1; i < size_; ++i) {
                const int from = (rank_ + size_ - i) % size_;
                packets_.receive(from, std::size_t(from));
            }
            for (int i = 1; i < size_; ++i) packets_.send((rank_ + i) % size_);
        });
    }

    bool read_headers() {
        for (int p = 0; p < size_; ++p)
            if (p != rank_) read_header_of(p);
        return false;
    }
    bool read_header_of(int p) {
        if (!packets_.read_headers(std::size_t(p), 1, [&](int) -> call_header& {
                return headers_of_all_[std::size_t(p)];
            })) [[unlikely]]
            refuse_bytes_of(p);
        return false;
    }

    // The data that a rank has sent with its header.
    const std::byte* carried_by(int peer, std::size_t bytes) {
        const std::byte* const data = packets_.data_of(std::size_t(peer), bytes);
        if (data == nullptr) [[unlikely]]
            this->guarded([&] { refuse_bytes_of(peer); });
        return data;
    }

    [[gnu::cold, noreturn]] void refuse_bytes_of(int peer) {
        notices_.keep(text("rank ", peer, sent_other_bytes), {peer});
        notices_.throw_reason(headers_of_all_[std::size_t(rank_)].label());
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
            const block in =
                chunk_of(receive_[from], chunks_, tuned_.unstable.exchange_chunk_bytes);
            const block out = chunk_of(send_[to], chunks_, tuned_.unstable.exchange_chunk_bytes);
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
    int peer_ = -1;  // of a message
    table<call_header> headers_of_all_;
    std::size_t most_carried_;
    const bool agrees_;
    packets<Endpoint> packets_;
    const block* send_ = nullptr;
    const block* receive_ = nullptr;
    reduction job_{};
    std::size_t chunks_ = 0, longest_ = 0, chunk_bytes_ = 1, room_ = 0;
};

}  // namespace hvd::inline v0::detail
