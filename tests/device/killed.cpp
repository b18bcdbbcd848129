// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Ranks over NCCL that are processes, with an emulated GPU each. One is killed by SIGKILL.

#include "newer_nccl.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <hvd/engine_device.hpp>
#include <hvd/train_device.hpp>

#include "../elastic/elastic_test.hpp"
#include "forked.hpp"
#include "peer_error.hpp"
#include "reference.hpp"
#include "support.hpp"
#include "tcp_ranks.hpp"
#include "trainer.hpp"

namespace killed_tests {

using namespace device_test;
using world_type = hvd::communicator<hvd::tcp>;

namespace {

constexpr int killed = 128 + SIGKILL;

// Prints what is wrong, in a process that doctest does not see.
class reporter {
public:
    explicit reporter(int rank) : rank_(rank) {}
    void operator()(bool right, const std::string& what) {
        if (right) return;
        std::fprintf(stderr, "wrong on rank %d: %s\n", rank_, what.c_str());
        ++wrong_;
    }
    int status() const { return wrong_ == 0 ? 0 : 1; }

private:
    int rank_;
    int wrong_ = 0;
};

// Runs f(world, report) in processes that hvd::tcp connects. Returns the status of each.
template <class F>
std::vector<int> on_processes(int ranks, F f) {
    hvd_test::tcp_ranks job(ranks);
    job.start([&](int rank) {
        reporter report(rank);
        try {
            auto world = world_type::world();
            f(world, report);
        } catch (const std::exception& e) {
            report(false, e.what());
        }
        report(emulation::live_objects() == 0, "something is left");
        for (const std::string& difference : emulation::disagreements()) report(false, difference);
        return report.status();
    });
    std::vector<int> ends;
    for (int rank = 0; rank < ranks; ++rank) {
        const int status = job.wait_for(rank);
        ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    return ends;
}

// All end well, except the last one, which is killed.
std::vector<int> last_is_killed(int ranks) {
    std::vector<int> ends(std::size_t(ranks), 0);
    ends.back() = killed;
    return ends;
}

// ---- communicators ----

template <class Report>
void check_collectives(gpus_type& gpus, std::size_t count, Report& report) {
    for (const auto op : {0, 1, 2, 3}) {
        const auto check = [&](auto which) {
            reference::check_reduction<std::int32_t>(gpus, count, which, report);
            reference::check_reduction<float>(gpus, count, which, report);
        };
        if (op == 0) check(hvd::sum);
        else if (op == 1) check(hvd::min);
        else if (op == 2) check(hvd::max);
        else check(hvd::product);
    }
    reference::check_movements<std::int32_t>(gpus, count, true, report, false);
    reference::check_movements<std::int16_t>(gpus, count, false, report);
    reference::check_uneven_alltoall<double>(gpus, count, report);
}

// Several processes have several communicators, and use them in turns.
void check_parts(gpus_type& gpus, reporter& report) {
    const int n = gpus.size(), r = gpus.rank();
    gpus_type half = gpus.split(r % 2, -r), both = gpus.split(0, n - r);
    float of_half = 0;
    for (int p = r % 2; p < n; p += 2) of_half += float(p + 1);
    for (int i = 0; i < 5; ++i) {
        const tensor<float> x{float(r + 1)}, y{float(r + 1)}, z{float(r)};
        half.allreduce(x.view(), hvd::sum);
        both.allreduce(y.view(), hvd::sum);
        gpus.broadcast(z.view(), hvd::root{n - 1});
        report(x.values()[0] == of_half, "the sum of a half");
        report(y.values()[0] == float(n * (n + 1) / 2), "the sum of all, in another order");
        report(z.values()[0] == float(n - 1), "a broadcast");
    }
    report(both.rank() == n - 1 - r, "the order of a split");
}

// A process ends while its calls wait, and has a plan, an arena, and a stream that waits.
void give_up_on_the_last(gpus_type& gpus, bool by_stream, reporter& report) {
    const tensor<float> x{1}, y{2};
    cudaStream_t stream{};
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    {
        auto plan = gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::sum);
        hvd::device_arena arena(gpus, 4096);
        const auto inside = arena.tensor<float>(hvd::shape(100));
        gpus.barrier();
        if (gpus.rank() + 1 == gpus.size()) emulation::kill_process("ncclDevKernel", 1);
        const std::string late = peer_error_of([&] {
            auto request = gpus.allreduce_async(inside, hvd::sum);
            if (!by_stream) return request.wait();
            request.wait(stream);
            cudaStreamSynchronize(stream);
            gpus.barrier();
        });
        report(late.find("allreduce on rank " + std::to_string(gpus.rank())) != std::string::npos,
               "a call without a killed rank ends with: " + late);
    }
    cudaStreamDestroy(stream);
}

// The kinds of things that end while a call waits for a dead rank.
enum class ending : std::uint8_t {
    plan,
    arena,
    registration,
    communicator,
    part,
    engine,
    optimizer,
    captured_plan,
    stream,  // on which others wait for the call
    memory
};

class things {
public:
    // The ranks use each thing once, so that NCCL has connected them.
    things(world_type& world, ending what, const hvd::communicator_options& options)
        : world_(world), gpus_(std::in_place, world, options) {
        cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        switch (what) {
            case ending::plan: use_plan(); break;
            case ending::captured_plan: use_plan(), capture(); break;
            case ending::arena: arena_ = std::make_unique<hvd::device_arena>(*gpus_, 4096); break;
            case ending::registration: kept_.emplace(gpus_->register_memory(a_.view())); break;
            case ending::communicator: gpus_->barrier(); break;
            case ending::part: part_.emplace(gpus_->split(0, world.rank())); break;
            case ending::engine: use_engine(); break;
            case ending::optimizer: use_optimizer(); break;
            case ending::stream: break;
            case ending::memory: cudaMalloc(&memory_, 64); break;
        }
    }
    things(const things&) = delete;
    ~things() { end(); }

    cudaStream_t stream() const { return stream_; }

    // In the order in which a user's variables end.
    void end() {
        if (std::exchange(has_ended_, true)) return;
        if (memory_ != nullptr) cudaFree(memory_);
        optimizer_.reset();
        engine_.reset();
        if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
        if (graph_ != nullptr) cudaGraphDestroy(graph_);
        plan_.reset();
        kept_.reset();
        arena_.reset();
        part_.reset();
        gpus_.reset();
        cudaStreamDestroy(stream_);
    }

private:
    using sgd = hvd::optimizers::sgd<float>;
    using plan_type = decltype(std::declval<gpus_type&>().plan_allreduce(
        hvd::fuse(std::declval<tensor<float>&>().view(), std::declval<tensor<float>&>().view()),
        hvd::sum));

    void use_plan() {
        plan_.emplace(gpus_->plan_allreduce(hvd::fuse(a_.view(), b_.view()), hvd::sum));
        plan_->run(stream_);
    }
    void capture() {
        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
        (void)plan_->run_async(stream_);
        cudaStreamEndCapture(stream_, &graph_);
        cudaGraphInstantiate(&executable_, graph_, 0);
        cudaGraphLaunch(executable_, stream_);
        cudaStreamSynchronize(stream_);
    }
    void use_engine() {
        engine_.emplace(world_, *gpus_);
        engine_->allreduce("a", a_.view(), hvd::sum).wait();
    }
    void use_optimizer() {
        optimizer_.emplace(*gpus_, sgd{.rate = 0.5f, .momentum = 0.9f});
        optimizer_->register_parameter("a", a_.view(), b_.view());
        for (int step = 0; step < 3; ++step) optimizer_->step(stream_);
        cudaStreamSynchronize(stream_);
    }

    world_type& world_;
    const tensor<float> a_{1, 2}, b_{3, 4};
    cudaStream_t stream_{};
    cudaGraph_t graph_{};
    cudaGraphExec_t executable_{};
    void* memory_ = nullptr;
    bool has_ended_ = false;
    std::optional<gpus_type> gpus_, part_;
    std::optional<plan_type> plan_;
    std::optional<decltype(std::declval<gpus_type&>().register_memory(
        std::declval<tensor<float>&>().view()))>
        kept_;
    std::unique_ptr<hvd::device_arena> arena_;
    std::optional<decltype(hvd::engine{std::declval<world_type&>(), std::declval<gpus_type&>()})>
        engine_;
    std::optional<decltype(hvd::distributed_optimizer(std::declval<gpus_type&>(), sgd{}))>
        optimizer_;
};

// The last process is killed in a call. Something ends on the others beside it, in this thread or
// in another one.
void end_beside_a_call(world_type& world, ending what, bool by_stream, bool by_thread,
                       reporter& report) {
    const tensor<float> x{1};
    cudaStream_t stream{};
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    {
        gpus_type waiting(world,
                          {.timeout = 500ms * slowness, .destructor_timeout = 200ms * slowness});
        things all(world, what, {.timeout = 30s, .destructor_timeout = 200ms * slowness});
        waiting.barrier();
        world.barrier();
        if (world.rank() + 1 == world.size()) emulation::kill_process("ncclDevKernel", 1);
        auto request = waiting.allreduce_async(x.view(), hvd::sum);
        if (by_stream) request.wait(what == ending::stream ? all.stream() : stream);
        std::thread other;
        const int device = waiting.device();
        if (by_thread)
            other = std::thread([&] {
                cudaSetDevice(device);
                all.end();
            });
        else all.end();
        const std::string late = peer_error_of([&] {
            if (!by_stream) return request.wait();
            cudaStreamSynchronize(stream);
            while (!waiting.is_given_up()) std::this_thread::sleep_for(1ms);
            waiting.barrier();
        });
        if (other.joinable()) other.join();
        report(late.find("did not come in time") != std::string::npos,
               "a call beside which something ends is told: " + late);
        const std::string who = peer_error_of([&] { world.barrier({.timeout = 10s}); });
        report(who.find("rank " + std::to_string(world.size() - 1)) != std::string::npos,
               "the host names the dead rank: " + who);
    }
    cudaStreamDestroy(stream);
}

}  // namespace

TEST_CASE(
    "the deadline of a call holds whatever ends beside it, and the host names the dead rank") {
    for (int number = 0; number <= int(ending::memory); ++number)
        for (const bool by_stream : {false, true}) {
            CAPTURE(number);
            CAPTURE(by_stream);
            // Nobody looks at a limit while the thread that has the request is in CUDA itself.
            const bool by_thread =
                (number + by_stream) % 2 == 0 || (!by_stream && ending(number) == ending::memory);
            CHECK(on_processes(2 + number % 2, [=](world_type& world, reporter& report) {
                      emulation::lock_contexts(number % 3 == 0);
                      end_beside_a_call(world, ending(number), by_stream, by_thread, report);
                  }) == last_is_killed(2 + number % 2));
        }
}

TEST_CASE("an error of the caller's stays, and no thread takes another device, whatever is made") {
    for (int number = 0; number <= int(ending::memory); ++number) {
        CAPTURE(number);
        CHECK(on_processes(2, [=](world_type& world, reporter& report) {
                  cudaSetDevice(1 + world.rank());
                  for (const bool is_stale : {false, true}) {
                      static_cast<void>(cudaGetLastError());
                      if (is_stale) static_cast<void>(cudaSetDevice(99));
                      {
                          const things all(world, ending(number), {.timeout = 30s});
                      }
                      report(
                          cudaGetLastError() == (is_stale ? cudaErrorInvalidDevice : cudaSuccess),
                          "the last error of this thread");
                  }
                  report(emulation::most_devices_of_a_thread() == 1, "the devices of a thread");
              }) == std::vector<int>(2, 0));
    }
}

TEST_CASE("processes make every collective over NCCL, with the values of a serial reference") {
    for (int ranks = 2; ranks <= 4; ++ranks)
        CHECK(on_processes(ranks, [](world_type& world, reporter& report) {
                  gpus_type gpus(world, {.timeout = 30s});
                  for (const std::size_t count :
                       {std::size_t(0), std::size_t(1), std::size_t(1001), std::size_t(20'011)})
                      check_collectives(gpus, count, report);
                  check_parts(gpus, report);
              }) == std::vector<int>(std::size_t(ranks), 0));
}

TEST_CASE("the deadline of a call holds when a process is killed in it, and all ends") {
    for (int ranks = 2; ranks <= 4; ++ranks)
        for (const bool by_stream : {false, true})
            CHECK(on_processes(ranks, [=](world_type& world, reporter& report) {
                      gpus_type gpus(world, {.timeout = 500ms * slowness,
                                             .destructor_timeout = 200ms * slowness});
                      give_up_on_the_last(gpus, by_stream, report);
                  }) == last_is_killed(ranks));
}

TEST_CASE("processes shrink their communicator when one is killed, in a call or before it") {
    for (int ranks = 2; ranks <= 4; ++ranks)
        for (const char* const function : {"ncclAllReduce", "ncclDevKernel"})
            CHECK(on_processes(ranks, [=](world_type& world, reporter& report) {
                      const int n = world.size(), r = world.rank();
                      gpus_type gpus(world, {.timeout = 30s});
                      const tensor<float> x{1}, y{float(r + 1)};
                      gpus.barrier();
                      if (r + 1 == n) emulation::kill_process(function, 1);
                      const std::string late = peer_error_of([&] {
                          gpus.allreduce(x.view(), hvd::sum, {.timeout = 300ms * slowness});
                      });
                      report(!late.empty(), "a killed rank is not noticed");
                      gpus_type rest = gpus.shrink({n - 1});
                      rest.allreduce(y.view(), hvd::sum);
                      report(y.values()[0] == float((n - 1) * n / 2), "the sum of those left");
                  }) == last_is_killed(ranks));
}

TEST_CASE("a process that is killed while communicators are made is named by the others") {
    for (int ranks = 2; ranks <= 4; ++ranks)
        for (const char* const function :
             {"cudaStreamCreateWithFlags", "ncclCommInitRankConfig", "ncclCommGetAsyncError"})
            CHECK(on_processes(ranks, [=](world_type& world, reporter& report) {
                      const int last = world.size() - 1;
                      if (world.rank() == last) emulation::kill_process(function, 1);
                      const std::string why =
                          peer_error_of([&] { const gpus_type gpus(world, {.timeout = 30s}); });
                      report(why.find("rank " + std::to_string(last)) != std::string::npos,
                             std::string(function) + " of a killed rank: " + why);
                  }) == last_is_killed(ranks));
}

// ---- elastic jobs ----

namespace {

// A function in whose call a process is killed, once it has done so many steps; -1: at once.
struct moment {
    const char* function;
    std::int64_t step;
    bool is_after_the_call = false;  // but before the commit
};

constexpr std::int64_t steps = 20;

// Runs fn(gpus, hosts, trainer, state), and compares the weights of so many steps.
template <class F>
int run_elastic(const hvd::elastic::options& o, F fn) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing is left of a test that is ended
    reporter report(o.tcp.rank);
    try {
        trainer t;
        auto weights = t.weights.view();
        hvd::elastic::state state(weights);
        hvd::elastic::run<hvd::nccl>(
            state, [&](gpus_type& gpus, world_type& hosts) { fn(gpus, hosts, t, state); }, o);
        report(t.weights.values() == expected(state.step()), "the weights at the end");
    } catch (const std::exception& e) {
        report(false, e.what());
    }
    report(emulation::live_objects() == 0, "something is left");
    return report.status();
}

// Trains to the end. Calls `at(step, is_after_the_call)` in each step.
template <class F>
int train(const hvd::elastic::options& o, F at) {
    return run_elastic(o, [&](gpus_type& gpus, world_type&, trainer& t, auto& state) {
        while (state.step() < steps) {
            at(state.step(), false);
            t.step(gpus, state.step());
            at(state.step(), true);
            state.commit();
        }
    });
}

// The course of a job, in memory that its processes share.
struct course {
    std::atomic<bool> has_begun, is_over;
};

int train_until_over(course& all, const hvd::elastic::options& o) {
    return run_elastic(o, [&](gpus_type& gpus, world_type& hosts, trainer& t, auto& state) {
        hvd_test::work_until(all.is_over, state, hosts, [&] {
            if (state.step() > 0) all.has_begun = true;
            t.step(gpus, state.step());
        });
    });
}

// How processes have ended.
std::string text_of(const std::vector<int>& ends) {
    std::string text;
    for (const int end : ends) text += end == killed ? "killed " : std::to_string(end) + " ";
    return text;
}
std::string with_killed(int size, int victim) {
    std::vector<int> ends(std::size_t(size), 0);
    ends[std::size_t(victim)] = killed;
    return text_of(ends);
}

// Memory that forked processes share.
template <class T>
class shared_memory {
public:
    shared_memory()
        : at_(new(mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                       0)) T()) {}
    shared_memory(const shared_memory&) = delete;
    ~shared_memory() { munmap(at_, sizeof(T)); }
    T& operator*() const { return *at_; }
    T* operator->() const { return at_; }

private:
    T* const at_;
};

// Runs f(rank, options) in the processes of an elastic job. Returns the status of each.
template <class F>
std::string on_elastic_processes(int size, F f) {
    const hvd_test::elastic_job job(size, false, {.timeout = 20s});
    std::vector<pid_t> children;
    for (int r = 0; r < size; ++r)
        children.push_back(in_a_process([&] { return f(r, job.options(r)); }));
    std::vector<int> ends;
    for (const pid_t child : children) ends.push_back(status_of(child));
    return text_of(ends);
}

// One process is killed in a call, and the others go on.
void check_that_the_others_go_on(const moment& m, int size, int victim) {
    CAPTURE(std::string(m.function));
    CAPTURE(m.step);
    CAPTURE(size);
    CAPTURE(victim);
    const auto ends = on_elastic_processes(size, [&](int rank, const auto& o) {
        if (rank == victim && m.step < 0) emulation::kill_process(m.function, 1);
        return train(o, [&](std::int64_t step, bool is_after) {
            if (rank == victim && step == m.step && is_after == m.is_after_the_call)
                emulation::kill_process(m.function, 1);
        });
    });
    CHECK(ends == with_killed(size, victim));
}

}  // namespace

TEST_CASE("an elastic job goes on when a process is killed before or in a call, or in a commit") {
    int turn = 0;
    for (const moment& m : {moment{"ncclAllReduce", 7},
                            {"ncclDevKernel", 7},
                            {"cudaMemcpyAsync", 7, true},
                            {"cudaDeviceSynchronize", 7, true}})
        for (int size = 2; size <= 4; ++size) check_that_the_others_go_on(m, size, turn++ % size);
}

TEST_CASE("an elastic job goes on when a process is killed while NCCL joins the first ranks") {
    for (const char* const function :
         {"ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclDevKernel"})
        for (int size = 2; size <= 4; ++size)
            for (int victim = 0; victim < size; ++victim)
                check_that_the_others_go_on({function, -1}, size, victim);
}

TEST_CASE("an elastic job goes on when processes are killed one after the other") {
    const shared_memory<std::atomic<int>> has_called;
    for (const char* const function : {"ncclCommRevoke", "ncclCommShrink"}) {
        CAPTURE(std::string(function));
        *has_called = 0;
        // The second one is killed while the others make a communicator without the first. NCCL
        // revokes and shrinks no communicator on which a call has not returned.
        const auto ends = on_elastic_processes(4, [&](int rank, const auto& o) {
            if (rank == 1) emulation::kill_process(function, 1);
            return train(o, [&](std::int64_t step, bool is_after) {
                if (step != 7) return;
                if (rank != 3 && is_after) ++*has_called;
                if (rank != 3) return;
                while (*has_called < 3) std::this_thread::yield();
                std::raise(SIGKILL);
            });
        });
        CHECK(ends == text_of({0, killed, 0, killed}));
    }
}

TEST_CASE("an elastic job goes on when a newcomer is killed while NCCL joins it") {
    const shared_memory<course> memory;
    course& all = *memory;
    const auto kill_newcomer = [&](const char* function, int size) {
        CAPTURE(std::string(function));
        CAPTURE(size);
        all.has_begun = all.is_over = false;
        const hvd_test::elastic_job job(size, false, {.timeout = 20s});
        std::vector<pid_t> children;
        for (int r = 0; r < size; ++r)
            children.push_back(in_a_process([&] { return train_until_over(all, job.options(r)); }));
        const pid_t newcomer = in_a_process([&] {
            // Who is there first has the state of the job.
            while (!all.has_begun) std::this_thread::yield();
            emulation::kill_process(function, 1);
            return train_until_over(all, job.options(7));
        });
        CHECK(status_of(newcomer) == killed);
        all.is_over = true;
        for (const pid_t child : children) CHECK(status_of(child) == 0);
    };
    for (const int version : {22809, 22902}) {
        CAPTURE(version);
        emulation::answer("ncclGetVersion", version);
        for (int size = 1; size <= 3; ++size) {
            const bool grows = version == 22902 && size > 1;
            kill_newcomer(grows ? "ncclCommGrow" : "ncclCommInitRankConfig", size);
            kill_newcomer("ncclCommGetAsyncError", size);
        }
    }
    emulation::reset();
}

// From the first step on, since the rest can't know how many others come before.
TEST_CASE("an elastic job goes on when a process is killed at any moment") {
    for (unsigned seed = 1; seed <= 9; ++seed) {
        CAPTURE(seed);
        const int size = int(2 + seed % 3), victim = int(seed / 3) % size;
        const auto ends = on_elastic_processes(size, [&](int rank, const auto& o) {
            std::thread killer;
            const int status = train(o, [&](std::int64_t, bool) {
                if (rank != victim || killer.joinable()) return;
                killer = std::thread([seed] {
                    std::this_thread::sleep_for(std::chrono::microseconds(seed * 3'700 % 20'000));
                    std::raise(SIGKILL);
                });
            });
            if (killer.joinable()) killer.join();
            return status;
        });
        CHECK(ends == with_killed(size, victim));
    }
}

}  // namespace killed_tests
