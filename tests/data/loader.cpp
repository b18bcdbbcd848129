// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "data_test.hpp"
#include "hvd_test.hpp"

namespace data_loader_tests {

namespace data = hvd::data;
using data_tests::batches_of;
using data_tests::numbers_below;
using data_tests::on_all_ranks;
using lists = std::vector<std::vector<int>>;

namespace {

void sleep_a_moment(std::uint64_t moments) {
    std::this_thread::sleep_for(std::chrono::microseconds(100 * moments));
}

// The samples of the next batches, of all ranks, in their order.
template <class Pipeline>
std::vector<int> go_on(const Pipeline& pipeline, int ranks, data::loader_state& state,
                       std::uint64_t most_batches) {
    lists of_rank;
    data::loader_state after;
    for (int rank = 0; rank < ranks; ++rank) {
        data::loader loader(pipeline, hvd::part{rank, ranks});
        loader.resume(state);
        CHECK(loader.state() == state);
        for (std::uint64_t step = 0; step < most_batches; ++step) {
            const auto batch = loader.next();
            if (!batch) break;
            if (of_rank.size() == step) of_rank.emplace_back();
            of_rank[step].insert(of_rank[step].end(), batch->begin(), batch->end());
        }
        if (rank > 0) CHECK(loader.state() == after);
        after = loader.state();
    }
    state = after;
    std::vector<int> all;
    for (const auto& batch : of_rank) all.insert(all.end(), batch.begin(), batch.end());
    return all;
}

}  // namespace

TEST_CASE("batches come in their order, whichever thread makes them and however long it takes") {
    const auto slow = [](int i, data::random& draws) {
        sleep_a_moment(draws.below(20));
        return i;
    };
    const auto pipeline =
        data::from(numbers_below(100)) | data::map(slow) | data::batch(3) | data::prefetch(5);
    const auto expected = on_all_ranks(data::from(numbers_below(100)) | data::batch(3), 1, 0);
    for (const std::size_t threads : {0, 1, 2, 4, 9}) {
        data::loader loader(pipeline, hvd::part{}, {.threads = threads});
        CHECK(batches_of(loader, 0) == expected);
        CHECK_FALSE(loader.next());
        CHECK(batches_of(loader, 1) == expected);
    }
}

TEST_CASE("no more batches are made ahead than asked for, and none after the loader is gone") {
    for (const std::size_t ahead : {1, 2, 4})
        for (const std::size_t threads : {1, 3}) {
            std::atomic<int> made = 0;
            {
                const auto counted = [&made](int i) { return ++made, i; };
                const auto pipeline = data::from(numbers_below(1000)) | data::map(counted) |
                                      data::batch(1) | data::prefetch(ahead);
                data::loader loader(pipeline, hvd::part{}, {.threads = threads});
                for (int i = 1; i <= 20; ++i) {
                    CHECK(loader.next()->at(0) == i - 1);
                    sleep_a_moment(5);
                    CHECK(made <= i + int(ahead));
                }
            }
            const int after = made;
            sleep_a_moment(5);
            CHECK(made == after);
            CHECK(after <= 20 + int(ahead));
        }
}

TEST_CASE("without threads a batch is made when it is asked for, by the thread that asks") {
    const auto here = std::this_thread::get_id();
    int made = 0;
    const auto pipeline = data::from(numbers_below(5)) | data::map([&](int i) {
                              CHECK(std::this_thread::get_id() == here);
                              return ++made, i;
                          }) |
                          data::batch(2);
    data::loader loader(pipeline, hvd::part{}, {.threads = 0});
    data::loader other(pipeline | data::prefetch(0), hvd::part{});
    for (auto* one : {&loader, &other}) {
        made = 0;
        CHECK(one->next()->size() == 2);
        CHECK(made == 2);
        CHECK(one->next()->size() == 2);
        CHECK(one->next()->size() == 1);
        CHECK(made == 5);
        CHECK_FALSE(one->next());
    }
}

TEST_CASE("a loop may end early, and a loader be dropped in the middle") {
    for (const std::size_t threads : {0, 1, 4}) {
        data::loader loader(data::from(numbers_below(1000)) | data::batch(2) | data::prefetch(3),
                            hvd::part{}, {.threads = threads});
        for (auto& batch : loader.epoch(0))
            if (batch[0] == 10) break;
        CHECK(loader.state() == data::loader_state{0, 0, 12});
        CHECK(loader.next()->at(0) == 12);
        CHECK(batches_of(loader, 0).size() == 500);  // an epoch that begins again
        loader.begin_epoch(3);
        CHECK(loader.next()->at(0) == 0);
    }
}

TEST_CASE("a loader goes on where another one stopped, on any number of ranks") {
    for (const auto last : {data::last_batch::keep, data::last_batch::drop}) {
        const auto pipeline = data::from(numbers_below(103)) | data::shuffle({.seed = 8}) |
                              data::batch(10, {.last = last});
        data::loader_state whole_state{8, 2, 0};
        const auto whole = go_on(pipeline, 1, whole_state, 1000);
        CHECK(whole_state == data::loader_state{8, 2, 103});
        for (const auto& turns : std::vector<std::vector<int>>{{2}, {3, 1}, {2, 4}, {4, 3, 2, 1}}) {
            data::loader_state state{8, 2, 0};
            std::vector<int> all;
            for (const int ranks : turns)
                for (const int sample : go_on(pipeline, ranks, state, 2)) all.push_back(sample);
            CHECK(state.samples_done == 20 * turns.size());
            for (const int sample : go_on(pipeline, 3, state, 1000)) all.push_back(sample);
            CHECK(all == whole);
            CHECK(state == whole_state);
            CHECK(go_on(pipeline, 2, state, 1000).empty());
        }
    }
}

TEST_CASE("a loader goes on with batches of another size, and with the seed of the state") {
    const auto samples = data::from(numbers_below(50)) | data::shuffle({.seed = 1});
    data::loader_state state{9, 4, 0};
    std::vector<int> all = go_on(samples | data::batch(6), 2, state, 2);
    CHECK(state == data::loader_state{9, 4, 12});
    for (const int sample : go_on(samples | data::batch(7), 3, state, 1000)) all.push_back(sample);
    const data::permutation order(50, 9, 4);
    for (std::size_t i = 0; i < 50; ++i) CHECK(all.at(i) == int(order(i)));
}

TEST_CASE("after resume a loop begins with the rest of the epoch, and others with all of theirs") {
    data::loader loader(data::from(numbers_below(10)) | data::batch(2), hvd::part{});
    loader.resume({.seed = 0, .epoch = 3, .samples_done = 6});
    std::vector<std::size_t> sizes;
    for (std::uint64_t epoch = loader.state().epoch; epoch < 5; ++epoch)
        sizes.push_back(batches_of(loader, epoch).size());
    CHECK(sizes == std::vector<std::size_t>{2, 5});
    loader.resume({.seed = 0, .epoch = 3, .samples_done = 6});
    CHECK(loader.steps() == 2);
    CHECK(batches_of(loader, 4).size() == 5);
    loader.resume({.seed = 0, .epoch = 3, .samples_done = 10});
    CHECK_FALSE(loader.next());
    CHECK_THROWS_WITH_AS(loader.resume({.samples_done = 11}),
                         doctest::Contains("10 samples resumes after 11"), hvd::usage_error);
}

namespace {

auto failing_at(int wrong) {
    return [wrong](int i) {
        if (i == wrong) throw std::runtime_error("no such picture");
        return i;
    };
}

}  // namespace

TEST_CASE("an exception reaches the trainer after the batches before it, with stage and sample") {
    for (const std::size_t threads : {0, 1, 4}) {
        const auto pipeline = data::from(numbers_below(30)) | data::map([](int i) { return i; }) |
                              data::map(failing_at(17)) | data::batch(5) | data::prefetch(3);
        data::loader loader(pipeline, hvd::part{}, {.threads = threads});
        loader.begin_epoch(2);
        for (int i = 0; i < 3; ++i) CHECK(loader.next()->at(0) == 5 * i);
        for (int twice = 0; twice < 2; ++twice) try {
                static_cast<void>(loader.next());
                FAIL("no exception");
            } catch (const data::stage_error& e) {
                CHECK(std::string(e.what()) ==
                      "stage 2 (map), sample 17 of epoch 2: no such picture");
                CHECK(e.stage() == 2);
                CHECK(e.sample() == 17);
                CHECK(e.rank() == 0);
                CHECK_THROWS_AS(std::rethrow_exception(e.cause()), std::runtime_error);
            }
        CHECK(loader.state().samples_done == 15);
        loader.begin_epoch(3);
        CHECK(loader.next()->at(0) == 0);
    }
}

TEST_CASE("a failure of a batch of which a rank has no sample names none") {
    const auto collate = [](std::vector<int> samples) {
        if (samples.empty()) throw std::runtime_error("nothing here");
        return samples;
    };
    data::loader loader(data::from(numbers_below(10)) | data::batch(2, collate), hvd::part{2, 3});
    try {
        static_cast<void>(loader.next());
        FAIL("no exception");
    } catch (const data::stage_error& e) {
        CHECK(std::string(e.what()) == "stage 1 (batch), no sample of epoch 0: nothing here");
        CHECK(e.sample() == data::stage_error::no_sample);
    }
}

TEST_CASE("an exception of each kind of stage names it") {
    const auto text_of = [](const auto& pipeline) {
        data::loader loader(pipeline, hvd::part{});
        try {
            while (loader.next()) continue;
        } catch (const data::stage_error& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    struct broken {
        std::size_t size() const { return 3; }
        int read(std::size_t i) const {
            if (i == 1) throw std::runtime_error("torn");
            return int(i);
        }
    };
    const auto numbers = numbers_below(9);
    CHECK(text_of(data::from(broken()) | data::batch(2)) ==
          "stage 0 (from), sample 1 of epoch 0: torn");
    CHECK(text_of(data::from(numbers) | data::filter(failing_at(4)) | data::batch(2)) ==
          "stage 1 (filter), sample 4 of epoch 0: no such picture");
    const auto collate = [](std::vector<int> samples) { return failing_at(6)(samples[0]); };
    CHECK(text_of(data::from(numbers) | data::map([](int i) { return i; }) |
                  data::batch(2, collate)) ==
          "stage 2 (batch), sample 6 of epoch 0: no such picture");
    const auto after = [](const std::vector<int>& b) { return failing_at(6)(b[0]); };
    CHECK(text_of(data::from(numbers) | data::batch(2) | data::map(after)) ==
          "stage 2 (map), sample 6 of epoch 0: no such picture");
}

TEST_CASE("samples that fail are skipped and counted, up to a limit") {
    const auto thirds = [](int i) {
        if (i % 3 == 0) throw std::runtime_error("sample " + std::to_string(i) + " is torn");
        return i;
    };
    const auto tolerant = [&](std::uint64_t limit) {
        return data::from(numbers_below(20)) | data::map(thirds) |
               data::skip_errors({.at_most = limit}) | data::map([](int i) { return 10 * i; }) |
               data::batch(4);
    };
    for (const std::size_t threads : {0, 1, 3}) {
        data::loader loader(tolerant(7), hvd::part{}, {.threads = threads});
        for (std::uint64_t epoch : {0, 1}) {
            const auto all = batches_of(loader, epoch);
            CHECK(all.at(0) == std::vector<int>{10, 20});
            CHECK(all.at(4) == std::vector<int>{160, 170, 190});
            CHECK(loader.skipped() == 7);
        }
        data::loader strict(tolerant(6), hvd::part{}, {.threads = threads});
        for (int i = 0; i < 4; ++i) CHECK(strict.next());
        CHECK_THROWS_WITH_AS(strict.next(),
                             "7 samples of epoch 0 were skipped, at most 6 may be; the last: "
                             "stage 1 (map), sample 18 of epoch 0: sample 18 is torn",
                             data::stage_error);
    }
    // A stage after it stops the loader.
    data::loader later(data::from(numbers_below(9)) | data::skip_errors() |
                           data::map(failing_at(2)) | data::batch(4),
                       hvd::part{});
    CHECK_THROWS_WITH_AS(later.next(), doctest::Contains("stage 2 (map), sample 2"),
                         data::stage_error);
}

TEST_CASE("the ranks of a communicator share each batch, and a state goes from one to the others") {
    hvd_test::on_ranks([](hvd_test::communicator& comm) {
        const auto pipeline = data::from(numbers_below(101)) | data::shuffle({.seed = 5}) |
                              data::batch(12) | data::prefetch(2);
        const auto expected = on_all_ranks(pipeline, 1, 1);
        data::loader loader(pipeline, comm, {.threads = 2});
        std::size_t step = 0;
        for (auto& batch : loader.epoch(1)) {
            CHECK(comm.allgather(batch).values == expected.at(step));
            CHECK(loader.samples_of_all() == expected.at(step).size());
            ++step;
        }
        CHECK(step == expected.size());

        // A newcomer takes the state of rank 0, as after a checkpoint.
        data::loader again(pipeline, comm);
        data::loader_state state{};
        if (comm.rank() == 0) state = {.seed = 5, .epoch = 1, .samples_done = 36};
        comm.broadcast_object(state, hvd::root{0});
        again.resume(state);
        for (step = 3; auto batch = again.next(); ++step)
            CHECK(comm.allgather(*batch).values == expected.at(step));
        CHECK(step == expected.size());
    });
}

static_assert(std::is_trivially_copyable_v<data::loader_state>);

}  // namespace data_loader_tests
