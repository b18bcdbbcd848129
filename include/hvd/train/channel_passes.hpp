// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensors.hpp"

namespace hvd::inline v0::detail {

// The numbers of a vector register. Compilers keep longer vectors in memory. Longer registers than
// those of AVX gain nothing.
template <class R>
constexpr std::size_t pack_size = std::min(__BIGGEST_ALIGNMENT__, 32) / sizeof(R);

// N numbers that one operation computes.
template <class R, std::size_t N = pack_size<R>>
struct number_pack {
    typedef R type __attribute__((vector_size(N * sizeof(R))));
    typedef R in_memory __attribute__((vector_size(N * sizeof(R)), aligned(alignof(R))));
    type all;

    template <class T>
    explicit number_pack(const T* from) {
        if constexpr (std::is_same_v<T, R>) all = *reinterpret_cast<const in_memory*>(from);
        else
            for (std::size_t k = 0; k < N; ++k) all[k] = R(from[k]);
    }

    explicit number_pack(R number) : all(number - type{}) {}

    template <class T>
    void store(T* to) const {
        if constexpr (std::is_same_v<T, R>) *reinterpret_cast<in_memory*>(to) = all;
        else
            for (std::size_t k = 0; k < N; ++k) to[k] = T(all[k]);
    }

    template <class Sum>
    void add_to(Sum* sums) const {
        number_pack<Sum, N> sum(sums);
        sum.all += __builtin_convertvector(all, decltype(sum.all));
        sum.store(sums);
    }
};

// Calls f(place, n) for `size` numbers of T, n at a time. n is constant: that of a pack, or 1.
template <class T, class F>
void for_each_pack(std::size_t size, F f) {
    std::size_t at = 0;
    for (; at + pack_size<T> <= size; at += pack_size<T>)
        f(at, std::integral_constant<std::size_t, pack_size<T>>());
    for (; at < size; ++at) f(at, std::integral_constant<std::size_t, 1>());
}

// Passes over a tensor of samples × channels × inner, as rows of lanes. A lane has one channel, and
// numbers of that channel beside those of the other lanes. So vectors compute a pass.
//
// With few inner elements, a row is whole samples, and a lane for each element. With many, a row is
// a part of the elements of one channel and one sample.
class channel_passes {
public:
    channel_passes(std::size_t samples, std::size_t channels, std::size_t inner)
        : samples_(samples), channels_(channels), inner_(inner), by_sample_(inner < least_run) {
        const std::size_t sample = channels * inner;
        std::size_t together = largest_pack / std::gcd(sample, largest_pack);
        while (sample * together < lanes_of_run) together *= 2;
        width_ = by_sample_ ? sample * std::min(together, std::max<std::size_t>(samples, 1))
                            : lanes_of_run;
    }

    std::size_t channels() const { return channels_; }
    std::size_t inner() const { return inner_; }
    std::size_t width() const { return width_; }
    // All lanes of a part have one channel.
    bool has_runs() const { return !by_sample_; }

    // Elements of one channel, or of all channels alike.
    struct part {
        std::size_t begin, size;
        std::size_t first_channel, channels;
    };

    // Calls f(first sample, number of samples) for parts of the tensor with at least `elements` of
    // each channel, but for the last.
    template <class F>
    void for_each_section(std::size_t elements, F f) const {
        const std::size_t row = by_sample_ ? width_ / (channels_ * inner_) : 1;
        const std::size_t most = (elements + row * inner_ - 1) / (row * inner_) * row;
        for (std::size_t s = 0; s < samples_; s += most) f(s, std::min(most, samples_ - s));
    }

    // Calls f(part) for parts of at most `rows` rows each.
    template <class F>
    void for_each_part(std::size_t first, std::size_t samples, std::size_t rows, F f) const {
        const std::size_t sample = channels_ * inner_, most = rows * width_;
        const std::size_t run = by_sample_ ? samples * sample : inner_;
        const std::size_t runs = by_sample_ ? 1 : samples * channels_;
        for (std::size_t r = 0; r < runs; ++r)
            for (std::size_t at = 0; at < run; at += most)
                f(part{first * sample + r * run + at, std::min(most, run - at),
                       by_sample_ ? 0 : r % channels_, by_sample_ ? channels_ : 1});
    }
    template <class F>
    void for_each_part(F f) const {
        for_each_part(0, samples_, 1024, f);
    }

    // Calls f(first lane, channel) for the lanes of each channel of each sample in a row. There are
    // as many as inner elements.
    template <class F>
    void for_each_channel(F f) const {
        for (std::size_t lane = 0; lane < width_;)
            for (std::size_t channel = 0; channel < channels_; ++channel, lane += inner_)
                f(lane, channel);
    }

    // Sets each lane to the number of its channel.
    template <class R>
    void spread(const part& p, const std::vector<R>& of_channels, std::vector<R>& lanes) const {
        lanes.resize(width_);
        if (has_runs()) fill_run(lanes.data(), of_channels[p.first_channel]);
        else
            for_each_channel([&](std::size_t lane, std::size_t c) {
                std::fill_n(lanes.data() + lane, inner_, of_channels[c]);
            });
    }

    // Calls f(place in the tensor, lane, n) for all elements of a part, n at a time. n is constant:
    // that of a pack of T, or 1.
    template <class T, class F>
    void for_each_pack(part p, F f) const {
        for (const std::size_t width = width_; p.size > 0;) {
            const std::size_t row = std::min(width, p.size);
            hvd::detail::for_each_pack<T>(
                row, [&](std::size_t lane, auto n) { f(p.begin + lane, lane, n); });
            p.begin += row;
            p.size -= row;
        }
    }

    // Sets the lanes of a run, which all have one channel.
    template <class R>
    static void fill_run(R* lanes, R number) {
        const number_pack<R> all(number);
        for (std::size_t lane = 0; lane < lanes_of_run; lane += pack_size<R>)
            all.store(lanes + lane);
    }

    // Returns the sum of a run's lanes, and clears them.
    template <class R>
    static R take_run(R* lanes) {
        number_pack<R> sum(lanes);
        for (std::size_t lane = pack_size<R>; lane < lanes_of_run; lane += pack_size<R>)
            sum.all += number_pack<R>(lanes + lane).all;
        fill_run(lanes, R(0));
        R parts[pack_size<R>];
        sum.store(parts);
        for (std::size_t n = pack_size<R> / 2; n > 0; n /= 2)
            for (std::size_t k = 0; k < n; ++k) parts[k] += parts[k + n];
        return parts[0];
    }

    // The place of a channel's first element in a sample.
    std::size_t place(std::size_t sample, std::size_t channel) const {
        return (sample * channels_ + channel) * inner_;
    }

private:
    static constexpr std::size_t largest_pack = pack_size<float>, lanes_of_run = 16;
    static constexpr std::size_t least_run = 64;  // inner elements

    std::size_t samples_, channels_, inner_, width_;
    bool by_sample_;
};

// Two sums of each channel over samples of T. Few elements are added in R, and these sums in
// double.
template <class T, class R = typename dtype_traits<T>::accumulator>
class channel_sums {
public:
    explicit channel_sums(const channel_passes& passes)
        : first(passes.channels()),
          second(first),
          passes_(passes),
          of_lanes_(passes.width()),
          others_(of_lanes_),
          wide_(passes.width()),
          wide_others_(wide_) {}

    std::vector<double> first, second;

    void clear() {
        std::ranges::fill(first, 0);
        std::ranges::fill(second, 0);
    }

    // `add(place, n, numbers, first, second)` adds n elements to the sums of their lanes. `numbers`
    // are those of the lanes' channels.
    template <class Add>
    void add(std::size_t begin, std::size_t samples, const std::vector<R>& of_channels, Add add) {
        if (passes_.has_runs()) add_runs(begin, samples, of_channels, add);
        else add_rows(begin, samples, of_channels, add);
    }

private:
    template <class Add>
    void add_part(const channel_passes::part& p, Add add) {
        passes_.for_each_pack<T>(
            p, [add, numbers = lanes_.data(), sums = of_lanes_.data(), others = others_.data()](
                   std::size_t at, std::size_t lane, auto n) {
                add(at, n, numbers + lane, sums + lane, others + lane);
            });
    }

    template <class Add>
    void add_runs(std::size_t begin, std::size_t samples, const std::vector<R>& of_channels,
                  Add& add) {
        passes_.for_each_part(begin, samples, rows_in_R, [&](const channel_passes::part& p) {
            passes_.spread(p, of_channels, lanes_);
            add_part(p, add);
            first[p.first_channel] += double(channel_passes::take_run(of_lanes_.data()));
            second[p.first_channel] += double(channel_passes::take_run(others_.data()));
        });
    }

    template <class Add>
    void add_rows(std::size_t begin, std::size_t samples, const std::vector<R>& of_channels,
                  Add& add) {
        passes_.spread({}, of_channels, lanes_);
        passes_.for_each_part(begin, samples, rows_in_R, [&](const channel_passes::part& p) {
            add_part(p, add);
            widen(of_lanes_, wide_);
            widen(others_, wide_others_);
        });
        passes_.for_each_channel([&](std::size_t lane, std::size_t c) {
            first[c] += take(wide_.data() + lane);
            second[c] += take(wide_others_.data() + lane);
        });
    }

    // Returns the sum of a channel's lanes, and clears them.
    double take(double* lanes) const {
        const std::size_t inner = passes_.inner();
        const double sum = std::accumulate(lanes, lanes + inner, 0.0);
        std::fill_n(lanes, inner, 0.0);
        return sum;
    }

    // Moves the sums in R into those in double.
    static void widen(std::vector<R>& from, std::vector<double>& to) {
        for_each_pack<R>(from.size(),
                         [from = from.data(), to = to.data()](std::size_t lane, auto n) {
                             number_pack<R, n>(from + lane).add_to(to + lane);
                             number_pack<R, n>(R(0)).store(from + lane);
                         });
    }

    static constexpr std::size_t rows_in_R = 16;

    const channel_passes& passes_;
    std::vector<R> lanes_, of_lanes_, others_;
    std::vector<double> wide_, wide_others_;
};

// The count of samples, and means and sums of squared deviations of channels, merged by Chan's
// formula.
struct channel_moments {
    explicit channel_moments(std::size_t channels) : means(channels), squares(channels) {}

    void merge(double more, const double* other_means, const double* other_squares) {
        if (more == 0) return;
        const double share = more / (count + more), both = count * share;
        for (std::size_t c = 0; c < means.size(); ++c) {
            const double delta = other_means[c] - means[c];
            means[c] += delta * share;
            squares[c] += other_squares[c] + delta * delta * both;
        }
        count += more;
    }

    double count = 0;
    std::vector<double> means, squares;
};

template <class R>
R median(R a, R b, R c) {
    return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

// The moments of a tensor. Deviations in a section are those from one of its elements, which is
// near its mean. So values far from zero lose no precision.
template <class T, class R = typename dtype_traits<T>::accumulator>
channel_moments moments_of(const channel_passes& passes, const T* x) {
    channel_moments all(passes.channels());
    channel_sums<T> sums(passes);
    std::vector<R> origin(passes.channels());
    passes.for_each_section(512, [&](std::size_t begin, std::size_t samples) {
        for (std::size_t c = 0; c < origin.size(); ++c)
            origin[c] = median(R(x[passes.place(begin, c)]),
                               R(x[passes.place(begin + samples / 2, c) + passes.inner() / 2]),
                               R(x[passes.place(begin + samples - 1, c) + passes.inner() - 1]));
        sums.clear();
        sums.add(begin, samples, origin,
                 [x](std::size_t at, auto n, const R* from, R* sum, R* squared) {
                     number_pack<R, n> d(x + at);
                     d.all -= number_pack<R, n>(from).all;
                     d.add_to(sum);
                     d.all *= d.all;
                     d.add_to(squared);
                 });
        const double count = double(samples * passes.inner()), inverse = 1 / count;
        for (std::size_t c = 0; c < origin.size(); ++c) {
            const double sum =
                std::exchange(sums.first[c], double(origin[c]) + sums.first[c] * inverse);
            sums.second[c] = std::max(sums.second[c] - sum * sum * inverse, 0.0);
        }
        all.merge(count, sums.first.data(), sums.second.data());
    });
    return all;
}

}  // namespace hvd::inline v0::detail
