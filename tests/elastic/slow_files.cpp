// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <condition_variable>
#include <future>
#include <mutex>
#include <vector>

#include "elastic_test.hpp"
#include "tcp_backend.hpp"
#include "temporary_directory.hpp"

namespace slow_files_tests {

// States whose file is written slowly.

using namespace hvd_test;

// An object whose writer waits at each file, until it is let on. Ranks that send it do not wait.
struct gate {
    std::int64_t step = 0;

    static std::mutex mutex;
    static std::condition_variable changed;
    static bool is_closed;
    static int arrived, let_on;

    static void arrive() {
        std::unique_lock lock(mutex);
        if (!is_closed) return;
        ++arrived;
        changed.notify_all();
        changed.wait(lock, [number = arrived] { return let_on >= number; });
    }
    static void close() {
        const std::lock_guard lock(mutex);
        is_closed = true;
    }
    static void await_arrival(int number) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [number] { return arrived >= number; });
    }
    static void let_through(int number) {
        const std::lock_guard lock(mutex);
        let_on = number;
        changed.notify_all();
    }
};
std::mutex gate::mutex;
std::condition_variable gate::changed;
bool gate::is_closed = false;
int gate::arrived = 0, gate::let_on = 0;

}  // namespace slow_files_tests

template <>
struct hvd::serializer<slow_files_tests::gate> {
    using gate = slow_files_tests::gate;
    static void write(std::vector<std::byte>& buffer, const gate& g) {
        gate::arrive();
        hvd::serializer<std::int64_t>::write(buffer, g.step);
    }
    static gate read(std::span<const std::byte>& bytes) {
        return {hvd::serializer<std::int64_t>::read(bytes)};
    }
};

namespace slow_files_tests {

TEST_CASE("commits leave the copy alone that a slow file is made of: it has one commit") {
    const temporary_directory directory;
    std::vector<float> before(100), after(100);
    gate between;
    hvd::elastic::state state(before, between, after);
    state.persist_in(directory.path());
    const auto commit = [&](int step) {
        before.assign(100, float(step));
        between.step = step;
        after.assign(100, float(step));
        state.commit();
    };
    hvd::elastic::options alone;
    alone.tcp = {};
    hvd::elastic::run<hvd_test::tcp>(
        state,
        [&](auto&) {
            gate::close();
            commit(1);
            gate::await_arrival(1);
            for (int step = 2; step <= 5; ++step) commit(step);
            gate::let_through(1);
            gate::await_arrival(2);  // the file of the first commit is there, and no later one
            std::vector<float> x, y;
            gate z;
            hvd::elastic::state kept(x, z, y);
            kept.persist_in(directory.path());
            hvd::detail::elastic_access::read_kept(kept);
            gate::let_through(1000);
            CHECK(kept.step() == 1);
            CHECK(z.step == 1);
            CHECK(x == std::vector<float>(100, 1));
            CHECK(y == x);
        },
        alone);
    CHECK(state.persisted().error == "");
}

TEST_CASE("a commit that is due is written, though one that is not due follows before it begins") {
    const temporary_directory directory;
    std::promise<void> begun, go_on;
    std::vector<int> written;
    {
        hvd::detail::state_keeper keeper(directory.path(), {.every = 2},
                                         [&](hvd::detail::kept_writer&, int copy) {
                                             written.push_back(copy);
                                             if (copy != 0) return;
                                             begun.set_value();
                                             go_on.get_future().wait();
                                         });
        keeper.set_writes(true, 7);
        keeper.commit(1, 1);
        keeper.commit(0, 2);
        begun.get_future().wait();
        keeper.commit(1, 4);
        keeper.commit(2, 5);
        go_on.set_value();
    }
    CHECK(written == std::vector{0, 2});  // the newest one
}

TEST_CASE("a commit of several steps is written if one of them is due") {
    for (const bool ends : {true, false}) {  // with the destructor, which writes what is due
        CAPTURE(ends);
        const temporary_directory directory;
        std::vector<int> written;
        {
            hvd::detail::state_keeper keeper(
                directory.path(), {.every = 10},
                [&](hvd::detail::kept_writer&, int copy) { written.push_back(copy); });
            keeper.set_writes(true, 7);
            keeper.commit(0, 7);
            if (ends) keeper.commit(1, 14);
        }
        CHECK(written == (ends ? std::vector{1} : std::vector<int>()));
    }
}

TEST_CASE(
    "the commit that is due is left out if the process does not write for its host any more") {
    for (const bool writes_on : {true, false}) {
        CAPTURE(writes_on);
        const temporary_directory directory;
        std::promise<void> begun, go_on;
        std::vector<int> written;
        {
            hvd::detail::state_keeper keeper(directory.path(), {},
                                             [&](hvd::detail::kept_writer&, int copy) {
                                                 written.push_back(copy);
                                                 if (copy != 0) return;
                                                 begun.set_value();
                                                 go_on.get_future().wait();
                                             });
            keeper.set_writes(true, 7);
            keeper.commit(0, 1);
            begun.get_future().wait();
            keeper.commit(1, 2);
            keeper.set_writes(writes_on, 7);
            go_on.set_value();
        }
        CHECK(written == (writes_on ? std::vector{0, 1} : std::vector{0}));
    }
}

}  // namespace slow_files_tests
