// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#ifdef HVD_ELASTIC_OVER_MPI
#include <hvd/elastic_mpi.hpp>
#else
#include <hvd/elastic.hpp>
#endif

// One process of an elastic job, for drive.py: worker BOARD SLOT STEPS MICROSECONDS THREADS trains,
// and worker coordinate serves the job as a launcher does, until its standard input ends. Over MPI
// the slot is the rank. The result depends on the steps alone, not on the ranks. HVD_TEST_KEEP is a
// directory for its state. With HVD_TEST_LOCAL the state has objects that differ between ranks, of
// which one has up to so many elements. Over MPI the rank HVD_TEST_DIES dies before it takes part,
// and HVD_TEST_DIES_IN_MAKING while the ranks make the communicator of their first epoch.

namespace {

// A process shows this to drive.py, by its slot.
struct alignas(128) column {
    std::atomic<std::int64_t> step, committed_at, epochs, size, thrown_back, began_at, process,
        ended, gone, went_back, in_epoch;
};

column& column_of(const char* board, int slot) {
    const int file = open(board, O_RDWR);
    void* const memory =
        mmap(nullptr, 64 * sizeof(column), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || memory == MAP_FAILED) std::abort();
    close(file);
    return static_cast<column*>(memory)[slot];
}

std::int64_t nanoseconds() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return std::int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

constexpr std::size_t elements = 20'000;
constexpr std::int64_t samples = 12;

std::int64_t value(std::int64_t step, std::int64_t sample, std::size_t i) {
    return (step * 7 + sample * 3 + std::int64_t(i)) % 11;
}

hvd::tensor_view<double> part_of(std::vector<double>& all, int begin, int end) {
    return hvd::view(all.data() + begin, std::size_t(end - begin));
}

#ifdef HVD_ELASTIC_OVER_MPI
using backend = hvd::mpi;
#else
using backend = hvd::tcp;
int coordinate() {
    using namespace hvd::detail;
    const auto own = launched_options<hvd::tcp_options>();
    const auto bounds = launched_options<hvd::elastic::bounds>();
    coordinator_server server(coordinator_rules_of(own, bounds), membership_secret(secret_of(own)));
    std::printf("%d\n", int(server.port()));
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    return 0;
}
#endif

// Threads that compute beside the ranks.
class neighbours {
public:
    explicit neighbours(int threads) {
        for (int i = 0; i < threads; ++i)
            std::thread([this] {
                while (!ended_) ++work_;
            }).detach();
    }

private:
    std::atomic<bool> ended_{false};
    std::atomic<std::int64_t> work_{0};
};

volatile sig_atomic_t should_leave = 0;

// Each sample has an account, which depends on the steps alone. A rank has some of them.
struct account {
    std::int64_t sample, value;
    void step(std::int64_t number) { value = (value * 31 + number) % 1'000'003; }
    static account of(std::int64_t sample, std::int64_t steps) {
        account a{sample, sample};
        for (std::int64_t n = 0; n < steps; ++n) a.step(n);
        return a;
    }
};

struct accounts {
    std::vector<account> mine;
    hvd::elastic::local<std::vector<account>> shard{mine};
    std::vector<std::int64_t> steps;  // their number, again and again
    hvd::elastic::local<std::vector<std::int64_t>> large{steps};
    std::size_t most_steps = 0;
    std::int64_t wrong = 0;

    // Takes over those of lost ranks. All must be there once, unless copies are lost, too.
    template <class Comm>
    void begin(Comm& comm, std::int64_t step, column& shown) {
        if (step == 0) mine.clear();
        for (const auto& lost : shard.copies_of_lost())
            mine.insert(mine.end(), lost.object.begin(), lost.object.end());
        for (const auto& lost : large.copies_of_lost()) check(lost.object, step);
        std::vector<std::int64_t> owners(samples, 0);
        for (const account& a : mine) ++owners[std::size_t(a.sample)];
        comm.allreduce(owners, hvd::sum);
        for (std::int64_t s = 0; s < samples; ++s) {
            if (owners[std::size_t(s)] > 1) complain("twice", s);
            if (owners[std::size_t(s)] != 0) continue;
            if (step > 0 && shard.lost_without_copy().empty()) complain("nowhere", s);
            if (s % comm.size() == comm.rank()) mine.push_back(account::of(s, step));
        }
        shown.gone += std::int64_t(shard.lost_without_copy().size());
        check(step);
    }
    void do_step(std::int64_t number) {
        for (account& a : mine) a.step(number);
        steps.assign(most_steps - most_steps * std::size_t(number % 5) / 8, number + 1);
    }
    void check(std::int64_t step) {
        check(steps, step);
        for (const account& a : mine)
            if (a.value != account::of(a.sample, step).value) complain("wrong", a.sample);
    }

private:
    void check(const std::vector<std::int64_t>& all, std::int64_t step) {
        for (const std::int64_t s : all)
            if (s != step) return complain("of another step", s);
    }
    void complain(const char* what, std::int64_t sample) {
        std::fprintf(stderr, "object %ld is %s\n", long(sample), what);
        ++wrong;
    }
};

template <class State>
int train(column& shown, std::int64_t steps, int pause, State& state, std::vector<double>& weights,
          accounts* local) {
    std::vector<double> gradient(elements);
    state.on_reset([&](int, int size) {
        if (shown.epochs == 0) shown.began_at = state.step();
        shown.in_epoch = 0;
        ++shown.epochs;
        shown.size = size;
    });
    std::int64_t committed = 0, held = 0;
    hvd::elastic::options options;
    options.communicator = hvd::detail::launched_options<hvd::communicator_options>();
    const auto work = [&](auto& comm) {
        if (state.step() < committed) shown.thrown_back = 1;
        if (state.step() < held) ++shown.went_back;
        if (local) local->begin(comm, state.step(), shown);
        auto neighbour = comm.split(comm.rank() / 2);
        hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<double>{1},
                                             {.op = hvd::sum});
        for (const auto& [from, to] : {std::pair(0, 2), std::pair(2, int(elements))})
            optimizer.register_parameter(std::to_string(from), part_of(weights, from, to),
                                         part_of(gradient, from, to));
        while (state.step() < steps) {
            if (should_leave) throw std::runtime_error("the driver lets this process leave");
            neighbour.barrier();
            gradient.assign(elements, 0);
            for (std::int64_t s = comm.rank(); s < samples; s += comm.size())
                for (std::size_t i = 0; i < elements; ++i)
                    gradient[i] -= double(value(state.step(), s, i));
            // Every second step leaves the commit to ask whether newcomers wait.
            if (state.step() % 2 == 0) {
                optimizer.step();
            } else {
                comm.allreduce(gradient, hvd::sum);
                for (std::size_t i = 0; i < elements; ++i) weights[i] -= gradient[i];
            }
            usleep(useconds_t(pause));
            if (local) local->do_step(state.step());
            else committed = state.step() + 1;
            try {
                state.commit();
                committed = state.step();
            } catch (const hvd::elastic::membership_change&) {
                committed = state.step();
                throw;
            } catch (...) {
                held = state.step();
                throw;
            }
            shown.step = state.step();
            shown.committed_at = nanoseconds();
            ++shown.in_epoch;
        }
    };
    hvd::elastic::run<backend>(state, work, options);
    if (local) local->check(steps);
    if (local && local->wrong > 0) return 6;
    for (std::size_t i = 0; i < elements; i += 997) {
        std::int64_t expected = 0;
        for (std::int64_t n = 0; n < steps; ++n)
            for (std::int64_t s = 0; s < samples; ++s) expected += value(n, s, i);
        if (weights[i] == double(expected)) continue;
        std::fprintf(stderr, "weight %zu is %.0f, and must be %ld\n", i, weights[i],
                     long(expected));
        return 3;
    }
    return shown.thrown_back != 0 ? 4 : 0;
}

int train(column& shown, std::int64_t steps, int pause) {
    std::vector<double> weights(elements, 0);
    if (const char* most = std::getenv("HVD_TEST_LOCAL")) {
        accounts local;
        local.most_steps = std::size_t(std::atoll(most));
        hvd::elastic::state state(weights, local.shard, local.large);
        return train(shown, steps, pause, state, weights, &local);
    }
    hvd::elastic::state state(weights);
    if (const char* directory = std::getenv("HVD_TEST_KEEP")) state.persist_in(directory);
    return train(shown, steps, pause, state, weights, nullptr);
}

}  // namespace

#ifdef HVD_ELASTIC_OVER_MPI
// hvd asks for the largest tag when it makes the communicator of an epoch.
extern "C" int MPI_Comm_get_attr(MPI_Comm comm, int key, void* value, int* is_set) {
    int slot = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &slot);
    const char* const dies = std::getenv("HVD_TEST_DIES_IN_MAKING");
    if (key == MPI_TAG_UB && dies != nullptr && std::atoi(dies) == slot) {
        usleep(500'000);  // the others have heard of the epoch
        raise(SIGKILL);
    }
    return PMPI_Comm_get_attr(comm, key, value, is_set);
}
#endif

int main(int argc, char** argv) {
#ifdef HVD_ELASTIC_OVER_MPI
    const hvd::mpi_environment environment(argc, argv);
    int slot = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &slot);
    if (const char* dies = std::getenv("HVD_TEST_DIES"); dies != nullptr && std::atoi(dies) == slot)
        raise(SIGKILL);
#else
    if (argc == 2 && std::strcmp(argv[1], "coordinate") == 0) return coordinate();
    const int slot = argc > 2 ? std::atoi(argv[2]) : 0;
#endif
    if (argc != 6) return 2;
    column& shown = column_of(argv[1], slot);
    shown.process = getpid();
    int code = 5;
    try {
        signal(SIGUSR1, [](int) { should_leave = 1; });
        static const neighbours work_on(std::atoi(argv[5]));
        code = train(shown, std::atoll(argv[3]), std::atoi(argv[4]));
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
    }
    shown.ended = 1 + code;  // where a launcher has other codes
#ifndef HVD_ELASTIC_OVER_MPI
    std::_Exit(code);
#endif
    return code;
}
