// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <deque>
#include <memory>

#include "../../transport/frames/host_silence.hpp"
#include "../claimed_steps.hpp"
#include "lent_slots.hpp"
#include "members.hpp"
#include "request_board.hpp"
#include "training_claims.hpp"

namespace hvd::inline v0::detail {

// The time in which the workers of a trainer usually make a batch.
class usual_time {
public:
    void add(std::int64_t time) {
        const std::int64_t before = mean_.load();
        mean_.store(before == 0 ? time : before + (time - before) / 16);
    }
    bool is_exceeded_by(std::int64_t time) const {
        return mean_.load() > 0 && time > std::max(tuning::second, 8 * mean_.load());
    }

private:
    atomic<std::int64_t> mean_{0};  // nanoseconds, of the last answers
};

// All that the connections of one trainer share.
struct service_client_state {
    service_client_state(const data::service_config& config, const service_hello& me)
        : secret(service_secret(config.key, "the config's key")),
          mine(me),
          timeout(config.timeout.nanoseconds),
          lost_a_worker(-1) {}

    shared_secret secret;
    service_hello mine;
    std::int64_t timeout;
    wake_up lost_a_worker;  // or one is late, or late no more, or all of this ends
    request_board board;
    spare_buffers spares;
    atomic<bool> stopping{false};
    atomic<std::size_t> credit{1};   // the most open requests of a connection
    atomic<std::size_t> serving{1};  // workers
    usual_time usual;
};

// The connection of a trainer to one worker, in a thread of its own. It connects again and again. A
// worker never sends what was not asked for.
class worker_feed {
public:
    worker_feed(service_client_state& shared, worker_place place)
        : shared_(shared), place_(std::move(place)), wakes_(-1), runs_([this] { run(); }) {
        if (!runs_) refuse(shared.mine.rank, "no thread for the connection to a data worker");
    }
    worker_feed(const worker_feed&) = delete;
    worker_feed& operator=(const worker_feed&) = delete;
    ~worker_feed() {
        ending_.store(true);
        wakes_.wake();
    }

    const worker_place& place() const { return place_; }
    bool is_connected() const { return connected_.load(); }
    bool is_serving() const { return connected_.load() && !late_.load(); }
    // Its place among the serving ones, from 0 on.
    void wake_as(std::size_t place) {
        place_among_.store(place);
        wakes_.wake();
    }
    message why() {
        const lock_guard held(mutex_);
        return text(why_);
    }

private:
    static constexpr std::int64_t host_look = 100 * tuning::millisecond;

    bool is_ending() const { return ending_.load() || shared_.stopping.load(); }

    void run() {
        while (!is_ending()) {
            try {
                if (connect()) exchange();
            } catch (const std::exception& e) {
                note(e.what());
            }
            const bool was_connected = connected_.load();
            connected_.store(false);
            link_ = service_link();
            if (!late_.load()) give_back_all();
            late_.store(false);
            open_.clear();
            slots_ = lent_slots();
            if (was_connected) shared_.lost_a_worker.wake();
            rest();
        }
    }
    // Others wake it meanwhile. A worker that drops each connection is not asked more often.
    void rest() {
        const time_point until = now() + service_rest;
        while (!is_ending() && now() < until) sleep_until_woken(wakes_, until - now());
    }

    bool connect() {
        service_dial dial(shared_.secret, shared_.mine, most_batch_bytes);
        if (dial.to(place_.addresses, link_)) {
            if (shared_.mine.is_encrypted != 0) link_.encrypt();
            const std::uint64_t host = shared_.mine.host;
            slots_ = lent_slots(host != 0 && dial.theirs().host == host);
            link_.use(shared_.spares);
            connected_.store(true);
            return true;
        }
        note(dial.why());
        // It will refuse again, and so will others.
        if (dial.was_refused())
            shared_.board.fail(std::make_exception_ptr(data::service_error(
                shared_.mine.rank,
                text("hvd: rank ", shared_.mine.rank, ": a data worker refuses: ", dial.why()))));
        return false;
    }

    // Asks and receives until the connection is over.
    void exchange() {
        progress_ = now();
        silence_ = host_silence();
        while (!is_ending()) {
            look_if_late();
            if (!ask()) return note(link_.why());
            if (!open_.empty() && !hears_host()) return;
            const std::int64_t left =
                open_.empty() ? INT64_MAX : progress_ + shared_.timeout - now();
            if (left <= 0)
                return note(
                    text("it has not answered for ", double(shared_.timeout) / 1e9, " seconds"));
            pollfd fds[] = {{wakes_.number(), POLLIN, 0},
                            {link_.socket().number(), link_.reading_events(), 0}};
            poll_sockets(fds, 2, open_.empty() ? left : std::min(left, host_look));
            if (fds[0].revents != 0) wakes_.take();
            if (fds[1].revents != 0 && !receive()) return;
        }
    }

    // Others are asked for all that a late worker holds, and it gets no more until it has answered.
    // So a stopped one costs its share of the work alone.
    void look_if_late() {
        if (open_.empty() || late_.load() || shared_.serving.load() < 2 ||
            !shared_.usual.is_exceeded_by(now() - progress_))
            return;
        late_.store(true);
        give_back_all();
        shared_.lost_a_worker.wake();
    }
    void give_back_all() {
        for (const auto& each : open_) shared_.board.give_back(each.request);
    }
    void has_answered() {
        const time_point before = std::exchange(progress_, now());
        if (!late_.load()) return shared_.usual.add(progress_ - before);
        if (!open_.empty()) return;
        late_.store(false);
        shared_.lost_a_worker.wake();
    }

    // A worker may take long for a batch, and its host acknowledges what comes meanwhile.
    bool hears_host() {
        if (silence_.look(link_.socket())) {
            note("its host does not answer");
            return false;
        }
        if (!silence_.wants_probe() ||
            link_.send(service_frame::probe, 0, {}, now() + shared_.timeout))
            return true;
        note(link_.why());
        return false;
    }

    bool ask() {
        while (!late_.load() && open_.size() < shared_.credit.load()) {
            const std::optional<open_request> next =
                shared_.board.next(place_among_.load(), shared_.serving.load());
            if (!next) break;
            if (open_.empty()) progress_ = now();
            open_.push_back({++number_, *next, {}});
            const time_point until = now() + shared_.timeout;
            if (slots_.needs_arena(shared_.credit.load()) &&
                !link_.send(service_frame::arena, number_, slots_.offer(), until))
                return false;
            open_.back().slot = slots_.take();
            service_request request{next->batch};
            if (open_.back().slot) request.slot = open_.back().slot.number();
            if (!link_.send(service_frame::ask_batch, number_, plain_bytes_of(request), until))
                return false;
        }
        return true;
    }

    bool receive() {
        for (;;) switch (link_.advance()) {
                case service_link::state::incomplete: return true;
                case service_link::state::over: note(link_.why()); return false;
                case service_link::state::complete:
                    if (!take_answer()) return false;
            }
    }
    bool take_answer() {
        service_answer answer;
        if (open_.empty() || link_.head().number != open_.front().number || !read(answer)) {
            note("it sent what was not asked for");
            return false;
        }
        shared_.board.answer(open_.front().request, std::move(answer));
        open_.pop_front();
        has_answered();
        return ask();
    }

    bool read(service_answer& answer) {
        const service_frame kind = link_.head().kind;
        batch_arena::slot slot = std::move(open_.front().slot);
        if (kind == service_frame::in_slot) {
            std::uint64_t bytes = 0;
            if (!slot || link_.contents().size() != sizeof bytes) return false;
            std::memcpy(&bytes, link_.contents().data(), sizeof bytes);
            if (bytes > slot.capacity()) return false;
            slot.holds(std::size_t(bytes));
            answer.slot = std::move(slot);
            return true;
        }
        answer.is_failure = kind == service_frame::failed;
        if (!answer.is_failure && kind != service_frame::batch) return false;
        if (!answer.is_failure) slots_.came_by_connection(link_.contents().size(), slot);
        answer.buffer = link_.take_contents();
        return true;
    }

    void note(std::string_view why) {
        const lock_guard held(mutex_);
        why_ = message(why);
    }

    service_client_state& shared_;
    worker_place place_;
    wake_up wakes_;
    mutex mutex_;
    message why_;
    service_link link_;
    host_silence silence_;
    struct asked {
        std::uint64_t number;
        open_request request;
        batch_arena::slot slot;
    };
    lent_slots slots_;
    std::deque<asked> open_;  // in the order of their answers
    std::uint64_t number_ = 0;
    time_point progress_ = 0;
    atomic<bool> connected_{false}, late_{false}, ending_{false};
    atomic<std::size_t> place_among_{0};
    thread runs_;  // the last member, so that it is joined first
};

// Asks the workers of a data service for the batches of one trainer.
class service_client {
public:
    service_client(const data::service_config& config, part mine, const data::batch_plan& plan,
                   std::shared_ptr<training_claims> claims = nullptr)
        : claims_(std::move(claims)),
          shared_(config, hello(config, mine, plan)),
          has_dispatcher_(config.dispatchers > 0),
          dispatcher_(config, shared_.mine) {
        for (const std::string& address : config.worker_addresses) add({0, {address}});
        looks_ = thread([this] { look_after_workers(); });
        if (!looks_) refuse(mine.rank, "no thread for a data service");
        if (!claims_) return;
        takes_ = thread([this] { claim_batches(); });
        if (!takes_) refuse(mine.rank, "no thread for the claims of a data service");
    }
    service_client(const service_client&) = delete;
    service_client& operator=(const service_client&) = delete;
    ~service_client() {
        shared_.stopping.store(true);
        shared_.lost_a_worker.wake();
        shared_.board.stop();
        takes_.join();
        looks_.join();
    }

    // Returns the number of the run.
    std::uint64_t begin(const data::batch_request& first, const data::batch_plan& plan,
                        std::uint64_t steps) {
        ahead_.store(plan.ahead);
        waits_since_.store(0);
        const std::uint64_t run =
            shared_.board.begin(first, plan, steps, claims_ ? claims_->begin_run() : 0);
        ask();
        return run;
    }

    // Those of claimed_steps, for a run.
    std::optional<std::uint64_t> position(std::uint64_t run, std::uint64_t step) {
        return shared_.board.position(run, step);
    }
    void returned(std::uint64_t run, std::uint64_t steps, bool is_end) {
        const auto note = shared_.board.note_returned(run, steps);
        if (is_end && note) tell(*note);
    }
    std::uint64_t samples_done(std::uint64_t run) {
        const auto note = shared_.board.note(run);
        return shared_.board.samples_done(run, note && claims_->has_book() ? tell(*note) : 0);
    }

    service_answer take(std::uint64_t run, const data::batch_request& batch) {
        return shared_.board.take(run, batch, [this] { ask(); });
    }

    // The answer was read.
    void give_back(service_answer answer) { shared_.spares.give_back(std::move(answer.buffer)); }

    data::service_statistics statistics() { return with_workers(shared_.board.statistics()); }
    data::service_statistics totals() { return with_workers(shared_.board.totals()); }

private:
    static service_hello hello(const data::service_config& config, part mine,
                               const data::batch_plan& plan) {
        service_hello made;
        made.role = service_role::trainer;
        made.job = job_number(config.job_id);
        made.fingerprint = plan.fingerprint;
        made.share = std::uint32_t(plan.share);
        made.dispatcher =
            config.dispatchers > 0 ? std::uint32_t(mine.rank % config.dispatchers) : 0;
        made.rank = mine.rank;
        made.size = mine.size;
        made.host = sharing_host(config.shared_memory);
        made.is_encrypted = config.encrypted ? 1 : 0;
        if (config.encrypted) require_encryption(mine.rank);
        return made;
    }

    data::service_statistics with_workers(data::service_statistics s) {
        const lock_guard held(mutex_);
        for (const auto& feed : feeds_) s.workers += feed->is_connected() ? 1u : 0u;
        return s;
    }

    void add(worker_place place) {
        feeds_.push_back(std::make_unique<worker_feed>(shared_, std::move(place)));
    }

    // Each connection gets its share of the requests, so that no worker has all of them. The feeds
    // are in the order of their workers' numbers, so the shares are those of other trainings.
    void ask() {
        const lock_guard held(mutex_);
        std::size_t serving = 0;
        for (const auto& feed : feeds_) serving += feed->is_serving() ? 1u : 0u;
        const std::size_t each = serving > 0 ? (ahead_.load() + serving - 1) / serving : 1;
        shared_.credit.store(each > 0 ? each : 1);
        shared_.serving.store(serving > 0 ? serving : 1);
        std::size_t place = 0;
        for (const auto& feed : feeds_) feed->wake_as(feed->is_serving() ? place++ : place);
    }

    void claim_batches() {
        while (const auto next = shared_.board.wait_for_room()) {
            try {
                shared_.board.claimed(next->run, claims_->ask(next->request, shared_.stopping));
            } catch (...) {
                shared_.board.fail_claims(next->run, std::current_exception());
            }
            ask();
        }
    }
    // Tells rank 0 what the trainer has had. Without it some batches may come again after a resume.
    std::uint64_t tell(const request_board::next_claim& note) try {
        return claims_->ask(note.request, shared_.stopping).done;
    } catch (const error&) {
        return 0;
    }

    // Follows the dispatcher's list, and gives up if no worker is there for too long.
    void look_after_workers() {
        growing_rest rest;
        while (!shared_.stopping.load()) {
            ask();  // a worker may be lost, and the dispatcher take its time
            try {
                if (has_dispatcher_) follow_list();
            } catch (const std::exception& e) {
                dispatcher_.close();
            }
            const bool is_served = has_worker();
            check_patience(is_served);
            ask();
            if (is_served) rest.begin_again();
            sleep_until_woken(shared_.lost_a_worker, is_served ? service_rest : rest.next());
        }
    }

    void follow_list() {
        if (!dispatcher_.is_open() && !dispatcher_.open()) return;
        const time_point until = now() + 2 * tuning::second;
        service_link& link = dispatcher_.link();
        if (!link.send(service_frame::ask_list, 0, {}, until) || !link.wait(until) ||
            link.head().kind != service_frame::list)
            return dispatcher_.close();
        std::span<const std::byte> bytes = link.contents();
        std::vector<worker_place> listed;
        while (!bytes.empty()) listed.push_back(read_place(bytes));
        take_list(listed);
    }

    // A worker whose connection works stays, also if a new dispatcher does not know it yet.
    void take_list(const std::vector<worker_place>& listed) {
        const auto has = [](const auto& all, std::uint64_t id, auto id_of) {
            for (const auto& each : all)
                if (id_of(each) == id) return true;
            return false;
        };
        const auto of_place = [](const worker_place& p) { return p.id; };
        const auto of_feed = [](const auto& f) { return f->place().id; };
        std::vector<std::unique_ptr<worker_feed>> gone;
        const lock_guard held(mutex_);
        for (auto& feed : feeds_)
            if (!feed->is_connected() && !has(listed, feed->place().id, of_place))
                gone.push_back(std::move(feed));
        std::erase(feeds_, nullptr);
        for (const worker_place& place : listed)
            if (!has(feeds_, place.id, of_feed)) add(place);
        std::sort(feeds_.begin(), feeds_.end(),
                  [&](const auto& a, const auto& b) { return of_feed(a) < of_feed(b); });
    }

    bool has_worker() {
        const lock_guard held(mutex_);
        bool is_there = false;
        for (const auto& feed : feeds_) is_there = is_there || feed->is_connected();
        return is_there;
    }
    void check_patience(bool is_served) {
        if (is_served || !shared_.board.is_waited_for()) return waits_since_.store(0);
        if (waits_since_.load() == 0) waits_since_.store(now());
        if (now() - waits_since_.load() < shared_.timeout) return;
        const int rank = shared_.mine.rank;
        shared_.board.fail(std::make_exception_ptr(
            data::service_error(rank, text("hvd: rank ", rank, ": no data worker was there for ",
                                           double(shared_.timeout) / 1e9, " seconds", reasons()))));
        waits_since_.store(0);
    }
    message reasons() {
        const lock_guard held(mutex_);
        message all = text("; ", feeds_.size(), " are known");
        if (has_dispatcher_ && !dispatcher_.is_open()) all += text("; ", dispatcher_.why());
        for (const auto& feed : feeds_)
            all +=
                text("; worker ",
                     feed->place().addresses.empty() ? std::string_view()
                                                     : std::string_view(feed->place().addresses[0]),
                     ": ", feed->why());
        return all;
    }

    std::shared_ptr<training_claims> claims_;  // with processing_mode::first_come_first_served
    service_client_state shared_;
    bool has_dispatcher_;
    dispatcher_link dispatcher_;
    atomic<std::size_t> ahead_{1};
    atomic<time_point> waits_since_{0};
    mutex mutex_;
    std::vector<std::unique_ptr<worker_feed>> feeds_;
    thread looks_, takes_;  // the last members, so that they are joined first
};

// The batches that a trainer claims in one run.
class service_claims final : public claimed_steps {
public:
    service_claims(std::shared_ptr<service_client> client, std::uint64_t run)
        : client_(std::move(client)), run_(run) {}

    std::optional<std::uint64_t> position(std::uint64_t step) override {
        return client_->position(run_, step);
    }
    void returned(std::uint64_t steps, bool is_end) override {
        client_->returned(run_, steps, is_end && !std::exchange(has_ended_, is_end));
    }
    // That of a run that is over stays.
    std::uint64_t samples_done() override {
        return done_ = std::max(done_, client_->samples_done(run_));
    }

private:
    std::shared_ptr<service_client> client_;
    std::uint64_t run_, done_ = 0;
    bool has_ended_ = false;
};

}  // namespace hvd::inline v0::detail
