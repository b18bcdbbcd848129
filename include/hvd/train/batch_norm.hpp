// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "agreement.hpp"
#include "channel_passes.hpp"
#include "tensors.hpp"

namespace hvd::inline v0 {

/// The place of the channels in a tensor.
enum class channel_order : std::uint8_t {
    last,   ///< samples × … × channels
    first,  ///< samples × channels × …, as in LibTorch; tensors have a shape: `view(data, shape)`
};

/// Options of a `sync_batch_norm`.
struct batch_norm_options {
    double epsilon = 1e-5;                      ///< added to the variance
    double momentum = 0.1;                      ///< weight of a batch in the running statistics
    channel_order order = channel_order::last;  ///< the layout of the tensors
};

/// Batch normalisation over the samples of all ranks: y = scale · (x - mean) / sqrt(variance +
/// epsilon) + shift, per channel. Ranks may have different numbers of samples, or none.
///
/// Counts, means and squared deviations are merged by Chan's formula around each rank's own mean,
/// not as E[x²] - E[x]². So values far from zero lose no precision.
/// **Collective**: `forward` and `backward`, in turn, with equal channels. `evaluate` is local.
/// Horovod: `SyncBatchNorm`; Ioffe and Szegedy, arXiv:1502.03167.
/// @snippet tests/train/snippets.cpp sync_batch_norm
template <class T = float>
class sync_batch_norm {
public:
    /// The type of the running statistics: float for 16-bit floats.
    using statistic = typename dtype_traits<T>::accumulator;

    /// @throws hvd::usage_error for no channels.
    explicit sync_batch_norm(std::size_t channels, const batch_norm_options& o = {})
        : scale(channels, T(1)),
          shift(channels),
          scale_gradient(channels),
          shift_gradient(channels),
          running_mean(channels),
          running_variance(channels, statistic(1)),
          channels_(channels),
          options_(o) {
        if (channels == 0) throw usage_error(-1, "hvd: a batch norm of 0 channels: at least 1");
    }

    std::vector<T> scale, shift;  ///< one value per channel, trained like other parameters
    std::vector<T> scale_gradient,
        /// `backward` writes this rank's contribution: average or sum it as other gradients
        shift_gradient;

    /// The statistics for `evaluate`, equal on all ranks: each `forward` of any samples makes them
    /// (1 - momentum) · running + momentum · batch. The variance is the unbiased one, divided by
    /// count - 1, as in LibTorch. Save and broadcast them as other buffers.
    std::vector<statistic> running_mean, running_variance;

    /// Normalises `x` into `y`, which may be `x`.
    /// **Buffers**: `x` stays as it is until `backward`, which reads it. If `x` is a
    /// temporary, or `y` is `x`, a copy is kept.
    /// @throws hvd::usage_error for sizes that are not whole samples (the other ranks get
    /// peer_error), hvd::mismatch_error for different channels.
    template <class Comm, class X, class Y>
    void forward(Comm& comm, X&& x, Y&& y) {
        const auto refuse = [&](const auto&... parts) { detail::refuse_call(comm, parts...); };
        const passes over = passes_of(x, refuse);
        const auto in = detail::elements(detail::flat_view(x));
        const auto out = detail::elements(detail::flat_view(y));
        check_output(in.size(), out.size(), refuse);
        measure(comm, detail::moments_of(over, in.data()));
        keep(in, !detail::is_borrowed<X> || out.data() == in.data());
        passes_ = over;
        update_running();
        normalise(over, in.data(), out.data(), mean_, inverse_deviation_);
    }

    /// Computes the gradient of the last `forward`'s input from the gradient of its output. The
    /// loss is the sum over all ranks' samples. `dx` may be `dy`.
    template <class Comm, class DY, class DX>
    void backward(Comm& comm, const DY& dy, DX&& dx) {
        check_vectors([&](const auto&... parts) { detail::refuse_call(comm, parts...); });
        const auto out = detail::elements(detail::flat_view(dy));
        const auto in = detail::elements(detail::flat_view(dx));
        if (out.size() != input_.size() || in.size() != out.size())
            detail::refuse_call(comm, "batch norm backward of ", out.size(),
                                " elements after a forward of ", input_.size());
        auto sums = sums_of(out.data());
        for (std::size_t c = 0; c < channels_; ++c) {
            shift_gradient[c] = detail::from_double<T>(sums[c]);
            scale_gradient[c] = detail::from_double<T>(sums[channels_ + c]);
        }
        comm.allreduce(sums, sum, {.name = "batch norm backward"});
        propagate(sums, out.data(), in.data());
    }

    /// Normalises `x` into `y`, which may be `x`, by the running statistics. It makes no call.
    /// @throws hvd::usage_error for sizes that are not whole samples.
    template <class X, class Y>
    void evaluate(const X& x, Y&& y) const {
        const auto refuse = [](const auto&... parts) { detail::refuse(-1, parts...); };
        const passes over = passes_of(x, refuse);
        const auto in = detail::elements(detail::flat_view(x));
        const auto out = detail::elements(detail::flat_view(y));
        check_output(in.size(), out.size(), refuse);
        std::vector<double> mean(running_mean.begin(), running_mean.end()), inverse;
        for (const statistic v : running_variance) inverse.push_back(inverse_deviation(double(v)));
        normalise(over, in.data(), out.data(), mean, inverse);
    }

    /// Statistics of the last `forward` over all ranks. The variance is that of the batch: it is
    /// divided by the count.
    const std::vector<double>& mean() const { return mean_; }
    const std::vector<double>& variance() const { return variance_; }
    double count() const { return count_; }

private:
    using R = statistic;
    using passes = detail::channel_passes;
    using part = passes::part;
    template <std::size_t N>
    using pack = detail::number_pack<R, N>;

    template <class Refuse>
    void check_vectors(Refuse refuse) const {
        const auto check = [&](const auto&... of_channels) {
            for (const std::size_t size : {of_channels.size()...})
                if (size != channels_)
                    refuse("batch norm of ", channels_,
                           " channels whose scale, shift, statistics or gradients have ", size);
        };
        check(scale, shift, scale_gradient, shift_gradient, running_mean, running_variance);
    }

    template <class Refuse>
    static void check_output(std::size_t in, std::size_t out, Refuse refuse) {
        if (in != out) refuse("batch norm of ", in, " elements into ", out);
    }

    template <class X, class Refuse>
    passes passes_of(const X& x, Refuse refuse) const {
        check_vectors(refuse);
        const auto tensor = detail::to_view(x);
        if (options_.order == channel_order::last) {
            if (tensor.size() % channels_ != 0)
                refuse("batch norm of ", tensor.size(), " elements, which are no samples of ",
                       channels_, " channels");
            return {tensor.size() / channels_, channels_, 1};
        }
        const auto& shape = tensor.shape();
        if (shape.size() < 2 || shape[1] != channels_)
            refuse("batch norm of shape ", detail::print_list(shape), ", which is no samples × ",
                   channels_, " channels × …");
        std::size_t inner = 1;
        for (std::size_t d = 2; d < shape.size(); ++d) inner *= shape[d];
        return {inner == 0 ? 0 : shape[0], channels_, inner == 0 ? 1 : inner};
    }

    void keep(std::span<const T> in, bool copies) {
        kept_.clear();
        if (copies) kept_.assign(in.begin(), in.end());
        input_ = copies ? std::span<const T>(kept_) : in;
    }

    // Merges the ranks' moments in rank order, so that every rank gets the same bits.
    template <class Comm>
    void measure(Comm& comm, const detail::channel_moments& own) {
        // Each rank sends its count, then the mean and Σ (x - mean)² of each channel.
        std::vector<double> mine{own.count};
        mine.insert(mine.end(), own.means.begin(), own.means.end());
        mine.insert(mine.end(), own.squares.begin(), own.squares.end());
        const auto all = comm.allgather(mine, {.name = "batch norm"});
        check_channels(comm.rank(), all.counts);
        detail::channel_moments merged(channels_);
        for (std::size_t at = 0; at < all.values.size(); at += mine.size())
            merged.merge(all.values[at], &all.values[at + 1], &all.values[at + 1 + channels_]);
        count_ = merged.count;
        mean_ = std::move(merged.means);
        variance_ = std::move(merged.squares);
        inverse_deviation_.clear();
        for (double& v : variance_) {
            if (count_ > 0) v /= count_;
            inverse_deviation_.push_back(inverse_deviation(v));
        }
    }

    // Each rank sent a count, and two numbers for each channel.
    static void check_channels(int rank, const std::vector<std::size_t>& given) {
        if (std::ranges::count(given, given[0]) == std::ptrdiff_t(given.size())) return;
        detail::table<detail::message> channels(given.size());
        for (std::size_t r = 0; r < given.size(); ++r) channels[r] = detail::text(given[r] / 2);
        detail::require_equal(rank, "batch norm", "channels", channels);
    }

    double inverse_deviation(double variance) const {
        return 1 / std::sqrt(variance + options_.epsilon);
    }

    void update_running() {
        if (count_ == 0) return;
        const double m = options_.momentum, unbiased = count_ > 1 ? count_ / (count_ - 1) : 1;
        for (std::size_t c = 0; c < channels_; ++c) {
            running_mean[c] = statistic((1 - m) * double(running_mean[c]) + m * mean_[c]);
            running_variance[c] =
                statistic((1 - m) * double(running_variance[c]) + m * unbiased * variance_[c]);
        }
    }

    // Channels are centred in two steps: by their mean in R, which loses nothing far from zero, and
    // by its rounding error, which goes into an offset.
    static double rest_of(double mean) { return mean - double(R(mean)); }

    void normalise(const passes& over, const T* in, T* out, const std::vector<double>& mean,
                   const std::vector<double>& inverse) const {
        const std::vector<R> centre(mean.begin(), mean.end());
        std::vector<R> factor(channels_), offset(channels_), centres, factors, offsets;
        for (std::size_t c = 0; c < channels_; ++c) {
            const double f = detail::as_double(scale[c]) * inverse[c];
            factor[c] = R(f);
            offset[c] = R(detail::as_double(shift[c]) - f * rest_of(mean[c]));
        }
        over.for_each_part([&](const part& p) {
            over.spread(p, centre, centres);
            over.spread(p, factor, factors);
            over.spread(p, offset, offsets);
            over.for_each_pack<T>(
                p, [in, out, centre = centres.data(), factor = factors.data(),
                    offset = offsets.data()](std::size_t at, std::size_t lane, auto n) {
                    pack<n> y(in + at);
                    y.all = (y.all - pack<n>(centre + lane).all) * pack<n>(factor + lane).all +
                            pack<n>(offset + lane).all;
                    y.store(out + at);
                });
        });
    }

    // Σ dy of each channel, then Σ dy · (x - mean) / deviation.
    std::vector<double> sums_of(const T* dy) const {
        const std::vector<R> centre(mean_.begin(), mean_.end());
        detail::channel_sums<T> sums(passes_);
        const T* const x = input_.data();
        passes_.for_each_section(input_.size(), [&](std::size_t begin, std::size_t samples) {
            sums.add(begin, samples, centre,
                     [dy, x](std::size_t at, auto n, const R* from, R* of_dy, R* of_products) {
                         pack<n> d(dy + at);
                         d.add_to(of_dy);
                         d.all *= pack<n>(x + at).all - pack<n>(from).all;
                         d.add_to(of_products);
                     });
        });
        std::vector<double> all = sums.first;
        for (std::size_t c = 0; c < channels_; ++c)
            all.push_back((sums.second[c] - sums.first[c] * rest_of(mean_[c])) *
                          inverse_deviation_[c]);
        return all;
    }

    // dx = scale / deviation · (dy - (Σ dy + normalised x · Σ dy · normalised x) / count)
    void propagate(const std::vector<double>& sums, const T* dy, T* dx) const {
        const std::vector<R> centre(mean_.begin(), mean_.end());
        std::vector<R> of_dy(channels_), of_x(channels_), offset(channels_);
        std::vector<R> centres, of_dys, of_xs, offsets;
        for (std::size_t c = 0; c < channels_; ++c) {
            const double f = detail::as_double(scale[c]) * inverse_deviation_[c];
            const double slope = -f * inverse_deviation_[c] * sums[channels_ + c] / count_;
            of_dy[c] = R(f);
            of_x[c] = R(slope);
            offset[c] = R(-f * sums[c] / count_ - slope * rest_of(mean_[c]));
        }
        const T* const x = input_.data();
        passes_.for_each_part([&](const part& p) {
            passes_.spread(p, centre, centres);
            passes_.spread(p, of_dy, of_dys);
            passes_.spread(p, of_x, of_xs);
            passes_.spread(p, offset, offsets);
            passes_.for_each_pack<T>(p, [&](std::size_t at, std::size_t lane, auto n) {
                pack<n> d(dy + at);
                d.all =
                    d.all * pack<n>(&of_dys[lane]).all + pack<n>(&offsets[lane]).all +
                    (pack<n>(x + at).all - pack<n>(&centres[lane]).all) * pack<n>(&of_xs[lane]).all;
                d.store(dx + at);
            });
        });
    }

    std::size_t channels_;
    batch_norm_options options_;
    double count_ = 0;
    std::vector<double> mean_, variance_, inverse_deviation_;
    passes passes_{0, 1, 1};    // of the last forward
    std::span<const T> input_;  // of the last forward, or its copy
    std::vector<T> kept_;
};

}  // namespace hvd::inline v0
