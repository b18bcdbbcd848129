// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "concept.hpp"
#include "node_transport.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Moves data by messages between every two ranks: all that a link has to offer, and what hvd does
// between nodes. Reductions are direct exchanges: each rank gets its part of every other's tensor
// and reduces it in rank order, so that the bits are those of the other transports.
template <link Link>
class link_transport {
public:
    link_transport(Link& link, detail::driver& driver)
        : link_(link), driver_(driver), records_(std::size_t(link.size())), inputs_(std::size_t(link.size())) {}

    detail::driver& driver() { return driver_; }
    int rank() const { return link_.rank(); }
    int size() const { return link_.size(); }
    const record& record_of(int rank) const { return records_[std::size_t(rank)]; }

    // Every rank tells every other what it is about to do: a failed rank poisons this message, so
    // that nobody moves data for a call that some rank refused.
    task enter(const record& mine) {
        records_[std::size_t(rank())] = mine;
        for (int p = 0; p < size(); ++p) {
            if (p == rank()) continue;
            post_receive(p, reinterpret_cast<std::byte*>(&records_[std::size_t(p)]), sizeof(record));
            post_send(p, reinterpret_cast<const std::byte*>(&records_[std::size_t(rank())]), sizeof(record));
        }
        require(co_await all_moved());
    }

    // send[p] goes to rank p and fills its receive[me].
    task exchange(const block* send, const block* receive) {
        for (int i = 1; i < size(); ++i) {
            const int from = (rank() + size() - i) % size();
            const int to = (rank() + i) % size();
            if (receive[from].bytes > 0) post_receive(from, receive[from].data, receive[from].bytes);
            if (send[to].bytes > 0) post_send(to, send[to].data, send[to].bytes);
        }
        require(co_await all_moved());
    }

    // Reduces every rank's send[me], in rank order, a portion at a time.
    task combine(const block* send, const reduction& job) {
        const std::size_t unit = job.element_bytes;
        const std::size_t portion = std::max<std::size_t>(portion_bytes / unit, 1) * unit;
        std::size_t longest = job.count * unit;
        for (int p = 0; p < size(); ++p) longest = std::max(longest, send[p].bytes);
        arrived_.resize(std::min(portion, job.count * unit) * std::size_t(size()));
        for (std::size_t begin = 0; begin < longest; begin += portion) {
            const std::size_t mine = std::min(portion, job.count * unit - std::min(begin, job.count * unit));
            for (int i = 1; i < size(); ++i) {
                const int from = (rank() + size() - i) % size();
                const int to = (rank() + i) % size();
                if (mine > 0) post_receive(from, arrived_.data() + std::size_t(from) * portion_of(job, portion), mine);
                if (begin < send[to].bytes)
                    post_send(to, send[to].data + begin, std::min(portion, send[to].bytes - begin));
            }
            require(co_await all_moved());
            for (int p = 0; p < size(); ++p)
                inputs_[std::size_t(p)] = p == rank() ? send[p].data + begin
                                                      : arrived_.data() + std::size_t(p) * portion_of(job, portion);
            if (mine > 0) reduce_portion(job, begin / unit, mine / unit);
        }
    }

    std::exception_ptr take_failure() { return std::exchange(failure_, nullptr); }

    // Nothing to tell anybody by: peers find out by their deadline.
    void leave(std::string_view) noexcept {}

private:
    static constexpr std::size_t portion_bytes = std::size_t(256) << 10;

    static std::size_t portion_of(const reduction& job, std::size_t portion) {
        return std::min(portion, job.count * job.element_bytes);
    }

    // A link that throws is lost: what was begun can't be ended in step with the others.
    template <class F>
    auto guarded(F call) {
        try {
            return call();
        } catch (...) {
            driver_.lost = true;
            link_.cancel();
            throw;
        }
    }

    void post_send(int peer, const std::byte* data, std::size_t bytes) {
        guarded([&] { link_.send(peer, data, bytes); });
    }
    void post_receive(int peer, std::byte* data, std::size_t bytes) {
        guarded([&] { link_.recv(peer, data, bytes); });
    }

    until all_moved() {
        return {driver_,
                [](void* self) {
                    auto& t = *static_cast<link_transport*>(self);
                    try {
                        return t.guarded([&] { return bool(t.link_.poll()); });
                    } catch (...) {
                        t.link_failure_ = std::current_exception();  // thrown where it is awaited
                        return true;
                    }
                },
                [](void*) { return false; }, this};
    }

    void require(verdict v) {
        if (link_failure_) std::rethrow_exception(std::exchange(link_failure_, nullptr));
        if (v != verdict::ready) fail();
    }

    [[noreturn]] void fail() {
        driver_.lost = true;
        std::vector<int> missing;
        std::string who;
        for (int p = 0; p < size(); ++p) {
            if (p == rank() || !link_.pending(p)) continue;
            append(who, text(missing.empty() ? "rank " : ", rank ", p));
            missing.push_back(p);
        }
        link_.cancel();
        throw peer_error(rank(), text("hvd: ", record_of(rank()).label(), " on rank ", rank(), ": ", who, " did not come in time"),
                         std::move(missing));
    }

    void reduce_portion(const reduction& job, std::size_t first, std::size_t n) {
        if (failure_) return;
        try {
            job.function({job.op, inputs_.data(), size(), size(), job.out + first * job.element_bytes, n, job.prescale,
                          job.postscale});
        } catch (...) {
            failure_ = std::current_exception();
        }
    }

    Link& link_;
    detail::driver& driver_;
    std::vector<record> records_;
    std::vector<const std::byte*> inputs_;
    std::vector<std::byte> arrived_;
    std::exception_ptr failure_;       // of user code
    std::exception_ptr link_failure_;  // of the link
};

// What a link that moves messages gets; one that only shares memory has none.
struct no_transport {};
template <class L>
struct link_transport_for { using type = no_transport; };
template <link L>
struct link_transport_for<L> { using type = link_transport<L>; };

}  // namespace detail
}  // namespace v0
}  // namespace hvd
