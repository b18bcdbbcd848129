// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <hvd/arena.hpp>
#include <hvd/elastic.hpp>
#include <hvd/engine.hpp>
#include <hvd/tcp.hpp>

#include "elastic/elastic_test.hpp"
#include "hvd_test.hpp"
#include "tcp_ranks.hpp"

// The system refuses one rank the n-th descriptor, thread, piece of memory or length of a file, for
// every n until something can be made without a refusal. The linker puts the functions below in the
// places of the system's (--wrap), so that no limit of the machine is reached.

namespace without_resources_tests {

using namespace std::chrono_literals;

namespace {

enum class resource { descriptors, memory, threads, file_size };
enum class shortage { once, from_then_on };

std::atomic<int> scarce = -1;  // the resource that is counted, or -1
std::atomic<long> left = 0;
std::atomic<bool> refused = false, lasting = false;

bool refuses(resource wanted) {
    if (scarce != int(wanted) || (wanted == resource::descriptors && lasting)) return false;
    if (left-- > 0) return false;
    left = lasting ? 0 : LONG_MAX / 2;
    return refused = true;
}

// The least number that the next n descriptors do not have.
rlim_t beyond(long n) {
    int number = -1;
    while (n >= 0)
        if (fcntl(++number, F_GETFD) < 0) --n;
    return rlim_t(number);
}

class shortage_here {
public:
    shortage_here(bool here, resource what, shortage how, long n) {
        refused = false;
        lasting = how == shortage::from_then_on;
        left = n;
        getrlimit(RLIMIT_NOFILE, &before_);
        // Descriptors come back, so that a real limit says when they are there.
        limits_ = here && lasting && what == resource::descriptors;
        const rlimit few{beyond(n), before_.rlim_max};
        if (limits_) setrlimit(RLIMIT_NOFILE, &few);
        scarce = here ? int(what) : -1;
    }
    ~shortage_here() {
        scarce = -1;
        if (limits_) setrlimit(RLIMIT_NOFILE, &before_);
    }

private:
    rlimit before_{};
    bool limits_ = false;
};

int refuse_with(int code) {
    errno = code;
    return -1;
}

// Notes that the limit refused a descriptor.
int noted(int made) {
    if (made < 0 && errno == EMFILE) refused = true;
    return made;
}

}  // namespace
}  // namespace without_resources_tests

using without_resources_tests::noted, without_resources_tests::refuse_with,
    without_resources_tests::refuses, without_resources_tests::resource;

extern "C" {

int __real_socket(int, int, int);
int __wrap_socket(int domain, int type, int protocol) {
    if (refuses(resource::descriptors)) return refuse_with(EMFILE);
    return noted(__real_socket(domain, type, protocol));
}
int __real_accept4(int, sockaddr*, socklen_t*, int);
int __wrap_accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
    // Only where a connection has come a descriptor is needed.
    const int made = noted(__real_accept4(listener, address, length, flags));
    if (made < 0 || !refuses(resource::descriptors)) return made;
    close(made);
    return refuse_with(EMFILE);
}
int __real_eventfd(unsigned, int);
int __wrap_eventfd(unsigned count, int flags) {
    if (refuses(resource::descriptors)) return refuse_with(EMFILE);
    return noted(__real_eventfd(count, flags));
}
int __real_open(const char*, int, mode_t);
int __wrap_open(const char* path, int flags, mode_t mode) {
    if (refuses(resource::descriptors)) return refuse_with(EMFILE);
    return noted(__real_open(path, flags, mode));
}
int __real_shm_open(const char*, int, mode_t);
int __wrap_shm_open(const char* path, int flags, mode_t mode) {
    if (refuses(resource::descriptors)) return refuse_with(EMFILE);
    return noted(__real_shm_open(path, flags, mode));
}
int __real_memfd_create(const char*, unsigned);
int __wrap_memfd_create(const char* name, unsigned flags) {
    if (refuses(resource::descriptors)) return refuse_with(EMFILE);
    return noted(__real_memfd_create(name, flags));
}
int __real_ftruncate(int, off_t);
int __wrap_ftruncate(int file, off_t bytes) {
    if (refuses(resource::memory)) return refuse_with(ENOSPC);
    return __real_ftruncate(file, bytes);
}
int __real_madvise(void*, size_t, int);
int __wrap_madvise(void* memory, size_t bytes, int advice) {
    // Hints, and pages that go back, need nothing.
    if (advice == 23 /* MADV_POPULATE_WRITE */ && refuses(resource::memory))
        return refuse_with(ENOMEM);
    return __real_madvise(memory, bytes, advice);
}
void* __real_mmap(void*, size_t, int, int, int, off_t);
void* __wrap_mmap(void* at, size_t bytes, int rights, int flags, int file, off_t begin) {
    if (refuses(resource::memory)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(at, bytes, rights, flags, file, begin);
}
int __real_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int __wrap_pthread_create(pthread_t* made, const pthread_attr_t* how, void* (*body)(void*),
                          void* argument) {
    if (refuses(resource::threads)) return EAGAIN;
    return __real_pthread_create(made, how, body, argument);
}
int __real_getrlimit(int, rlimit*);
int __wrap_getrlimit(int what, rlimit* limit) {
    const int status = __real_getrlimit(what, limit);
    if (what == RLIMIT_FSIZE && refuses(resource::file_size)) limit->rlim_cur = 4096;
    return status;
}

}  // extern "C"

namespace without_resources_tests {
namespace {

using communicator = hvd::communicator<hvd::tcp>;

// The memory of the other ranks' complaints.
struct complaint {
    char text[600];
};

[[noreturn]] void complain(const std::string& what) { throw std::runtime_error(what); }

void check_sum(communicator& comm, const std::string& when) {
    std::vector<int> x(1000, comm.rank());
    comm.allreduce(x, hvd::sum);
    if (x.front() != comm.size() * (comm.size() - 1) / 2 || x.back() != x.front())
        complain("a wrong sum " + when);
}

int greatest(communicator& comm, int mine) {
    comm.allreduce(mine, hvd::max);
    return mine;
}

std::size_t open_files() {
    std::size_t n = 0;
    DIR* const all = opendir("/proc/self/fd");
    while (readdir(all) != nullptr) ++n;
    closedir(all);
    return n;
}
std::size_t shared_mappings() {
    std::ifstream maps("/proc/self/maps");
    std::size_t n = 0;
    for (std::string line; std::getline(maps, line);)
        n += line.find("memfd:hvd") != line.npos || line.find("/hvd-") != line.npos;
    return n;
}

bool names(const std::string& text, resource what) {
    const auto has = [&](const char* part) { return text.find(part) != text.npos; };
    switch (what) {
        case resource::descriptors: return has("Too many open files");
        case resource::memory: return has("memory") || has("No space left");
        case resource::threads: return has("thread");
        case resource::file_size: return has("File too large");
    }
    return false;
}

constexpr resource resources[] = {resource::descriptors, resource::memory, resource::threads,
                                  resource::file_size};
const char* const names_of_resources[] = {"descriptors", "memory", "threads", "file size"};

// Makes something of `parent` for every n.
using make = std::function<std::function<void()>(communicator& parent)>;

void check_making(communicator& world, resource what, shortage how, int victim, const make& makes) {
    for (long n = 0;; ++n) {
        std::string text;
        int failed = 0;
        std::function<void()> use;
        {
            const shortage_here here(world.rank() == victim, what, how, n);
            try {
                use = makes(world);
            } catch (const std::exception& e) {
                text = e.what();
                failed = 1;
            }
        }
        const std::string at = " at acquisition " + std::to_string(n) + " of rank " +
                               std::to_string(victim) + ": " + text;
        if (failed == 1 && !names(text, what)) complain("the resource is not named" + at);
        check_sum(world, "of the parent" + at);
        const int any = greatest(world, failed), all = -greatest(world, -failed);
        if (any != all) complain("some ranks have it, and others not" + at);
        if (use) use();
        use = nullptr;
        const int more = greatest(world, refused ? 1 : 0);
        if (more == 0) return;
        if (n > 300) complain("there is no end");
    }
}

std::function<void()> uses(communicator made) {
    return [kept = std::make_shared<communicator>(std::move(made))] { check_sum(*kept, "of it"); };
}

struct layout {
    int ranks, host_size;
};

constexpr layout layouts[] = {{2, 0}, {3, 0}, {3, 1}, {4, 2}};

// One for each rank, in memory that its process shares with this one.
template <class T>
class of_ranks {
public:
    explicit of_ranks(int ranks)
        : bytes_(sizeof(T) * std::size_t(ranks)),
          all_(static_cast<T*>(
              mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
    of_ranks(const of_ranks&) = delete;
    ~of_ranks() { munmap(all_, bytes_); }
    T& operator[](int rank) const { return all_[rank]; }

private:
    std::size_t bytes_;
    T* all_;
};

void store(complaint& to, const char* text) { std::strncpy(to.text, text, sizeof to.text - 1); }

// Runs f(rank) on the ranks of new jobs, and expects no complaint.
void on_jobs(const std::function<void(int)>& f) {
    for (const layout& l : layouts) {
        INFO(l.ranks, " ranks, ", l.host_size, " on each host (0: all)");
        const of_ranks<complaint> complaints(l.ranks);
        {
            hvd_test::tcp_ranks job(l.ranks, l.host_size);
            job.start([&](int rank) {
                alarm(100);  // a rank that hangs ends
                try {
                    f(rank);
                } catch (const std::exception& e) {
                    store(complaints[rank], e.what());
                }
                return 0;
            });
            for (int r = 0; r < l.ranks; ++r) {
                CHECK(job.wait_for(r) == 0);
                CHECK(std::string(complaints[r].text) == "");
            }
        }
    }
}

// The outcome of the first world of a rank.
struct beginning {
    bool is_made, was_refused;
    complaint why;
};

// The n-th descriptor, thread and so on is refused to the victim while a job begins. As hvdrun
// does, this ends the wait for a rank that has failed. Returns false if the victim needed none.
bool check_beginning(const layout& l, resource what, int victim, long n) {
    const of_ranks<beginning> all(l.ranks);
    hvd_test::tcp_ranks job(l.ranks, l.host_size);
    job.start([&](int rank) {
        alarm(100);  // a rank that hangs ends
        setenv("HVD_START_TIMEOUT", "5s", 1);
        beginning& mine = all[rank];
        // The others have come when the rendezvous is stopped, or wait for that time.
        if (rank == victim) std::this_thread::sleep_for(50ms);
        std::optional<communicator> world;
        {
            const shortage_here here(rank == victim, what, shortage::from_then_on, n);
            try {
                world = communicator::world();
            } catch (const std::exception& e) {
                store(mine.why, e.what());
            }
            mine.was_refused = rank == victim && refused;
        }
        mine.is_made = world.has_value();
        if (world) try {
                check_sum(*world, "of the first world");
            } catch (const std::exception& e) {
                store(mine.why, e.what());
            }
        return mine.is_made ? 0 : 1;
    });
    INFO("short of ", std::string(names_of_resources[int(what)]), " at acquisition ", n,
         " of rank ", victim);
    if (job.wait_for(victim) != 0) job.stop_rendezvous();
    for (int r = 0; r < l.ranks; ++r) {
        if (r != victim) job.wait_for(r);
        INFO("rank ", r, ": ", std::string(all[r].why.text));
        CHECK(all[r].is_made == all[victim].is_made);
        CHECK(all[r].is_made == (all[r].why.text[0] == 0));
    }
    const std::string why = all[victim].why.text;
    if (!all[victim].is_made) CHECK(names(why, what));
    return all[victim].was_refused;
}

// The outcome of the part of a process in an elastic job.
struct part {
    bool was_refused;
    double weight;
    complaint why;
};

constexpr int elastic_steps = 5;

void train(part& mine, bool is_victim, resource what, long n, hvd::elastic::options o) {
    alarm(100);  // a process that hangs ends
    o.tcp.start_timeout = 500ms;
    double weight = 0;
    hvd::elastic::state state(weight);
    const shortage_here here(is_victim, what, shortage::from_then_on, n);
    try {
        hvd::elastic::run(
            state,
            [&](auto& comm) {
                while (state.step() < elastic_steps) {
                    double one = 1;
                    comm.allreduce(one, hvd::average);
                    weight += one;
                    state.commit();
                }
            },
            o);
    } catch (const std::exception& e) {
        store(mine.why, e.what());
    }
    mine.weight = weight;
    mine.was_refused = is_victim && refused;
}

// A process that a busy machine has kept from meeting the others in half a second.
bool is_late(const std::string& why) {
    return why.find("has ended before this process could take part") != why.npos;
}

// The n-th descriptor, thread and so on is refused to one process of an elastic job, and all after
// it. Returns false if it needed none.
bool check_elastic_job(resource what, long n) {
    constexpr int ranks = 3, victim = 2;  // the first one coordinates
    const of_ranks<part> all(ranks);
    const hvd_test::elastic_job job(ranks);
    pid_t processes[ranks];
    std::fflush(stdout);
    for (int r = 0; r < ranks; ++r)
        if (processes[r] = fork(); processes[r] == 0) {
            train(all[r], r == victim, what, n, job.options(r));
            _exit(0);
        }
    for (const pid_t process : processes) {
        int status = 0;
        waitpid(process, &status, 0);
        CHECK(status == 0);
    }
    INFO("short of ", std::string(names_of_resources[int(what)]), " at acquisition ", n);
    const std::string why = all[victim].why.text;
    if (!why.empty() && !is_late(why)) CHECK(names(why, what));
    for (int r = 0; r < ranks; ++r) {
        if (r == victim && !why.empty()) continue;
        if (r > 0 && is_late(all[r].why.text)) continue;
        CHECK(std::string(all[r].why.text) == "");
        CHECK(all[r].weight == elastic_steps);
    }
    return all[victim].was_refused;
}

// Connections of a communicator that has ended go when the next one is made.
void check_leaks(communicator& world, std::size_t files, std::size_t mappings) {
    const std::size_t most = files + 2 * std::size_t(world.size());
    for (int i = 0; i < 300; ++i) {
        world.split(0, world.rank());
        const bool leaks = open_files() > most || shared_mappings() > mappings;
        if (greatest(world, leaks ? 1 : 0) == 0) return;
        std::this_thread::sleep_for(10ms);
    }
    complain("descriptors: " + std::to_string(files) + " and then " + std::to_string(open_files()) +
             ", segments: " + std::to_string(mappings) + " and then " +
             std::to_string(shared_mappings()));
}

void check_all(resource what, const make& makes) {
    on_jobs([&](int) {
        auto world = communicator::world();
        const std::size_t files = open_files(), mappings = shared_mappings();
        for (const shortage how : {shortage::once, shortage::from_then_on})
            for (const int victim : {0, world.size() - 1})
                check_making(world, what, how, victim, makes);
        check_leaks(world, files, mappings);
    });
}

void check_all_resources(const make& makes) {
    for (const resource what : resources) {
        INFO("short of ", std::string(names_of_resources[int(what)]));
        check_all(what, makes);
    }
}

}  // namespace

TEST_CASE("a split is made on all ranks or on none, whatever the system refuses") {
    check_all_resources([](communicator& c) { return uses(c.split(0, c.rank())); });
}

TEST_CASE("the first world is made on all ranks or on none, whatever the system refuses") {
    for (const layout& l : layouts)
        for (const resource what : resources)
            for (const int victim : {0, l.ranks - 1})
                for (long n = 0; check_beginning(l, what, victim, n); ++n) REQUIRE(n < 300);
}

TEST_CASE("a process that lacks something leaves an elastic job, and the others end it") {
    for (const resource what : resources)
        for (long n = 0; check_elastic_job(what, n); ++n) REQUIRE(n < 300);
}

TEST_CASE("a further world is made on all ranks or on none, whatever the system refuses") {
    check_all_resources([](communicator&) { return uses(communicator::world()); });
}

TEST_CASE("a plan is made on all ranks or on none, whatever the system refuses") {
    check_all_resources([](communicator& c) {
        auto x = std::make_shared<std::vector<float>>(1000, 1.f);
        auto plan = std::make_shared<decltype(c.plan_allreduce(*x, hvd::sum))>(
            c.plan_allreduce(*x, hvd::sum));
        return [plan, x, ranks = c.size()] {
            plan->run();
            if (x->back() != float(ranks)) complain("a wrong sum of a plan");
        };
    });
}

TEST_CASE("an engine is made on all ranks or on none, whatever the system refuses") {
    check_all_resources([](communicator& c) {
        auto engine = std::make_shared<hvd::engine<hvd::tcp>>(c);
        return [=] {
            std::vector<int> x(1000, 1);
            engine->allreduce("x", x, hvd::sum).wait();
            if (x.back() != engine->size()) complain("a wrong sum of an engine");
        };
    });
}

TEST_CASE("an arena is made on all ranks or on none, whatever the system refuses") {
    check_all_resources([](communicator& c) {
        // A communicator of its own takes its memory with it.
        auto own = std::make_shared<communicator>(c.split(0, c.rank()));
        auto arena = std::make_shared<hvd::arena>(*own, 100000);
        return [=] {
            const auto x = arena->tensor<int>(hvd::shape(1000));
            std::fill_n(x.data(), 1000, 1);
            own->allreduce(x, hvd::sum);
            if (x.data()[999] != own->size()) complain("a wrong sum in an arena");
        };
    });
}

}  // namespace without_resources_tests
