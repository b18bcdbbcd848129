// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <hvd/data_service.hpp>

#include "data_test.hpp"
#include "hvd_test.hpp"

namespace data_service_tests {

namespace data = hvd::data;
using data_tests::batches_of;
using data_tests::numbers_below;
using namespace std::chrono_literals;

namespace {

// A pipeline with an order, random numbers and samples that are left out.
auto pipeline_of(int samples, std::uint64_t batch_size = 7) {
    return data::from(numbers_below(samples)) |
           data::map([](int i, data::random& draws) { return 10 * i + int(draws.below(10)); }) |
           data::filter([](int x) { return x % 11 != 0; }) | data::shuffle({.seed = 5}) |
           data::batch(batch_size);
}
using pipeline = decltype(pipeline_of(1));
using worker = data::service_worker<pipeline>;

std::unique_ptr<worker> start_worker(const data::service_config& config, int samples = 500,
                                     data::worker_options options = {}) {
    return std::make_unique<worker>(pipeline_of(samples), config, options);
}

// A service without a dispatcher.
struct fixed_service {
    explicit fixed_service(int workers, int samples = 500) {
        config.timeout = 5s;
        for (int i = 0; i < workers; ++i) {
            running.push_back(start_worker(config, samples));
            config.worker_addresses.push_back("127.0.0.1:" +
                                              std::to_string(running.back()->port()));
        }
    }
    data::service_config config = data::service_config::make(0, 0);
    std::vector<std::unique_ptr<worker>> running;
};

// A folder that is removed.
struct folder {
    folder() {
        char name[] = "/tmp/hvd-data-service-XXXXXX";
        REQUIRE(::mkdtemp(name) != nullptr);
        path = name;
    }
    ~folder() { std::filesystem::remove_all(path); }
    std::string file(const char* name) const { return path + "/" + name; }
    std::string path;
};

template <class F>
std::string thrown_by(F f) {
    try {
        f();
    } catch (const hvd::error& e) {
        return e.what();
    }
    return "nothing was thrown";
}

bool has(const std::string& whole, const std::string& part) {
    return whole.find(part) != std::string::npos;
}
#define CHECK_HAS(whole, part) CHECK_MESSAGE(has(whole, part), whole)

template <class F>
bool becomes_true(F f) {
    for (int i = 0; i < 400; ++i) {
        if (f()) return true;
        std::this_thread::sleep_for(25ms);
    }
    return false;
}

}  // namespace

TEST_CASE("batches of a service are those of the pipeline without it") {
    const auto local = pipeline_of(200);
    for (const int workers : {1, 2, 3}) {
        fixed_service service(workers, 200);
        for (const int ranks : {1, 2, 3, 4})
            for (int rank = 0; rank < ranks; ++rank)
                for (const std::size_t ahead : {0, 1, 4}) {
                    data::loader expected(local, hvd::part{rank, ranks});
                    data::loader remote(
                        local | data::send_to_data_service(service.config, rank, ranks) |
                            data::prefetch(ahead),
                        {.threads = ahead == 4 ? std::size_t(3) : 1});
                    for (const std::uint64_t epoch : {0, 3})
                        CHECK(batches_of(remote, epoch) == batches_of(expected, epoch));
                    CHECK(remote.state() == expected.state());
                }
        std::uint64_t made = 0;
        for (const auto& each : service.running) {
            CHECK(each->made() > 0);
            made += each->made();
        }
        CHECK(made == 2 * 3 * 10 * 29);  // none was made twice, or in vain
    }
}

TEST_CASE("stages behind the service run in the trainer, and prefetch may stand anywhere") {
    fixed_service service(1);
    const auto here = std::this_thread::get_id();
    std::atomic<int> elsewhere = 0;
    const auto sum = [&](const std::vector<int>& batch) {
        elsewhere += std::this_thread::get_id() == here ? 0 : 1;
        return std::accumulate(batch.begin(), batch.end(), 0L);
    };
    data::loader expected(pipeline_of(500) | data::map(sum), hvd::part{});
    data::loader remote(pipeline_of(500) | data::send_to_data_service(service.config, 0, 1) |
                        data::prefetch(2) | data::map(sum) | data::prefetch(0));
    elsewhere = 0;
    const auto sums = batches_of(remote, 1);
    CHECK(elsewhere == 0);
    CHECK(sums == batches_of(expected, 1));
}

TEST_CASE("stages of a worker may have threads, which all trainers share") {
    const auto batches = [](std::size_t threads) {
        return data::from(numbers_below(300)) |
               data::map([](int i, data::random& draws) { return 10 * i + int(draws.below(10)); },
                         {.threads = threads, .queue = 4}) |
               data::map([](int x) { return x / 10 != 150 ? x : throw std::runtime_error("bad"); },
                         {.threads = 2}) |
               data::skip_errors() | data::shuffle({.seed = 5}) | data::batch(10);
    };
    data::service_config config = data::service_config::make(0, 0);
    const data::service_worker worker(batches(3), config);
    config.worker_addresses = {"127.0.0.1:" + std::to_string(worker.port())};
    std::vector<std::thread> trainers;
    for (int rank = 0; rank < 3; ++rank)
        trainers.emplace_back([&, rank] {
            data::loader expected(batches(0), hvd::part{rank, 3});
            data::loader remote(batches(1) | data::send_to_data_service(config, rank, 3) |
                                data::prefetch(4));
            for (const std::uint64_t epoch : {0, 1})
                CHECK(batches_of(remote, epoch) == batches_of(expected, epoch));
            CHECK(remote.fingerprint() == expected.fingerprint());
        });
    for (std::thread& each : trainers) each.join();
    REQUIRE(worker.stages().size() == 2);
    CHECK(worker.stages()[0].made == 600);
    CHECK(worker.stages()[1].threads == 2);
}

TEST_CASE("a loader of a service resumes on another number of ranks") {
    fixed_service service(2);
    std::vector<int> expected, got;
    data::loader whole(pipeline_of(500), hvd::part{});
    for (const auto& batch : batches_of(whole, 2))
        expected.insert(expected.end(), batch.begin(), batch.end());
    data::loader_state state{5, 2, 0};
    for (const int ranks : {3, 1, 2, 4}) {
        std::vector<std::vector<int>> of_step(20);
        data::loader_state after;
        for (int rank = 0; rank < ranks; ++rank) {
            data::loader loader(pipeline_of(500) |
                                data::send_to_data_service(service.config, rank, ranks));
            loader.resume(state);
            for (auto& samples : of_step) {
                const auto batch = loader.next();
                if (batch) samples.insert(samples.end(), batch->begin(), batch->end());
            }
            after = loader.state();
        }
        state = after;
        for (const auto& samples : of_step) got.insert(got.end(), samples.begin(), samples.end());
    }
    CHECK(got == expected);
}

TEST_CASE("workers that go and come in the middle change neither order nor contents") {
    for (const std::size_t ahead : {1, 6}) {
        fixed_service service(3, 3000);
        data::loader expected(pipeline_of(3000), hvd::part{0, 2});
        data::loader remote(pipeline_of(3000) | data::send_to_data_service(service.config, 0, 2) |
                            data::prefetch(ahead));
        expected.begin_epoch(1);
        remote.begin_epoch(1);
        for (std::size_t step = 0; const auto batch = expected.next(); ++step) {
            const std::size_t which = step / 10 % 3;
            if (step % 10 == 5) service.running[which].reset();
            if (step % 10 == 9)
                service.running[which] = start_worker(
                    service.config, 3000,
                    {.port = std::uint16_t(
                         std::stoi(service.config.worker_addresses[which].substr(10)))});
            const auto got = remote.next();
            REQUIRE(got);
            CHECK(*got == *batch);
        }
        CHECK_FALSE(remote.next());
    }
}

TEST_CASE("an exception of a worker's stage reaches the trainer as from its own") {
    const auto fails = data::from(numbers_below(100)) | data::map([](int i) {
                           if (i == 37) throw std::runtime_error("a torn picture");
                           return i;
                       }) |
                       data::batch(10);
    data::service_config config = data::service_config::make(0, 0);
    data::service_worker worker(fails, config);
    config.worker_addresses = {"127.0.0.1:" + std::to_string(worker.port())};
    for (const int rank : {0, 1}) {
        data::loader expected(fails, hvd::part{rank, 2});
        data::loader remote(fails | data::send_to_data_service(config, rank, 2));
        for (int step = 0; step < 3; ++step) CHECK(*remote.next() == *expected.next());
        if (rank == 0) {
            CHECK(*remote.next() == *expected.next());
            continue;
        }
        try {
            (void)remote.next();
            FAIL("nothing was thrown");
        } catch (const data::stage_error& e) {
            CHECK(e.stage() == 1);
            CHECK(e.sample() == 37);
            CHECK(e.rank() == 1);
            CHECK(std::string(e.what()) == thrown_by([&] { (void)expected.next(); }));
            CHECK_HAS(std::string(e.what()), "a torn picture");
            CHECK(e.cause() != nullptr);
        }
    }
}

TEST_CASE("samples that a worker skips are counted, up to the limit") {
    const auto tolerant = [](std::uint64_t most) {
        return data::from(numbers_below(40)) | data::map([](int i) {
                   if (i % 10 == 3) throw std::runtime_error("bad");
                   return i;
               }) |
               data::skip_errors({.at_most = most}) | data::batch(8);
    };
    for (const std::uint64_t most : {2, 4}) {
        data::service_config config = data::service_config::make(0, 0);
        data::service_worker worker(tolerant(most), config);
        config.worker_addresses = {"127.0.0.1:" + std::to_string(worker.port())};
        data::loader expected(tolerant(most), hvd::part{});
        data::loader remote(tolerant(most) | data::send_to_data_service(config, 0, 1));
        const std::string why = thrown_by([&] { batches_of(expected, 0); });
        CHECK(thrown_by([&] { batches_of(remote, 0); }) == why);
        CHECK(remote.skipped() == expected.skipped());
        CHECK((most == 4) == (why == "nothing was thrown"));
    }
}

TEST_CASE("a loader throws when another of its pipeline has begun an epoch, which is whole") {
    fixed_service service(2);
    data::loader whole(pipeline_of(500), hvd::part{});
    for (const std::size_t ahead : {0, 1, 2, 8}) {
        const auto remote = pipeline_of(500) | data::send_to_data_service(service.config, 0, 1) |
                            data::prefetch(ahead);
        data::loader earlier(remote), later(remote);
        CHECK(earlier.next());
        later.begin_epoch(1);
        CHECK_HAS(thrown_by([&] {
                      while (earlier.next()) continue;
                  }),
                  "another loader of this pipeline has begun an epoch");
        std::vector<std::vector<int>> batches;
        while (auto batch = later.next()) batches.push_back(std::move(*batch));
        CHECK(batches == batches_of(whole, 1));
        CHECK(batches_of(earlier, 2) == batches_of(whole, 2));
    }
}

TEST_CASE("a worker of another pipeline is refused, with both fingerprints") {
    fixed_service service(1);
    const auto other = pipeline_of(500, 8);
    const auto mine = data::loader(pipeline_of(500), hvd::part{}).fingerprint(),
               theirs = data::loader(other, hvd::part{}).fingerprint();
    data::loader remote(other | data::send_to_data_service(service.config, 2, 3));
    const std::string why = thrown_by([&] { (void)remote.next(); });
    CHECK_HAS(why, std::to_string(mine));
    CHECK_HAS(why, std::to_string(theirs));
    CHECK_HAS(why, "rank 2");
    // the worker serves others
    data::loader right(pipeline_of(500) | data::send_to_data_service(service.config, 0, 1));
    CHECK(right.next());
}

TEST_CASE("without a worker that answers, a trainer throws with the reason") {
    fixed_service service(1);
    service.config.timeout = 300ms;
    const std::string address = service.config.worker_addresses[0];
    SUBCASE("nobody listens") { service.running.clear(); }
    SUBCASE("another secret") { service.config.key = data::service_config::make(0, 0).key; }
    data::loader remote(pipeline_of(500) | data::send_to_data_service(service.config, 1, 2));
    const std::string why = thrown_by([&] { (void)remote.next(); });
    CHECK_HAS(why, "rank 1: no data worker was there for 0.3 seconds; 1 are known");
    CHECK_HAS(why, address);
    CHECK_HAS(why, service.running.empty() ? "Connection refused" : "secret of this job");
}

TEST_CASE("a worker that takes longer than the timeout is asked no more, and another one is") {
    std::atomic<bool> is_slow = true, all_came = false;
    const auto slow = data::from(numbers_below(20)) | data::map([&](int i) {
                          if (is_slow.exchange(false))
                              while (!all_came) std::this_thread::sleep_for(1ms);
                          return i;
                      }) |
                      data::batch(2);
    data::service_config config = data::service_config::make(0, 0);
    config.timeout = 1s;
    data::service_worker one(slow, config), two(slow, config);
    config.worker_addresses = {"127.0.0.1:" + std::to_string(one.port()),
                               "127.0.0.1:" + std::to_string(two.port())};
    data::loader remote(slow | data::send_to_data_service(config, 0, 1));
    std::vector<int> all;
    for (const auto& batch : batches_of(remote, 0))
        all.insert(all.end(), batch.begin(), batch.end());
    all_came = true;
    CHECK(all == numbers_below(20));
}

TEST_CASE("a worker that hangs is left to itself, and asked again when it goes on") {
    std::atomic<bool> hangs = false, goes_on = false;
    const auto batches = data::from(numbers_below(4000)) | data::map([&](int i) {
                             if (i == 100 && hangs.exchange(false))
                                 while (!goes_on) std::this_thread::sleep_for(1ms);
                             return i;
                         }) |
                         data::batch(2);
    data::service_config config = data::service_config::make(0, 0);
    config.timeout = 600s;  // this test ends long before it
    const data::service_worker one(batches, config), two(batches, config), three(batches, config);
    for (const auto* each : {&one, &two, &three})
        config.worker_addresses.push_back("127.0.0.1:" + std::to_string(each->port()));
    const auto remote = batches | data::send_to_data_service(config, 0, 1) | data::prefetch(6);
    REQUIRE(becomes_true([&] { return remote.statistics().workers == 3; }));
    data::loader expected(batches, hvd::part{});
    data::loader loader(remote);
    const auto all = batches_of(expected, 0);
    hangs = true;
    CHECK(batches_of(loader, 0) == all);
    CHECK(remote.statistics().asked_again >= 1);
    CHECK(remote.statistics().asked_again < 20);  // it had two requests, and gets no more
    goes_on = true;
    const auto least_made = [&] { return std::min({one.made(), two.made(), three.made()}); };
    CHECK(least_made() < 200);
    CHECK(becomes_true([&] { return batches_of(loader, 0) == all && least_made() > 200; }));
}

TEST_CASE("the statistics tell who waits for whom") {
    const auto slow = [](int milliseconds) {
        return data::from(numbers_below(10)) | data::map([milliseconds](int i) {
                   std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
                   return i;
               }) |
               data::batch(1);
    };
    for (const bool is_worker_slow : {true, false}) {
        data::service_config config = data::service_config::make(0, 0);
        const data::service_worker one(slow(is_worker_slow ? 50 : 0), config);
        config.worker_addresses = {"127.0.0.1:" + std::to_string(one.port())};
        const auto batches = slow(0) | data::send_to_data_service(config, 0, 1);
        CHECK(batches.statistics().batches == 0);
        data::loader loader(batches);
        (void)loader.next();  // with the time to connect
        loader.begin_epoch(1);
        for (int i = 0; i < 8; ++i) {
            CHECK(loader.next());
            if (!is_worker_slow) std::this_thread::sleep_for(60ms);
        }
        const data::service_statistics s = batches.statistics();
        CHECK(s.batches >= 8);
        CHECK(s.bytes == s.batches * (3 * 8 + 4));
        CHECK(s.workers == 1);
        CHECK(s.asked_again == 0);
        CHECK(s.seconds > 0.3);
        CHECK_MESSAGE(s.verdict() == std::string(is_worker_slow ? "input-bound" : "compute-bound"),
                      s.text());
        CHECK_HAS(s.text(), s.verdict());
        CHECK_HAS(s.json(), "\"workers\": 1");
        const data::service_statistics all = batches.totals();  // with the epoch before
        CHECK(all.batches > s.batches);
        CHECK(all.bytes == all.batches * (3 * 8 + 4));
        CHECK(all.waited > s.waited);
        CHECK_HAS(batches.prometheus(),
                  "# HELP hvd_data_batches_total Batches that the trainer took.\n"
                  "# TYPE hvd_data_batches_total counter\n"
                  "hvd_data_batches_total{rank=\"0\"} " +
                      std::to_string(all.batches) + "\n");
        CHECK_HAS(batches.prometheus(), "\nhvd_data_workers_connected{rank=\"0\"} 1\n");
    }
}

TEST_CASE("a trainer's rank is checked") {
    CHECK_HAS(
        thrown_by([] { (void)data::send_to_data_service(data::service_config::make(0, 0), 2, 2); }),
        "rank 2 of 2");
}

namespace {

template <class Batch>
std::vector<std::byte> bytes_of(const data::made_batch<Batch>& made) {
    const hvd::detail::gathered_bytes gathered = hvd::detail::encoded(made);
    std::vector<std::byte> all(gathered.size());
    gathered.copy_to(all.data());
    return all;
}

struct link_pair {
    explicit link_pair(std::uint64_t most = 100) {
        int ends[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
        const hvd::detail::shared_secret key = hvd::detail::new_secret();
        sends = hvd::detail::service_link(hvd::detail::descriptor(ends[0]), key, true, most);
        takes = hvd::detail::service_link(hvd::detail::descriptor(ends[1]), key, false, most);
    }
    // Takes the bytes that are under way, changes them, and puts them back.
    template <class Change>
    void tamper(Change change) {
        std::vector<std::byte> bytes(10000);
        const ssize_t n = ::recv(takes.socket().number(), bytes.data(), bytes.size(), 0);
        REQUIRE(n > 0);
        bytes.resize(std::size_t(n));
        change(bytes);
        REQUIRE(::send(sends.socket().number(), bytes.data(), bytes.size(), 0) ==
                ssize_t(bytes.size()));
    }
    bool send(std::string_view text) {
        return sends.send_text(hvd::detail::service_frame::list, 3, text);
    }
    bool take() { return takes.wait(hvd::detail::now() + 200'000'000); }

    hvd::detail::service_link sends, takes;
};

}  // namespace

TEST_CASE("frames that were changed, repeated, cut, reflected or are too large are refused") {
    link_pair pair;
    CHECK(pair.send("one"));
    REQUIRE(pair.take());
    CHECK(pair.takes.text() == "one");
    CHECK(pair.send("two"));
    const std::size_t head = sizeof(hvd::detail::service_head);
    std::string why = "it sent a frame that is not authentic";
    SUBCASE("whole") { why = ""; }
    SUBCASE("its kind") {
        pair.tamper([](auto& b) { b[4] ^= std::byte(1); });
    }
    SUBCASE("its number") {
        pair.tamper([](auto& b) { b[8] ^= std::byte(1); });
    }
    SUBCASE("its size") {
        pair.tamper([](auto& b) { b[16] ^= std::byte(1); });
    }
    SUBCASE("its contents") {
        pair.tamper([&](auto& b) { b[head] ^= std::byte(1); });
    }
    SUBCASE("no frame") {
        pair.tamper([](auto& b) { b[0] ^= std::byte(1); });
        why = "it sent what is no frame of a data service";
    }
    SUBCASE("repeated") {
        pair.tamper([](auto& b) { b.insert(b.end(), b.begin(), b.end()); });
        CHECK(pair.take());
    }
    SUBCASE("left out") {
        pair.tamper([](auto& b) { b.clear(), b.resize(1); });
        why = "it does not answer";
    }
    SUBCASE("cut") {
        pair.tamper([](auto& b) { b.resize(b.size() - 1); });
        why = "it does not answer";
    }
    SUBCASE("closed in the middle") {
        pair.tamper([](auto& b) { b.resize(b.size() - 1); });
        pair.sends.shut_down();
        why = "it was closed";
    }
    SUBCASE("too large") {
        CHECK(pair.take());
        CHECK(pair.send(std::string(101, 'x')));
        why = "it sent 101 bytes in a frame, and at most 100 go";
    }
    CHECK(pair.take() == why.empty());
    CHECK(std::string(pair.takes.why()) == why);
}

TEST_CASE("a large batch that was changed under way keeps its size and lies in its memory") {
    link_pair pair(8000);
    const data::ragged_rows<char> rows{std::vector<char>(6000, 'x'), {0, 1000, 6000}};
    const auto bytes = bytes_of(data::made_batch<data::ragged_rows<char>>{rows});
    using hvd::detail::service_frame;
    for (const std::size_t at : {17, 31, 39, 47, 48, 55}) {  // the offsets and their number
        REQUIRE(pair.sends.send(service_frame::batch, 1, bytes));
        pair.tamper([&](auto& b) { b[sizeof(hvd::detail::service_head) + at] = std::byte(0xff); });
        REQUIRE(pair.take());
        CHECK(pair.takes.contents().size() == bytes.size());
        using batch = data::ragged_rows<char>;
        CHECK_THROWS_AS(hvd::detail::decoded_batch<batch>(pair.takes.contents()), hvd::error);
    }
}

TEST_CASE("a frame of one connection is not one of another, nor of the other direction") {
    link_pair one, two;
    CHECK(one.send("hello"));
    std::vector<std::byte> bytes;
    one.tamper([&](auto& b) { bytes = b; });
    REQUIRE(::send(two.sends.socket().number(), bytes.data(), bytes.size(), 0) > 0);
    CHECK_FALSE(two.take());
    REQUIRE(::send(one.takes.socket().number(), bytes.data(), bytes.size(), 0) > 0);
    CHECK_FALSE(one.sends.wait(hvd::detail::now() + 200'000'000));
    CHECK(one.take());
}

TEST_CASE("who does not know the secret gets nothing from a worker, and others are served") {
    fixed_service service(1);
    std::vector<hvd::detail::descriptor> strangers;
    for (int i = 0; i < 20; ++i) {
        strangers.push_back(hvd::detail::begin_connect(hvd::detail::host_address::loopback(),
                                                       service.running[0]->port()));
        REQUIRE(hvd::detail::await_socket(strangers.back(), POLLOUT,
                                          hvd::detail::now() + 1'000'000'000));
        const std::string noise(i % 2 == 0 ? 5000 : 3, char('a' + i));
        (void)::send(strangers.back().number(), noise.data(), noise.size(), MSG_NOSIGNAL);
    }
    data::loader remote(pipeline_of(500) | data::send_to_data_service(service.config, 0, 1));
    data::loader expected(pipeline_of(500), hvd::part{});
    CHECK(batches_of(remote, 0) == batches_of(expected, 0));
}

// ---- the batches of each trainer ----------------------------------------------------------------

namespace {

// The batches of an epoch that one rank gets.
std::vector<std::vector<int>> remote_epoch(const fixed_service& service, hvd::part mine,
                                           data::processing_mode mode, std::uint64_t epoch,
                                           data::loader_state after = {}) {
    data::loader loader(pipeline_of(200) |
                        data::send_to_data_service(service.config, mine.rank, mine.size, mode) |
                        data::prefetch(3));
    if (after.samples_done > 0) loader.resume(after);
    return batches_of(loader, epoch);
}

}  // namespace

TEST_CASE("round robin gives each batch to one trainer in turn, and all as many") {
    const fixed_service service(2, 200);
    data::loader alone(pipeline_of(200), hvd::part{});
    const auto expected = batches_of(alone, 1);
    for (const int ranks : {1, 2, 3, 4})
        for (const std::size_t done : {0, 12}) {
            const std::size_t rows =
                (expected.size() - done + std::size_t(ranks) - 1) / std::size_t(ranks);
            for (int rank = 0; rank < ranks; ++rank) {
                const auto got =
                    remote_epoch(service, {rank, ranks}, data::processing_mode::round_robin, 1,
                                 {5, 1, 7 * done});
                REQUIRE(got.size() == rows);
                for (std::size_t step = 0; step < rows; ++step) {
                    const std::size_t k = done + step * std::size_t(ranks) + std::size_t(rank);
                    CHECK(got[step] == (k < expected.size() ? expected[k] : std::vector<int>()));
                }
            }
        }
}

TEST_CASE("in parallel epochs each trainer gets all samples, in an order of its own") {
    const fixed_service service(2, 200);
    const auto every = data::from(numbers_below(200)) | data::shuffle({.seed = 5}) |
                       data::equal_batch(7, {.last = data::last_batch::fill});
    data::service_config config = data::service_config::make(0, 0);
    const data::service_worker worker(every, config);
    config.worker_addresses = {"127.0.0.1:" + std::to_string(worker.port())};
    std::vector<std::vector<std::vector<int>>> of_rank;
    for (int rank = 0; rank < 4; ++rank) {
        // batches of seven samples are equal on four ranks, since each has all of them
        data::loader loader(every | data::send_to_data_service(
                                        config, rank, 4, data::processing_mode::parallel_epochs));
        of_rank.push_back(batches_of(loader, 3));
        CHECK(loader.samples_of_all() == 28);
        CHECK(loader.state() == data::loader_state{5, 3, 200});
        std::vector<int> all;
        for (const auto& batch : of_rank.back()) all.insert(all.end(), batch.begin(), batch.end());
        all.resize(200);  // without those that fill the last one
        std::sort(all.begin(), all.end());
        CHECK(all == numbers_below(200));
        for (int other = 0; other < rank; ++other)
            CHECK(of_rank[std::size_t(other)] != of_rank.back());
    }
    data::loader alone(every, hvd::part{});
    CHECK(batches_of(alone, 3) == of_rank[0]);
    // a pipeline that draws and leaves out samples
    data::loader first(pipeline_of(200), hvd::part{});
    const auto whole = batches_of(first, 2);
    const auto mode = data::processing_mode::parallel_epochs;
    CHECK(remote_epoch(service, {0, 3}, mode, 2) == whole);
    const auto second = remote_epoch(service, {1, 3}, mode, 2);
    CHECK(second.size() == whole.size());
    CHECK(second != whole);
    const std::vector<std::vector<int>> rest(second.begin() + 10, second.end());
    CHECK(remote_epoch(service, {1, 3}, mode, 2, {5, 2, 70}) == rest);
}

TEST_CASE("errors of whole batches name the rank of their trainer") {
    using enum data::processing_mode;
    const fixed_service service(1, 200);
    for (const auto mode : {distributed_epoch, parallel_epochs}) {
        const auto remote =
            pipeline_of(200) | data::send_to_data_service(service.config, 1, 2, mode);
        const data::batch_request behind_the_end{5, 0, 700, {1, 2}};
        remote.begin(behind_the_end, 1);
        const std::string why = thrown_by([&] { (void)remote.make(behind_the_end); });
        CHECK_HAS(why, "hvd: rank 1: a batch that begins at sample 700 of 200");
    }
    const auto fails = data::from(numbers_below(20)) |
                       data::map([](int i) { return i < 0 ? i : throw std::runtime_error("no"); }) |
                       data::batch(5);
    data::service_config config = data::service_config::make(0, 0);
    const data::service_worker worker(fails, config);
    config.worker_addresses = {"127.0.0.1:" + std::to_string(worker.port())};
    for (const auto mode : {distributed_epoch, round_robin, parallel_epochs}) {
        data::loader loader(fails | data::send_to_data_service(config, 1, 2, mode));
        try {
            (void)loader.next();
            FAIL("a batch came");
        } catch (const data::stage_error& e) {
            CHECK(e.rank() == 1);
        }
    }
}

TEST_CASE("trainings of the same mode share their batches while workers go and come") {
    using enum data::processing_mode;
    for (const auto mode : {distributed_epoch, round_robin, parallel_epochs}) {
        fixed_service service(2, 2000);
        const auto remote_of = [&](int rank) {
            return pipeline_of(2000) | data::send_to_data_service(service.config, rank, 2, mode) |
                   data::prefetch(4);
        };
        std::vector<data::remote_batches<pipeline>> remote;
        for (const int rank : {0, 1, 0, 1}) remote.push_back(remote_of(rank));
        for (const auto& each : remote)
            REQUIRE(becomes_true([&] { return each.statistics().workers == 2; }));
        std::vector<std::vector<std::vector<int>>> got(4);
        std::vector<std::thread> trainers;
        for (std::size_t i = 0; i < 4; ++i)
            trainers.emplace_back([&, i] {
                data::loader loader(remote[i]);
                got[i] = batches_of(loader, 0);
            });
        for (std::thread& each : trainers) each.join();
        const std::uint64_t steps = mode == round_robin ? 143 : 286;
        const std::uint64_t made = service.running[0]->made() + service.running[1]->made();
        // a worker that helps another one out makes a few again; alone they make twice as many
        CHECK(made < 3 * steps);
        for (const std::size_t rank : {0, 1}) {
            CHECK(got[rank] == got[rank + 2]);
            std::vector<std::vector<int>> disturbed;
            data::loader loader(remote[rank]);
            for (auto& batch : loader.epoch(0)) {
                if (disturbed.size() % 20 == 5) service.running[0].reset();
                if (disturbed.size() % 20 == 15 && !service.running[0])
                    service.running[0] = start_worker(
                        service.config, 2000,
                        {.port = std::uint16_t(
                             std::stoi(service.config.worker_addresses[0].substr(10)))});
                disturbed.push_back(std::move(batch));
            }
            CHECK(disturbed == got[rank]);
        }
    }
}

// ---- several trainings --------------------------------------------------------------------------

namespace {

// Two trainings of a worker, which has both as soon as it is made.
struct two_trainings {
    explicit two_trainings(data::worker_options options = {}, int ranks = 1)
        : served(start_worker(config, 500, options)) {
        config.worker_addresses = {"127.0.0.1:" + std::to_string(served->port())};
        for (int i = 0; i < 2; ++i)
            remote.push_back(pipeline_of(500) |
                             data::send_to_data_service(config, ranks == 2 ? i : 0, ranks));
        for (const auto& each : remote)
            REQUIRE(becomes_true([&] { return each.statistics().workers == 1; }));
    }
    // Checks an epoch of one of them.
    void run(std::size_t which, std::uint64_t epoch = 0, std::chrono::milliseconds each = {}) {
        data::loader expected(pipeline_of(500), remote[which].mine());
        data::loader loader(remote[which], {.threads = 0});
        std::vector<std::vector<int>> got;
        for (auto& batch : loader.epoch(epoch)) {
            got.push_back(std::move(batch));
            std::this_thread::sleep_for(each);
        }
        CHECK(got == batches_of(expected, epoch));
    }

    data::service_config config = data::service_config::make(0, 0);
    std::unique_ptr<worker> served;
    std::vector<data::remote_batches<pipeline>> remote;
};

}  // namespace

TEST_CASE("trainings that ask for the same batches share them, each made once") {
    two_trainings both;
    for (const std::uint64_t epoch : {0, 1}) {
        std::thread other([&] { both.run(1, epoch, 3ms); });
        both.run(0, epoch);
        other.join();
    }
    CHECK(both.served->made() == 2 * 72);
    both.remote.pop_back();  // then there is nothing to keep
    both.run(0, 2);
    CHECK(both.served->made() == 3 * 72);
}

TEST_CASE("parts of other ranks are no batches to share, and sharing can be switched off") {
    two_trainings ranks({}, 2);
    ranks.run(0);
    ranks.run(1);
    CHECK(ranks.served->made() == 2 * 72);
    two_trainings apart({.shared_bytes = 0});
    apart.run(0);
    apart.run(1);
    CHECK(apart.served->made() == 2 * 72);
}

TEST_CASE("a training that does not go on holds up another one once, and gets batches made again") {
    two_trainings both({.shared_bytes = 500, .shared_wait = 300ms});
    const auto began = std::chrono::steady_clock::now();
    both.run(0);
    CHECK(std::chrono::steady_clock::now() - began >= 300ms);
    CHECK(both.served->made() == 72);
    both.run(1);
    CHECK(both.served->made() > 72 + 50);
    CHECK(both.served->made() < 2 * 72);  // the last ones were still there
}

TEST_CASE("a training that comes late or leaves in the middle gets and costs nothing") {
    auto both = std::make_unique<two_trainings>();
    {
        data::loader loader(both->remote[1]);
        loader.resume({5, 0, 70});
        for (int i = 0; i < 5; ++i) CHECK(loader.next());
        both->run(0);
    }
    both->remote.pop_back();
    both->run(0, 1);
}

TEST_CASE("a failure of a batch that trainings share reaches each of them") {
    std::atomic<int> calls = 0;
    const auto fails = data::from(numbers_below(20)) | data::map([&](int i) {
                           if (i == 13) {
                               ++calls;
                               std::this_thread::sleep_for(300ms);
                               throw std::runtime_error("thirteen");
                           }
                           return i;
                       }) |
                       data::batch(5);
    data::service_config config = data::service_config::make(0, 0);
    data::service_worker worker(fails, config);
    config.worker_addresses = {"127.0.0.1:" + std::to_string(worker.port())};
    const auto remote = [&] { return fails | data::send_to_data_service(config, 0, 1); };
    const auto one = remote(), two = remote();
    for (const auto& each : {one, two})
        REQUIRE(becomes_true([&] { return each.statistics().workers == 1; }));
    std::string whys[2];
    const auto run = [&](const auto& batches, std::string& why) {
        data::loader loader(batches);
        why = thrown_by([&] { batches_of(loader, 0); });
    };
    std::thread other([&] { run(two, whys[1]); });
    run(one, whys[0]);
    other.join();
    CHECK_HAS(whys[0], "thirteen");
    CHECK(whys[0] == whys[1]);
}

// ---- shared memory ------------------------------------------------------------------------------

namespace {

// Batches of so many bytes and some more in each next one.
auto large_batches(std::size_t bytes, std::size_t more = 0) {
    return data::from(numbers_below(60)) | data::map([bytes, more](int i) {
               return std::vector<int>((bytes + std::size_t(i) * more) / sizeof(int), i);
           }) |
           data::shuffle({.seed = 2}) | data::batch(1, data::concatenate);
}

struct large_service {
    explicit large_service(std::size_t bytes, std::size_t more = 0)
        : pipeline(large_batches(bytes, more)), one(pipeline, config), two(pipeline, config) {
        config.worker_addresses = {"127.0.0.1:" + std::to_string(one.port()),
                                   "127.0.0.1:" + std::to_string(two.port())};
    }
    // Checks the batches of an epoch, and returns its statistics.
    data::service_statistics run(std::size_t ahead = 6) {
        const auto batches =
            pipeline | data::send_to_data_service(config, 0, 1) | data::prefetch(ahead);
        data::loader expected(pipeline, hvd::part{});
        data::loader remote(batches, {.threads = 3});
        expected.begin_epoch(1);
        remote.begin_epoch(1);
        while (const auto batch = expected.next()) {
            const auto got = remote.next();
            REQUIRE(got);
            CHECK(got->values == batch->values);
        }
        CHECK_FALSE(remote.next());
        CHECK(batches.statistics().batches == 60);
        return batches.statistics();
    }

    decltype(large_batches(1)) pipeline;
    data::service_config config = data::service_config::make(0, 0);
    data::service_worker<decltype(large_batches(1))> one, two;
};

}  // namespace

TEST_CASE("large batches go by shared memory once their size is known, also if they grow") {
    CHECK(large_service(100000).run().in_shared_memory > 40);
    CHECK(large_service(100000).run(0).in_shared_memory > 55);
    CHECK(large_service(5000, 20000).run().in_shared_memory > 20);
    CHECK(large_service(1000).run().in_shared_memory == 0);  // these are authenticated
}

TEST_CASE("shared memory can be switched off, and is not used between hosts") {
    large_service service(100000);
    SUBCASE("by the config") { service.config.shared_memory = false; }
    SUBCASE("a trainer of another host") { ::setenv("HVD_HOST_ID", "another", 1); }
    CHECK(service.run().in_shared_memory == 0);
    ::unsetenv("HVD_HOST_ID");
}

TEST_CASE("without memory for an arena batches go by the connection") {
    large_service service(100000);
    struct rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const struct rlimit little{200000, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &little) == 0);
    const auto s = service.run();
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(s.in_shared_memory == 0);
}

TEST_CASE("a worker opens no arena but the one that a trainer drew a number for") {
    const auto arena = hvd::detail::batch_arena::make(3, 65536);
    REQUIRE(arena);
    const hvd::detail::arena_offer good = arena->offer();
    const hvd::detail::opened_arena opened(good);
    CHECK(opened.slot(2).size() == 65536);
    CHECK(opened.slot(3).empty());
    CHECK(opened.slot(UINT64_MAX).empty());
    const auto refuses = [&](auto change) {
        hvd::detail::arena_offer wrong = good;
        change(wrong);
        return hvd::detail::opened_arena(wrong).slot(0).empty();
    };
    CHECK_FALSE(refuses([](auto&) {}));
    CHECK(refuses([](auto& o) { o.number[0] ^= std::byte(1); }));
    CHECK(refuses([](auto& o) { o.slots = 0; }));
    CHECK(refuses([](auto& o) { o.slots = 4; }));
    CHECK(refuses([](auto& o) { o.slots = UINT64_MAX / 65536 + 1; }));
    CHECK(refuses([](auto& o) { o.slot_bytes = 0; }));
    CHECK(refuses([](auto& o) { o.slot_bytes = UINT64_MAX; }));
    CHECK(refuses([](auto& o) { ++o.ticket.file; }));
    CHECK(refuses([](auto& o) { std::strcpy(o.ticket.path, "/hvd-1-2"); }));
    CHECK(refuses([](auto& o) { std::memset(o.ticket.path, '/', sizeof o.ticket.path); }));
}

TEST_CASE("slots come back when answers are dropped, and an arena lives as long as they") {
    auto arena = hvd::detail::batch_arena::make(2, 65536);
    REQUIRE(arena);
    const hvd::detail::opened_arena worker(arena->offer());
    auto first = arena->take();
    {
        const auto second = arena->take();
        CHECK(second.number() != first.number());
        CHECK_FALSE(arena->take());
    }
    CHECK(arena->take());
    worker.slot(first.number())[7] = std::byte(42);
    first.holds(8);
    arena.reset();
    CHECK(first.contents().size() == 8);
    CHECK(first.contents()[7] == std::byte(42));
}

// ---- a dispatcher -------------------------------------------------------------------------------

TEST_CASE("trainers find the workers of a dispatcher, also those that come later") {
    data::service_config config = data::service_config::make(1, 1);
    config.timeout = 5s;
    data::service_dispatcher dispatcher(config);
    config.addresses = {dispatcher.addresses()};
    data::loader remote(pipeline_of(2000) | data::send_to_data_service(config, 0, 1) |
                        data::prefetch(8));
    data::loader expected(pipeline_of(2000), hvd::part{});
    remote.begin_epoch(0);
    expected.begin_epoch(0);
    const auto go_on = [&](int steps) {
        for (int i = 0; i < steps; ++i) CHECK(*remote.next() == *expected.next());
    };
    auto first = start_worker(config, 2000);
    go_on(20);
    CHECK(dispatcher.workers() == 1);
    auto second = start_worker(config, 2000);
    CHECK(becomes_true([&] { return go_on(1), second->made() > 0; }));
    first.reset();
    CHECK(becomes_true([&] { return dispatcher.workers() == 1; }));
    go_on(20);
}

TEST_CASE(
    "a dispatcher knows the work of the stages of all its workers, also those that are gone") {
    const auto same = [](int i) { return i; };
    const auto pipeline = [&] {
        return data::from(numbers_below(400)) | data::map(same, {.threads = 2}) |
               data::filter([](int i) { return i >= 0; }) | data::map(same, {.threads = 1}) |
               data::batch(10);
    };
    data::service_config config = data::service_config::make(1, 2);
    const data::service_dispatcher dispatcher(config);
    config.addresses = {dispatcher.addresses()};
    CHECK(dispatcher.stages().empty());
    using worker_type = data::service_worker<decltype(pipeline())>;
    std::optional<worker_type> one(std::in_place, pipeline(), config),
        two(std::in_place, pipeline(), config);
    REQUIRE(becomes_true([&] { return dispatcher.workers() == 2; }));
    data::loader loader(pipeline() | data::send_to_data_service(config, 0, 1));
    CHECK(batches_of(loader, 0).size() == 40);
    const auto made = [&](std::size_t i) {
        const auto all = dispatcher.stages();
        return all.size() == 2 ? all[i].made : 0;
    };
    CHECK(becomes_true([&] { return made(0) == 400 && made(1) == 400; }));
    const auto all = dispatcher.stages();
    CHECK(all[0].stage == 1);
    CHECK(all[1].stage == 3);
    CHECK(all[0].threads == (one->made() > 0 ? 2u : 0u) + (two->made() > 0 ? 2u : 0u));
    CHECK(all[0].ready == 0);
    CHECK(all[0].thread_seconds > 0);
    one.reset();
    two.reset();
    REQUIRE(becomes_true([&] { return dispatcher.workers() == 0; }));
    const auto after = dispatcher.stages();
    CHECK(after[0].made == 400);
    CHECK(after[0].threads == 0);
    CHECK(after[0].thread_seconds >= all[0].thread_seconds);
}

TEST_CASE("reports of stages that are cut or too many are refused") {
    hvd::detail::stage_totals totals;
    std::vector<hvd::detail::stage_report> told;
    std::vector<std::byte> bytes;
    hvd::detail::write_stages(bytes, {{.stage = 1, .threads = 2, .made = 7}});
    CHECK(totals.take(told, bytes));
    CHECK_FALSE(totals.take(told, std::span(bytes).first(bytes.size() - 1)));
    const std::vector<std::byte> many(257 * bytes.size());
    CHECK_FALSE(totals.take(told, many));
    REQUIRE(totals.all().size() == 1);
    CHECK(totals.all()[0].made == 7);
}

TEST_CASE("transfers go on without the dispatcher, and its replacement is found by the file") {
    const folder at;
    data::service_config config = data::service_config::make(1, 1);
    config.timeout = 5s;
    config.write(at.file("config.json"));
    auto dispatcher = std::make_unique<data::service_dispatcher>(config);
    dispatcher->register_in(at.file("config.json"));
    config = data::service_config::read(at.file("config.json"), data::wait_for_file{5s});
    auto first = start_worker(config, 3000);
    data::loader remote(pipeline_of(3000) | data::send_to_data_service(config, 0, 1));
    data::loader expected(pipeline_of(3000), hvd::part{});
    remote.begin_epoch(0);
    expected.begin_epoch(0);
    const auto go_on = [&](int steps) {
        for (int i = 0; i < steps; ++i) CHECK(*remote.next() == *expected.next());
    };
    go_on(10);
    dispatcher.reset();
    go_on(50);
    dispatcher = std::make_unique<data::service_dispatcher>(config);
    dispatcher->register_in(at.file("config.json"));
    auto second = start_worker(config, 3000);  // with the config of before
    CHECK(becomes_true([&] { return dispatcher->workers() == 2; }));
    first.reset();
    go_on(50);
    CHECK(second->made() > 0);
}

TEST_CASE("trainer r uses dispatcher r modulo their number") {
    data::service_config config = data::service_config::make(2, 1);
    config.timeout = 5s;
    data::service_dispatcher zero(config, 0), one(config, 1);
    config.addresses = {zero.addresses(), one.addresses()};
    const auto of_zero = start_worker(config, 500, {.dispatcher = 0});
    const auto of_one = start_worker(config, 500, {.dispatcher = 1});
    for (int rank = 0; rank < 4; ++rank) {
        const auto before = of_one->made();
        data::loader remote(pipeline_of(500) | data::send_to_data_service(config, rank, 4));
        CHECK(batches_of(remote, 0).size() == 72);
        CHECK((of_one->made() > before) == (rank % 2 == 1));
    }
    CHECK_HAS(thrown_by([&] { start_worker(config, 500, {.dispatcher = 2}); }),
              "dispatcher 2 of 2");
}

// ---- the config file ----------------------------------------------------------------------------

TEST_CASE("a config file has what was written, and is for its owner alone") {
    const folder at;
    data::service_config written =
        data::service_config::make(2, 3, data::dispatcher_side::training);
    written.addresses = {{"10.0.0.1:4000", "[fe00::1]:4000"}, {"10.0.0.2:4001"}};
    written.worker_addresses = {"node \"7\":1"};
    written.timeout = 1500ms;
    written.shared_memory = false;
    written.encrypted = true;
    written.write(at.file("c"));
    struct stat status{};
    REQUIRE(::stat(at.file("c").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    const data::service_config read = data::service_config::read(at.file("c"));
    CHECK(read.version == 1);
    CHECK(read.job_id == written.job_id);
    CHECK(read.job_id.size() == 16);
    CHECK(read.dispatchers == 2);
    CHECK(read.workers_per_dispatcher == 3);
    CHECK(read.dispatcher_side == data::dispatcher_side::training);
    CHECK(read.addresses == written.addresses);
    CHECK(read.worker_addresses == written.worker_addresses);
    CHECK(read.key == written.key);
    CHECK(read.timeout.nanoseconds == 1'500'000'000);
    CHECK_FALSE(read.shared_memory);
    CHECK(read.encrypted);
    CHECK(data::service_config::make(1, 1).key != written.key);
}

TEST_CASE("files that are no config files are refused with their names") {
    const folder at;
    const std::string path = at.file("c");
    data::service_config::make(1, 1).write(path);
    std::string good;
    {
        std::ifstream file(path);
        good.assign(std::istreambuf_iterator<char>(file), {});
    }
    const auto replaced = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        REQUIRE(has(text, from));
        return text.replace(text.find(from), from.size(), to);
    };
    struct wrong {
        std::string contents, why;
    };
    const wrong all[] = {
        {"", "it is no JSON object"},
        {good.substr(0, good.size() / 2), "it is no JSON object"},
        {"[1, 2]", "it is no JSON object"},
        {"{\"dispatchers\": 1}", "it has no \"version\""},
        {replaced("\"version\": 1", "\"version\": 2"), "version is 2, and 1 was expected"},
        {replaced("\"dispatchers\": 1", "\"dispatchers\": -1"), "dispatchers is -1"},
        {replaced("\"dispatchers\": 1", "\"dispatchers\": \"1\""), "dispatchers is \"1\""},
        {replaced("\"compute\"", "\"moon\""), "dispatcher_side is \"moon\""},
        {replaced("\"addresses\": []", "\"addresses\": [[], []]"), "addresses of 2 dispatchers"},
        {replaced("\"addresses\": []", "\"addresses\": [[7]]"), "an address that is no text"},
        {replaced("\"key\": \"", "\"key\": \"a"), "key has 65 characters"},
        {replaced("\"timeout\": 60", "\"timeout\": 0"), "timeout is 0"},
        {replaced("\"timeout\": 60",
                  "\"timeout\": " + std::string(500'000, '[') + std::string(500'000, ']')),
         "timeout is array"},
        {replaced("}", ", \"shared_memory\": 1}"), "shared_memory is 1, and true or false"},
        {replaced("}", ", \"encrypted\": 1}"), "encrypted is 1, and true or false"},
        {replaced("}", ", \"reuse_dataset\": true}"), "here first_come_first_served"},
        {replaced("}", ", \"processing_mode\": \"fcfs\"}"),
         "processing_mode is \"fcfs\", and no member of this file: give "
         "data::send_to_data_service a data::processing_mode, here first_come_first_served"},
        {replaced("}", ", \"reuse_dataset\": true, \"round_robin\": true}"),
         "reuse_dataset is true, and no member of this file"},
        {std::string((1 << 20) + 1, ' '), "it has 1048577 bytes, and at most 1048576"},
    };
    for (const wrong& w : all) {
        std::ofstream(path) << w.contents;
        const std::string why = thrown_by([&] { (void)data::service_config::read(path); });
        CHECK_HAS(why, path);
        CHECK_HAS(why, w.why);
    }
    std::ofstream(path) << good;
    REQUIRE(::chmod(path.c_str(), 0644) == 0);
    CHECK_HAS(thrown_by([&] { (void)data::service_config::read(path); }), "mode 600");
    CHECK_HAS(thrown_by([&] { (void)data::service_config::read(at.file("none")); }),
              "No such file");
}

TEST_CASE("a reader waits for the file, its dispatchers and its job") {
    const folder at;
    const std::string path = at.file("c");
    const auto wait = [&] {
        return thrown_by([&] { data::service_config::read(path, data::wait_for_file{200ms}); });
    };
    CHECK_HAS(wait(), path + ": no data service was there after 0.2 seconds: the file does not");
    data::service_config stale = data::service_config::make(2, 1);
    stale.write(path);
    CHECK_HAS(wait(), "dispatcher 0 of 2 has not registered yet");
    {
        data::service_dispatcher zero(stale, 0), one(stale, 1);
        zero.register_in(path);
        CHECK_HAS(wait(), "dispatcher 1 of 2 has not registered yet");
        one.register_in(path);
        CHECK(wait() == "nothing was thrown");
    }
    CHECK_HAS(wait(), "dispatcher 0 of 2 does not answer");
    // dispatchers of the next job, which has the same key, at the addresses of an earlier one
    data::service_config next = stale;
    next.job_id = "another";
    data::service_dispatcher zero(next, 0);
    stale.dispatchers = 1;
    stale.addresses = {zero.addresses()};
    stale.write(path);
    CHECK_HAS(wait(), "another job id");

    std::thread later([&] {
        std::this_thread::sleep_for(300ms);
        next.dispatchers = 1;
        next.addresses = {zero.addresses()};
        next.write(path);
    });
    CHECK(data::service_config::read(path, data::wait_for_file{10s}).job_id == "another");
    later.join();
}

// ---- batches as bytes ---------------------------------------------------------------------------

namespace {

template <class Batch>
Batch sent(const Batch& batch) {
    data::made_batch<Batch> made{batch, 3, "a reason"};
    const std::vector<std::byte> bytes = bytes_of(made);
    const auto got = hvd::detail::decoded_batch<Batch>(bytes);
    CHECK(got.skipped == 3);
    CHECK(std::string_view(got.last_failure) == "a reason");
    return got.batch;
}

}  // namespace

TEST_CASE("batches of all of hvd's own kinds arrive as they were sent") {
    using texts = std::vector<std::string>;
    using pairs = std::vector<std::tuple<std::vector<float>, int>>;
    CHECK(sent(std::vector<int>{1, 2, 3}) == std::vector<int>{1, 2, 3});
    CHECK(sent(std::vector<int>{}).empty());
    CHECK(sent(std::vector<bool>{true, false}) == std::vector<bool>{true, false});
    CHECK(sent(texts{"a", "", "ccc"}) == texts{"a", "", "ccc"});
    const pairs images{{{1, 2}, 7}, {{}, 8}};
    CHECK(sent(images) == images);
    const auto rows = sent(data::rows<float>{{1, 2, 3, 4}, 2});
    CHECK(rows.values == std::vector<float>{1, 2, 3, 4});
    CHECK(rows.width == 2);
    const auto ragged = sent(data::ragged_rows<char>{{'a', 'b'}, {0, 1, 1, 2}});
    CHECK(ragged.values == std::vector<char>{'a', 'b'});
    CHECK(ragged.offsets == std::vector<std::size_t>{0, 1, 1, 2});
    // large pieces, and one that begins at an odd place
    const auto long_one = numbers_below(5000);
    CHECK(sent(long_one) == long_one);
    const std::tuple<std::vector<int>, std::vector<char>, std::vector<int>> several{
        long_one, std::vector<char>(4099, 'x'), long_one};
    CHECK(sent(several) == several);
}

TEST_CASE("an answer that is cut short is refused, wherever it is cut") {
    const auto whole =
        bytes_of(data::made_batch<std::vector<std::string>>{{"ab", "c"}, 1, "reason"});
    for (std::size_t n = 0; n < whole.size(); ++n)
        CHECK_THROWS_AS(
            hvd::detail::decoded_batch<std::vector<std::string>>(std::span(whole).subspan(0, n)),
            hvd::error);
}

}  // namespace data_service_tests
