// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "concept.hpp"
#include "notice.hpp"
#include "transport.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Moves data by messages between every two ranks: all that a link has to offer, and what hvd does
// between nodes. Reductions are direct exchanges: each rank gets its part of every other's tensor
// and reduces it in rank order, so that the bits are those of the other transports.
template <link Link>
class link_transport final : public transport {
public:
    explicit link_transport(Link& link)
        : transport(link.rank(), link.size()), link_(link), word_(link), entries_(std::size_t(link.size())) {}

    // Every rank tells every other what it is about to do: a rank that failed poisons this message, so
    // that nobody moves data for a call that some rank refused.
    void enter(const record& mine) override {
        step_ = step::enter;
        entries_[std::size_t(rank_)] = mine;
        for (int p = 0; p < size_; ++p) {
            records[std::size_t(p)] = &entries_[std::size_t(p)];
            if (p == rank_) continue;
            receive_from(p, reinterpret_cast<std::byte*>(&entries_[std::size_t(p)]), sizeof(record));
            send_to(p, reinterpret_cast<const std::byte*>(&entries_[std::size_t(rank_)]), sizeof(record));
        }
    }

    void exchange(const block* send, const block* receive) override {
        step_ = step::exchange;
        for (int i = 1; i < size_; ++i) {
            const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
            receive_from(from, receive[from].data, receive[from].bytes);
            send_to(to, send[to].data, send[to].bytes);
        }
    }

    void combine(const block* send, const reduction& job) override {
        step_ = step::combine;
        send_ = send;
        job_ = job;
        begin_ = longest_ = 0;
        for (int p = 0; p < size_; ++p)
            if (send[p].bytes > longest_) longest_ = send[p].bytes;
        portion_ = portion_bytes > job.element_bytes ? portion_bytes / job.element_bytes * job.element_bytes : job.element_bytes;
        arrived_.resize(smaller(portion_, own_bytes()) * std::size_t(size_));
        post_portion();
    }

    bool ready() override {
        return guarded([&] { return bool(link_.poll()); });
    }

    bool next() override {
        if (step_ != step::combine) return false;
        reduce_arrived();
        begin_ += portion_;
        if (begin_ >= longest_) return false;
        post_portion();
        return true;
    }

    bool hopeless() override { return word_.heard(); }

    [[gnu::cold]] void fail(verdict) override {
        lost = true;
        if (!word_.heard()) {
            std::vector<int> missing;
            message who;
            for (int p = 0; p < size_; ++p) {
                if (p == rank_ || !link_.pending(p)) continue;
                who += text(missing.empty() ? "rank " : ", rank ", p);
                missing.push_back(p);
            }
            word_.keep(text(who, " did not come in time"), missing);
        }
        link_.cancel();
        throw peer_error(rank_, text("hvd: ", entries_[std::size_t(rank_)].label(), " on rank ", rank_, ": ",
                                     std::string_view(word_.last().text)), missing_of(word_.last()));
    }

    void leave(std::string_view reason) noexcept override {
        if (lost) word_.pass_on(reason);
    }

private:
    enum class step { enter, exchange, combine };
    static constexpr std::size_t portion_bytes = std::size_t(256) << 10;

    static std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }
    std::size_t own_bytes() const { return job_.count * job_.element_bytes; }

    // A link that throws is lost: what was begun can't be ended in step with the others.
    template <class F>
    auto guarded(F call) {
        try {
            return call();
        } catch (...) {
            lost = true;
            link_.cancel();
            throw;
        }
    }

    void send_to(int peer, const std::byte* data, std::size_t bytes) {
        if (bytes > 0) guarded([&] { link_.send(peer, data, bytes); });
    }
    void receive_from(int peer, std::byte* data, std::size_t bytes) {
        if (bytes > 0) guarded([&] { link_.recv(peer, data, bytes); });
    }

    std::size_t portion_from(std::size_t whole) const { return begin_ < whole ? smaller(portion_, whole - begin_) : 0; }

    std::byte* place_for(int peer) { return arrived_.data() + std::size_t(peer) * smaller(portion_, own_bytes()); }

    void post_portion() {
        for (int i = 1; i < size_; ++i) {
            const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
            receive_from(from, place_for(from), portion_from(own_bytes()));
            send_to(to, send_[to].data + begin_, portion_from(send_[to].bytes));
        }
    }

    void reduce_arrived() {
        const std::size_t bytes = portion_from(own_bytes());
        if (bytes == 0) return;
        for (int p = 0; p < size_; ++p) inputs_[std::size_t(p)] = p == rank_ ? send_[p].data + begin_ : place_for(p);
        reduce_portion(job_, begin_ / job_.element_bytes, bytes / job_.element_bytes);
    }

    Link& link_;
    word_of_mouth<Link> word_;
    step step_ = step::enter;
    std::vector<record> entries_;
    std::vector<std::byte> arrived_;
    const block* send_ = nullptr;
    reduction job_{};
    std::size_t begin_ = 0, longest_ = 0, portion_ = 1;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
