// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "members.hpp"
#include "service_config.hpp"
#include "stage_totals.hpp"

namespace hvd::inline v0::data {

/// Keeps the list of the workers that are there, and tells it to trainers.
///
/// It serves in a thread of its own until it is destroyed. Batches do not pass through it: without
/// it, trainers go on with the workers that they know, and all connect again when another one is
/// at the address in the config file.
/// **Threads**: any thread calls it.
class [[nodiscard("hvd: it serves until it is destroyed")]] service_dispatcher {
public:
    /// Serves dispatcher `number` of a config.
    /// @throws hvd::usage_error for a number that the config does not have, and for a port that is
    /// taken.
    [[nodiscard("hvd: it serves until it is destroyed")]]
    explicit service_dispatcher(const service_config& config, int number = 0,
                                std::uint16_t port = 0)
        : number_(checked(config, number)),
          job_(hvd::detail::job_number(config.job_id)),
          server_(hvd::detail::service_secret(config.key, "the config's key"), port),
          serves_([this] { run(); }) {
        if (!serves_) hvd::detail::refuse(-1, "no thread for a dispatcher");
    }
    service_dispatcher(const service_dispatcher&) = delete;
    service_dispatcher& operator=(const service_dispatcher&) = delete;
    ~service_dispatcher() { server_.stop(); }

    std::uint16_t port() const { return server_.port(); }
    /// The addresses at which others reach it, for the config.
    std::vector<std::string> addresses() const {
        return hvd::detail::written_addresses(server_.port());
    }
    /// Writes its addresses into a config file, in which others wait for them.
    /// @throws hvd::data::service_error for a file that is none.
    void register_in(const std::string& path) const {
        hvd::detail::change_config(path, [this](service_config& c) {
            checked(c, int(number_));
            if (c.addresses.size() <= number_) c.addresses.resize(number_ + 1);
            c.addresses[number_] = addresses();
        });
    }
    /// The number of workers that are there now.
    std::size_t workers() const {
        const hvd::detail::lock_guard held(mutex_);
        return workers_.size();
    }
    /// The number of trainers that are connected now.
    std::size_t trainers() const { return trainers_.load(); }
    /// The number of batches that the workers have told to have made.
    std::uint64_t batches() const { return batches_.load(); }
    /// The seconds in which the workers made these, of all their threads: each has one for each
    /// trainer.
    double making_seconds() const { return double(making_.load()) / 1e9; }
    /// The work of the workers' stages that have threads of their own, all workers together. The
    /// threads and the samples that are ready are those of the workers that are there.
    std::vector<stage_statistics> stages() const { return stages_.all(); }

private:
    static std::uint32_t checked(const service_config& config, int number) {
        if (number < 0 || number >= config.dispatchers)
            hvd::detail::refuse(-1, "dispatcher ", number, " of ", config.dispatchers,
                                ": a number below that was expected");
        return std::uint32_t(number);
    }

    void run() {
        server_.run([this](hvd::detail::service_link& link) { serve(link); });
    }

    void serve(hvd::detail::service_link& link) {
        using hvd::detail::service_role;
        hvd::detail::service_hello mine, theirs;
        mine.role = service_role::dispatcher;
        mine.job = job_;
        mine.dispatcher = number_;
        mine.workers = std::uint32_t(workers());
        if (!hvd::detail::answer_hello(link, mine, theirs, [this](const auto& hello) {
                return hello.dispatcher == number_
                           ? hvd::detail::message()
                           : hvd::detail::text("this is dispatcher ", number_, ", and dispatcher ",
                                               hello.dispatcher, " was expected");
            }))
            return;
        if (theirs.role == service_role::worker) serve_worker(link);
        if (theirs.role != service_role::trainer) return;
        trainers_.add(1);
        serve_trainer(link);
        trainers_.add(std::size_t(-1));
    }

    // A worker is there as long as its connection.
    void serve_worker(hvd::detail::service_link& link) {
        if (!link.wait() || link.head().kind != hvd::detail::service_frame::registered) return;
        std::span<const std::byte> bytes = link.contents();
        const hvd::detail::worker_place place = hvd::detail::read_place(bytes);
        if (place.addresses.size() > hvd::detail::most_listed_addresses) return;
        {
            const hvd::detail::lock_guard held(mutex_);
            workers_.push_back(place);
        }
        std::uint64_t made = 0, making = 0, nanoseconds = 0;
        std::vector<hvd::detail::stage_report> told;
        while (link.wait() && link.contents().size() >= sizeof nanoseconds) {
            count(link.head().number, made, batches_);
            std::memcpy(&nanoseconds, link.contents().data(), sizeof nanoseconds);
            count(nanoseconds, making, making_);
            if (!stages_.take(told, link.contents().subspan(sizeof nanoseconds))) break;
        }
        stages_.forget(told);
        const hvd::detail::lock_guard held(mutex_);
        std::erase_if(workers_, [&](const auto& w) { return w.id == place.id; });
    }

    // A worker tells all that it has done so far.
    static void count(std::uint64_t now, std::uint64_t& before,
                      hvd::detail::atomic<std::uint64_t>& all) {
        if (now > before) all.add(now - before);
        before = now;
    }

    void serve_trainer(hvd::detail::service_link& link) {
        while (link.wait() && link.head().kind == hvd::detail::service_frame::ask_list)
            if (!link.send(hvd::detail::service_frame::list, link.head().number, listed())) return;
    }
    std::vector<std::byte> listed() const {
        const hvd::detail::lock_guard held(mutex_);
        std::vector<std::byte> bytes;
        for (const auto& worker : workers_) hvd::detail::write_place(bytes, worker);
        return bytes;
    }

    std::uint32_t number_;
    std::uint64_t job_;
    mutable hvd::detail::mutex mutex_;
    std::vector<hvd::detail::worker_place> workers_;
    hvd::detail::atomic<std::size_t> trainers_{0};
    hvd::detail::atomic<std::uint64_t> batches_{0}, making_{0};  // making in nanoseconds
    hvd::detail::stage_totals stages_;
    hvd::detail::service_server server_;
    hvd::detail::thread serves_;  // the last member, so that it is joined first
};

}  // namespace hvd::inline v0::data
