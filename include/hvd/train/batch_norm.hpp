// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "agreement.hpp"
#include "tensors.hpp"

namespace hvd {
inline namespace v0 {

/// Batch normalisation over the samples of all ranks: y = scale · (x - mean) / sqrt(variance +
/// epsilon) + shift, per channel. Ranks may have different numbers of samples, or none.
///
/// Counts, means and squared deviations are merged by Chan's formula around each rank's own mean,
/// not as E[x²] - E[x]². So values far from zero lose no precision. Tensors are samples × channels,
/// row-major.
/// **Collective**: `forward` and `backward`, in turn, with equal channels. Feature H4; Ioffe and
/// Szegedy, arXiv:1502.03167.
template <class T = float>
class sync_batch_norm {
public:
    /// @throws hvd::usage_error for no channels.
    explicit sync_batch_norm(std::size_t channels, double epsilon = 1e-5)
        : scale(channels, T(1)),
          shift(channels),
          scale_gradient(channels),
          shift_gradient(channels),
          channels_(channels),
          epsilon_(epsilon) {
        if (channels == 0) throw usage_error(-1, "hvd: a batch norm of 0 channels: at least 1");
    }

    std::vector<T> scale, shift;  ///< one value per channel, trained like other parameters
    std::vector<T> scale_gradient,
        /// `backward` writes this rank's contribution: average or sum it as other gradients
        shift_gradient;

    /// Normalises `x` into `y`, which may be `x`.
    /// @throws hvd::usage_error for sizes that are not whole samples (the other ranks get
    /// peer_error), hvd::mismatch_error for different channels.
    template <class Comm, class X, class Y>
    void forward(Comm& comm, const X& x, Y&& y) {
        const auto in = samples(comm, x);
        const auto out = detail::elements(detail::flat_view(y));
        if (out.size() != in.size())
            detail::refuse_call(comm, "batch norm of ", in.size(), " elements into ", out.size());
        measure(comm, in);
        normalised_.resize(in.size());
        for (std::size_t i = 0; i < in.size(); ++i) {
            const std::size_t c = i % channels();
            normalised_[i] = (detail::as_double(in[i]) - mean_[c]) * inverse_deviation_[c];
            out[i] = detail::from_double<T>(detail::as_double(scale[c]) * normalised_[i] +
                                            detail::as_double(shift[c]));
        }
    }

    /// Computes the gradient of the last `forward`'s input from the gradient of its output. The
    /// loss is the sum over all ranks' samples. `dx` may be `dy`.
    template <class Comm, class DY, class DX>
    void backward(Comm& comm, const DY& dy, DX&& dx) {
        const auto out = samples(comm, dy);
        const auto in = detail::elements(detail::flat_view(dx));
        if (out.size() != normalised_.size() || in.size() != out.size())
            detail::refuse_call(comm, "batch norm backward of ", out.size(),
                                " elements after a forward of ", normalised_.size());
        std::vector<double> sums(2 * channels());  // Σ dy, Σ dy · normalised
        for (std::size_t i = 0; i < out.size(); ++i) {
            sums[i % channels()] += detail::as_double(out[i]);
            sums[channels() + i % channels()] += detail::as_double(out[i]) * normalised_[i];
        }
        for (std::size_t c = 0; c < channels(); ++c) {
            shift_gradient[c] = detail::from_double<T>(sums[c]);
            scale_gradient[c] = detail::from_double<T>(sums[channels() + c]);
        }
        comm.allreduce(sums, sum, {.name = "batch norm backward"});
        for (std::size_t i = 0; i < in.size(); ++i) {
            const std::size_t c = i % channels();
            const double rest = (sums[c] + normalised_[i] * sums[channels() + c]) / count_;
            in[i] = detail::from_double<T>(detail::as_double(scale[c]) * inverse_deviation_[c] *
                                           (detail::as_double(out[i]) - rest));
        }
    }

    /// Statistics of the last `forward` over all ranks. The variance is that of the batch: it is
    /// divided by the count.
    const std::vector<double>& mean() const { return mean_; }
    const std::vector<double>& variance() const { return variance_; }
    double count() const { return count_; }

private:
    std::size_t channels() const { return channels_; }

    template <class Comm, class X>
    auto samples(Comm& comm, const X& x) const {
        const auto flat = detail::elements(detail::flat_view(x));
        for (const auto* of_channels : {&scale, &shift, &scale_gradient, &shift_gradient})
            if (of_channels->size() != channels())
                detail::refuse_call(comm, "batch norm of ", channels(),
                                    " channels whose scale, shift or gradients have ",
                                    of_channels->size());
        if (flat.size() % channels() != 0)
            detail::refuse_call(comm, "batch norm of ", flat.size(),
                                " elements, which are no samples of ", channels(), " channels");
        return flat;
    }

    template <class Comm, class In>
    void measure(Comm& comm, const In& in) {
        const std::size_t n = in.size() / channels();
        // Each rank sends its count, then the mean and Σ (x - mean)² of each channel.
        std::vector<double> mine(1 + 2 * channels());
        mine[0] = double(n);
        for (std::size_t c = 0; c < channels(); ++c) {
            double& mean = mine[1 + c];
            double& squares = mine[1 + channels() + c];
            for (std::size_t s = 0; s < n; ++s) {
                const double delta = detail::as_double(in[s * channels() + c]) - mean;
                mean += delta / double(s + 1);
                squares += delta * (detail::as_double(in[s * channels() + c]) - mean);
            }
        }
        const auto all = comm.allgather(mine, {.name = "batch norm"});
        check_channels(comm.rank(), all.counts);
        merge(all.values, mine.size());
    }

    // Each rank sent a count, and two numbers for each channel.
    static void check_channels(int rank, const std::vector<std::size_t>& given) {
        if (std::ranges::count(given, given[0]) == std::ptrdiff_t(given.size())) return;
        detail::table<detail::message> channels(given.size());
        for (std::size_t r = 0; r < given.size(); ++r) channels[r] = detail::text(given[r] / 2);
        detail::require_equal(rank, "batch norm", "channels", channels);
    }

    // Merges in rank order, so that every rank gets the same bits.
    void merge(const std::vector<double>& all, std::size_t stride) {
        count_ = 0;
        mean_.assign(channels(), 0);
        variance_.assign(channels(), 0);
        inverse_deviation_.assign(channels(), 0);
        for (std::size_t at = 0; at < all.size(); at += stride) {
            const double n = all[at];
            if (n == 0) continue;
            const double total = count_ + n;
            for (std::size_t c = 0; c < channels(); ++c) {
                const double delta = all[at + 1 + c] - mean_[c];
                mean_[c] += delta * n / total;
                variance_[c] += all[at + 1 + channels() + c] + delta * delta * count_ * n / total;
            }
            count_ = total;
        }
        for (std::size_t c = 0; c < channels(); ++c) {
            if (count_ > 0) variance_[c] /= count_;
            inverse_deviation_[c] = 1 / std::sqrt(variance_[c] + epsilon_);
        }
    }

    std::size_t channels_;
    double epsilon_;
    double count_ = 0;
    std::vector<double> mean_, variance_, inverse_deviation_;
    std::vector<double> normalised_;
};

}  // namespace v0
}  // namespace hvd
