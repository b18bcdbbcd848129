// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../protocol/call_header.hpp"
#include "../../protocol/failure_detector.hpp"
#include "job_connections.hpp"
#include "job_secret.hpp"
#include "launcher_variables.hpp"
#include "own_place.hpp"
#include "rendezvous.hpp"

namespace hvd::inline v0::detail {

// @throws usage_error for options that say too little, or contradict each other
[[gnu::cold]] inline void check_tcp_options(const tcp_options& o) {
    const auto missing = [](const char* what) {
        throw usage_error(-1, text("hvd: ", what,
                                   " is missing: a launcher sets HVD_RANK, HVD_SIZE, "
                                   "HVD_RENDEZVOUS and HVD_SECRET_FILE (see docs/tcp.md)"));
    };
    if (is_alone(o)) return;
    if (o.rank < 0) missing("HVD_RANK");
    if (o.size < 1) missing("HVD_SIZE");
    if (o.rank >= o.size)
        throw usage_error(-1, text("hvd: HVD_RANK is ", o.rank, ", and a job of HVD_SIZE=", o.size,
                                   " has the ranks 0 to ", o.size - 1));
    if (o.size == 1) return;
    if (o.rendezvous.empty()) missing("HVD_RENDEZVOUS");
    if (o.secret_file.empty() && o.secret.empty())
        missing("the secret of the job, HVD_SECRET_FILE,");
}

inline shared_secret secret_of(const tcp_options& o) {
    return o.secret_file.empty() ? secret_from_hex(o.secret, "HVD_SECRET")
                                 : secret_from_file(o.secret_file.c_str());
}

// The rendezvous of a job whose launcher serves none: rank 0 serves it in a thread.
class own_rendezvous {
public:
    own_rendezvous(const tcp_options& o, const shared_secret& secret)
        : own_rendezvous(o, secret, read_host_and_port(o.rendezvous, "HVD_RENDEZVOUS")) {}
    ~own_rendezvous() { server_.stop(); }

private:
    own_rendezvous(const tcp_options& o, const shared_secret& secret, const host_and_port& at)
        : server_(at.port, o.size, secret, o.start_timeout, o.rank,
                  addresses_for_meeting(o, is_of_one_host(o),
                                        resolve(at.host.c_str(), "HVD_RENDEZVOUS"))),
          thread_([this] { serve(); }) {
        if (!thread_) throw usage_error(o.rank, "hvd: the system starts no thread");
    }

    // A failure is told to all ranks, this one among them.
    void serve() noexcept {
        try {
            server_.serve();
        } catch (...) {
        }
    }

    rendezvous_server server_;
    thread thread_;
};

// The job of this process: its ranks, and the connections between them. It lives until the process
// ends, since each communicator may be made of it.
class tcp_job : public counted {
public:
    // Meets the other ranks the first time that a process comes.
    [[gnu::cold]] static shared<tcp_job> of(const tcp_options& o) {
        check_tcp_options(o);
        if (shared<tcp_job> known = known_jobs().find(o)) return known;
        return known_jobs().add(o, shared<tcp_job>::make(o));
    }

    explicit tcp_job(const tcp_options& o)
        : rank_(o.rank < 0 ? 0 : o.rank), size_(o.size < 1 ? 1 : o.size) {
        if (size_ > 1) meet(o);
    }

    // A job whose ranks know each other already. `number` is the same on all, and new.
    tcp_job(int rank, std::uint64_t number, const shared_secret& secret, listening_socket listener,
            std::vector<listening_place> places)
        : rank_(rank), size_(int(places.size())), number_(number) {
        if (size_ > 1)
            connections_ = owner<job_connections>::make(rank, derived_secret(secret, number),
                                                        std::move(listener), std::move(places));
    }

    ~tcp_job() {
        if (getpid() != process_) return;  // a forked child says nothing
        for (const time_point limit = now() + farewell; now() < limit && reap();)
            sleep_for(tuning::millisecond);
    }

    int rank() const { return rank_; }
    int size() const { return size_; }
    // A number that the ranks know without a word, for a communicator of all.
    std::uint64_t next_context() { return hash().add(number_).add(++worlds_).value(); }
    std::uint64_t host_of(int rank) const {
        return connections_ ? connections_->places()[std::size_t(rank)].host : 0;
    }
    job_connections& connections() { return *connections_; }

    // The making of connections between all ranks is given up then: the failure detector may know
    // more than they.
    void give_up_when(shared<failure_detector> detector) { detector_ = std::move(detector); }
    bool is_given_up() const { return detector_ && detector_->has_detected(); }

    // Takes the connections of a communicator that has ended, whose last words may not have gone.
    // The peers may still send to it for a while.
    template <class Messages>
    void end(Messages messages, std::int64_t patience = 5 * tuning::second) noexcept try {
        reap();
        if (!messages.say_goodbye()) return;
        auto left = owner<leftover_of<Messages>>::make(std::move(messages), now() + patience);
        const lock_guard lock(mutex_);
        leftovers_.push_back(std::move(left));
    } catch (const std::bad_alloc&) {
    }

    // True while communicators that have ended hold connections, which go within seconds.
    bool gives_back() noexcept {
        reap();
        const lock_guard lock(mutex_);
        return !leftovers_.empty();
    }

private:
    // For so long a process that ends sends its last words.
    static constexpr std::int64_t farewell = 200 * tuning::millisecond;

    struct leftover {
        explicit leftover(time_point until) : limit(until) {}
        virtual ~leftover() = default;
        virtual bool say_goodbye() noexcept = 0;
        virtual bool has_words() const noexcept = 0;
        const time_point limit;
    };
    template <class Messages>
    struct leftover_of final : leftover {
        leftover_of(Messages left, time_point until) : leftover(until), messages(std::move(left)) {}
        bool say_goodbye() noexcept override { return messages.say_goodbye(); }
        bool has_words() const noexcept override { return messages.has_words(); }
        Messages messages;
    };

    // The jobs of this process: one, but for tests, where its threads are ranks.
    class jobs {
    public:
        shared<tcp_job> find(const tcp_options& o) {
            const lock_guard lock(mutex_);
            for (const known& k : list_)
                if (k.rank == o.rank && k.size == o.size && k.rendezvous == o.rendezvous)
                    return k.job;
            return {};
        }
        shared<tcp_job> add(const tcp_options& o, shared<tcp_job> job) {
            const lock_guard lock(mutex_);
            list_.push_back({o.rank, o.size, o.rendezvous, job});
            return job;
        }

    private:
        struct known {
            int rank, size;
            std::string rendezvous;
            shared<tcp_job> job;
        };
        mutex mutex_;
        std::vector<known> list_;
    };
    static jobs& known_jobs() {
        static jobs all;
        return all;
    }

    [[gnu::cold]] void meet(const tcp_options& o) {
        const shared_secret secret = secret_of(o);
        const bool of_one_host = is_of_one_host(o);
        listening_socket listener(rank_, 0, addresses_for_ranks(o, of_one_host));
        owner<own_rendezvous> served;
        if (rank_ == 0 && !o.rendezvous_served) served = owner<own_rendezvous>::make(o, secret);
        const time_point limit = limit_of(o.start_timeout);
        rendezvous_client client(o.rendezvous, rank_, size_, secret);
        // The rendezvous knows at the limit who is missing.
        job_table all = client.meet(place_of(o, listener.port(), of_one_host),
                                    limit == never ? never : limit + tuning::second);
        number_ = all.job;
        connections_ = owner<job_connections>::make(rank_, derived_secret(secret, number_),
                                                    std::move(listener), std::move(all.places));
    }

    // Goes on with the last words; true while some have not gone.
    bool reap() noexcept {
        const lock_guard lock(mutex_);
        bool any = false;
        std::size_t kept = 0;
        for (owner<leftover>& l : leftovers_) {
            if (!l->say_goodbye() || now() > l->limit) continue;
            any = any || l->has_words();
            std::swap(leftovers_[kept++], l);
        }
        leftovers_.resize(kept);
        return any;
    }

    const int rank_, size_;
    const pid_t process_ = getpid();
    std::uint64_t number_ = 0, worlds_ = 0;
    owner<job_connections> connections_;  // of several ranks
    shared<failure_detector> detector_;
    mutex mutex_;
    std::vector<owner<leftover>> leftovers_;
};

}  // namespace hvd::inline v0::detail
