// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>
#include <optional>

#include "../../core/message_sink.hpp"
#include "../../transport/frames/host_silence.hpp"
#include "../batch.hpp"
#include "batch_arena.hpp"
#include "members.hpp"
#include "service_config.hpp"
#include "shared_batches.hpp"
#include "stage_totals.hpp"

namespace hvd::inline v0::data {

/// Options of `data::service_worker` and `data::serve`.
struct worker_options {
    int dispatcher = 0;      ///< the number of the one that lists it
    std::uint16_t port = 0;  ///< at which it listens; with 0 the system chooses one
    /// The bytes of batches that one training has taken and another one has not yet. Each of these
    /// is made once. With 0 nothing is shared.
    std::size_t shared_bytes = std::size_t(256) << 20;
    /// The longest time in which a training waits for slower ones, so that they share. After it,
    /// batches that they have not taken are made for them again.
    time_span shared_wait = time_span::of_nanoseconds(hvd::detail::tuning::second);
};

/// Makes the batches of a pipeline for trainers, in a thread for each of them.
///
/// A batch depends on its request alone, so a worker has no state that matters: it may come and go
/// at any time. It serves until it is destroyed.
/// **Threads**: any thread calls it.
/// @snippet tests/data/service_snippets.cpp worker
template <batch_pipeline Pipeline>
class [[nodiscard("hvd: it serves until it is destroyed")]] service_worker {
public:
    using batch_type = typename Pipeline::batch_type;

    /// @throws hvd::usage_error for a port that is taken.
    [[nodiscard("hvd: it serves until it is destroyed")]]
    service_worker(Pipeline pipeline, const service_config& config, worker_options options = {})
        : pipeline_(std::move(pipeline)),
          mine_(hello(config, options)),
          has_dispatcher_(config.dispatchers > 0),
          shared_(options.shared_bytes, options.shared_wait.nanoseconds),
          server_(hvd::detail::service_secret(config.key, "the config's key"), options.port),
          registration_(config, mine_),
          place_(place_at(server_.port())),
          wakes_(-1),
          serves_([this] { run(); }),
          registers_([this] { stay_registered(); }) {
        if (!serves_ || !registers_) hvd::detail::refuse(-1, "no thread for a data worker");
    }
    service_worker(const service_worker&) = delete;
    service_worker& operator=(const service_worker&) = delete;
    ~service_worker() {
        stopping_.store(true);
        wakes_.wake();
        server_.stop();
    }

    std::uint16_t port() const { return server_.port(); }
    /// The addresses at which trainers reach it, for a config without a dispatcher.
    std::vector<std::string> addresses() const { return place_.addresses; }
    /// The batches that it has made.
    std::uint64_t made() const { return made_.load(); }

    /// The work of the stages that have threads of their own, for all trainers.
    std::vector<stage_statistics> stages() const
        requires hvd::detail::has_stages<Pipeline>
    {
        return pipeline_.stages();
    }

    /// Serves until the process is ended.
    void wait() {
        serves_.join();
        registers_.join();
    }

private:
    using shared_batches = hvd::detail::shared_batches<batch_type>;
    using member = typename shared_batches::member;
    using share_of_epoch = hvd::detail::share_of_epoch;

    static hvd::detail::service_hello hello(const service_config& config,
                                            const worker_options& options) {
        if (config.dispatchers > 0 &&
            (options.dispatcher < 0 || options.dispatcher >= config.dispatchers))
            hvd::detail::refuse(-1, "a data worker of dispatcher ", options.dispatcher, " of ",
                                config.dispatchers, ": a number below that was expected");
        hvd::detail::service_hello mine;
        mine.role = hvd::detail::service_role::worker;
        mine.job = hvd::detail::job_number(config.job_id);
        mine.host = hvd::detail::sharing_host(config.shared_memory);
        mine.dispatcher = std::uint32_t(options.dispatcher);
        mine.is_encrypted = config.encrypted ? 1 : 0;
        if (config.encrypted) hvd::detail::require_encryption(-1);
        return mine;
    }

    void run() {
        server_.run([this](hvd::detail::service_link& link) { serve(link); });
    }

    void serve(hvd::detail::service_link& link) {
        hvd::detail::service_hello mine = mine_, theirs;
        mine.fingerprint = std::as_const(pipeline_).plan().fingerprint;
        std::optional<member> me;
        const auto why_not = [&](const hvd::detail::service_hello& hello) {
            if (hello.role == hvd::detail::service_role::reader) return hvd::detail::message();
            if (hello.is_encrypted != mine.is_encrypted)
                return hvd::detail::text("the ", mine.is_encrypted != 0 ? "worker" : "trainer",
                                         " encrypts the connection, and the other side does not: "
                                         "both take \"encrypted\" of the config");
            if (hello.fingerprint == mine.fingerprint) {
                me.emplace(shared_, share_of_epoch{part{hello.rank, hello.size}, hello.share});
                return hvd::detail::message();
            }
            return hvd::detail::text("the worker's pipeline has the fingerprint ", mine.fingerprint,
                                     ", and the trainer's has ", hello.fingerprint,
                                     ": build both from one header, with one compiler");
        };
        if (!hvd::detail::answer_hello(link, mine, theirs, why_not) || !me) return;
        if (mine.is_encrypted != 0) link.encrypt();
        hvd::detail::opened_arena arena;
        while (link.wait() && answer(link, arena, *me)) continue;
    }

    bool answer(hvd::detail::service_link& link, hvd::detail::opened_arena& arena, member& me) {
        using hvd::detail::service_frame;
        if (link.head().kind == service_frame::probe) return true;
        hvd::detail::arena_offer offer;
        if (link.head().kind == service_frame::arena && copied(link.contents(), offer)) {
            arena = hvd::detail::opened_arena(offer);
            return true;
        }
        hvd::detail::service_request request;
        return link.head().kind == service_frame::ask_batch && copied(link.contents(), request) &&
               answer(link, request.batch, arena.slot(request.slot), me);
    }

    // A frame's contents, if they have the size of a T.
    template <class T>
    static bool copied(std::span<const std::byte> contents, T& to) {
        if (contents.size() != sizeof to) return false;
        std::memcpy(&to, contents.data(), sizeof to);
        return true;
    }

    bool answer(hvd::detail::service_link& link, const batch_request& request,
                std::span<std::byte> slot, member& me) {
        const std::uint64_t number = link.head().number;
        try {
            hvd::detail::checked(request.mine);
            const std::uint64_t samples = std::as_const(pipeline_).plan().samples;
            // an empty batch begins at the end
            if (samples == 0 || request.first > samples)
                hvd::detail::refuse(me.rank(), "a batch that begins at sample ", request.first,
                                    " of ", samples);
            const auto prepared = shared_.get(me, request, [&] { return make(request); });
            if (prepared.failure) return send(link, number, *prepared.failure);
            const hvd::detail::gathered_bytes& bytes = prepared.batch->bytes;
            if (bytes.size() > hvd::detail::most_batch_bytes)
                hvd::detail::refuse(me.rank(), "a batch of ", bytes.size(), " bytes: at most ",
                                    hvd::detail::most_batch_bytes, " go");
            return send(link, number, bytes, slot);
        } catch (...) {
            return send(link, number, hvd::detail::current_failure());
        }
    }

    static bool send(hvd::detail::service_link& link, std::uint64_t number,
                     const hvd::detail::service_failure& failure) {
        return link.send(hvd::detail::service_frame::failed, number, hvd::detail::encoded(failure));
    }

    made_batch<batch_type> make(const batch_request& request) {
        const hvd::detail::time_point since = hvd::detail::now();
        auto made = pipeline_.make(request);
        making_.add(hvd::detail::now() - since);
        made_.add(1);
        return made;
    }

    static bool send(hvd::detail::service_link& link, std::uint64_t number,
                     const hvd::detail::gathered_bytes& bytes, std::span<std::byte> slot) {
        using hvd::detail::service_frame;
        const std::uint64_t size = bytes.size();
        if (size <= hvd::detail::service_head::most_authenticated || size > slot.size())
            return link.send_gathered(service_frame::batch, number, bytes);
        bytes.copy_to(slot.data());
        return link.send(service_frame::in_slot, number, hvd::detail::plain_bytes_of(size));
    }

    // It reads the environment, so not in a thread of its own: others may change that.
    static hvd::detail::worker_place place_at(std::uint16_t port) {
        hvd::detail::worker_place place{};
        hvd::detail::fill_random(-1, reinterpret_cast<std::byte*>(&place.id), sizeof place.id);
        place.addresses = hvd::detail::written_addresses(port);
        return place;
    }

    void stay_registered() {
        std::vector<std::byte> bytes;
        hvd::detail::write_place(bytes, place_);
        hvd::detail::growing_rest rest;
        while (has_dispatcher_ && !stopping_.load()) {
            if (registration_.open() &&
                registration_.link().send(hvd::detail::service_frame::registered, 0, bytes)) {
                rest.begin_again();
                wait_for_end();
            }
            hvd::detail::sleep_until_woken(wakes_, rest.next());
        }
    }
    // All that it has done so far.
    std::vector<std::byte> work() const {
        const std::int64_t making = making_.load();
        const auto plain = hvd::detail::plain_bytes_of(making);
        std::vector<std::byte> bytes(plain.begin(), plain.end());
        if constexpr (hvd::detail::has_stages<Pipeline>)
            hvd::detail::write_stages(bytes, pipeline_.stages());
        return bytes;
    }
    void wait_for_end() {
        hvd::detail::service_link& link = registration_.link();
        std::uint64_t told = 0;
        for (hvd::detail::host_silence silence; !stopping_.load();) {
            if (silence.look(link.socket())) return;  // its host is gone
            pollfd fds[] = {{wakes_.number(), POLLIN, 0}, {link.socket().number(), POLLIN, 0}};
            hvd::detail::poll_sockets(fds, 2, hvd::detail::tuning::second / 2);
            const std::uint64_t made = made_.load();
            if (std::exchange(told, made) != made &&
                !link.send(hvd::detail::service_frame::made, made, work()))
                return;
            if (fds[0].revents != 0) wakes_.take();
            if (fds[1].revents != 0 && link.advance() == hvd::detail::service_link::state::over)
                return;
        }
    }

    Pipeline pipeline_;
    hvd::detail::service_hello mine_;
    bool has_dispatcher_;
    shared_batches shared_;
    hvd::detail::service_server server_;
    hvd::detail::dispatcher_link registration_;
    const hvd::detail::worker_place place_;
    hvd::detail::wake_up wakes_;
    hvd::detail::atomic<bool> stopping_{false};
    hvd::detail::atomic<std::uint64_t> made_{0};
    hvd::detail::atomic<std::int64_t> making_{0};  // nanoseconds of all threads
    // the last members, so that they are joined first
    hvd::detail::thread serves_, registers_;
};

/// The whole main of a worker program that `hvd-compute` starts: it serves a pipeline until the
/// process is ended.
///
/// It reads the config file that `HVD_DATA_SERVICE` names, and joins the dispatcher of
/// `HVD_DATA_DISPATCHER`. Returns the exit code.
/// @snippet tests/data/service_worker.cpp serve
template <batch_pipeline Pipeline>
int serve(Pipeline pipeline) {
    const char* const path = std::getenv("HVD_DATA_SERVICE");
    const char* const dispatcher = std::getenv("HVD_DATA_DISPATCHER");
    try {
        if (path == nullptr || *path == 0)
            hvd::detail::refuse_service(-1,
                                        "HVD_DATA_SERVICE names no config file: start the "
                                        "worker by hvd-compute");
        service_worker worker(std::move(pipeline), service_config::read(path),
                              {.dispatcher = dispatcher == nullptr ? 0 : std::atoi(dispatcher)});
        worker.wait();
        return 0;
    } catch (const std::exception& e) {
        hvd::detail::write_line(e.what());
        return 1;
    }
}

}  // namespace hvd::inline v0::data
