// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensors.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// N numbers that one operation computes.
template <class R, std::size_t N>
struct number_pack {
    typedef R type __attribute__((vector_size(N * sizeof(R))));
    type all;

    template <class T>
    explicit number_pack(const T* from) {
        if constexpr (std::is_same_v<T, R>) std::memcpy(&all, from, sizeof all);
        else
            for (std::size_t k = 0; k < N; ++k) all[k] = R(from[k]);
    }

    explicit number_pack(R number) : all(number - type{}) {}

    template <class T>
    void store(T* to) const {
        if constexpr (std::is_same_v<T, R>) std::memcpy(to, &all, sizeof all);
        else
            for (std::size_t k = 0; k < N; ++k) to[k] = T(all[k]);
    }

    void add_to(R* sums) const {
        number_pack sum(sums);
        sum.all += all;
        sum.store(sums);
    }
};

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
        std::size_t together = pack / std::gcd(sample, pack);
        while (sample * together < lanes_of_run) together *= 2;
        width_ = by_sample_ ? sample * std::min(together, std::max<std::size_t>(samples, 1))
                            : lanes_of_run;
    }

    std::size_t channels() const { return channels_; }
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

    // Calls f(lane, channel) for each lane of a part.
    template <class F>
    void for_each_lane(const part& p, F f) const {
        if (p.channels == 1)
            for (std::size_t lane = 0; lane < width_; ++lane) f(lane, p.first_channel);
        else
            for (std::size_t lane = 0; lane < width_;)
                for (std::size_t channel = 0; channel < channels_; ++channel)
                    for (std::size_t i = 0; i < inner_; ++i) f(lane++, channel);
    }

    // Sets each lane to the number of its channel.
    template <class R>
    void spread(const part& p, const std::vector<R>& of_channels, std::vector<R>& lanes) const {
        lanes.resize(width_);
        if (has_runs()) return fill_run(lanes.data(), of_channels[p.first_channel]);
        for_each_lane(p, [&](std::size_t lane, std::size_t c) { lanes[lane] = of_channels[c]; });
    }

    // Calls f(place in the tensor, lane, n) for all elements of a part, n at a time. n is constant.
    template <class F>
    void for_each_pack(const part& p, F f) const {
        for (std::size_t row = 0; row < p.size; row += width_) {
            const std::size_t end = std::min(width_, p.size - row);
            std::size_t lane = 0;
            for (; lane + pack <= end; lane += pack)
                f(p.begin + row + lane, lane, std::integral_constant<std::size_t, pack>());
            for (; lane < end; ++lane)
                f(p.begin + row + lane, lane, std::integral_constant<std::size_t, 1>());
        }
    }

    // Sets the lanes of a run, which all have one channel.
    template <class R>
    static void fill_run(R* lanes, R number) {
        const number_pack<R, pack> all(number);
        for (std::size_t lane = 0; lane < lanes_of_run; lane += pack) all.store(lanes + lane);
    }

    // Returns the sum of a run's lanes, and clears them.
    template <class R>
    static R take_run(R* lanes) {
        number_pack<R, pack> sum(lanes);
        for (std::size_t lane = pack; lane < lanes_of_run; lane += pack)
            sum.all += number_pack<R, pack>(lanes + lane).all;
        fill_run(lanes, R(0));
        R parts[pack];
        sum.store(parts);
        for (std::size_t n = pack / 2; n > 0; n /= 2)
            for (std::size_t k = 0; k < n; ++k) parts[k] += parts[k + n];
        return parts[0];
    }

    // The place of a channel's first element in a sample.
    std::size_t place(std::size_t sample, std::size_t channel) const {
        return (sample * channels_ + channel) * inner_;
    }

private:
    static constexpr std::size_t pack = 8, lanes_of_run = 16, least_run = 64;

    std::size_t samples_, channels_, inner_, width_;
    bool by_sample_;
};

// Two sums of each channel over samples. Few elements are added in R, and these sums in double.
template <class R>
class channel_sums {
public:
    explicit channel_sums(const channel_passes& passes)
        : first(passes.channels()),
          second(first),
          passes_(passes),
          of_lanes_(passes.width()),
          others_(of_lanes_) {}

    std::vector<double> first, second;

    void clear() {
        std::ranges::fill(first, 0);
        std::ranges::fill(second, 0);
    }

    // `add(place, n, numbers, first, second)` adds n elements to the sums of their lanes. `numbers`
    // are those of the lanes' channels.
    template <class Add>
    void add(std::size_t begin, std::size_t samples, const std::vector<R>& of_channels, Add add) {
        bool spread = false;  // all parts with all channels have the same lanes
        passes_.for_each_part(begin, samples, 16, [&](const channel_passes::part& p) {
            if (p.channels == 1 || !spread) passes_.spread(p, of_channels, lanes_);
            spread = true;
            passes_.for_each_pack(p, [&](std::size_t at, std::size_t lane, auto n) {
                add(at, n, &lanes_[lane], &of_lanes_[lane], &others_[lane]);
            });
            if (passes_.has_runs()) {
                first[p.first_channel] += double(channel_passes::take_run(of_lanes_.data()));
                second[p.first_channel] += double(channel_passes::take_run(others_.data()));
                return;
            }
            passes_.for_each_lane(p, [&](std::size_t lane, std::size_t c) {
                first[c] += double(std::exchange(of_lanes_[lane], R(0)));
                second[c] += double(std::exchange(others_[lane], R(0)));
            });
        });
    }

private:
    const channel_passes& passes_;
    std::vector<R> lanes_, of_lanes_, others_;
};

// Counts, means and sums of squared deviations of channels, merged by Chan's formula.
struct channel_moments {
    explicit channel_moments(std::size_t channels)
        : counts(channels), means(channels), squares(channels) {}

    void merge(std::size_t channel, double count, double mean, double squared) {
        if (count == 0) return;
        const double before = std::exchange(counts[channel], counts[channel] + count);
        if (before == 0) {  // most tensors have few parts, and divisions are slow
            means[channel] = mean;
            squares[channel] = squared;
            return;
        }
        const double share = count / (before + count), delta = mean - means[channel];
        means[channel] += delta * share;
        squares[channel] += squared + delta * delta * before * share;
    }

    std::vector<double> counts, means, squares;
};

// The moments of a tensor. Deviations in a section are those from its first element, which is near
// its mean. So values far from zero lose no precision.
template <class T, class R = typename dtype_traits<T>::accumulator>
channel_moments moments_of(const channel_passes& passes, const T* x) {
    channel_moments all(passes.channels());
    channel_sums<R> sums(passes);
    std::vector<R> origin(passes.channels());
    passes.for_each_section(512, [&](std::size_t begin, std::size_t samples) {
        for (std::size_t c = 0; c < origin.size(); ++c) origin[c] = R(x[passes.place(begin, c)]);
        sums.clear();
        sums.add(begin, samples, origin,
                 [&](std::size_t at, auto n, const R* from, R* sum, R* squared) {
                     number_pack<R, n> d(x + at);
                     d.all -= number_pack<R, n>(from).all;
                     d.add_to(sum);
                     d.all *= d.all;
                     d.add_to(squared);
                 });
        const double count = double(passes.place(begin + samples, 0) - passes.place(begin, 0)) /
                             double(passes.channels()),
                     inverse = 1 / count;
        for (std::size_t c = 0; c < origin.size(); ++c) {
            const double s = sums.first[c];
            all.merge(c, count, double(origin[c]) + s * inverse,
                      std::max(sums.second[c] - s * s * inverse, 0.0));
        }
    });
    return all;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
