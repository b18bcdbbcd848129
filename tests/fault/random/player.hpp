// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <hvd/hvd.hpp>

#include "strike.hpp"

namespace faults {

// The lines that a rank leaves for drive.py. A line that begins with FAIL is a failure.
class report {
public:
    report(const std::string& folder, int rank) {
        const std::string path = folder + "/rank." + std::to_string(rank);
        file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (file_ < 0) std::abort();
    }
    ~report() { close(file_); }
    int file() const { return file_; }
    void say(const std::string& what) const {
        const std::string line = what + "\n";
        if (write(file_, line.data(), line.size()) < 0) std::abort();
    }
    template <class... Parts>
    void fail(const Parts&... parts) {
        if (++failures_ > 5) return;
        std::string line = "FAIL ";
        ((line += words(parts)), ...);
        say(line);
    }
    bool failed() const { return failures_ > 0; }

private:
    static std::string words(const char* text) { return text; }
    static std::string words(const std::string& text) { return text; }
    template <class N>
    static std::string words(N n) {
        return std::to_string(n);
    }
    int file_;
    int failures_ = 0;
};

// Element i of a rank's tensor in a call. The sums of all ranks are exact in a float. The period is
// a prime, so that a chunk in a wrong place shows, and a chunk of another call.
constexpr std::size_t period = 251;
inline float value(int rank, int number, std::size_t i) {
    const auto mixed = std::uint32_t(i % period * 2654435761u) +
                       std::uint32_t(rank + 1) * 40503u * 65537u + std::uint32_t(number) * 69069u;
    return float(int((mixed ^ (mixed >> 15)) % 61u) - 30);
}

template <class T, class F>
void fill(T* x, std::size_t n, F element) {
    for (std::size_t i = 0; i < std::min(n, period); ++i) x[i] = T(element(i));
    for (std::size_t i = period; i < n; i += period)
        std::memcpy(x + i, x, std::min(period, n - i) * sizeof(T));
}

// Returns the number of elements that differ from element(first + i).
template <class T, class F>
std::size_t differing(const T* x, std::size_t n, F element, std::size_t first = 0) {
    T expected[period];
    for (std::size_t i = 0; i < period; ++i) expected[i] = T(element(i));
    std::size_t count = 0, run = 0;
    for (std::size_t i = 0; i < n; i += run) {
        const std::size_t at = (first + i) % period;
        run = std::min(period - at, n - i);
        if (std::memcmp(x + i, expected + at, run * sizeof(T)) == 0) continue;
        for (std::size_t k = 0; k < run; ++k) count += x[i + k] == expected[at + k] ? 0 : 1;
    }
    return count;
}

// Rank `rank`'s slice of n elements that are split evenly.
struct slice {
    slice(std::size_t n, int rank, int size)
        : count(n / std::size_t(size) + (std::size_t(rank) < n % std::size_t(size) ? 1 : 0)),
          first(n / std::size_t(size) * std::size_t(rank) +
                std::min(std::size_t(rank), n % std::size_t(size))) {}
    std::size_t count, first;
};

struct own_exception {};

// One rank of a run.
template <class B>
class player {
public:
    using communicator = hvd::communicator<hvd::observed<B, delaying_observer>>;
    using making = std::function<communicator(const hvd::communicator_options&)>;

    player(const plan& all, const board& shown, report& word, int rank, making make)
        : plan_(all),
          board_(shown),
          word_(word),
          rank_(rank),
          mine_(shown.of(rank)),
          make_(make),
          striker_(all, shown, rank),
          plain_(plain_bytes()) {}

    static hvd::communicator_options options_of(const plan& all, std::int64_t timeout) {
        hvd::communicator_options o;
        o.node_size = all.node_size;
        if (timeout > 0) o.timeout = hvd::time_span::of_nanoseconds(timeout);
        o.waiting_notice = hvd::forever;
        return o;
    }
    // The timeout of the communicator that comes after the failures.
    static constexpr std::int64_t patience = 20'000 * millisecond;

    void play() {
        const std::int64_t start = now();
        begin();
        for (const step& s : plan_.steps) {
            planned_ = {};
            for (int i = 0; i < s.repeats && !over_; ++i) attempt(s, s.first + i);
            in_call = true;  // what destructors do belongs to hvd
            planned_ = {};
            in_call = false;
        }
        give_back();
        meet();
        if (has_poison_) check_poison();
        if (!plan_.ends_a_process() && !any_failed() && !word_.failed()) begin_again();
        word_.say("end after " + std::to_string((now() - start) / millisecond) + " ms");
        mine_.ended = 1;
    }

private:
    static constexpr unsigned char poison = 0xA5;
    static constexpr int areas = 3;
    static constexpr std::size_t area_elements = most_elements + 1024;
    static std::size_t plain_bytes() { return areas * area_elements * sizeof(float); }

    // Memory that can be taken away, so that each later access is a fault.
    struct mapping {
        explicit mapping(std::size_t n) : bytes(n) {
            data = static_cast<std::byte*>(
                mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            if (data == MAP_FAILED) std::abort();
        }
        ~mapping() { drop(); }
        void drop() {
            if (data != nullptr) munmap(data, bytes);
            data = nullptr;
        }
        std::byte* data;
        std::size_t bytes;
    };

    void begin() {
        comm_ = make_(options_of(plan_, plan_.timeout));
        comm_.observer().own = &striker_;
        if (!plan_.has_arena) return;
        // A rank whose fault strikes in its first call may have gone before the others have theirs.
        try {
            arena_.emplace(comm_, plain_bytes());
        } catch (const hvd::peer_error& e) {
            word_.say(std::string("the arena: ") + e.what());
            judge_error(e, true);
            over_ = true;
            return;
        }
        in_arena_ = reinterpret_cast<std::byte*>(
            arena_->template tensor<float>(hvd::shape(areas * area_elements)).data());
    }

    // ---- one call -------------------------------------------------------------------------------

    void attempt(const step& s, int number) {
        number_ = number;
        if (const std::int64_t idle = plan_.idle_before(rank_, number)) rest(idle);
        mine_.entered = number + 1;
        striker_.enter(number);
        if (const auto how = striker_.departure()) return depart(*how);
        striker_.pass(point::before);
        const std::int64_t start = now();
        std::exception_ptr failure;
        try {
            run(s, number);
        } catch (...) {
            failure = std::current_exception();
        }
        in_call = false;
        striker_.lift_limits();
        judge_time(s, start);
        if (failure) judge(s, failure);
        else judge_success(s);
    }

    // Runs what belongs to hvd: allocations of it may fail.
    template <class F>
    void in(F f) {
        in_call = true;
        f();
        in_call = false;
        striker_.lift_limits();
    }

    float* area(const step& s, int index) const {
        const bool shared = plan_.has_arena && s.where != memory::plain &&
                            (s.where == memory::arena || rank_ % 2 == 0);
        return reinterpret_cast<float*>(shared ? in_arena_ : plain_.data) +
               std::size_t(index) * area_elements;
    }
    auto view(const step& s, int index, std::size_t n) const {
        return hvd::view(area(s, index), n);
    }
    auto own(int number) const {
        return [r = rank_, number](std::size_t i) { return value(r, number, i); };
    }
    auto of(int rank, int number) const {
        return [rank, number](std::size_t i) { return value(rank, number, i); };
    }
    auto total(int number, operation op, int ranks) const {
        return [=](std::size_t i) {
            float all = value(0, number, i);
            for (int r = 1; r < ranks; ++r) {
                const float x = value(r, number, i);
                all = op == operation::sum   ? all + x
                      : op == operation::max ? std::max(all, x)
                                             : std::min(all, x);
            }
            return all;
        };
    }
    template <class T, class F>
    void expect(const char* what, const T* x, std::size_t n, F element, std::size_t first = 0) {
        if (const std::size_t bad = differing(x, n, element, first))
            word_.fail("call ", number_, " ended well with wrong data: ", bad, " of ", n,
                       " elements of the ", what);
    }

    // Calls f with hvd's operation.
    template <class F>
    void with_operation(const step& s, F f) {
        if (s.op == operation::sum) return f(hvd::sum);
        if (s.op == operation::max) return f(hvd::max);
        striker* const strikes = &striker_;
        f([strikes](float a, float b) {
            strikes->pass(point::callable);
            return std::min(a, b);
        });
    }

    template <class Blocking, class Begin>
    void by(const step& s, Blocking blocking, Begin begin) {
        in([&] {
            if (s.how == form::blocking || s.how == form::planned) return blocking();
            auto pending = begin();
            pending.wait();
        });
    }
    // The same for calls that have plans. A plan is kept for all calls of a step.
    template <class Blocking, class Begin, class Plan>
    void by(const step& s, Blocking blocking, Begin begin, Plan plan) {
        if (s.how != form::planned) return by(s, blocking, begin);
        in([&] {
            if (!planned_) planned_ = plan();
            if (number_ % 2 == 0) return planned_.run();
            auto pending = planned_.run_async();
            pending.wait();
        });
    }

    void run(const step& s, int number) {
        const int size = plan_.ranks, rank = rank_;
        const std::size_t n = s.n;
        switch (s.what) {
            case call::allreduce: return s.how == form::several ? several(s) : allreduce(s);
            case call::allreduce_fused: {
                const std::size_t a = n / 2, b = n - a;
                auto x = view(s, 0, a), y = view(s, 1, b);
                auto z = hvd::view(reinterpret_cast<std::int64_t*>(area(s, 2)), a / 3 + 1);
                fill(x.data(), a, own(number));
                fill(y.data(), b, own(number + 1));
                fill(z.data(), z.size(), own(number + 2));
                const auto list = hvd::fuse(x, y, z);
                by(
                    s, [&] { comm_.allreduce(list, hvd::sum); },
                    [&] { return comm_.allreduce_async(list, hvd::sum); },
                    [&] { return comm_.plan_allreduce(list, hvd::sum); });
                expect("first tensor", x.data(), a, total(number, operation::sum, size));
                expect("second tensor", y.data(), b, total(number + 1, operation::sum, size));
                expect("third tensor", z.data(), z.size(), total(number + 2, operation::sum, size));
                return;
            }
            case call::broadcast: {
                auto x = view(s, 0, n);
                fill(x.data(), n, own(number));
                by(
                    s, [&] { comm_.broadcast(x, hvd::root{s.root}); },
                    [&] { return comm_.broadcast_async(x, hvd::root{s.root}); },
                    [&] { return comm_.plan_broadcast(x, hvd::root{s.root}); });
                return expect("tensor", x.data(), n, of(s.root, number));
            }
            case call::broadcast_fused: {
                auto x = view(s, 0, n - n / 3), y = view(s, 1, n / 3);
                fill(x.data(), x.size(), own(number));
                fill(y.data(), y.size(), own(number + 1));
                const auto list = hvd::fuse(x, y);
                by(
                    s, [&] { comm_.broadcast(list, hvd::root{s.root}); },
                    [&] { return comm_.broadcast_async(list, hvd::root{s.root}); },
                    [&] { return comm_.plan_broadcast(list, hvd::root{s.root}); });
                expect("first tensor", x.data(), x.size(), of(s.root, number));
                return expect("second tensor", y.data(), y.size(), of(s.root, number + 1));
            }
            case call::reduce: {
                auto x = view(s, 0, n), out = view(s, 1, n);
                fill(x.data(), n, own(number));
                with_operation(s, [&](const auto& op) {
                    by(
                        s, [&] { comm_.reduce(x, hvd::into(out), op, hvd::root{s.root}); },
                        [&] {
                            return comm_.reduce_async(x, hvd::into(out), op, hvd::root{s.root});
                        });
                });
                expect("input", x.data(), n, own(number));
                if (rank == s.root) expect("result", out.data(), n, total(number, s.op, size));
                return;
            }
            case call::allgather: {
                const std::size_t each = n / std::size_t(size);
                auto x = view(s, 0, each), out = view(s, 1, each * std::size_t(size));
                fill(x.data(), each, own(number));
                by(
                    s, [&] { comm_.allgather(x, hvd::into(out)); },
                    [&] { return comm_.allgather_async(x, hvd::into(out)); },
                    [&] { return comm_.plan_allgather(x, hvd::into(out)); });
                for (int r = 0; r < size; ++r)
                    expect("rows of a rank", out.data() + std::size_t(r) * each, each,
                           of(r, number));
                return;
            }
            case call::reduce_scatter: {
                const slice part(n, rank, size);
                auto x = view(s, 0, n), out = view(s, 1, part.count);
                fill(x.data(), n, own(number));
                with_operation(s, [&](const auto& op) {
                    by(
                        s, [&] { comm_.reduce_scatter(x, op, hvd::into(out)); },
                        [&] { return comm_.reduce_scatter_async(x, op, hvd::into(out)); },
                        [&] { return comm_.plan_reduce_scatter(x, op, hvd::into(out)); });
                });
                return expect("slice", out.data(), part.count, total(number, s.op, size),
                              part.first);
            }
            case call::alltoall: {
                const std::size_t each = n / std::size_t(size);
                auto x = view(s, 0, each * std::size_t(size));
                for (int r = 0; r < size; ++r)
                    fill(x.data() + std::size_t(r) * each, each, own(number + r));
                hvd::gathered<float> all;
                by(
                    s, [&] { all = comm_.alltoall(x); },
                    [&] {
                        auto pending = comm_.alltoall_async(x);
                        return collecting(std::move(pending), all);
                    });
                for (int r = 0; r < size; ++r)
                    expect("rows of a rank", all.values.data() + all.displacements[std::size_t(r)],
                           all.counts[std::size_t(r)], of(r, number + rank));
                return;
            }
            case call::gather: {
                const std::size_t each = n / std::size_t(size) / std::size_t(rank + 1) + 1;
                auto x = view(s, 0, each);
                fill(x.data(), each, own(number));
                hvd::gathered<float> all;
                by(
                    s, [&] { all = comm_.gather(x, hvd::root{s.root}); },
                    [&] { return collecting(comm_.gather_async(x, hvd::root{s.root}), all); });
                for (int r = 0; rank == s.root && r < size; ++r)
                    expect("rows of a rank", all.values.data() + all.displacements[std::size_t(r)],
                           n / std::size_t(size) / std::size_t(r + 1) + 1, of(r, number));
                return;
            }
            case call::scatter: {
                const slice part(n, rank, size);
                auto x = view(s, 0, n), out = view(s, 1, part.count);
                fill(x.data(), n, own(number));
                by(
                    s, [&] { comm_.scatter(x, hvd::into(out), hvd::root{s.root}); },
                    [&] { return comm_.scatter_async(x, hvd::into(out), hvd::root{s.root}); });
                return expect("part", out.data(), part.count, of(s.root, number), part.first);
            }
            case call::scan: {
                auto x = view(s, 0, n);
                fill(x.data(), n, own(number));
                by(
                    s, [&] { comm_.scan(x, hvd::sum); },
                    [&] { return comm_.scan_async(x, hvd::sum); });
                return expect("tensor", x.data(), n, total(number, operation::sum, rank + 1));
            }
            case call::barrier: return in([&] { comm_.barrier(); });
            case call::object: return objects(s);
            case call::child: return child(s);
            case call::grow: return in([&] { arena_->grow(4096 * std::size_t(rank + 1)); });
        }
    }

    // A request whose result is kept.
    template <class R>
    struct collected {
        R pending;
        hvd::gathered<float>& result;
        void wait() { result = pending.wait(); }
    };
    template <class R>
    collected<R> collecting(R pending, hvd::gathered<float>& result) {
        return {std::move(pending), result};
    }

    void allreduce(const step& s) {
        auto x = view(s, 0, s.n), out = view(s, 1, s.n);
        fill(x.data(), s.n, own(number_));
        const bool apart = s.first % 3 == 0;
        with_operation(s, [&](const auto& op) {
            by(
                s,
                [&] {
                    if (apart)
                        comm_.allreduce(hvd::view(static_cast<const float*>(x.data()), s.n), out,
                                        op);
                    else comm_.allreduce(x, op);
                },
                [&] { return comm_.allreduce_async(x, op); },
                [&] { return comm_.plan_allreduce(x, op); });
        });
        const bool is_apart = apart && s.how == form::blocking;
        if (is_apart) expect("input", x.data(), s.n, own(number_));
        expect("result", is_apart ? out.data() : x.data(), s.n, total(number_, s.op, plan_.ranks));
    }

    void several(const step& s) {
        auto x = view(s, 0, s.n), y = view(s, 1, s.n), z = view(s, 2, s.n);
        fill(x.data(), s.n, own(number_));
        fill(y.data(), s.n, own(number_ + 1));
        fill(z.data(), s.n, own(number_ + 2));
        in([&] {
            // A rank whose call fails makes the others all the same, as its peers do.
            std::exception_ptr failure;
            const auto keep = [&](auto f) {
                try {
                    f();
                } catch (...) {
                    if (!failure) failure = std::current_exception();
                }
            };
            hvd::request first, second, third;
            keep([&] { first = comm_.allreduce_async(x, hvd::sum); });
            keep([&] { second = comm_.broadcast_async(y, hvd::root{s.root}); });
            keep([&] { third = comm_.allreduce_async(z, hvd::sum); });
            keep([&] { third.wait(); });
            keep([&] { first.wait(); });
            keep([&] { second.wait(); });
            if (failure) std::rethrow_exception(failure);
        });
        expect("first tensor", x.data(), s.n, total(number_, operation::sum, plan_.ranks));
        expect("second tensor", y.data(), s.n, of(s.root, number_ + 1));
        expect("third tensor", z.data(), s.n, total(number_ + 2, operation::sum, plan_.ranks));
    }

    void objects(const step& s) {
        const auto text = [&](int rank) {
            return std::string(s.n % 5000, char('a' + (rank + number_) % 26));
        };
        std::string object = text(rank_);
        std::vector<std::string> all;
        in([&] {
            if (number_ % 2 == 0) comm_.broadcast_object(object, hvd::root{s.root});
            else all = comm_.allgather_object(object);
        });
        if (number_ % 2 == 0 && object != text(s.root))
            word_.fail("call ", number_, " ended well with a wrong object");
        for (std::size_t r = 0; r < all.size(); ++r)
            if (all[r] != text(int(r)))
                word_.fail("call ", number_, " ended well with wrong objects");
    }

    // A communicator of all ranks, with the same numbers.
    void child(const step& s) {
        std::vector<int> ranks;
        for (int r = 0; r < plan_.ranks; ++r) ranks.push_back(r);
        auto x = view(s, 0, s.n);
        fill(x.data(), s.n, own(number_));
        in([&] {
            auto part = number_ % 2 == 0 ? comm_.subset(ranks) : comm_.split(0, rank_);
            part.allreduce(x, hvd::sum);
        });
        expect("tensor", x.data(), s.n, total(number_, operation::sum, plan_.ranks));
    }

    // ---- judging --------------------------------------------------------------------------------

    // True for a rank that may be named: its fault struck, it is behind a cable that was pulled,
    // or the machine had no time for it.
    bool may_be_named(int rank) const {
        const column& c = board_.of(rank);
        for (const fault& f : plan_.faults) {
            if (board_.of(f.rank).struck == 0) continue;
            if (f.rank == rank && plan_.is_harmful(f)) return true;
            // It says for whom it waits itself, so that one that waited for it may be named.
            if (f.what == kind::stopped && board_.of(f.rank).resumed != 0 && plan_.is_harmful(f))
                return true;
            const int here = plan_.host_of(rank_), there = plan_.host_of(rank),
                      cut = plan_.host_of(f.rank);
            if (f.what == kind::cut && here != there && (here == cut || there == cut)) return true;
        }
        return plan_.timeout > 0 && c.gap > plan_.timeout / 4;
    }

    bool is_named(int rank, const hvd::error& e) const {
        if (const auto* peers = dynamic_cast<const hvd::peer_error*>(&e))
            for (const int p : peers->peers())
                if (p == rank) return true;
        return std::string(e.what()).find("rank " + std::to_string(rank)) != std::string::npos;
    }

    bool struck(int rank, kind what) const {
        for (const fault& f : plan_.faults)
            if (f.rank == rank && f.what == what && board_.of(rank).struck != 0) return true;
        return false;
    }
    bool any_struck(kind what) const {
        for (const fault& f : plan_.faults)
            if (struck(f.rank, what)) return true;
        return false;
    }

    void judge(const step& s, const std::exception_ptr& failure) {
        bool refused = false;
        try {
            std::rethrow_exception(failure);
        } catch (const hvd::error& e) {
            const bool of_peers = dynamic_cast<const hvd::peer_error*>(&e) != nullptr;
            note(s, of_peers ? "peer_error" : "error", e.what());
            judge_error(e, of_peers);
            refused = !of_peers || std::strstr(e.what(), "refused it") != nullptr;
        } catch (const std::bad_alloc&) {
            note(s, "bad_alloc", "");
            if (!struck(rank_, kind::without_memory) && !struck(rank_, kind::without_address_space))
                word_.fail("call ", number_, " threw bad_alloc, where memory was not refused");
            refused = true;
        } catch (const std::exception& e) {
            word_.fail("call ", number_, " threw a foreign exception: ", e.what());
        } catch (...) {
            word_.fail("call ", number_, " threw something");
        }
        // The communicator works on after a refusal, and one that was given up refuses all calls.
        if (refused || s.what == call::child) return;
        over_ = true;
        std::exception_ptr again;
        try {
            comm_.barrier();
            word_.fail("call ", number_, " gave its communicator up, and a barrier came back");
        } catch (const hvd::peer_error&) {
        } catch (const std::exception& e) {
            word_.fail("after call ", number_, ", a communicator that was given up throws ",
                       e.what());
        }
    }

    void judge_error(const hvd::error& e, bool of_peers) {
        const bool memory = any_struck(kind::without_memory) ||
                            any_struck(kind::without_address_space) ||
                            any_struck(kind::without_file_size);
        const bool of_descriptors = std::strstr(e.what(), "Too many open files") != nullptr &&
                                    any_struck(kind::without_descriptors);
        if (!of_peers) {
            const bool of_mpi = std::strstr(e.what(), "MPI_") != nullptr;
            if (of_mpi
                    ? any_struck(kind::killed) || any_struck(kind::exits) || any_struck(kind::cut)
                    : memory || of_descriptors)
                return;
            return word_.fail("call ", number_, " threw no peer_error: ", e.what());
        }
        for (int r = 0; r < plan_.ranks; ++r)
            if (may_be_named(r) && (r == rank_ || is_named(r, e))) return;
        word_.fail("call ", number_, " names none of those that failed: ", e.what());
    }

    static bool needs_all(const step& s) {
        return s.what != call::broadcast && s.what != call::broadcast_fused &&
               s.what != call::reduce && s.what != call::gather && s.what != call::scatter &&
               s.what != call::scan && s.what != call::object;
    }

    void judge_success(const step& s) {
        if (!needs_all(s)) return;
        for (int r = 0; r < plan_.ranks; ++r)
            if (board_.of(r).entered < number_ + 1)
                word_.fail("call ", number_, " ended well, and rank ", r, " has not come to it");
    }

    // Everything ends within the timeout, or soon after the failure. Ranks that reach for each
    // other's tensors may be waited for.
    void judge_time(const step& s, std::int64_t start) {
        const std::int64_t end = now();
        std::int64_t from = start, gap = 0;
        for (int r = 0; r < plan_.ranks; ++r) {
            const column& c = board_.of(r);
            if (c.struck > from) from = c.struck;
            gap += c.gap;
        }
        const std::int64_t most = 3 * plan_.timeout + plan_.pauses() + 4 * gap + 4000 * millisecond;
        if (end - from > most)
            word_.fail("call ", number_, " (", call_names[int(s.what)], ") took ",
                       (end - from) / millisecond, " ms");
    }

    void note(const step& s, const char* what, const char* text) {
        word_.say("call " + std::to_string(number_) + " (" + call_names[int(s.what)] +
                  "): " + what + " " + text);
    }

    // ---- the end --------------------------------------------------------------------------------

    void depart(kind how) {
        word_.say(std::string("goes: ") + kind_names[int(how)]);
        over_ = true;
        planned_ = {};
        if (how == kind::exits) {
            if (plan_.seed % 2 == 0) std::exit(0);
            _exit(0);
        }
        if (how == kind::leaves) comm_ = communicator();
        else try {
                const communicator dying = std::move(comm_);
                throw own_exception();
            } catch (const own_exception&) {
            }
    }

    // The caller's memory is the caller's again.
    void give_back() {
        striker_.disarm();
        if (plan_.destroys_first) comm_ = communicator();
        if (plan_.unmaps) plain_.drop();
        else std::memset(plain_.data, poison, plain_.bytes);
        if (in_arena_ != nullptr) std::memset(in_arena_, poison, plain_.bytes);
        has_poison_ = true;
        mine_.failed = word_.failed();
        mine_.done = 1;
    }

    bool is_gone(int rank) const {
        const column& c = board_.of(rank);
        return struck(rank, kind::killed) || struck(rank, kind::exits) || c.done != 0;
    }

    // The same on all ranks, once all have ended their calls.
    bool any_failed() const {
        for (int r = 0; r < plan_.ranks; ++r)
            if (board_.of(r).failed != 0) return true;
        return false;
    }

    // Waits until all other ranks have ended their calls. MPI makes progress meanwhile.
    void meet() {
        const std::int64_t limit = now() + 10'000 * millisecond + plan_.pauses();
        for (int r = 0; r < plan_.ranks; ++r)
            while (!is_gone(r)) {
                progress();
                if (now() < limit) continue;
                word_.fail("rank ", r, " does not come to its end");
                return;
            }
        for (int i = 0; i < 20; ++i) progress();
    }

    void progress() {
#if defined(HVD_TEST_BACKEND_MPI)
        int there = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
#endif
        rest(millisecond);
    }

    void check_poison() {
        const auto changed = [](const std::byte* data, std::size_t bytes) {
            std::size_t count = 0;
            for (std::size_t i = 0; i < bytes; ++i) count += data[i] == std::byte(poison) ? 0 : 1;
            return count;
        };
        if (const std::size_t n = plain_.data != nullptr ? changed(plain_.data, plain_.bytes) : 0)
            word_.fail(n, " bytes of plain memory were written after the calls");
        if (const std::size_t n = in_arena_ != nullptr ? changed(in_arena_, plain_.bytes) : 0)
            word_.fail(n, " bytes of the arena were written after the calls");
    }

    // All ranks live: they make another communicator, and nothing that was under way reaches it.
    void begin_again() {
        comm_ = communicator();
        comm_ = make_(options_of(plan_, patience));
        if (plain_.data == nullptr) {
            mapping other(plain_bytes());
            std::swap(plain_.data, other.data);
        }
        try {
            number_ = plan_.calls;
            const step s{
                call::allreduce, form::blocking, memory::plain, operation::sum, 70000, 0, 1, 0};
            run(s, number_);
            number_ += 3;
            run({call::allgather, form::asynchronous, memory::plain, operation::sum, 5000, 0, 1, 0},
                number_);
            comm_.barrier();
        } catch (const std::exception& e) {
            word_.fail("a new communicator of the same ranks: ", e.what());
        }
        in_call = false;
        comm_ = communicator();
    }

    const plan& plan_;
    const board& board_;
    report& word_;
    const int rank_;
    column& mine_;
    making make_;
    striker striker_;
    mapping plain_;
    communicator comm_;
    std::optional<hvd::arena> arena_;
    std::byte* in_arena_ = nullptr;
    hvd::plan<typename communicator::backend_type> planned_;
    int number_ = -1;
    bool over_ = false, has_poison_ = false;
};

}  // namespace faults
