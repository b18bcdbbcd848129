// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <hvd/platform/network/socket.hpp>
#include <hvd/threads.hpp>

namespace segments_tests {

// Memory that two ranks have mapped, each at addresses of its own. Here both are in one process.

namespace {

using namespace hvd::detail;

constexpr std::size_t part = std::size_t(1) << 20;  // of each rank

struct two_mappings {
    shared_memory first = shared_memory::create(2 * part, false);
    shared_memory second = shared_memory::open(first.how_to_open(), 2 * part);

    float* of_first(std::size_t rank) const {
        return reinterpret_cast<float*>(static_cast<std::byte*>(first.data()) + rank * part);
    }
    float* of_second(std::size_t rank) const {
        return reinterpret_cast<float*>(static_cast<std::byte*>(second.data()) + rank * part);
    }
};

constexpr std::size_t n = part / sizeof(float);

bool all_are(const float* x, float value) {
    return std::all_of(x, x + n, [value](float y) { return y == value; });
}

}  // namespace

TEST_CASE("a named segment has a name of its own, which is short enough for macOS") {
    const shared_memory first = shared_memory::create(part, true),
                        second = shared_memory::create(part, true);
    const std::string name = first.how_to_open().path, other = second.how_to_open().path;
    CHECK(name.size() == 29);
    CHECK(name.find_first_not_of("0123456789abcdefghijklmnopqrstuv", 5) == name.npos);
    CHECK(name != other);
    CHECK(shared_memory::open(first.how_to_open(), part));
}

TEST_CASE("memory that was made private keeps its bytes, and others no longer write to it") {
    two_mappings memory;
    REQUIRE(memory.second);
    std::fill_n(memory.of_first(0), n, 1.f);
    std::fill_n(memory.of_first(1), n, 2.f);
    memory.first.make_private(0, part);
    CHECK(all_are(memory.of_first(0), 1));
    std::fill_n(memory.of_second(0), n, 3.f);  // as a process that was stopped would
    std::fill_n(memory.of_second(1), n, 4.f);
    CHECK(all_are(memory.of_first(0), 1));
    CHECK(all_are(memory.of_first(1), 4));
    std::fill_n(memory.of_first(0), n, 5.f);
    CHECK(all_are(memory.of_second(0), 3));
    memory.first.discard_private(0, part);
    CHECK(all_are(memory.of_second(0), 3));
}

TEST_CASE("no write of another thread is lost while memory is made private") {
    for (int round = 0; round < 20; ++round) {
        two_mappings memory;
        std::fill_n(memory.of_first(0), n, 0.f);
        std::atomic<bool> over{false};
        bool lost = false;
        std::thread writer([&] {
            // After each write it looks if the one before is still there.
            float value = 0;
            std::size_t before = 0;
            for (std::size_t i = 1021; !over; i = (i + 1021) % n) {
                memory.of_first(0)[i] = value + 1;
                lost = lost || memory.of_first(0)[before] != value;
                value += 1;
                before = i;
            }
        });
        memory.first.make_private(0, part);
        over = true;
        writer.join();
        CHECK(!lost);
    }
}

TEST_CASE("a call whose memory is taken away from the peers meanwhile fails") {
    two_mappings memory;
    const std::uint64_t id = memory.first.how_to_open().id;
    float* const mine = memory.of_first(0);
    float* const theirs = memory.of_second(1);
    const auto first = shared<segments>::make(), second = shared<segments>::make();
    for (segments* s : {first.get(), second.get()}) {
        s->prepare();
        s->begin();
    }
    first->add(id, std::move(memory.first), 2 * part, 0, part);
    second->add(id, std::move(memory.second), 2 * part, part, 2 * part);
    const auto derived = shared<segments>::make(first);  // of another communicator of rank 0

    constexpr std::size_t window = 4096;
    const auto area = shared_memory::of_this_process(shm_region::bytes(2, window));
    const shm_region region(area.data(), 2, window, first),
        region_of_second(area.data(), 2, window, second);
    region.construct();
    shm_transport a(region, 0), b(region_of_second, 1);

    using view = hvd::tensor_view<float, hvd::host, 1>;
    const auto reduces = [](float* x) {
        return allreduce_call<view, view, hvd::op::sum>(hvd::view(x, n), hvd::view(x, n), hvd::sum,
                                                        {});
    };
    const auto run = [&](auto between) {
        std::fill_n(mine, n, 1.f);
        std::fill_n(theirs, n, 2.f);
        auto of_a = reduces(mine), of_b = reduces(theirs);
        a.choose(of_a.op);
        b.choose(of_b.op);
        a.begin(of_a.op);
        between();
        b.begin(of_b.op);
        a.next();
        b.next();
        a.allreduce(of_a.op);
        b.allreduce(of_b.op);
        a.next();
        b.next();
        b.next();
    };
    run([] {});
    CHECK(!a.next());
    CHECK(all_are(mine, 3));
    run([&] { derived->make_private(); });
    CHECK_THROWS_AS(a.next(), hvd::peer_error);
    CHECK(a.lost);
    CHECK(all_are(theirs, 3));
    CHECK(!first->find(reinterpret_cast<std::byte*>(mine), part));
    CHECK(first->at({id, part}, 1) == reinterpret_cast<std::byte*>(mine) + part);
}

namespace {

// Two ranks of one process by hand, with an arena of both.
struct two_by_hand {
    static constexpr std::size_t window = 8192;
    two_mappings memory;
    std::byte* const arena = static_cast<std::byte*>(memory.first.data());
    shared<segments> reachable = shared<segments>::make();
    shared_memory area = shared_memory::of_this_process(shm_region::bytes(2, window));
    shm_region region{area.data(), 2, window, reachable};

    two_by_hand() {
        const std::uint64_t id = memory.first.how_to_open().id;
        reachable->prepare();
        reachable->begin();
        reachable->add(id, std::move(memory.first), 2 * part, 0, part);
        region.construct();
    }
};

// Rank 1 shows its part of a call, then a byte of its slot changes, and rank 0 goes on as far as it
// can. It throws an error of hvd, or it does not see the byte.
template <class MakeCall>
void suffer_each_byte(two_by_hand& ranks, std::size_t from, std::size_t to, MakeCall make) {
    for (std::size_t at = from; at < to; ++at)
        for (const int mask : {0x04, 0x80, 0xfc}) {  // a float stays aligned
            ranks.region.construct();
            shm_transport a(ranks.region, 0), b(ranks.region, 1);
            auto of_a = make(0), of_b = make(1);
            for (auto* one : {&of_a, &of_b}) (one == &of_a ? a : b).choose(one->op);
            b.begin(of_b.op);
            reinterpret_cast<std::byte*>(&ranks.region.slot(1))[at] ^= std::byte(mask);
            a.begin(of_a.op);
            if (!a.ready()) continue;  // it waits for the rank
            try {
                a.next();
                if (!a.agreed) check_headers(0, a.headers, 2);
                a.allreduce(of_a.op);
                for (int step = 0; step < 20 && a.ready() && a.next();) ++step;
            } catch (const hvd::error& e) {
                CHECK(std::string(e.what()).size() < 600);
            }
        }
}

}  // namespace

TEST_CASE("a byte in a rank's slot that no rank writes is an error or is not read") {
    using view = hvd::tensor_view<float, hvd::host, 1>;
    two_by_hand ranks;
    std::vector<float> plain(2 * 10000);
    const auto call_on = [](float* x, std::size_t count) {
        return allreduce_call<view, view, hvd::op::sum>(hvd::view(x, count), hvd::view(x, count),
                                                        hvd::sum, {.name = "w"});
    };
    const auto in_arena = [&](int rank) {
        return call_on(reinterpret_cast<float*>(ranks.arena + std::size_t(rank) * part), 10000);
    };
    const auto in_windows = [&](int rank) { return call_on(plain.data() + rank * 10000, 10000); };
    const auto in_line = [&](int rank) { return call_on(plain.data() + rank * 10000, 2); };
    constexpr std::size_t entry = offsetof(node_slot, entry) + sizeof(call_header);
    suffer_each_byte(ranks, 0, sizeof(step_line) * 2, in_arena);
    suffer_each_byte(ranks, 0, sizeof(step_line) * 2, in_windows);
    suffer_each_byte(ranks, 0, sizeof(step_line) * 2, in_line);
    suffer_each_byte(ranks, entry, entry + sizeof(call_header), in_line);
}

TEST_CASE("a header in a slot that no rank writes is never printed") {
    two_by_hand ranks;
    for (std::size_t at = 0; at < offsetof(call_header, extents); ++at) {
        ranks.region.construct();
        shm_transport a(ranks.region, 0), b(ranks.region, 1);
        call_header mine, theirs;
        theirs.root = 1;  // so that rank 0 looks at the header
        b.exchange_headers(theirs);
        a.exchange_headers(mine);
        auto* const shown = reinterpret_cast<std::byte*>(&ranks.region.slot(1).entry[1]);
        shown[at] = std::byte(0xee);
        std::memset(shown + offsetof(call_header, name), 'x', 8);
        CHECK(a.ready());
        const auto compare = [&] {
            a.next();
            check_headers(0, a.headers, 2);
        };
        CHECK_THROWS_AS(compare(), hvd::error);
    }
}

TEST_CASE("a place that lies beside its segment, or in none, is refused") {
    two_by_hand ranks;
    const std::uint64_t id = ranks.reachable->find(ranks.arena, 1).segment;
    CHECK(ranks.reachable->at({id, 2 * part}, 0) != nullptr);
    CHECK(ranks.reachable->at({id, 2 * part - 3}, 4) == nullptr);
    CHECK(ranks.reachable->at({id, std::uint64_t(-4)}, 4) == nullptr);
    CHECK(ranks.reachable->at({id + 1, 0}, 4) == nullptr);
}

TEST_CASE("a file limit below the memory is a refusal, and no signal") {
    const pid_t child = fork();
    if (child == 0) {
        const rlimit small{4096, 4096};
        setrlimit(RLIMIT_FSIZE, &small);
        const bool none = !shared_memory::create(1 << 20, false) &&
                          !shared_memory::create(1 << 20, true) &&
                          shared_memory::create(4096, false);
        _exit(none ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
}

TEST_CASE("signals do not keep a file from getting its memory") {
    struct sigaction before{}, ignored{};
    ignored.sa_handler = [](int) {};
    sigaction(SIGUSR1, &ignored, &before);
    const descriptor file(memfd_create("test", MFD_CLOEXEC));
    constexpr std::size_t bytes = std::size_t(128) << 20;
    REQUIRE(ftruncate(file.number(), off_t(bytes)) == 0);
    std::atomic<bool> over{false};
    std::thread sender([&over, to = pthread_self()] {
        while (!over) {
            pthread_kill(to, SIGUSR1);
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    });
    const bool has_all = shared_memory::allocate(file.number(), 0, bytes) == 0;
    over = true;
    sender.join();
    sigaction(SIGUSR1, &before, nullptr);
    struct stat status{};
    CHECK(has_all);
    CHECK(fstat(file.number(), &status) == 0);
    CHECK(std::size_t(status.st_blocks) * 512 >= bytes);
}

}  // namespace segments_tests
