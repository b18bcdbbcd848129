// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Every collective on device tensors against a serial reference, bit by bit, where hvd reduces in
// the order of the ranks. It runs on threads, on processes with an emulated GPU each, and on a real
// GPU. `report(right, what)` receives each result.

#include <cstdint>
#include <cstring>
#include <list>
#include <numeric>
#include <vector>

#include <hvd/cuda.hpp>
#include <hvd/kernel/reduce.hpp>

namespace reference {

// Returns rank `rank`'s values of a tensor. No float sums them exactly.
template <class T>
std::vector<T> values_of(int rank, std::size_t count) {
    std::vector<T> values;
    for (std::size_t i = 0; i < count; ++i) {
        const int n = int((i * 7 + std::size_t(rank) * 13) % 101) - 50;
        if constexpr (std::is_integral_v<T>) values.push_back(T(n * 3));
        else values.push_back(T(float(n) * 0.1f + 0.37f * float(rank)));
    }
    return values;
}

// The tensors of one check.
class memory {
public:
    memory() = default;
    memory(const memory&) = delete;
    ~memory() {
        for (void* const p : all_) cudaFree(p);
    }

    // The tensor begins `shift` elements off the alignment.
    template <class T>
    auto tensor(const std::vector<T>& values, std::size_t shift = 0) {
        T* data = nullptr;
        const std::size_t count = values.size() + shift;
        if (count > 0) {
            cudaMalloc(&all_.emplace_back(), count * sizeof(T));
            data = static_cast<T*>(all_.back());
        }
        if (!values.empty())
            cudaMemcpy(data + shift, values.data(), values.size() * sizeof(T),
                       cudaMemcpyHostToDevice);
        return hvd::device_view(data + shift, values.size());
    }

private:
    std::list<void*> all_;
};

template <class T>
bool same_bytes(const hvd::tensor_view<T, hvd::device>& x, const std::vector<T>& expected) {
    std::vector<T> got(expected.size());
    if (!got.empty())
        cudaMemcpy(got.data(), x.data(), got.size() * sizeof(T), cudaMemcpyDeviceToHost);
    return x.size() == expected.size() &&
           (got.empty() || std::memcmp(got.data(), expected.data(), got.size() * sizeof(T)) == 0);
}

// Returns the host's reduction of all ranks' values.
template <class T, class Op>
std::vector<T> reduced(const Op& op, int ranks, std::size_t count, double before = 1,
                       double after = 1) {
    std::vector<std::vector<T>> all;
    std::vector<const std::byte*> inputs;
    for (int r = 0; r < ranks; ++r)
        inputs.push_back(
            reinterpret_cast<const std::byte*>(all.emplace_back(values_of<T>(r, count)).data()));
    std::vector<T> out(count);
    if (count > 0)
        hvd::detail::reduce_elements<T, Op>({&op, inputs.data(), ranks, ranks,
                                             reinterpret_cast<std::byte*>(out.data()), count,
                                             before, after});
    return out;
}

template <class T>
std::vector<T> part(const std::vector<T>& all, std::size_t first, std::size_t n) {
    return {all.begin() + std::ptrdiff_t(first), all.begin() + std::ptrdiff_t(first + n)};
}

template <class T, class Op, class Gpus, class Report>
void check_reduction(Gpus& gpus, std::size_t count, const Op& op, Report&& report,
                     double before = 1, double after = 1) {
    const int n = gpus.size(), r = gpus.rank(), last = n - 1;
    const auto own = values_of<T>(r, count), expected = reduced<T>(op, n, count, before, after);
    const std::vector<T> nothing(count);
    memory m;
    const hvd::device_reduce_options o{.prescale = before, .postscale = after};
    const auto x = m.tensor(own), y = m.tensor(nothing), z = m.tensor(own, std::size_t(r % 2));
    gpus.allreduce(x, y, op, o);
    report(same_bytes(y, expected) && same_bytes(x, own), "allreduce");
    gpus.allreduce(z, op, o);
    report(same_bytes(z, expected), "allreduce in place");
    const auto rooted = m.tensor(nothing);
    gpus.reduce(x, hvd::into(rooted), op, hvd::root{last}, o);
    report(same_bytes(rooted, r == last ? expected : nothing) && same_bytes(x, own), "reduce");
    std::vector<std::size_t> counts(std::size_t(n), count / std::size_t(n));
    counts[0] += count % std::size_t(n);
    const std::size_t first = r == 0 ? 0 : counts[0] + std::size_t(r - 1) * counts[std::size_t(r)],
                      mine = counts[std::size_t(r)];
    const auto scattered = m.tensor(std::vector<T>(mine));
    hvd::device_reduce_options uneven = o;
    uneven.counts = counts;
    gpus.reduce_scatter(x, op, hvd::into(scattered), uneven);
    report(same_bytes(scattered, part(expected, first, mine)) && same_bytes(x, own),
           "reduce_scatter");
    gpus.reduce_scatter(x, op, hvd::into(hvd::device_view(x.data() + first, mine)), uneven);
    report(same_bytes(hvd::device_view(x.data() + first, mine), part(expected, first, mine)),
           "reduce_scatter in place");
}

// In uneven collectives rank r has r + 1 times `count` elements.
template <class T, class Gpus, class Report>
void check_movements(Gpus& gpus, std::size_t count, bool even, Report&& report,
                     bool exchanges_in_place = true) {
    const int n = gpus.size(), r = gpus.rank(), last = n - 1;
    std::vector<std::size_t> counts;
    for (int p = 0; p < n; ++p) counts.push_back(even ? count : count * std::size_t(p));
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t(0)),
                      mine = counts[std::size_t(r)];
    const std::size_t first = std::accumulate(counts.begin(), counts.begin() + r, std::size_t(0));
    std::vector<T> everything;
    for (int p = 0; p < n; ++p)
        for (const T& v : values_of<T>(p, counts[std::size_t(p)])) everything.push_back(v);
    const auto own = values_of<T>(r, mine);
    const std::vector<T> nothing(total);
    const hvd::device_options o{.counts = even ? std::span<const std::size_t>() : counts};
    memory m;

    const auto x = m.tensor(own), all = m.tensor(nothing);
    gpus.allgather(x, hvd::into(all), o);
    report(same_bytes(all, everything) && same_bytes(x, own), "allgather");
    const auto in_place = m.tensor(nothing);
    if (mine > 0)
        cudaMemcpy(in_place.data() + first, own.data(), mine * sizeof(T), cudaMemcpyHostToDevice);
    gpus.allgather(hvd::device_view(in_place.data() + first, mine), hvd::into(in_place), o);
    report(same_bytes(in_place, everything), "allgather in place");
    const auto gathered = m.tensor(nothing);
    gpus.gather(x, hvd::into(gathered), hvd::root{last}, o);
    report(same_bytes(gathered, r == last ? everything : nothing), "gather");
    const auto back = m.tensor(std::vector<T>(mine));
    gpus.scatter(gathered, hvd::into(back), hvd::root{last}, o);
    report(same_bytes(back, own), "scatter");
    if (!even) return;
    const auto given = m.tensor(own);
    gpus.broadcast(given, hvd::root{last});
    report(same_bytes(given, values_of<T>(last, count)), "broadcast");
    // Rank r's slice for rank p is a part of p's own values.
    std::vector<T> expected;
    for (int p = 0; p < n; ++p)
        for (const T& v : part(values_of<T>(p, total), count * std::size_t(r), count))
            expected.push_back(v);
    const auto send = m.tensor(values_of<T>(r, total)), receive = m.tensor(nothing);
    gpus.alltoall(send, hvd::into(receive));
    report(same_bytes(receive, expected) && same_bytes(send, values_of<T>(r, total)), "alltoall");
    if (!exchanges_in_place) return;
    gpus.alltoall(send, hvd::into(send));
    report(same_bytes(send, expected), "alltoall in place");
}

// The tensors of an alltoall in which sent(from, to) elements go from one rank to another.
template <class T>
struct uneven_exchange {
    template <class F>
    uneven_exchange(int ranks, int rank, F sent) {
        const auto row = [&](int from) {
            std::size_t all = 0;
            for (int p = 0; p < ranks; ++p) all += sent(from, p);
            return values_of<T>(from, all);
        };
        given = row(rank);
        for (int p = 0; p < ranks; ++p) {
            counts.push_back(sent(rank, p));
            received.push_back(sent(p, rank));
            std::size_t at = 0;
            for (int q = 0; q < rank; ++q) at += sent(p, q);
            for (const T& v : part(row(p), at, sent(p, rank))) expected.push_back(v);
        }
    }
    hvd::device_options options() const { return {.counts = counts, .receive_counts = received}; }

    std::vector<std::size_t> counts, received;
    std::vector<T> given, expected;
};

// Rank r sends p times `count` elements to rank p, and one more to the ranks above it.
template <class T, class Gpus, class Report>
void check_uneven_alltoall(Gpus& gpus, std::size_t count, Report&& report) {
    const uneven_exchange<T> x(gpus.size(), gpus.rank(), [count](int from, int to) {
        return count * std::size_t(to) + (from < to ? 1 : 0);
    });
    memory m;
    const auto send = m.tensor(x.given), receive = m.tensor(std::vector<T>(x.expected.size()));
    gpus.alltoall(send, hvd::into(receive), x.options());
    report(same_bytes(receive, x.expected), "alltoall of different parts");
}

// Ranks r and p send each other r + p times `count` elements, over what they have sent.
template <class T, class Gpus, class Report>
void check_uneven_alltoall_in_place(Gpus& gpus, std::size_t count, Report&& report) {
    const uneven_exchange<T> x(gpus.size(), gpus.rank(), [count](int from, int to) {
        return count * std::size_t(from + to) + (from == to ? 0 : 1);
    });
    memory m;
    const auto both = m.tensor(x.given);
    gpus.alltoall(both, hvd::into(both), x.options());
    report(same_bytes(both, x.expected), "alltoall of different parts in place");
}

// All operations of one element type.
template <class T, class Gpus, class Report>
void check_operations(Gpus& gpus, std::size_t count, Report&& report) {
    check_reduction<T>(gpus, count, hvd::sum, report);
    check_reduction<T>(gpus, count, hvd::min, report);
    check_reduction<T>(gpus, count, hvd::max, report);
    check_reduction<T>(gpus, count, hvd::product, report);
    if constexpr (std::is_integral_v<T>) {
        check_reduction<T>(gpus, count, hvd::average(hvd::rounding::toward_zero), report);
        check_reduction<T>(gpus, count, hvd::average(hvd::rounding::nearest), report);
        check_reduction<T>(gpus, count, hvd::bit_xor, report);
    } else {
        check_reduction<T>(gpus, count, hvd::average, report, 0.3, 1.7);
    }
}

}  // namespace reference
