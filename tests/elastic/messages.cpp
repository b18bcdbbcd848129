// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>

#include "elastic_test.hpp"

namespace messages_tests {

// A coordinator that hears what no member says.

using namespace hvd_test;
using namespace hvd::detail;

namespace {

std::vector<std::byte> bytes_of(const join_message& said, std::size_t ids) {
    std::vector<std::byte> all(wire_bytes(said).begin(), wire_bytes(said).end());
    all.resize(all.size() + ids * sizeof(std::uint64_t), std::byte(7));
    return all;
}
join_message plain() {
    join_message said;
    said.self.id = 5;
    return said;
}
// Reads a message as a coordinator does.
const char* read(std::span<const std::byte> bytes, join_request& r) {
    member_head head;
    const char* const wrong = read_head(bytes, head);
    if (*wrong != 0) return wrong;
    work_message work;
    std::vector<std::uint64_t> gone;
    if (head.what == member_head::works) return read_work(bytes, work);
    return head.what == member_head::joins ? read_join(bytes, r) : read_gone(bytes, gone);
}
std::string why(const join_message& said, std::size_t ids) {
    join_request r;
    return read(bytes_of(said, ids), r);
}

coordinator_rules rules() {
    coordinator_rules r;
    r.start = 1;
    return r;
}

// Connects to a coordinator and proves to know the secret.
framed_socket reach(const coordinator_server& server, const shared_secret& secret) {
    dial to_it(secret, 0, rendezvous_rank, -1);
    const time_point limit = now() + 10 * tuning::second;
    descriptor socket = to_it.to(host_address::loopback(), server.port(), limit, limit);
    REQUIRE(socket);
    return {rendezvous_rank, std::move(socket), coordinator_message::most_bytes()};
}

// Returns the coordinator's answer; the word `refused` and no text if it closes the connection.
coordinator_message answer_of(framed_socket& link, std::string* text = nullptr) {
    coordinator_message head;
    head.what = coordinator_message::refused;
    for (std::span<const std::byte> bytes;;) {
        link.flush();
        link.fill();
        if (link.next(bytes)) {
            REQUIRE(bytes.size() >= sizeof head);
            std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof head);
            if (text != nullptr)
                text->assign(reinterpret_cast<const char*>(bytes.data()) + sizeof head,
                             bytes.size() - sizeof head);
            return head;
        }
        if (!link.is_open()) return head;
        pollfd p{link.number(), short(link.wants_to_write() ? POLLIN | POLLOUT : POLLIN), 0};
        ::poll(&p, 1, 1000);
    }
}

}  // namespace

TEST_CASE("a message of a process is read strictly") {
    CHECK(why(plain(), 0) == "");
    join_message wrong = plain();
    wrong.head.version = 1;
    CHECK(why(wrong, 0) == "it speaks another version of the protocol");
    wrong = plain();
    wrong.head.what = member_head::word(member_head::finds_gone + 1);
    CHECK(why(wrong, 0) == "its message has no meaning");
    wrong = plain();
    wrong.self.id = 0;
    CHECK(why(wrong, 0) == "it has no number");
    wrong = plain();
    wrong.self.place.addresses = listening_place::most_addresses + 1;
    CHECK(why(wrong, 0) == "it gives too many addresses");
    wrong = plain();
    wrong.self.coordinator.addresses = listening_place::most_addresses + 1;
    CHECK(why(wrong, 0) == "it gives too many addresses");
    wrong = plain();
    wrong.worked = {3, 0, 2, 0};
    wrong.recorded = {4, 0, 1, 0};
    CHECK(why(wrong, 3) == "");
    for (const std::size_t ids : {0, 1, 2, 4})
        CHECK(why(wrong, ids) == "the members of its epochs have a wrong size");
    wrong.worked.members = 0xFFFFFFFF;
    CHECK(why(wrong, 3) == "the members of its epochs have a wrong size");
    wrong.worked = {0, 0, 2, 0};  // members of no epoch
    CHECK(why(wrong, 3) == "the members of its epochs have a wrong size");
    join_request r;
    wrong.head.what = member_head::finds_gone;
    CHECK(read(wire_bytes(wrong.head), r) == std::string());
    CHECK(read(std::vector<std::byte>(bytes_of(wrong, 0)), r) == std::string());
    std::vector<std::byte> uneven = bytes_of(wrong, 0);
    uneven.resize(sizeof(member_head) + 9);
    CHECK(read(uneven, r) == std::string("its message has a wrong size"));
    CHECK(read({}, r) == std::string("its message is too short"));
    CHECK(read(wire_bytes(member_head()), r) == std::string("its message is too short"));
}

TEST_CASE("a message of a step's work is read strictly") {
    work_message said{.step = 7, .samples = 12};
    join_request r;
    CHECK(read(wire_bytes(said), r) == std::string());
    for (const std::size_t bytes : {sizeof said - 1, sizeof said + 1}) {
        std::vector<std::byte> all(wire_bytes(said).begin(), wire_bytes(said).end());
        all.resize(bytes);
        CHECK(read(all, r) == std::string("its message has a wrong size"));
    }
    said.samples = -1;
    CHECK(read(wire_bytes(said), r) == std::string("it counts less than nothing"));
    said = {.step = -1};
    CHECK(read(wire_bytes(said), r) == std::string("it counts less than nothing"));
}

TEST_CASE("random messages are refused or understood, and move no coordinator out of its states") {
    std::mt19937 random(7);
    coordinator machine(rules());
    int understood = 0;
    for (int i = 0; i < 100'000; ++i) {
        join_message said = plain();
        std::byte* const at = reinterpret_cast<std::byte*>(&said);
        for (int changes = int(random() % 6); changes > 0; --changes)
            at[random() % sizeof said] = std::byte(random() % 3 == 0 ? random() : random() % 4);
        std::vector<std::byte> bytes = bytes_of(said, random() % 4);
        if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 1));
        join_request r;
        if (*read(bytes, r) != 0) continue;
        if (r.said.head.what != member_head::joins) continue;
        ++understood;
        machine.join(int(random() % 20), std::move(r), i);
        if (random() % 3 == 0) machine.lose(int(random() % 20), random() % 2 == 0, i);
        machine.take_orders();
    }
    CHECK(understood > 1000);
}

TEST_CASE("a coordinator refuses wrong messages with the reason, and goes on") {
    const shared_secret secret = membership_secret(new_secret());
    coordinator_server server(rules(), secret);
    const auto refusal = [&](std::span<const std::byte> said) {
        framed_socket link = reach(server, secret);
        link.queue(said);
        std::string text;
        CHECK(answer_of(link, &text).what == coordinator_message::refused);
        return text;
    };
    CHECK(refusal(wire_bytes(work_message())) == "it has not joined");
    member_head gone;
    gone.what = member_head::finds_gone;
    CHECK(refusal(wire_bytes(gone)) == "it has not joined");
    CHECK(refusal(std::vector<std::byte>(3)) == "its message is too short");
    const std::vector<std::byte> long_one(join_message::most_bytes() + 1);
    CHECK(refusal(long_one) == "");  // the connection is closed
    framed_socket link = reach(server, secret);
    link.queue(wire_bytes(plain()));
    CHECK(answer_of(link).what == coordinator_message::epoch_begins);
}

TEST_CASE("a process of another version of hvd learns the versions of both sides") {
    const shared_secret secret = membership_secret(new_secret());
    for (const std::uint64_t self : {0, 7}) {
        coordinator_rules of_one = rules();
        of_one.self = self;
        coordinator_server server(of_one, secret);
        for (const std::uint32_t version : {member_head::current - 1, member_head::current + 1}) {
            framed_socket link = reach(server, secret);
            join_message said = plain();
            said.head.version = version;
            link.queue(wire_bytes(said));
            std::string text;
            CHECK(answer_of(link, &text).what == coordinator_message::refused);
            const std::string other = self == 0 ? "hvdrun" : "the process that coordinates";
            CHECK(text == "this program speaks version " + std::to_string(version) +
                              " of the protocol of elastic jobs, and " + other +
                              " speaks version " + std::to_string(member_head::current) +
                              ": both must be of one version of hvd");
            CHECK(text.size() <= coordinator_message::most_reason);
        }
    }
}

TEST_CASE("a launcher hears of the work of those who have joined, in any epoch, and goes on") {
    struct listener final : coordinator_listener {
        void begin_epoch(std::uint64_t, std::int64_t, const std::vector<elastic_member>&) override {
        }
        void work(std::int64_t slot, std::int64_t step, std::int64_t samples) override {
            const std::lock_guard lock(mutex);
            heard.push_back({slot, step, samples});
        }
        void lose(std::int64_t) override {}
        void end_job() override {}

        std::mutex mutex;
        std::vector<std::array<std::int64_t, 3>> heard;
    };
    const shared_secret secret = membership_secret(new_secret());
    listener told;
    {
        coordinator_server server(rules(), secret, 0, &told);
        framed_socket link = reach(server, secret);
        join_message said = plain();
        said.self.started_as = 3;
        for (const std::int64_t step : {5, 6}) {
            link.queue(wire_bytes(said));
            CHECK(answer_of(link).what == coordinator_message::epoch_begins);
            link.queue(wire_bytes(work_message{.step = step, .samples = 10 * step}));
        }
        work_message wrong{.samples = -1};
        link.queue(wire_bytes(wrong));
        link.queue(wire_bytes(work_message{.step = 7, .samples = 70}));  // nobody hears it
        CHECK(answer_of(link).what == coordinator_message::refused);
        framed_socket another = reach(server, secret);
        another.queue(wire_bytes(plain()));
        CHECK(answer_of(another).what == coordinator_message::epoch_begins);
        framed_socket early = reach(server, secret);
        early.queue(wire_bytes(work_message{.step = 7}));
        std::string reason;
        CHECK(answer_of(early, &reason).what == coordinator_message::refused);
        CHECK(reason.ends_with("it has not joined"));
    }
    CHECK(told.heard == std::vector<std::array<std::int64_t, 3>>{{3, 5, 50}, {3, 6, 60}});
}

TEST_CASE("who waits hears that the coordinator lives, and may go to another one") {
    const shared_secret secret = membership_secret(new_secret());
    coordinator_rules two = rules();
    two.start = 2;
    coordinator_server server(two, secret);
    framed_socket link = reach(server, secret);
    link.queue(wire_bytes(plain()));
    CHECK(answer_of(link).what == coordinator_message::still_waits);
    CHECK(answer_of(link).what == coordinator_message::still_waits);
    join_message leaves = plain();
    leaves.leaves = 1;
    link.queue(wire_bytes(leaves));
    while (link.is_open()) answer_of(link);
    // It is no member, so that two others are needed.
    framed_socket first = reach(server, secret), second = reach(server, secret);
    join_message other = plain();
    first.queue(wire_bytes(other));
    other.self.id = 6;
    second.queue(wire_bytes(other));
    first.flush();
    CHECK(answer_of(second).what == coordinator_message::epoch_begins);
}

TEST_CASE("members who leave a coordinator live, so that no minority goes on without them") {
    const shared_secret secret = membership_secret(new_secret());
    coordinator_rules four = rules();
    four.start = 4;
    four.self = 1;
    coordinator_server server(four, secret);
    std::vector<framed_socket> links;
    std::vector<std::byte> ids;
    for (std::uint64_t id = 1; id <= 4; ++id) {
        links.push_back(reach(server, secret));
        join_message said = plain();
        said.self.id = id;
        links.back().queue(wire_bytes(said));
        links.back().flush();
        ids.insert(ids.end(), wire_bytes(id).begin(), wire_bytes(id).end());
    }
    std::uint64_t epoch = 0;
    for (framed_socket& link : links) {
        coordinator_message said = answer_of(link);
        while (said.what == coordinator_message::still_waits) said = answer_of(link);
        REQUIRE(said.what == coordinator_message::epoch_begins);
        epoch = said.epoch;
    }
    const auto message_of = [&](std::uint64_t id, bool leaves) {
        join_message said = plain();
        said.self.id = id;
        said.leaves = leaves ? 1 : 0;
        said.worked = said.recorded = {epoch, 1, 4, 0};
        std::vector<std::byte> bytes(wire_bytes(said).begin(), wire_bytes(said).end());
        for (int told = 0; told < 2; ++told) bytes.insert(bytes.end(), ids.begin(), ids.end());
        return bytes;
    };
    links[0].queue(message_of(1, false));
    links[1].queue(message_of(2, false));
    for (const std::size_t i : {0u, 1u}) links[i].flush();
    for (const std::size_t i : {2u, 3u}) {
        links[i].queue(message_of(i + 1, true));
        while (links[i].is_open()) answer_of(links[i]);
    }
    // Had the two died, the others would be all that live.
    for (int second = 0; second < 2;) switch (answer_of(links[0]).what) {
            case coordinator_message::epoch_ends: break;
            case coordinator_message::still_waits: ++second; break;
            default: FAIL("it does not wait");
        }
}

TEST_CASE("strangers at a coordinator are dropped, and a member comes in beside them") {
    const shared_secret secret = membership_secret(new_secret());
    coordinator_server server(rules(), secret);
    std::mt19937 random(11);
    std::vector<descriptor> strangers;
    for (int i = 0; i < 300; ++i) {
        descriptor s = begin_connect(host_address::loopback(), server.port());
        REQUIRE(s);
        pollfd p{s.number(), POLLOUT, 0};
        ::poll(&p, 1, 5000);
        std::vector<std::byte> noise(random() % 200);
        for (std::byte& b : noise) b = std::byte(random());
        if (i % 3 != 0) send_some(s, noise.data(), noise.size());
        strangers.push_back(std::move(s));
    }
    const shared_secret other = membership_secret(new_secret());
    dial to_it(other, 0, rendezvous_rank, -1);
    const time_point limit = now() + 10 * tuning::second;
    CHECK(!to_it.to(host_address::loopback(), server.port(), limit, limit));
    CHECK(to_it.is_foreign());
    framed_socket link = reach(server, secret);
    link.queue(wire_bytes(plain()));
    CHECK(answer_of(link).what == coordinator_message::epoch_begins);
}

}  // namespace messages_tests
