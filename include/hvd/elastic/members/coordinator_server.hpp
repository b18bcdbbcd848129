// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/lean/atomic.hpp"
#include "../../core/settings/elastic_options.hpp"
#include "../../core/settings/tcp_options.hpp"
#include "../../platform/network/wake_up.hpp"
#include "../../platform/thread.hpp"
#include "../../transport/tcp/job_secret.hpp"
#include "../../transport/tcp/pending_connections.hpp"
#include "coordinator.hpp"

namespace hvd::inline v0::detail {

// A connection between a coordinator and a process of its job tells at once that a process has
// died, and in less than two seconds that a host is silent. Messages on it are short, and both
// sides always read.
inline void tune_membership([[maybe_unused]] const framed_socket& s) {
#if defined(TCP_USER_TIMEOUT)
    constexpr int milliseconds = 1500;
    ::setsockopt(s.number(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
#endif
}

// The reason for a process of an elastic job that meets the rendezvous of a static one.
inline constexpr const char* why_static_is_refused =
    "it is the rendezvous of a static job; hvdrun starts an elastic one with --min-np, --max-np or "
    "--host-discovery-script";

// Returns the rules that the options of a job give its coordinator.
inline coordinator_rules coordinator_rules_of(const tcp_options& own,
                                              const elastic::bounds& bounds) {
    coordinator_rules r;
    const auto span = [](time_limit t) { return t.is_time() ? t.time().nanoseconds : never; };
    r.start = std::size_t(own.size < 1 ? 1 : own.size);
    r.least = std::size_t(bounds.min_size);
    if (bounds.max_size > 0) r.most = std::size_t(bounds.max_size);
    r.start_span = span(own.start_timeout);
    r.join_span = span(bounds.timeout);
    r.late = span(bounds.straggler_timeout);
    return r;
}

// Hears what happens to a job, in the thread of its coordinator.
class coordinator_listener {
public:
    // The members are in the order of their ranks. The step is the one from which they go on.
    virtual void begin_epoch(std::uint64_t epoch, std::int64_t step,
                             const std::vector<elastic_member>& members) = 0;
    // A member has committed this step, and so many samples since it has begun.
    virtual void work(std::int64_t started_as, std::int64_t step, std::int64_t samples) = 0;
    virtual void lose(std::int64_t started_as) = 0;
    virtual void end_job() = 0;

protected:
    ~coordinator_listener() = default;
};

// A coordinator says so often to those who wait that it lives.
inline constexpr std::int64_t reassured_every = tuning::second;

// The coordinator of an elastic job and its connections, served by a thread of its own, which
// sleeps while nothing happens. Each process of a job has one, and one of them acts.
class coordinator_server {
public:
    // It listens `at` some addresses. @throws usage_error if the port is taken
    coordinator_server(const coordinator_rules& rules, const shared_secret& secret,
                       std::uint16_t port = 0, coordinator_listener* told = nullptr, int rank = -1,
                       std::span<const host_address> at = {})
        : secret_(secret),
          is_launcher_(rules.self == 0),
          listener_(rank, port, at),
          wake_(-1),
          told_(told),
          machine_(rules),
          thread_([this] { serve(); }) {
        if (!thread_) throw usage_error(-1, "hvd: the system starts no thread");
    }
    coordinator_server(const coordinator_server&) = delete;
    coordinator_server& operator=(const coordinator_server&) = delete;
    ~coordinator_server() {
        stopped_.store(true);
        wake_.wake();
    }

    std::uint16_t port() const noexcept { return listener_.port(); }

    // This process is in an epoch that another coordinator has begun.
    void follow(std::uint64_t epoch, state_stamp stamp, std::span<const elastic_member> table) {
        const lock_guard lock(mutex_);
        followed_ = epoch;
        followed_stamp_ = stamp;
        followed_table_.assign(table.begin(), table.end());
        wake_.wake();
    }

    // The launcher starts nothing any more, and so many of its processes live.
    void expect(std::size_t living) {
        const lock_guard lock(mutex_);
        living_ = living;
        wake_.wake();
    }

    // The launcher has seen the end of the process that it has started as this rank.
    void has_died(std::int64_t started_as) {
        const lock_guard lock(mutex_);
        died_.push_back(started_as);
        wake_.wake();
    }

private:
    static constexpr std::int64_t last_words = 2 * tuning::second;
    static constexpr std::size_t any = std::size_t(-1);

    struct connection {
        int link;
        framed_socket socket;
        time_point ends = never;  // it is only told why
        bool waits = false;       // for the next epoch
        std::int64_t started_as = -1;
    };

    void serve() noexcept try {
        while (!stopped_.load()) {
            turn();
            take_told();
            look_at_all();
            if (machine_.awaits_time()) machine_.advance(now());
            carry_out();
            reassure();
        }
    } catch (...) {
        // The processes of the job see their connections end, and go to another coordinator.
        connections_.clear();
    }

    void turn() {
        fds_.clear();
        fds_.push_back({wake_.number(), POLLIN, 0});
        arriving_.add_to(fds_);
        const bool idle = fds_.size() == 1 && !machine_.awaits_time() && !speaks_last_words();
        if (now() >= listens_from_) listener_.add_to(fds_);
        for (const connection& c : connections_)
            fds_.push_back({c.socket.number(),
                            short(c.socket.wants_to_write() ? POLLIN | POLLOUT : POLLIN), 0});
        const bool has_rest = idle && listens_from_ == 0;
        poll_sockets(fds_.data(), fds_.size(), has_rest ? INT64_MAX : 20 * tuning::millisecond);
        listens_from_ = 0;
        let_in();
    }

    // A process without descriptors lets nobody in for a while, and serves those who are there.
    void let_in() try {
        arriving_.advance(listener_, [this](int, std::uint64_t, descriptor socket) {
            const int link = ++links_;
            connections_.push_back(
                {link, framed_socket(link, std::move(socket), join_message::most_bytes())});
            tune_membership(connections_.back().socket);
        });
    } catch (const usage_error&) {
        listens_from_ = now() + 20 * tuning::millisecond;
    }

    void take_told() {
        wake_.take();
        const lock_guard lock(mutex_);
        if (followed_ > 0)
            machine_.follow(followed_, followed_stamp_, std::move(followed_table_), now());
        followed_ = 0;
        for (const std::int64_t rank : std::exchange(died_, {})) machine_.has_died(rank, now());
        if (living_ != any) machine_.expect(std::exchange(living_, any), now());
    }

    bool speaks_last_words() const {
        for (const connection& c : connections_)
            if (c.ends != never) return true;
        return false;
    }

    void look_at_all() {
        for (connection& c : connections_) {
            c.socket.fill();
            for (std::span<const std::byte> bytes; c.ends == never && c.socket.next(bytes);)
                take(c, bytes);
            c.socket.flush();
            if (c.ends < now() || (c.ends != never && !c.socket.wants_to_write())) c.socket.close();
        }
        for (std::size_t i = connections_.size(); i-- > 0;) {
            if (connections_[i].socket.is_open()) continue;
            const int link = connections_[i].link;
            const bool is_silent = connections_[i].socket.is_silent();
            if (told_ != nullptr) told_->lose(connections_[i].started_as);
            connections_.erase(connections_.begin() + std::ptrdiff_t(i));
            machine_.lose(link, is_silent, now());
        }
    }

    // Those who wait hear so often that this process is not stopped, which their system can't see.
    void reassure() {
        if (now() < reassured_at_ + reassured_every) return;
        reassured_at_ = now();
        coordinator_message head;
        head.what = coordinator_message::still_waits;
        for (connection& c : connections_) {
            if (!c.waits) continue;
            send(c, head, {});
            c.socket.flush();
        }
    }

    void take(connection& c, std::span<const std::byte> bytes) {
        member_head head;
        const char* wrong = read_head(bytes, head);
        if (head.version != member_head::current)
            return refuse(c, coordinator_message::refused, why_other_version(head.version));
        if (*wrong == 0) wrong = take(c, head.what, bytes);
        if (*wrong != 0) refuse(c, coordinator_message::refused, wrong);
    }

    const char* take(connection& c, member_head::word what, std::span<const std::byte> bytes) {
        if (what == member_head::joins) return take_join(c, bytes);
        if (c.started_as < 0) return "it has not joined";
        return what == member_head::works ? take_work(c, bytes) : take_gone(bytes);
    }

    const char* take_gone(std::span<const std::byte> bytes) {
        std::vector<std::uint64_t> ids;
        const char* const wrong = read_gone(bytes, ids);
        if (*wrong == 0) machine_.find_gone(ids, now());
        return wrong;
    }

    const char* take_work(const connection& c, std::span<const std::byte> bytes) {
        work_message said;
        const char* const wrong = read_work(bytes, said);
        if (*wrong == 0 && told_ != nullptr) told_->work(c.started_as, said.step, said.samples);
        return wrong;
    }

    const char* take_join(connection& c, std::span<const std::byte> bytes) {
        join_request request;
        const char* const wrong = read_join(bytes, request);
        if (*wrong != 0) return wrong;
        c.started_as = request.said.self.started_as;
        if (request.said.leaves != 0) {
            machine_.lose(c.link, true, now());
            c.socket.close();
            return "";
        }
        c.waits = true;
        machine_.join(c.link, std::move(request), now());
        return "";
    }

    void carry_out() {
        const std::vector<coordinator::order> orders = machine_.take_orders();
        for (const coordinator::order& o : orders) {
            if (o.what == coordinator_message::epoch_begins && epoch_ != machine_.epoch())
                begin_epoch();
            for (connection& c : connections_)
                if (c.link == o.link) say(c, o);
        }
        for (connection& c : connections_) c.socket.flush();
        if (told_ != nullptr && !orders.empty() &&
            orders.back().what == coordinator_message::job_has_ended)
            told_->end_job();
    }

    void begin_epoch() {
        epoch_ = machine_.epoch();
        fill_random(-1, reinterpret_cast<std::byte*>(&job_), sizeof job_);
        if (told_ != nullptr)
            told_->begin_epoch(epoch_, machine_.head().stamp.step, machine_.table());
    }

    void say(connection& c, const coordinator::order& o) {
        c.waits = false;
        if (!o.reason.empty()) return refuse(c, o.what, o.reason);
        coordinator_message head;
        head.what = o.what;
        if (o.what != coordinator_message::epoch_begins) return send(c, head, {});
        head = machine_.head();
        head.rank = std::uint32_t(o.rank);
        head.job = job_;
        send(c, head, machine_.table());
    }

    // The process that is refused shows this to its user.
    message why_other_version(std::uint32_t version) const {
        return text("this program speaks version ", version,
                    " of the protocol of elastic jobs, and ",
                    is_launcher_ ? "hvdrun" : "the process that coordinates", " speaks version ",
                    member_head::current, ": both must be of one version of hvd");
    }

    void refuse(connection& c, coordinator_message::word how, std::string_view reason) {
        coordinator_message head;
        head.what = how;
        head.epoch = machine_.epoch();
        send(c, head, machine_.table(), reason);
        c.ends = now() + last_words;
    }

    static void send(connection& c, coordinator_message head, std::span<const elastic_member> table,
                     std::string_view reason = {}) {
        head.size = std::uint32_t(table.size());
        std::vector<std::byte> bytes(wire_bytes(head).begin(), wire_bytes(head).end());
        for (const elastic_member& m : table)
            bytes.insert(bytes.end(), wire_bytes(m).begin(), wire_bytes(m).end());
        for (const char letter : reason) bytes.push_back(std::byte(letter));
        c.socket.queue(bytes);
    }

    const shared_secret secret_;
    const bool is_launcher_;
    listening_socket listener_;
    wake_up wake_;
    coordinator_listener* const told_;
    atomic<bool> stopped_{false};
    pending_connections arriving_{secret_, rendezvous_rank};
    coordinator machine_;
    std::vector<connection> connections_;
    int links_ = 0;
    std::uint64_t epoch_ = 0, job_ = 0;
    std::vector<pollfd> fds_;
    mutex mutex_;
    std::uint64_t followed_ = 0;
    state_stamp followed_stamp_;
    std::size_t living_ = any;
    std::vector<std::int64_t> died_;
    time_point reassured_at_ = 0, listens_from_ = 0;
    std::vector<elastic_member> followed_table_;
    thread thread_;  // last: it uses all others
};

}  // namespace hvd::inline v0::detail
