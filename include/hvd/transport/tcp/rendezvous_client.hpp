// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/network/resolve.hpp"
#include "dial.hpp"
#include "job_secret.hpp"
#include "rendezvous_messages.hpp"

namespace hvd::inline v0::detail {

// The ranks of a job, as the rendezvous has told them.
struct job_table {
    std::uint64_t job = 0;
    std::vector<listening_place> places;  // by rank
};

// Adds this host's addresses to a place that has none. The address of a connection that works goes
// first.
inline void add_addresses(listening_place& mine, int working) {
    if (mine.addresses > 0) return;
    const host_address own = own_address_of(working);
    if (!is_loopback(own)) mine.add(own);
    for (const host_address& a : own_addresses()) mine.add(a);
}

// One rank's way to the rendezvous of its job.
class rendezvous_client {
public:
    rendezvous_client(std::string_view where, int rank, int size, const shared_secret& secret)
        : where_(where),
          place_(read_host_and_port(where, "HVD_RENDEZVOUS")),
          addresses_(resolve(place_.host.c_str(), "HVD_RENDEZVOUS")),
          rank_(rank),
          size_(size),
          secret_(secret),
          elastic_{membership_secret(secret),
                   "it is the coordinator of an elastic job; hvdrun starts a static one without "
                   "--min-np, --max-np and --host-discovery-script"} {}

    // Tells where this rank listens, and waits for all others. The address by which it reaches the
    // rendezvous goes first, if it gives none.
    // @throws peer_error if not all ranks come in time, or one is refused; usage_error if the
    // rendezvous does not know the secret.
    job_table meet(listening_place mine, time_point limit) {
        descriptor socket = reach(limit);
        add_addresses(mine, socket.number());
        registration r;
        r.size = size_;
        r.place = mine;
        framed_socket link(rendezvous_rank, std::move(socket),
                           rendezvous_answer::most_bytes(size_));
        link.queue(wire_bytes(r));
        link.flush();
        return read(await_answer(link, limit));
    }

private:
    // Connects, and proves that both know the secret. The rendezvous may not be there yet.
    descriptor reach(time_point limit) {
        dial to_it(secret_, rank_, rendezvous_rank, rank_, &elastic_);
        for (std::size_t i = 0, foreign = 0;; ++i) {
            const time_point until = now() + patience_in_round(i / addresses_.size());
            descriptor socket = to_it.to(addresses_[i % addresses_.size()], place_.port,
                                         until < limit ? until : limit, limit);
            if (socket) return socket;
            // An address that is known to many hosts, as a bridge's, leads to another job here.
            foreign = to_it.is_foreign() ? foreign + 1 : 0;
            if (foreign == addresses_.size())
                throw usage_error(rank_, text("hvd: rank ", rank_, ": the rendezvous at ", where_,
                                              " is refused: ", to_it.why()));
            if (now() > limit)
                throw timeout_error(rank_,
                                    text("hvd: rank ", rank_, " does not reach the rendezvous at ",
                                         where_, ": ", to_it.why(),
                                         ". hvdrun --network-interface (HVD_NETWORK_INTERFACE) "
                                         "names the interfaces whose addresses are tried"),
                                    {});
            sleep_for(20 * tuning::millisecond);
        }
    }

    std::span<const std::byte> await_answer(framed_socket& link, time_point limit) {
        for (std::span<const std::byte> bytes;;) {
            link.fill();
            if (link.next(bytes)) return bytes;
            if (!link.is_open())
                throw peer_error(rank_,
                                 text("hvd: rank ", rank_, ": the rendezvous at ", where_,
                                      " ended before all ranks had come: ", link.reason()),
                                 {});
            if (now() > limit)
                throw timeout_error(rank_,
                                    text("hvd: rank ", rank_, ": the rendezvous at ", where_,
                                         " did not say in time that all ranks have come"),
                                    {});
            link.flush();
            pollfd p{link.number(), short(link.wants_to_write() ? POLLIN | POLLOUT : POLLIN), 0};
            ::poll(&p, 1, 100);
        }
    }

    job_table read(std::span<const std::byte> bytes) const {
        rendezvous_answer head;
        if (bytes.size() < sizeof head) refuse("its answer is too short");
        std::memcpy(&head, bytes.data(), sizeof head);
        bytes = bytes.subspan(sizeof head);
        if (head.accepted == 0)
            refuse(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                   head.timed_out != 0);
        job_table all;
        all.job = head.job;
        all.places.resize(std::size_t(size_));
        if (head.size != std::uint32_t(size_) ||
            bytes.size() != all.places.size() * sizeof all.places[0])
            refuse("its table is not that of this job");
        std::memcpy(static_cast<void*>(all.places.data()), bytes.data(), bytes.size());
        return all;
    }

    [[noreturn]] void refuse(std::string_view why, bool timed_out = false) const {
        throw_peer_error(
            timed_out, rank_,
            text("hvd: rank ", rank_, ": the rendezvous at ", where_, " failed: ", why), {});
    }

    message where_;
    host_and_port place_;
    std::vector<host_address> addresses_;
    int rank_, size_;
    shared_secret secret_;
    another_kind elastic_;
};

}  // namespace hvd::inline v0::detail
