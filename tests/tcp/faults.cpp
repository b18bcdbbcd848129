// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sched.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <string>

#include <hvd/engine.hpp>
#if defined(HVD_TEST_OPENSSL)
#include <hvd/interop/openssl.hpp>
#endif

#include "hvd_test.hpp"
#include "sanitizers.hpp"
#include "tcp_backend.hpp"
#include "tcp_ranks.hpp"

namespace faults_tests {

// Ranks of hvd::tcp and hvd::gloo that die, stop, leave or never come. Each test launches its own
// processes.

using namespace std::chrono_literals;
using communicator = hvd::communicator<hvd_test::tcp>;

namespace {

// The end of one rank's part, as the launcher sees it.
struct report {
    enum { nothing, well, peer_error, usage_error, other } kind;
    int peers[8];
    int peer_count;
    char text[600];
    std::atomic<int> steps;

    bool names(int rank) const {
        for (int i = 0; i < peer_count; ++i)
            if (peers[i] == rank) return true;
        return false;
    }
    bool has(const std::string& part) const {
        return std::string(text).find(part) != std::string::npos;
    }
};

// Reports in memory that the ranks share with the launcher.
class reports {
public:
    explicit reports(int ranks)
        : bytes_(std::size_t(ranks) * sizeof(report)),
          all_(static_cast<report*>(
              mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
    reports(const reports&) = delete;
    ~reports() { munmap(all_, bytes_); }
    report& operator[](int rank) { return all_[rank]; }

    // Waits until a rank has done some steps.
    void await_steps(int rank, int steps) {
        for (int i = 0; i < 30000 && all_[rank].steps < steps; ++i)
            std::this_thread::sleep_for(1ms);
        CHECK(all_[rank].steps >= steps);
    }

private:
    std::size_t bytes_;
    report* all_;
};

template <class F>
int reported(report& r, F f) {
    const auto write = [&](const char* text) { std::strncpy(r.text, text, sizeof r.text - 1); };
    try {
        f();
        r.kind = report::well;
    } catch (const hvd::peer_error& e) {
        for (const int p : e.peers())
            if (r.peer_count < 8) r.peers[r.peer_count++] = p;
        write(e.what());
        r.kind = report::peer_error;
    } catch (const hvd::usage_error& e) {
        write(e.what());
        r.kind = report::usage_error;
    } catch (const std::exception& e) {
        write(e.what());
        r.kind = report::other;
    }
    return 0;
}

bool has_text(const hvd::error& e, const char* part) {
    return std::string(e.what()).find(part) != std::string::npos;
}

// Allreduces until something fails.
template <class Comm>
void work(Comm& comm, std::atomic<int>& steps, std::size_t elements, hvd::time_limit timeout = {}) {
    std::vector<float> x(elements);
    for (;;) {
        x.assign(elements, float(comm.rank()));
        comm.allreduce(x, hvd::sum, {.timeout = timeout});
        ++steps;
    }
}

struct layout {
    int ranks, host_size;
};
// On one host, on hosts of their own, and both.
constexpr layout layouts[] = {{2, 0}, {3, 0}, {2, 1}, {3, 1}, {4, 2}};

// Runs ranks that work until something befalls the last of them, which the others are told.
template <class Work, class Befalls, class Check>
void on_working_ranks(int steps, Work work, Befalls befalls, Check check) {
    for (const layout& l : layouts) {
        INFO(l.ranks, " ranks, ", l.host_size, " on each host (0: all)");
        reports all(l.ranks);
        hvd_test::tcp_ranks job(l.ranks, l.host_size);
        job.start(
            [&](int rank) { return reported(all[rank], [&] { work(rank, all[rank].steps); }); });
        for (int r = 0; r < l.ranks; ++r) all.await_steps(r, steps);
        const int last = l.ranks - 1;
        befalls(job, last);
        for (int r = 0; r < last; ++r) {
            job.wait_for(r);
            INFO("rank ", r, " got: ", all[r].text);
            CHECK(all[r].kind == report::peer_error);
            check(all[r], last);
        }
    }
}

void check_text(const report& r, int last) { CHECK(r.has("rank " + std::to_string(last))); }
void check_rank(const report& r, int last) {
    CHECK(r.names(last));
    check_text(r, last);
}
void kill_rank(hvd_test::tcp_ranks& job, int rank) { kill(job.process(rank), SIGKILL); }

}  // namespace

TEST_CASE("a rank that is killed is named by all others, with small and large tensors") {
    for (const std::size_t elements : {std::size_t(10), std::size_t(200000)})
        on_working_ranks(
            20,
            [&](int, std::atomic<int>& done) {
                auto comm = communicator::world();
                work(comm, done, elements);
            },
            kill_rank, check_rank);
}

// Tensors go from rank to rank, and end or begin at the last one.
void pass_on(communicator& comm, std::vector<float>& x, bool upwards) {
    const int rank = comm.rank(), last = comm.size() - 1, from = rank + (upwards ? -1 : 1),
              to = rank + (upwards ? 1 : -1);
    if (from >= 0 && from <= last) comm.recv(hvd::into(x), hvd::peer{from});
    if (to >= 0 && to <= last) comm.send_async(x, hvd::peer{to}).wait();
}

TEST_CASE("a rank that is killed is named by those that send, receive or wait for these") {
    for (const bool upwards : {false, true})
        for (const std::size_t elements : {std::size_t(10), std::size_t(200000)})
            on_working_ranks(
                20,
                [&](int, std::atomic<int>& done) {
                    auto comm = communicator::world();
                    std::vector<float> x(elements);
                    for (;; ++done) pass_on(comm, x, upwards);
                },
                kill_rank, check_text);
}

TEST_CASE("a rank that is stopped is named when the timeout passes, and goes on afterwards") {
    const auto reduce = [](int, std::atomic<int>& done) {
        auto comm = communicator::world();
        work(comm, done, 1000, 500ms);
    };
    on_working_ranks(
        20, reduce,
        [](hvd_test::tcp_ranks& job, int last) {
            kill(job.process(last), SIGSTOP);
            for (int r = 0; r < last; ++r) {
                siginfo_t info;
                waitid(P_PID, id_t(job.process(r)), &info, WNOWAIT | WEXITED);
            }
            kill(job.process(last), SIGCONT);
            CHECK(job.wait_for(last) == 0);
        },
        check_rank);
}

// Ranks work on a communicator that make() gives, and the last one leaves.
template <class F>
void last_rank_leaves(F make) {
    for (const layout& l : layouts) {
        INFO(l.ranks, " ranks, ", l.host_size, " on each host (0: all)");
        reports all(l.ranks);
        hvd_test::tcp_ranks job(l.ranks, l.host_size);
        const int last = l.ranks - 1;
        job.start([&](int rank) {
            return reported(all[rank], [&] {
                auto comm = make(rank);
                if (rank != last) work(comm, all[rank].steps, 100);
            });
        });
        for (int r = 0; r < l.ranks; ++r) {
            CHECK(job.wait_for(r) == 0);
            INFO("rank ", r, ": ", all[r].text);
            CHECK(all[r].kind == (r == last ? report::well : report::peer_error));
            if (r != last) CHECK(all[r].has("rank " + std::to_string(last) + " left"));
        }
    }
}

TEST_CASE("a rank that ends in order has left, whatever the others still ask of it") {
    last_rank_leaves([](int) {
        auto comm = communicator::world();
        for (int i = 0; i < 20; ++i) comm.barrier();
        return comm;
    });
}

TEST_CASE("a rank that throws tells the others in its calls, and they throw") {
    for (const layout& l : layouts) {
        INFO(l.ranks, " ranks, ", l.host_size, " on each host (0: all)");
        reports all(l.ranks);
        hvd_test::tcp_ranks job(l.ranks, l.host_size);
        const int last = l.ranks - 1;
        job.start([&](int rank) {
            return reported(all[rank], [&] {
                auto comm = communicator::world();
                std::vector<int> x(rank == last ? 3 : 2);
                CHECK_THROWS_AS(comm.allreduce(x, hvd::sum), hvd::mismatch_error);
                comm.barrier();
                if (rank == last) throw std::runtime_error("the disk is full");
                work(comm, all[rank].steps, 100);
            });
        });
        for (int r = 0; r < l.ranks; ++r) {
            CHECK(job.wait_for(r) == 0);
            CHECK(all[r].kind == (r == last ? report::other : report::peer_error));
            if (r != last) CHECK(all[r].names(last));
        }
    }
}

TEST_CASE("a rank whose process is killed ends the engines of all others") {
    const auto reduce = [](int, std::atomic<int>& done) {
        auto comm = communicator::world();
        hvd::engine engine(comm);
        std::vector<float> x(1000, 1);
        for (;; ++done) engine.allreduce("gradient", x, hvd::average).wait();
    };
    on_working_ranks(20, reduce, kill_rank, check_text);
}

TEST_CASE("a rank that is killed while others make communicators ends their calls") {
    const auto split = [](int rank, std::atomic<int>& done) {
        auto comm = communicator::world();
        for (;; ++done) comm.split(rank % 2).barrier();
    };
    on_working_ranks(3, split, kill_rank, [](const report&, int) {});
}

#if defined(CLONE_NEWTIME)
namespace {

// Runs f in a process whose system has started at another time, where the user may make one.
template <class F>
int with_another_clock(F f) {
    if (unshare(CLONE_NEWTIME) != 0) return f();
    std::ofstream("/proc/self/timens_offsets") << "boottime 100000 0\n";
    const pid_t child = fork();
    if (child == 0) std::_Exit(f());
    int status = 1;
    waitpid(child, &status, 0);
    return status;
}

}  // namespace

TEST_CASE("a rank in another time namespace is late, and not dead") {
    reports all(2);
    hvd_test::tcp_ranks job(2);
    job.start([&](int rank) {
        const auto reduce = [&] {
            return reported(all[rank], [&] {
                auto comm = communicator::world({.timeout = 20s});
                for (int i = 0; i < 3; ++i) {
                    if (rank == 1) std::this_thread::sleep_for(200ms);
                    comm.barrier();
                }
            });
        };
        return rank == 1 ? with_another_clock(reduce) : reduce();
    });
    for (int r = 0; r < 2; ++r) {
        CHECK(job.wait_for(r) == 0);
        INFO("rank ", r, ": ", all[r].text);
        CHECK(all[r].kind == report::well);
    }
}
#endif

namespace {

// Makes communicators until a rank has no descriptor left, and returns their number; -1 if no rank
// had too few.
int split_without_descriptors(communicator& world, std::vector<communicator>& made) {
    for (int i = 0; i < 100; ++i) try {
            made.push_back(world.split(0, world.rank()));
        } catch (const hvd::error& e) {
            if (!has_text(e, "Too many open files") || i == 0) throw;
            return i;
        }
    return -1;
}

}  // namespace

// The sanitizers need descriptors themselves.
TEST_CASE("where one rank has no descriptor left nobody gets a communicator, and all go on" *
          doctest::skip(hvd_test::under_asan || hvd_test::under_tsan)) {
    for (const layout& l : {layout{2, 1}, {3, 0}, {3, 1}, {4, 0}, {4, 2}})
        for (const bool all_have_few : {false, true}) {
            INFO(l.ranks, " ranks, ", l.host_size, " on each host (0: all)");
            reports all(l.ranks);
            hvd_test::tcp_ranks job(l.ranks, l.host_size);
            job.start([&](int rank) {
                return reported(all[rank], [&] {
                    auto world = communicator::world();
                    if (all_have_few || rank == 1) {
                        // Gloo has connections beside hvd's.
                        const rlim_t most = std::getenv("HVD_TEST_GLOO") != nullptr ? 60 : 40;
                        const rlimit few{most, most};
                        setrlimit(RLIMIT_NOFILE, &few);
                    }
                    for (int round = 0; round < 2; ++round) {
                        std::vector<communicator> made;
                        const int n = split_without_descriptors(world, made);
                        world.barrier();
                        if (n < 1) throw hvd::error(rank, "no rank had too few descriptors");
                        for (communicator& comm : made) {
                            int x = 1;
                            comm.allreduce(x, hvd::sum);
                            if (x != l.ranks) throw hvd::error(rank, "a wrong sum");
                        }
                    }
                });
            });
            for (int r = 0; r < l.ranks; ++r) {
                CHECK(job.wait_for(r) == 0);
                INFO("rank ", r, ": ", all[r].text);
                CHECK(all[r].kind == report::well);
            }
        }
}

#if defined(HVD_TEST_OPENSSL)
using encrypted = hvd::communicator<hvd::encrypted<hvd::tcp>>;

TEST_CASE("a rank that is killed is named over encrypted connections, though its children live") {
    const auto reduce = [](int, std::atomic<int>& done) {
        auto comm = encrypted::world();
        for (int i = 0; i < 3; ++i) {
            comm.barrier();
            const pid_t child = fork();
            if (child == 0) std::exit(0);  // and says nothing to the others
            waitpid(child, nullptr, 0);
        }
        work(comm, done, 200000);
    };
    on_working_ranks(20, reduce, kill_rank, check_rank);
}

TEST_CASE("a rank that ends in order has left, over encrypted connections") {
    last_rank_leaves([](int rank) {
        auto comm = encrypted::world();
        comm.split(rank % 2).barrier();
        return comm;
    });
}

namespace {
std::unique_ptr<encrypted> kept_to_the_end;  // longer than OpenSSL lives
}

TEST_CASE("ranks of one job use encrypted and plain communicators, and keep some to their end") {
    hvd_test::tcp_ranks job(3, 1);
    job.start([](int rank) {
        int sum = 0;
        kept_to_the_end = std::make_unique<encrypted>(encrypted::world());
        kept_to_the_end->barrier();
        for (int i = 0; i < 3; ++i) {
            auto plain = communicator::world();
            auto secure = encrypted::world();
            int x = rank, y = 10 * rank;
            plain.allreduce(x, hvd::sum);
            secure.allreduce(y, hvd::sum);
            sum += x + y;
        }
        return sum == 99 ? 0 : 1;
    });
    for (int r = 0; r < 3; ++r) CHECK(job.wait_for(r) == 0);
}
#endif

// ---- at the start -------------------------------------------------------------------------------

namespace {

hvd::tcp_options options_of(int rank, int size, const hvd::detail::rendezvous_server& server,
                            const hvd::detail::shared_secret& secret) {
    hvd::tcp_options o;
    o.rank = rank;
    o.size = size;
    o.rendezvous = "127.0.0.1:" + std::to_string(server.port());
    o.rendezvous_served = true;
    o.secret = std::string_view(hvd::detail::hex_of(secret));
    o.start_timeout = 500ms;
    return o;
}

}  // namespace

TEST_CASE("ranks may be threads that give their options") {
    const auto secret = hvd::detail::new_secret();
    hvd::detail::rendezvous_server server(0, 3, secret, 20s);
    std::thread serves([&] { CHECK(server.serve()); });
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r)
        threads.emplace_back([&, r] {
            auto own = options_of(r, 3, server, secret);
            own.start_timeout = 20s;
            own.host_id = "host" + std::to_string(r);
            for (int i = 0; i < 3; ++i) {  // the ranks meet once
                auto comm = communicator::world(own);
                int x = r;
                comm.allreduce(x, hvd::sum);
                CHECK(x == 3);
                CHECK(comm.cross_size() == 3);
            }
        });
    for (std::thread& t : threads) t.join();
    serves.join();
}

#if defined(HVD_TEST_OPENSSL)
TEST_CASE("ranks that encrypt and ranks that don't make no communicator, and say why") {
    for (const int encrypts : {0, 1}) {
        const auto secret = hvd::detail::new_secret();
        hvd::detail::rendezvous_server server(0, 2, secret, 20s);
        std::thread serves([&] { CHECK(server.serve()); });
        auto own = options_of(0, 2, server, secret);
        own.start_timeout = 20s;
        std::thread other([&, own]() mutable {
            own.rank = encrypts;
            const std::string why = "rank " + std::to_string(1 - encrypts) +
                                    " is gone (it does not encrypt its connections, and this "
                                    "rank does)";
            CHECK_THROWS_WITH_AS(encrypted::world(own), doctest::Contains(why.c_str()),
                                 hvd::peer_error);
        });
        own.rank = 1 - encrypts;
        const std::string why = "rank " + std::to_string(encrypts) +
                                " is gone (it encrypts its connections, and this rank does not)";
        CHECK_THROWS_WITH_AS(communicator::world(own), doctest::Contains(why.c_str()),
                             hvd::peer_error);
        other.join();
        serves.join();
    }
}

TEST_CASE("encrypted snippet") {
    //! [encrypted]
    auto world = hvd::communicator<hvd::encrypted<hvd::tcp>>::world();  // HVD_RANK, HVD_SIZE, …
    std::vector<float> gradient(1000, 1);
    world.allreduce(gradient, hvd::average);
    //! [encrypted]
    CHECK(gradient.back() == 1);
}
#endif

TEST_CASE("a rank that is missing at the start is named to those that have come") {
    const auto secret = hvd::detail::new_secret();
    hvd::detail::rendezvous_server server(0, 3, secret, 500ms);
    std::thread serves([&] { CHECK_THROWS_AS(server.serve(), hvd::timeout_error); });
    std::vector<std::thread> threads;
    for (const int r : {0, 2})
        threads.emplace_back([&, r] {
            CHECK_THROWS_WITH_AS(communicator::world(options_of(r, 3, server, secret)),
                                 doctest::Contains("rank 1 of 3 did not come in time"),
                                 hvd::timeout_error);
        });
    for (std::thread& t : threads) t.join();
    serves.join();
}

TEST_CASE("an option that only MPI takes is refused on all ranks") {
    const auto secret = hvd::detail::new_secret();
    hvd::detail::rendezvous_server server(0, 2, secret, 20s);
    std::thread serves([&] { server.serve(); });
    std::vector<std::thread> threads;
    for (const int r : {0, 1})
        threads.emplace_back([&, r] {
            CHECK_THROWS_WITH_AS(
                communicator::world(options_of(r, 2, server, secret), {.mpi_between_nodes = true}),
                doctest::Contains("this backend has no MPI"), hvd::usage_error);
        });
    for (std::thread& t : threads) t.join();
    serves.join();
}

TEST_CASE("rank 0 serves the rendezvous if no launcher does, and names who does not come") {
    const auto secret = hvd::detail::new_secret();
    std::uint16_t port = 0;
    {
        const hvd::detail::listening_socket reserved(0);
        port = reserved.port();
    }
    hvd::tcp_options own;
    own.size = 2;
    own.rendezvous = "127.0.0.1:" + std::to_string(port);
    own.secret = std::string_view(hvd::detail::hex_of(secret));
    own.start_timeout = 300ms;
    own.rank = 0;
    CHECK_THROWS_WITH_AS(communicator::world(own),
                         doctest::Contains("rank 1 of 2 did not come in time"), hvd::timeout_error);
    own.start_timeout = 20s;
    std::thread other([own]() mutable {
        own.rank = 1;
        auto comm = communicator::world(own);
        comm.barrier();
        CHECK(comm.local_size() == 2);
    });
    auto comm = communicator::world(own);
    comm.barrier();
    other.join();
}

TEST_CASE("wrong options say which one is wrong") {
    const auto refused = [](const char* text, auto change) {
        hvd::tcp_options own;
        own.rank = 0;
        own.size = 2;
        own.rendezvous = "127.0.0.1:7000";
        own.rendezvous_served = true;
        own.secret = std::string(64, 'a');
        own.start_timeout = 100ms;
        change(own);
        CHECK_THROWS_WITH_AS(communicator::world(own), doctest::Contains(text), hvd::usage_error);
    };
    refused("HVD_RANK is missing", [](auto& o) { o.rank = -1; });
    refused("HVD_SIZE is missing", [](auto& o) { o.size = 0; });
    refused("HVD_RANK is 2, and a job of HVD_SIZE=2 has the ranks 0 to 1",
            [](auto& o) { o.rank = 2; });
    refused("HVD_RENDEZVOUS is missing", [](auto& o) { o.rendezvous = ""; });
    refused("it takes a host and a port", [](auto& o) { o.rendezvous = "node1"; });
    refused("names the host no-such-host.invalid",
            [](auto& o) { o.rendezvous = "no-such-host.invalid:1"; });
    refused("the secret of the job, HVD_SECRET_FILE, is missing", [](auto& o) { o.secret = ""; });
    refused("HVD_SECRET has no secret", [](auto& o) { o.secret = "abc"; });
    refused("no such interface", [](auto& o) { o.network_interface = "nosuch0"; });
    refused("HVD_ADDRESS names the host no-such-host.invalid",
            [](auto& o) { o.address = "no-such-host.invalid"; });
}

TEST_CASE("a process without a launcher is a job of one, and reads the environment strictly") {
    auto comm = communicator::world();
    CHECK(comm.size() == 1);
    setenv("HVD_RANK", "1x", 1);
    CHECK_THROWS_WITH_AS(communicator::world(), doctest::Contains("HVD_RANK is '1x'"),
                         hvd::usage_error);
    unsetenv("HVD_RANK");
    hvd::tcp_options own;
    own.secret = std::string(64, 'a');
    CHECK(hvd::describe(own).find("aaaa") == std::string::npos);
}

}  // namespace faults_tests
