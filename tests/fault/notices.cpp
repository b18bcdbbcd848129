// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "../collective/neighbours.hpp"
#include "hvd_test.hpp"

namespace notices_tests {

// Ranks that give up between nodes, and who is named. The ranks are threads, and their letters and
// notices go through queues.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

using hvd::detail::failure_notice;

// The notices that each rank has not read yet.
struct board {
    explicit board(int ranks) : inbox(std::size_t(ranks)), cancelled(std::size_t(ranks)) {}
    std::mutex mutex;
    std::vector<std::deque<failure_notice>> inbox;
    std::vector<int> cancelled;  // how often each rank has given up its messages
};

// This rank's: it can't send, or its letters never arrive.
thread_local bool wire_is_cut = false, loses_letters = false;

// An endpoint with notices. A letter is written when it leaves, many polls after it was begun.
// Until then its memory must stay as it is.
template <class Base>
class talking_endpoint : public Base {
public:
    template <class... A>
    talking_endpoint(std::shared_ptr<board> notices, A&&... arguments)
        : Base(std::forward<A>(arguments)...),
          notices_(std::move(notices)),
          sent_(std::size_t(this->size())),
          received_(std::size_t(this->size())) {}

    void send(int peer, const std::byte* data, std::size_t bytes) {
        if (wire_is_cut) throw hvd::error(this->rank(), "the wire is cut");
        ++sent_[std::size_t(peer)];
        leaving_.push_back({peer, data, bytes});
    }
    void recv(int peer, std::byte* data, std::size_t bytes) {
        ++received_[std::size_t(peer)];
        Base::recv(peer, data, bytes);
    }
    bool poll() {
        if (++polls_ % 16 == 0) {
            for (const letter& l : leaving_)
                if (!loses_letters) Base::send(l.peer, l.data, l.bytes);
            leaving_.clear();
        }
        return Base::poll() && leaving_.empty();
    }
    bool pending(int peer) const {
        for (const letter& l : leaving_)
            if (l.peer == peer) return true;
        return Base::pending(peer);
    }
    void cancel() noexcept {
        leaving_.clear();
        Base::cancel();
        ++notices_->cancelled[std::size_t(this->rank())];
    }

    std::uint64_t sends_begun(int peer) const { return sent_[std::size_t(peer)]; }
    std::uint64_t receives_begun(int peer) const { return received_[std::size_t(peer)]; }
    bool send_notice(int peer, const failure_notice& notice) noexcept {
        const std::lock_guard lock(notices_->mutex);
        notices_->inbox[std::size_t(peer)].push_back(notice);
        return true;
    }
    bool receive_notice(failure_notice& notice) {
        const std::lock_guard lock(notices_->mutex);
        auto& mine = notices_->inbox[std::size_t(this->rank())];
        if (mine.empty()) return false;
        notice = mine.front();
        mine.pop_front();
        return true;
    }

private:
    struct letter {
        int peer;
        const std::byte* data;
        std::size_t bytes;
    };
    std::shared_ptr<board> notices_;
    std::vector<std::uint64_t> sent_, received_;
    std::vector<letter> leaving_;
    int polls_ = 0;
};

// Ranks without common memory, and ranks on nodes.
struct talkers {
    using endpoint_type = talking_endpoint<queue_endpoint>;
};
struct talking_neighbours {
    using endpoint_type = talking_endpoint<neighbour_endpoint>;
};
static_assert(hvd::backend<talkers> && hvd::backend<talking_neighbours>);
static_assert(hvd::detail::sends_notices<talkers::endpoint_type>);

// The time that only the ranks in question may exceed, also on a busy machine, where another one
// may not run for half a second.
constexpr auto patience = 800ms;

// Sanitizers make programs slow.
std::chrono::milliseconds span(std::chrono::milliseconds time) {
    return under_asan || under_tsan ? 5 * time : time;
}

// The error of each rank.
struct outcome {
    std::vector<int> peers;
    std::string text;
    bool timed_out = false;
};

struct run_of_ranks {
    int ranks;
    bool alone;  // each on a node
    std::vector<outcome> outcomes;
    std::vector<int> cancelled;
    std::atomic<int> ended{0};  // ranks that have got their error

    bool is_last(int rank) const { return rank == ranks - 1; }
    template <class Comm>
    void wait_for_others(const Comm&, int others, std::chrono::milliseconds most = 20s) const {
        const auto limit = std::chrono::steady_clock::now() + most;
        while (ended < others && std::chrono::steady_clock::now() < limit)
            std::this_thread::sleep_for(1ms);
    }
};

// Runs f(comm, run) on each rank, which ends it by a peer_error, and then check(run), for ranks
// without common memory and in several placements.
template <class F, class Check>
void on_talkers(int least, F f, Check check) {
    constexpr placement alone = [](int rank) { return rank; };
    for (int ranks = least; ranks <= 4; ++ranks) {
        for (const placement place : {placement(nullptr), alone, placements[0], placements[1]}) {
            std::vector<int> nodes;
            for (int r = 0; place != nullptr && r < ranks; ++r) nodes.push_back(place(r));
            if (place != nullptr && nodes.back() == 0) continue;  // a single node
            CAPTURE(ranks);
            CAPTURE(nodes);
            const auto notices = std::make_shared<board>(ranks);
            run_of_ranks run{ranks,
                             place == nullptr || place == alone,
                             std::vector<outcome>(std::size_t(ranks)),
                             {}};
            const auto body = [&](auto comm) {
                try {
                    f(comm, run);
                } catch (const hvd::peer_error& e) {
                    run.outcomes[std::size_t(comm.rank())] = {
                        e.peers(), e.what(),
                        dynamic_cast<const hvd::timeout_error*>(&e) != nullptr};
                }
                ++run.ended;
            };
            run_in_office(ranks, [&](std::shared_ptr<post_office> office, int rank) {
                if (place == nullptr)
                    body(hvd::communicator<talkers>(std::make_unique<talkers::endpoint_type>(
                        notices, std::move(office), rank)));
                else
                    body(hvd::communicator<talking_neighbours>(
                        std::make_unique<talking_neighbours::endpoint_type>(
                            notices, std::move(office), rank, nodes, std::size_t(1) << 16)));
            });
            run.cancelled = notices->cancelled;
            check(run);
        }
    }
}

// All other ranks name exactly these.
void expect_named(const run_of_ranks& run, const std::vector<int>& named) {
    for (int rank = 0; rank < run.ranks; ++rank) {
        if (std::find(named.begin(), named.end(), rank) != named.end()) continue;
        CAPTURE(rank);
        CAPTURE(run.outcomes[std::size_t(rank)].text);
        CHECK(run.outcomes[std::size_t(rank)].peers == named);
        CHECK(run.cancelled[std::size_t(rank)] > 0);
    }
}

}  // namespace

TEST_CASE("a rank that does not come is named by all, which have equal timeouts") {
    on_talkers(
        2,
        [](auto& comm, run_of_ranks& run) {
            std::vector<float> x(50000, 1);
            comm.allreduce(x, hvd::sum);
            if (run.is_last(comm.rank())) run.wait_for_others(comm, run.ranks - 1);
            comm.allreduce(x, hvd::sum, {.name = "step", .timeout = span(patience)});
            comm.barrier();
        },
        [](const run_of_ranks& run) {
            expect_named(run, {run.ranks - 1});
            for (const outcome& o : run.outcomes)
                CHECK(o.timed_out == (&o != &run.outcomes.back()));
            const outcome& late = run.outcomes.back();
            CAPTURE(late.text);
            REQUIRE(late.peers.size() == 1);
            CHECK(late.text.find("rank " + std::to_string(late.peers[0]) + " gave up: rank " +
                                 std::to_string(run.ranks - 1) + " did not come in time") !=
                  std::string::npos);
        });
}

TEST_CASE("a rank that is slow in the middle of a call is named by all, whoever waits for whom") {
    for (const std::size_t n : {3000, 60000}) {
        on_talkers(
            2,
            [n](auto& comm, run_of_ranks& run) {
                std::vector<float> x(n, 1);
                bool first = run.is_last(comm.rank());
                const auto sum = [&](float a, float b) {
                    if (std::exchange(first, false))
                        run.wait_for_others(comm, run.ranks - 1, span(4 * patience));
                    return a + b;
                };
                comm.allreduce(x, sum, {.timeout = span(patience)});
                comm.barrier();
            },
            [](const run_of_ranks& run) { expect_named(run, {run.ranks - 1}); });
    }
}

TEST_CASE("a timeout of one rank alone ends the call of all, which name the rank that is late") {
    on_talkers(
        3,
        [](auto& comm, run_of_ranks& run) {
            std::vector<float> x(50000, 1);
            if (run.is_last(comm.rank())) run.wait_for_others(comm, run.ranks - 1);
            hvd::reduce_options options;
            if (comm.rank() == 0) options.timeout = span(patience);
            comm.allreduce(x, hvd::sum, options);
            comm.barrier();
        },
        [](const run_of_ranks& run) { expect_named(run, {run.ranks - 1}); });
}

TEST_CASE("two ranks that do not come are named together") {
    on_talkers(
        3,
        [](auto& comm, run_of_ranks& run) {
            std::vector<float> x(50000, 1);
            if (comm.rank() >= run.ranks - 2) run.wait_for_others(comm, run.ranks - 2);
            comm.allreduce(x, hvd::sum, {.timeout = span(patience)});
            comm.barrier();
        },
        [](const run_of_ranks& run) {
            // In a node the punctual ranks may not have come to wait for the second one.
            const std::vector<int> named = run.outcomes[0].peers;
            CHECK(std::find(named.begin(), named.end(), 0) == named.end());
            if (run.alone) expect_named(run, {run.ranks - 2, run.ranks - 1});
            for (int rank = 0; rank < run.ranks - 2; ++rank)
                CHECK(run.outcomes[std::size_t(rank)].peers == named);
            for (const int p : named) CHECK(p >= run.ranks - 2);
            CHECK(!named.empty());
        });
}

TEST_CASE("if all ranks wait for each other, all name somebody else") {
    on_talkers(
        2,
        [](auto& comm, run_of_ranks& run) {
            std::vector<float> x(50000, 1);
            comm.barrier();
            loses_letters = run.is_last(comm.rank());
            comm.allreduce(x, hvd::sum, {.timeout = span(patience)});
            comm.barrier({.timeout = span(patience)});
        },
        [](const run_of_ranks& run) {
            for (int rank = 0; rank < run.ranks; ++rank) {
                const outcome& o = run.outcomes[std::size_t(rank)];
                CAPTURE(o.text);
                CHECK(!o.peers.empty());
                CHECK(std::find(o.peers.begin(), o.peers.end(), rank) == o.peers.end());
            }
        });
}

TEST_CASE("a rank that destroys its communicator is named by those that wait for it") {
    on_talkers(
        2,
        [](auto& comm, run_of_ranks& run) {
            comm.barrier();
            if (run.is_last(comm.rank())) {
                comm = {};
                return;
            }
            std::vector<float> x(50000, 1);
            comm.allreduce(x, hvd::sum);
            comm.barrier();
        },
        [](const run_of_ranks& run) {
            for (int rank = 0; rank + 1 < run.ranks; ++rank) {
                const outcome& o = run.outcomes[std::size_t(rank)];
                CAPTURE(o.text);
                CHECK(o.peers == std::vector<int>{run.ranks - 1});
                CHECK(o.text.find("rank " + std::to_string(run.ranks - 1) +
                                  " left (its communicator was destroyed)") != std::string::npos);
            }
        });
}

TEST_CASE("a rank that fails alone tells the others why") {
    on_talkers(
        2,
        [](auto& comm, run_of_ranks& run) {
            std::vector<float> x(50000, 1);
            comm.allreduce(x, hvd::sum);
            wire_is_cut = run.is_last(comm.rank());
            if (wire_is_cut) {
                const auto e = [&] { comm.allreduce(x, hvd::sum); };
                CHECK_THROWS_WITH_AS(e(), "the wire is cut", hvd::error);
                wire_is_cut = false;
                return;
            }
            comm.allreduce(x, hvd::sum);
            comm.barrier();
        },
        [](const run_of_ranks& run) {
            expect_named(run, {run.ranks - 1});
            for (int rank = 0; rank + 1 < run.ranks; ++rank) {
                CAPTURE(run.outcomes[std::size_t(rank)].text);
                CHECK(run.outcomes[std::size_t(rank)].text.find("the wire is cut") !=
                      std::string::npos);
            }
        });
}

TEST_CASE("a rank may depart at once after a call, whose data all others get") {
    on_talkers(
        2,
        [](auto& comm, run_of_ranks& run) {
            const int root = run.ranks - 1;
            std::vector<int> large(300000, comm.rank() + 1);
            // One goes with the headers, the other by itself.
            for (const std::size_t n : {4000, 12000}) {
                std::vector<int> x(n, comm.rank() + 1);
                comm.broadcast(x, hvd::root{root});
                if (comm.rank() == root) x.assign(n, -1);  // its memory is its own again
                else CHECK(x == std::vector<int>(n, root + 1));
            }
            comm.broadcast(large, hvd::root{root});
            if (comm.rank() == root) {
                large.assign(large.size(), -1);
                comm = {};
            } else {
                CHECK(large == std::vector<int>(large.size(), root + 1));
            }
        },
        [](const run_of_ranks& run) {
            for (const outcome& o : run.outcomes) CHECK(o.text == "");
        });
}

TEST_CASE("a rank that others say is gone names the one that said so, and not itself") {
    using hvd::detail::notice_of, hvd::detail::word;
    const auto notices = std::make_shared<board>(3);
    talkers::endpoint_type endpoint(notices, std::make_shared<post_office>(3), 1);
    hvd::detail::notice_exchange<talkers::endpoint_type> exchange(endpoint);
    exchange.begin_call();
    CHECK(!exchange.received());
    endpoint.send_notice(1, notice_of(2, word::failed, "rank 1 died", {1}));
    CHECK(exchange.received());
    CHECK(exchange.knows_reason());
    CHECK(exchange.missing() == std::vector<int>{2});
    CHECK(exchange.why() == std::string_view("rank 2 gave up: rank 1 died"));
}

TEST_CASE("ranks that hear of a death know that it is one") {
    using exchange = hvd::detail::notice_exchange<talkers::endpoint_type>;
    for (const auto cause :
         {exchange::cause::other, exchange::cause::death, exchange::cause::timeout}) {
        CAPTURE(int(cause));
        const auto notices = std::make_shared<board>(3);
        const auto office = std::make_shared<post_office>(3);
        talkers::endpoint_type one(notices, office, 0), other(notices, office, 1);
        exchange tells(one), hears(other);
        for (exchange* each : {&tells, &hears}) each->begin_call();
        CHECK(!hears.received());
        tells.keep("rank 2 is gone", {2}, cause);
        tells.pass_on("");
        CHECK(hears.received());
        CHECK(hears.why() == std::string_view("rank 2 is gone"));
        CHECK(hears.knows_death() == (cause == exchange::cause::death));
        const auto type_of_reason = [&]() -> std::string {
            try {
                hears.throw_reason("barrier");
            } catch (const hvd::timeout_error&) {
                return "timeout_error";
            } catch (const hvd::peer_error&) {
                return "peer_error";
            }
        };
        CHECK(type_of_reason() ==
              (cause == exchange::cause::timeout ? "timeout_error" : "peer_error"));
    }
}

TEST_CASE("ranks whose data came as their timeouts passed name those that waited, or nobody") {
    using hvd::detail::notice_of, hvd::detail::word;
    const auto after = [](const std::vector<int>& awaited_by_rank_1) {
        const auto notices = std::make_shared<board>(2);
        talkers::endpoint_type endpoint(notices, std::make_shared<post_office>(2), 0);
        hvd::detail::notice_exchange<talkers::endpoint_type> exchange(endpoint);
        exchange.begin_call();
        CHECK(!exchange.received());
        failure_notice notice = notice_of(1, word::waits, "", awaited_by_rank_1);
        notice.expired = 1;
        endpoint.send_notice(0, notice);
        exchange.confer({}, true);
        return std::pair(std::string(std::string_view(exchange.why())), exchange.missing());
    };
    CHECK(after({0}) ==
          std::pair(std::string("rank 1 gave up: rank 0 did not come in time"), std::vector{1}));
    CHECK(after({}) == std::pair(std::string("the data did not come in time"), std::vector<int>()));
}

}  // namespace notices_tests
