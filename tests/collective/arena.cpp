// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <memory_resource>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <hvd/arena.hpp>

#include "support.hpp"

namespace arena_tests {

using namespace hvd_test;

// Tensors in memory that all ranks of a node have mapped. Results that must not depend on a
// tensor's memory are compared with the same call on ordinary memory, byte by byte.

namespace {

template <class T>
using tensor_in = std::pmr::vector<T>;

template <class T>
void fill(tensor_in<T>& x, int rank) {
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = T(float((i * 7 + std::size_t(rank) * 13) % 101) / 8);
}

template <class A, class B>
bool same_bytes(const A& a, const B& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

// The sizes are around those that change the algorithm: one window, a place for each tensor,
// chunks.
constexpr std::size_t sizes[] = {0, 1, 3, 511, 1023, 1024, 1025, 4096, 16385, 65536, 65537, 200003};

std::pmr::memory_resource* plain() { return std::pmr::new_delete_resource(); }

// Runs f with every rank in the arena, and with all but one.
template <class F>
void in_every_memory(communicator& comm, hvd::arena& arena, F f) {
    f(&arena);
    f(comm.rank() == 0 ? plain() : &arena);
    if (comm.size() > 1) f(comm.rank() == comm.size() - 1 ? plain() : &arena);
}

}  // namespace

TEST_CASE_TEMPLATE("an allreduce gives the same bytes wherever its tensors lie", T, float, double,
                   hvd::bfloat16, hvd::float16) {
    on_every_transport([](communicator& comm) {
        hvd::arena arena{comm, std::size_t(8) << 20};
        for (const std::size_t n : sizes) {
            if (!std::is_same_v<T, float> && (n == 65536 || n == 200003)) continue;
            INFO(n, " elements");
            tensor_in<T> expected(n);
            fill(expected, comm.rank());
            comm.allreduce(expected, hvd::average, {.prescale = 0.75, .postscale = 3.0});
            in_every_memory(comm, arena, [&](std::pmr::memory_resource* memory) {
                tensor_in<T> x(n + 3, memory), out(n, memory);
                fill(x, comm.rank());
                const std::span<const T> in(x.data(), n);
                comm.allreduce(in, out, hvd::average, {.prescale = 0.75, .postscale = 3.0});
                CHECK(same_bytes(out, expected));
                // Any part of it may be reduced through a plain span.
                std::memmove(static_cast<void*>(x.data() + 3), x.data(), n * sizeof(T));
                comm.allreduce(std::span<T>(x.data() + 3, n), hvd::average,
                               {.prescale = 0.75, .postscale = 3.0});
                CHECK(same_bytes(std::span<T>(x.data() + 3, n), expected));
            });
        }
    });
}

TEST_CASE("ranks' tensors lie at different places of the arena, or one of them in it and one not") {
    on_every_transport([](communicator& comm) {
        hvd::arena arena{comm, std::size_t(4) << 20};
        tensor_in<char> pushed_away(std::size_t(comm.rank()) * 1000 + 1, &arena);
        const std::size_t n = 30000;
        tensor_in<int> in(n, &arena), out(n, comm.rank() % 2 == 0 ? plain() : &arena);
        std::iota(in.begin(), in.end(), comm.rank());
        comm.allreduce(std::as_const(in), out, hvd::sum);
        const int ranks = comm.size() * (comm.size() - 1) / 2;
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < n; ++i) wrong += out[i] != int(i) * comm.size() + ranks;
        CHECK(wrong == 0);
    });
}

TEST_CASE(
    "fused lists and plans take tensors from where they lie, of several element types and empty "
    "ones") {
    on_every_transport([](communicator& comm) {
        hvd::arena arena{comm, std::size_t(8) << 20};
        in_every_memory(comm, arena, [&](std::pmr::memory_resource* memory) {
            for (const std::size_t scale : {1, 40, 3000}) {
                std::vector<tensor_in<float>> parts;
                for (const std::size_t n : {3, 0, 17, 1, 29}) parts.emplace_back(n * scale, memory);
                tensor_in<double> other(5 * scale, memory);
                std::vector<hvd::tensor_view<float>> views;
                for (auto& part : parts) views.push_back(hvd::view(part.data(), part.size()));
                auto plan = comm.plan_allreduce(hvd::fuse(other, views), hvd::sum);
                for (int run = 1; run <= 3; ++run) {
                    for (auto& part : parts)
                        std::fill(part.begin(), part.end(), float(comm.rank() + run));
                    std::fill(other.begin(), other.end(), double(run));
                    if (run < 3) plan.run();
                    else comm.allreduce(hvd::fuse(other, views), hvd::sum);
                    const float sum =
                        float(comm.size() * (comm.size() - 1) / 2 + run * comm.size());
                    for (auto& part : parts)
                        CHECK(std::count(part.begin(), part.end(), sum) ==
                              std::ptrdiff_t(part.size()));
                    CHECK(std::count(other.begin(), other.end(), double(run * comm.size())) ==
                          std::ptrdiff_t(other.size()));
                }
            }
        });
    });
}

TEST_CASE("lists have more tensors than a window has room for places of them") {
    constexpr std::size_t window = std::size_t(28) << 10;  // the smallest for seven ranks
    on_every_transport(
        [](communicator& comm) {
            hvd::arena arena{comm, std::size_t(1) << 20};
            // The second list has more places than all windows of a rank.
            for (const std::size_t tensors : {window / 32 + 1, window / 4}) {
                CAPTURE(tensors);
                tensor_in<int> x(2 * tensors, &arena);
                std::vector<hvd::tensor_view<int>> views;
                for (std::size_t i = 0; i < tensors; ++i)
                    views.push_back(hvd::view(x.data() + 2 * i, 2));
                std::iota(x.begin(), x.end(), 1000 * comm.rank());
                comm.allreduce(hvd::fuse(views), hvd::sum);
                const int ranks = comm.size() * (comm.size() - 1) / 2;
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < x.size(); ++i)
                    wrong += x[i] != int(i) * comm.size() + 1000 * ranks;
                CHECK(wrong == 0);
            }
        },
        {.shared_memory_bytes = 4 * window});
}

TEST_CASE("every collective takes tensors of an arena") {
    on_every_transport([](communicator& comm) {
        hvd::arena arena{comm, std::size_t(8) << 20};
        in_every_memory(comm, arena, [&](std::pmr::memory_resource* memory) {
            for (const std::size_t n : {1, 1025, 70000}) {
                const int last = comm.size() - 1;
                tensor_in<int> x(n, comm.rank(), memory);
                comm.broadcast(x, hvd::root{last});
                CHECK(std::count(x.begin(), x.end(), last) == std::ptrdiff_t(n));
                const auto all = comm.allgather(x);
                CHECK(all.values == std::vector<int>(n * std::size_t(comm.size()), last));
                const auto mine = comm.reduce_scatter(x, hvd::sum);
                CHECK(mine == std::vector<int>(mine.size(), last * comm.size()));
                tensor_in<int> out(n, memory);
                comm.reduce(std::as_const(x), hvd::into(out), hvd::max, hvd::root{0});
                if (comm.rank() == 0) CHECK(out == x);
                auto pending = comm.allreduce_async(x, hvd::sum);
                pending.wait();
                CHECK(std::count(x.begin(), x.end(), last * comm.size()) == std::ptrdiff_t(n));
            }
        });
    });
}

TEST_CASE("a communicator that was derived knows the arenas of the one it comes from") {
    on_every_transport_from(2, [](communicator& comm) {
        auto half = comm.split(comm.rank() % 2, -comm.rank());
        hvd::arena arena{comm, std::size_t(1) << 20};
        hvd::arena own{half, std::size_t(1) << 20};
        for (std::pmr::memory_resource* memory : {static_cast<std::pmr::memory_resource*>(&arena),
                                                  static_cast<std::pmr::memory_resource*>(&own)}) {
            tensor_in<float> x(20000, float(comm.rank()), memory);
            half.allreduce(x, hvd::sum);
            float sum = 0;
            for (int r = comm.rank() % 2; r < comm.size(); r += 2) sum += float(r);
            CHECK(std::count(x.begin(), x.end(), sum) == 20000);
            std::fill(x.begin(), x.end(), 1.0f);
            comm.allreduce(x, hvd::sum);  // it does not know the arena of the half
            CHECK(std::count(x.begin(), x.end(), float(comm.size())) == 20000);
        }
    });
}

TEST_CASE("memory that is given back is handed out again, whole") {
    on_ranks([](communicator& comm) {
        hvd::arena arena{comm, 4096};
        CHECK(arena.capacity() == 4096);
        for (int round = 0; round < 2; ++round) {
            tensor_in<char> a(1000, &arena), c(500, &arena);
            {
                tensor_in<char> b(1000, &arena);
                CHECK(arena.available() == 4096 - 1024 - 512 - 1024);
            }
            a = tensor_in<char>(&arena);
            a.shrink_to_fit();
        }
        CHECK(arena.available() == 4096);
        tensor_in<char> all(4096, &arena);
        CHECK(arena.available() == 0);
    });
}

TEST_CASE("regions of an arena stay apart, also if they lie side by side") {
    alignas(64) std::byte memory[512];
    for (const bool forwards : {true, false}) {
        hvd::detail::free_list list;
        list.add(memory, 256);
        list.add(memory + 256, 256);
        std::byte* const first = list.take(256, 64);
        std::byte* const second = list.take(256, 64);
        CHECK(second == first + 256);
        list.give_back(forwards ? first : second, 256);
        list.give_back(forwards ? second : first, 256);
        CHECK(list.free_bytes() == 512);
        CHECK(list.largest() == 256);  // a tensor lies in one region
        CHECK(list.take(257, 64) == nullptr);
    }
}

TEST_CASE("an arena that is full says what was asked for and what there is, and can grow") {
    on_every_transport([](communicator& comm) {
        hvd::arena arena{comm, 1024};
        std::string what;
        try {
            tensor_in<float> x(1000, &arena);
        } catch (const hvd::usage_error& e) {
            what = e.what();
        }
        CHECK(what.find("4000 bytes asked for") != std::string::npos);
        CHECK(what.find("1024 bytes") != std::string::npos);
        CHECK(what.find("rank " + std::to_string(comm.rank())) != std::string::npos);
        const auto before = arena.tensor<float>(hvd::shape(2, 3));
        before.data()[5] = 5;
        // ranks may grow it by different amounts
        arena.grow(8192 * (std::size_t(comm.rank()) + 1));
        tensor_in<float> x(1500, 1.0f, &arena);
        comm.allreduce(x, hvd::sum);
        CHECK(x.back() == float(comm.size()));
        CHECK(before.data()[5] == 5);
        CHECK(arena.capacity() == 1024 + 8192 * (std::size_t(comm.rank()) + 1));
    });
}

TEST_CASE("more memory than there is is refused on every rank, before any is taken") {
    on_every_transport([](communicator& comm) {
        hvd::arena arena{comm, 4096};
        for (const std::size_t bytes :
             {std::size_t(1) << 46, SIZE_MAX / 2, SIZE_MAX - 63, SIZE_MAX}) {
            const auto e = thrown<hvd::usage_error>(
                [&] { arena.grow(comm.rank() == comm.size() - 1 ? bytes : 64); });
            if (e) CHECK(e->rank() == comm.rank());
        }
        CHECK(arena.capacity() == 4096);
        thrown<hvd::usage_error>(
            [&] { arena.tensor<double>(hvd::shape((std::size_t(1) << 61) + 1)); });
        thrown<hvd::usage_error>(
            [&] { arena.tensor<float>(hvd::shape(std::size_t(1) << 32, std::size_t(1) << 32)); });
        tensor_in<char> all(4096, &arena);
        CHECK(arena.tensor<float>(hvd::shape(0)).size() == 0);  // needs no room
        check_that_it_works(comm);
    });
}

TEST_CASE("messages of hvd's own are not taken for calls of the user's") {
    on_every_transport_from(2, [](communicator& comm) {
        const std::int64_t mine[2] = {1, 2};
        thrown<hvd::mismatch_error>([&] {
            if (comm.rank() == 0) hvd::arena arena{comm, 4096};
            else comm.allgather(mine[0]);
        });
        thrown<hvd::mismatch_error>([&] {
            if (comm.rank() == 0) comm.split(0);
            else comm.allgather(mine);
        });
        check_that_it_works(comm);
    });
}

#if defined(HVD_TEST_LAUNCHED)
namespace {

bool crashes_at(const float* data) {
    const pid_t user = fork();
    if (user == 0) {
        std::signal(SIGSEGV, SIG_DFL);
        _exit(*static_cast<const volatile float*>(data) == 0 ? 1 : 2);
    }
    int status = 0;
    REQUIRE(waitpid(user, &status, 0) == user);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

}  // namespace

TEST_CASE("a tensor that outlives its arena crashes where it is used") {
    on_every_transport([](communicator& comm) {
        std::optional<hvd::arena> dying;
        dying.emplace(comm, std::size_t(1) << 20);
        const auto x = dying->tensor<float>(hvd::shape(1000));
        std::fill_n(x.data(), 1000, 1.0f);
        comm.allreduce(x, hvd::sum);
        // The last rank keeps its part for a while, and the others their addresses so long.
        const bool keeps = comm.size() > 1 && comm.rank() == comm.size() - 1;
        if (!keeps) dying.reset();
        for (int i = 0; i < 3 && comm.size() > 1; ++i) {
            const hvd::arena other{comm, std::size_t(1) << 20};
            if (keeps) CHECK(x.data()[999] == float(comm.size()));
            else CHECK(crashes_at(x.data()));
        }
        dying.reset();
        comm.barrier();
        CHECK(crashes_at(x.data()));
        hvd::arena next{comm, std::size_t(1) << 20};
        const auto y = next.tensor<float>(hvd::shape(1000));
        CHECK((y.data() + 1000 <= x.data() || x.data() + 1000 <= y.data()));
        check_that_it_works(comm);
    });
}
#endif

TEST_CASE("an arena outlives its communicator, and grows no more") {
    on_ranks([](communicator& comm) {
        std::optional<hvd::communicator<backend>> other(comm.split(0, comm.rank()));
        hvd::arena arena{*other, 4096};
        tensor_in<float> x(10, 1.0f, &arena);
        comm.barrier();
        other.reset();
        CHECK(x[9] == 1);
        CHECK_THROWS_AS(arena.grow(4096), hvd::peer_error);
        comm.barrier();
    });
}

TEST_CASE(
    "an exception of a reducing function on tensors in an arena reaches every rank, and the next "
    "call works") {
    on_every_transport([](communicator& comm) {
        hvd::arena arena{comm, std::size_t(1) << 20};
        tensor_in<float> x(50000, 1.0f, &arena);
        const int thrower = comm.size() - 1;
        const auto add = [&](float a, float b) {
            if (comm.rank() == thrower) throw std::runtime_error("no more");
            return a + b;
        };
        if (comm.size() > 1) CHECK_THROWS(comm.allreduce(x, add));
        std::fill(x.begin(), x.end(), 1.0f);
        comm.allreduce(x, hvd::sum);
        CHECK(x[49999] == float(comm.size()));
    });
}

namespace {

// Memory of this process, by its name in the system's table, in MiB.
long mebibytes(const std::string& name) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (word == name) {
            long kilobytes = 0;
            status >> kilobytes;
            return kilobytes / 1024;
        }
    return -1;
}

// The resident memory that is shared, or else this process's own.
long resident(bool shared) { return mebibytes(shared ? "RssShmem:" : "RssAnon:"); }

// A process has an arena for itself where nobody of a larger job is on its host.
#if defined(HVD_TEST_LAUNCHED)
bool has_shared_memory(const communicator& comm) {
    return comm.size() == 1 || comm.local_size() > 1;
}
#else
bool has_shared_memory(const communicator&) { return false; }
#endif

}  // namespace

TEST_CASE("the addresses of arenas that have ended on all ranks are given back") {
    on_every_transport([](communicator& comm) {
        const auto make_some = [&](int times) {
            for (int i = 0; i < times; ++i) hvd::arena{comm, std::size_t(2) << 20};
            comm.barrier();
        };
        // More live at a time than one call asks about.
        std::vector<std::unique_ptr<hvd::arena>> kept;
        while (kept.size() < 70) kept.push_back(std::make_unique<hvd::arena>(comm, 64));
        make_some(3);
        const long before = mebibytes("VmSize:");
        make_some(100);
        CHECK(mebibytes("VmSize:") <= before + 64);
    });
}

#if defined(HVD_TEST_LAUNCHED)
// The sanitizers have addresses without end.
TEST_CASE("the addresses of arenas that have ended are enough for the next one" *
          doctest::skip(under_asan || under_tsan)) {
    on_every_transport([](communicator& comm) {
        constexpr std::size_t bytes = std::size_t(8) << 20;
        const std::size_t all = bytes * std::size_t(comm.local_size());
        {
            const hvd::arena first{comm, bytes};
        }
        rlimit before{};
        REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
        // There is room for a small part of another one.
        const rlimit few{(rlim_t(mebibytes("VmSize:")) << 20) + all / 2, before.rlim_max};
        REQUIRE(setrlimit(RLIMIT_AS, &few) == 0);
        for (int i = 0; i < 3; ++i) {
            hvd::arena next{comm, bytes};
            const auto x = next.tensor<float>(hvd::shape(1000));
            std::fill_n(x.data(), 1000, 1.f);
            comm.allreduce(x, hvd::sum);
            CHECK(x.data()[999] == float(comm.size()));
        }
        CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    });
}
#endif

TEST_CASE("arenas end at other times on each rank, and the others keep their tensors") {
    struct arena_in_use {
        std::unique_ptr<hvd::arena> arena;
        std::span<float> x;
        float value;
    };
    on_every_transport([](communicator& comm) {
        const auto make = [&](int round) {
            arena_in_use made{std::make_unique<hvd::arena>(comm, 64 * std::size_t(1 + round % 3)),
                              {},
                              float(round)};
            made.x = {made.arena->tensor<float>(hvd::shape(16)).data(), 16};
            return made;
        };
        const auto reduces_right = [&](arena_in_use& used) {
            std::ranges::fill(used.x, used.value + float(comm.rank()));
            comm.allreduce(used.x, hvd::sum);
            const int n = comm.size();
            const float sum = float(n) * used.value + float(n * (n - 1) / 2);
            return std::ranges::count(used.x, sum) == 16;
        };
        std::vector<arena_in_use> live, ending;
        std::size_t wrong = 0;
        for (int round = 0; round < 150; ++round) {
            live.push_back(make(round));
            wrong += !reduces_right(live.back());
            wrong += !reduces_right(live[std::size_t(round) * 7 % live.size()]);
            // More arenas live at a time than one call can ask about.
            if (live.size() < 70) continue;
            const auto over = live.begin() + round * 5 % 70;
            std::ranges::fill(over->x, over->value);
            ending.push_back(std::move(*over));
            live.erase(over);
            for (const arena_in_use& held : ending) wrong += held.x.back() != held.value;
            if ((round + comm.rank()) % 4 == 0) ending.clear();
        }
        CHECK(wrong == 0);
    });
}

TEST_CASE("the system has an arena's memory back when the arena ends, and when growing fails") {
    on_ranks([](communicator& comm) {
        const bool shared = has_shared_memory(comm);
        constexpr std::size_t bytes = std::size_t(16) << 20;
        for (int round = 0; round < 2; ++round) {
            comm.barrier();
            const long before = resident(shared);
            comm.barrier();
            {
                hvd::arena arena{comm, bytes};
                CHECK_THROWS_AS(arena.grow(comm.rank() == 0 ? SIZE_MAX / 4 : bytes),
                                hvd::usage_error);
                auto x = arena.tensor<float>(hvd::shape(bytes / 8));
                std::fill_n(x.data(), x.size(), 1.f);
                comm.allreduce(x, hvd::sum);
                CHECK(x.data()[x.size() - 1] == float(comm.size()));
                comm.barrier();
                CHECK(resident(shared) >= before + 7);
                comm.barrier();
            }
            comm.barrier();
            // Sanitizers keep freed memory, to find uses of it, or have more for it.
            // In the first round a network makes its buffers.
            if (shared || (round > 0 && !(under_asan || under_tsan)))
                CHECK(resident(shared) <= before + 4);
        }
    });
}

}  // namespace arena_tests
