// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "claim_book.hpp"
#include "server.hpp"
#include "service_config.hpp"

namespace hvd::inline v0::detail {

// A rank's way to the book of its training, which rank 0 has. Others reach it there: it lives as
// long as the training, and so is in no dispatcher, which may be lost.
class training_claims {
public:
    training_claims(const data::service_config& config, part mine)
        : mine_(mine),
          secret_(service_secret(config.key, "the config's key")),
          job_(job_number(config.job_id)),
          timeout_(config.timeout.nanoseconds) {
        if (mine.rank != 0) return;
        book_ = std::make_unique<claim_book>(mine.size);
        if (mine.size == 1) return;
        server_ = std::make_unique<service_server>(secret_, 0);
        fill_random(0, reinterpret_cast<std::byte*>(&place_.id), sizeof place_.id);
        place_.addresses = written_addresses(server_->port());
        serves_ = thread([this] { server_->run([this](service_link& link) { serve(link); }); });
        if (!serves_) refuse(0, "no thread for the claims of a training");
    }
    training_claims(const training_claims&) = delete;
    training_claims& operator=(const training_claims&) = delete;
    ~training_claims() {
        if (server_) server_->stop();
    }

    // Rank 0's, which others are told.
    const worker_place& place() const { return place_; }
    void reach(worker_place place) { place_ = std::move(place); }

    // The number of another run. The loaders of all ranks begin as many, in the same order.
    std::uint64_t begin_run() { return ++runs_; }

    // Asks rank 0.
    // @throws peer_error if it can't be reached, and service_error if it refuses
    claim_answer ask(const claim_request& request, const atomic<bool>& stopping) {
        if (book_) return book_->answer(0, request);
        const lock_guard held(asks_);
        claim_answer answer;
        time_point until = never;
        while (!stopping.load()) {
            if ((is_open_ || open()) && exchange(request, answer, stopping)) return answer;
            is_open_ = false;
            if (until == never) until = now() + patience;
            if (now() >= until) break;
            sleep_for(20 * tuning::millisecond);
        }
        throw peer_error(mine_.rank,
                         text("hvd: rank ", mine_.rank,
                              ": rank 0, which hands out the batches first come, first served, ",
                              "does not answer: ", why_,
                              ". It may be lost, or its loader has ended before this epoch"),
                         {0});
    }
    // True on the rank that knows how far the others are.
    bool has_book() const { return bool(book_); }

private:
    static constexpr std::int64_t patience = 3 * tuning::second;

    service_hello hello() const {
        service_hello me;
        me.role = service_role::trainer;
        me.job = job_;
        me.fingerprint = place_.id;  // another training of the job has another one
        me.rank = mine_.rank;
        me.size = mine_.size;
        return me;
    }

    // On rank 0: answers another rank until its connection is over.
    void serve(service_link& link) {
        service_hello theirs;
        const auto why_not = [&](const service_hello& h) {
            return h.fingerprint == place_.id && h.size == mine_.size && h.rank > 0 &&
                           h.rank < h.size
                       ? message()
                       : message("rank 0 of another training");
        };
        if (!answer_hello(link, hello(), theirs, why_not)) return;
        while (link.wait() && link.head().kind == service_frame::claim && answer(link, theirs.rank))
            continue;
    }
    bool answer(service_link& link, int rank) {
        claim_request request;
        if (link.contents().size() != sizeof request) return false;
        std::memcpy(&request, link.contents().data(), sizeof request);
        try {
            const claim_answer answer = book_->answer(rank, request);
            return link.send(service_frame::claimed, request.claim, plain_bytes_of(answer));
        } catch (const error& e) {
            return link.send_text(service_frame::refused, request.claim, e.what());
        }
    }

    bool open() {
        service_dial dial(secret_, hello(), most_control_bytes);
        link_ = service_link();
        is_open_ = dial.to(place_.addresses, link_);
        if (!is_open_) why_ = message(std::string_view(dial.why()));
        return is_open_;
    }

    bool exchange(const claim_request& request, claim_answer& answer,
                  const atomic<bool>& stopping) {
        const time_point until = now() + timeout_;
        if (!link_.send(service_frame::claim, request.claim, plain_bytes_of(request), until))
            return failed(link_.why());
        for (host_silence silence; !stopping.load();) {
            switch (link_.advance()) {
                case service_link::state::over: return failed(link_.why());
                case service_link::state::complete: return read(answer);
                case service_link::state::incomplete: break;
            }
            if (now() >= until) return failed("it takes too long");
            if (silence.look(link_.socket())) return failed("its host does not answer");
            pollfd p{link_.socket().number(), POLLIN, 0};
            poll_sockets(&p, 1, 100 * tuning::millisecond);
        }
        return failed("this rank's loader has ended");
    }
    bool read(claim_answer& answer) {
        if (link_.head().kind == service_frame::refused)
            throw data::service_error(mine_.rank, link_.text());
        if (link_.head().kind != service_frame::claimed || link_.contents().size() != sizeof answer)
            return failed("it sent what was not asked for");
        std::memcpy(&answer, link_.contents().data(), sizeof answer);
        return true;
    }
    bool failed(std::string_view why) {
        why_ = message(why);
        return false;
    }

    part mine_;
    shared_secret secret_;
    std::uint64_t job_;
    std::int64_t timeout_;
    worker_place place_;
    std::uint64_t runs_ = 0;
    mutex asks_;  // of what follows
    service_link link_;
    bool is_open_ = false;
    message why_;
    std::unique_ptr<claim_book> book_;  // of rank 0
    std::unique_ptr<service_server> server_;
    thread serves_;  // the last member, so that it is joined first
};

// The claims of a communicator's ranks. Rank 0 tells the others its place. Collective.
template <class Communicator>
std::shared_ptr<training_claims> claims_of(const data::service_config& config,
                                           Communicator& world) {
    const part mine{world.rank(), world.size()};
    auto claims = std::make_shared<training_claims>(config, mine);
    if (mine.size == 1) return claims;
    constexpr bool can_tell =
        requires(std::vector<std::uint8_t>& bytes) { world.broadcast(bytes); };
    if constexpr (can_tell) {
        std::vector<std::byte> written;
        if (mine.rank == 0) write_place(written, claims->place());
        std::vector<std::uint64_t> size{written.size()};
        world.broadcast(size);
        std::vector<std::uint8_t> bytes(size[0]);
        if (mine.rank == 0) std::memcpy(bytes.data(), written.data(), bytes.size());
        world.broadcast(bytes);
        std::span<const std::byte> came = std::as_bytes(std::span(bytes));
        claims->reach(read_place(came));
        return claims;
    } else {
        refuse(mine.rank,
               "first_come_first_served without a communicator: its ranks agree by broadcast where "
               "rank 0 hands out the batches");
    }
}

}  // namespace hvd::inline v0::detail
