// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include <hvd/elastic/members/membership.hpp>

#include "elastic_test.hpp"

namespace membership_tests {

// A process of an elastic job whose coordinator says what the test wants.

using namespace hvd_test;
using namespace hvd::detail;

namespace {

class scripted_coordinator {
public:
    explicit scripted_coordinator(const shared_secret& of_job = new_secret())
        : job_secret_(of_job) {}

    // A process of a job of two, which waits for this coordinator.
    hvd::tcp_options options() const {
        hvd::tcp_options o = {};
        o.rank = 1;
        o.size = 2;
        o.rendezvous = "127.0.0.1:" + std::to_string(listener_.port());
        o.rendezvous_served = true;
        o.secret = std::string(std::string_view(hex_of(job_secret_)));
        return o;
    }

    std::uint16_t port() const { return listener_.port(); }

    // Waits for the next connection, and for what comes first on it.
    join_message await_join() {
        link_.reset();
        while (!has_come()) {
        }
        return read_join_message();
    }
    // Looks for a connection for a while. False if none has come since the last one has ended.
    bool has_come() {
        std::vector<pollfd> fds;
        listener_.add_to(fds);
        arriving_.add_to(fds);
        ::poll(fds.data(), nfds_t(fds.size()), 20);
        arriving_.advance(listener_, [this](int, std::uint64_t, descriptor socket) {
            link_.emplace(1, std::move(socket), join_message::most_bytes());
        });
        return link_.has_value();
    }
    void end_link() { link_.reset(); }
    join_message read_join_message() {
        join_message said;
        const std::vector<std::byte> bytes = next();
        REQUIRE(bytes.size() >= sizeof said);
        std::memcpy(static_cast<void*>(&said), bytes.data(), sizeof said);
        return said;
    }

    // The bytes of the next message; none if the process closes the connection or says nothing.
    std::vector<std::byte> next() {
        const time_point limit = now() + 10 * tuning::second;
        for (std::span<const std::byte> bytes; now() < limit;) {
            link_->flush();
            link_->fill();
            if (link_->next(bytes)) return {bytes.begin(), bytes.end()};
            if (!link_->is_open()) return {};
            pollfd p{link_->number(), POLLIN, 0};
            ::poll(&p, 1, 100);
        }
        return {};
    }

    void say(coordinator_message head, const std::vector<elastic_member>& table = {}) {
        head.size = std::uint32_t(table.size());
        std::vector<std::byte> bytes(wire_bytes(head).begin(), wire_bytes(head).end());
        for (const elastic_member& m : table)
            bytes.insert(bytes.end(), wire_bytes(m).begin(), wire_bytes(m).end());
        link_->queue(bytes);
        link_->flush();
    }
    void begin_epoch(const std::vector<elastic_member>& table) {
        coordinator_message head;
        head.what = coordinator_message::epoch_begins;
        head.epoch = 1;
        head.job = 7;
        say(head, table);
    }

private:
    const shared_secret job_secret_, secret_ = membership_secret(job_secret_);
    listening_socket listener_{-1};
    pending_connections arriving_{secret_, rendezvous_rank};
    std::optional<framed_socket> link_;
};

// A port where nobody listens.
std::uint16_t closed_port() { return listening_socket(-1).port(); }

elastic_member member_at(std::uint64_t id, std::uint64_t network, std::uint16_t port) {
    elastic_member m;
    m.id = id;
    m.network = network;
    m.coordinator.port = port;
    m.coordinator.add(host_address::loopback());
    return m;
}

}  // namespace

TEST_CASE("a member is gone if its port is closed on this host, and not if it is on another one") {
    scripted_coordinator coordinator;
    membership here(coordinator.options(), {});
    auto joined = std::async(std::launch::async, [&] {
        here.join({}, false);
        here.join({}, false);
    });
    const elastic_member self = coordinator.await_join().self;
    coordinator.begin_epoch({self, member_at(11, self.network, closed_port()),
                             member_at(12, self.network + 1, closed_port())});
    coordinator.read_join_message();
    coordinator_message waits;
    waits.what = coordinator_message::still_waits;
    coordinator.say(waits);
    const std::vector<std::byte> told = coordinator.next();
    member_head head;
    std::vector<std::uint64_t> gone;
    CHECK(*read_head(told, head) == 0);
    CHECK(head.what == member_head::finds_gone);
    CHECK(*read_gone(told, gone) == 0);
    CHECK(gone == std::vector<std::uint64_t>{11});
    coordinator.begin_epoch({self});
    joined.get();
}

TEST_CASE("a coordinator that is stopped is left, and told that the process lives") {
    // Both take seconds: one that has let a process in, and one that lets none in.
    const shared_secret secret = new_secret();
    scripted_coordinator coordinator, adviser(secret), next(secret);
    const listening_socket stopped(-1);  // its system takes connections
    hvd::elastic::bounds bounds;
    bounds.timeout = std::chrono::seconds(20);
    membership here(coordinator.options(), bounds), there(adviser.options(), bounds);
    auto joined = std::async(std::launch::async, [&] { here.join({}, false); });
    auto other = std::async(std::launch::async, [&] { there.join({}, false); });

    CHECK(coordinator.await_join().leaves == 0);
    const std::uint64_t elsewhere = adviser.await_join().self.network + 1;
    coordinator_message advice;
    advice.what = coordinator_message::try_another;
    adviser.say(advice,
                {member_at(11, elsewhere, stopped.port()), member_at(12, elsewhere, next.port())});
    next.begin_epoch({next.await_join().self});
    other.get();

    CHECK(coordinator.read_join_message().leaves == 1);  // after some seconds of silence
    const elastic_member self = coordinator.await_join().self;
    coordinator.begin_epoch({self});
    joined.get();
}

TEST_CASE("members of a newer epoch are asked before those that were known") {
    const shared_secret secret = new_secret();
    scripted_coordinator first(secret), former(secret), newer(secret);
    hvd::elastic::bounds bounds;
    bounds.timeout = std::chrono::seconds(60);
    membership here(first.options(), bounds);
    auto joined = std::async(std::launch::async, [&] {
        here.join({}, false);
        here.join({}, false);
    });
    const elastic_member self = first.await_join().self;
    const std::uint64_t elsewhere = self.network + 1;
    first.begin_epoch({self, member_at(11, elsewhere, former.port())});
    first.read_join_message();
    coordinator_message advice;
    advice.what = coordinator_message::try_another;
    advice.epoch = 2;
    first.say(advice, {member_at(12, elsewhere, newer.port())});
    CHECK(first.next().empty());  // it has left
    first.end_link();
    scripted_coordinator* asked = nullptr;
    while (asked == nullptr)
        for (scripted_coordinator* one : {&newer, &former, &first})
            if (asked == nullptr && one->has_come()) asked = one;
    CHECK(asked == &newer);
    asked->read_join_message();
    asked->begin_epoch({self});
    joined.get();
}

TEST_CASE("an epoch that can't be is not taken, and the process asks again") {
    scripted_coordinator coordinator;
    membership here(coordinator.options(), {});
    auto joined = std::async(std::launch::async, [&] { return here.join({}, false); });
    elastic_member self = coordinator.await_join().self;
    const elastic_member other = member_at(11, self.network + 1, closed_port());
    const auto say = [&](std::uint32_t rank, std::uint32_t source,
                         const std::vector<elastic_member>& table) {
        coordinator_message head;
        head.what = coordinator_message::epoch_begins;
        head.epoch = 1;
        head.job = 7;
        head.rank = rank;
        head.source = source;
        coordinator.say(head, table);
    };
    const auto is_not_taken = [&] { self = coordinator.await_join().self; };
    say(2, 0, {self, other});
    is_not_taken();
    say(0, 2, {self, other});
    is_not_taken();
    say(0, 0, {other, self});
    is_not_taken();
    say(0, 0, {});
    is_not_taken();
    say(1, 0, {other, self});
    const elastic_epoch made = joined.get();
    CHECK(made.rank == 1);
    CHECK(made.size == 2);
    CHECK(made.source == 0);
    CHECK(made.number == 1);
}

TEST_CASE("a process has seen the end of a coordinator that closed its connection without a word") {
    for (const bool says_so : {false, true}) {
        CAPTURE(says_so);
        scripted_coordinator coordinator;
        hvd::elastic::bounds bounds;
        bounds.timeout = std::chrono::seconds(60);
        membership here(coordinator.options(), bounds);
        auto joined = std::async(std::launch::async, [&] {
            here.join({}, false);
            here.join({}, false);
        });
        const join_message first = coordinator.await_join();
        CHECK(first.saw_end == 0);
        coordinator_message head;
        head.what = coordinator_message::epoch_begins;
        head.epoch = 1;
        head.job = 7;
        head.served_by = 77;
        coordinator.say(head, {first.self});
        CHECK(coordinator.read_join_message().saw_end == 0);
        head.what = coordinator_message::try_another;
        if (says_so) {
            coordinator.say(head);
            CHECK(coordinator.next().empty());  // it has left
        }
        const join_message again = coordinator.await_join();
        CHECK(again.ended == 77);
        CHECK(again.saw_end == (says_so ? 0 : 1));
        coordinator.begin_epoch({first.self});
        joined.get();
    }
}

TEST_CASE("what a coordinator says of an epoch holds until the process joins again") {
    scripted_coordinator coordinator;
    membership here(coordinator.options(), {});
    const auto join = [&] { here.join({}, false); };
    auto joined = std::async(std::launch::async, join);
    const elastic_member self = coordinator.await_join().self;
    const auto is_told = [&](coordinator_message::word what, auto holds) {
        coordinator_message head;
        head.what = what;
        coordinator.say(head);
        for (int i = 0; i < 5000 && !holds(); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK(holds());
    };
    for (int epoch = 0; epoch < 2; ++epoch) {
        coordinator.begin_epoch({self});
        joined.get();
        CHECK(!here.should_join());
        is_told(coordinator_message::others_wait, [&] { return here.should_join(); });
        CHECK(!here.epoch_ends());
        if (epoch == 0) is_told(coordinator_message::epoch_ends, [&] { return here.epoch_ends(); });
        joined = std::async(std::launch::async, join);
        coordinator.read_join_message();
    }
    coordinator.begin_epoch({self});
    joined.get();
    coordinator.end_link();
    for (int i = 0; i < 5000 && !here.epoch_ends(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(here.epoch_ends());
}

TEST_CASE("a launcher hears of the work once a second, and of the last step at the end") {
    scripted_coordinator coordinator;
    membership here(coordinator.options(), {});
    auto joined = std::async(std::launch::async, [&] { return here.join({}, false); });
    const elastic_member self = coordinator.await_join().self;
    coordinator.begin_epoch({self});
    joined.get();
    const time_point begin = now();
    for (int step = 1; step < 10; ++step) here.tell_work(step, 10 * step);
    const bool is_quick = now() < begin + tuning::second;
    joined = std::async(std::launch::async, [&] { return here.join({}, true); });
    std::vector<std::int64_t> told;
    for (;;) {
        const std::vector<std::byte> bytes = coordinator.next();
        member_head head;
        REQUIRE(*read_head(bytes, head) == 0);
        if (head.what == member_head::joins) {
            join_message said;
            REQUIRE(bytes.size() >= sizeof said);
            std::memcpy(static_cast<void*>(&said), bytes.data(), sizeof said);
            CHECK(said.finished == 1);
            break;
        }
        work_message work;
        REQUIRE(*read_work(bytes, work) == 0);
        CHECK(work.samples == 10 * work.step);
        told.push_back(work.step);
    }
    REQUIRE(!told.empty());
    CHECK(told.front() == 1);
    CHECK(told.back() == 9);
    if (is_quick) CHECK(told.size() == 2);
    coordinator_message ends;
    ends.what = coordinator_message::job_has_ended;
    coordinator.say(ends);
    CHECK(joined.get().has_ended);
}

}  // namespace membership_tests
