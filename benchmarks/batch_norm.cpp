// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures the forward pass of a synchronised batch norm beside two plain passes over the same
// tensor in turn: one for the mean and variance of each channel, one that normalises.
#include <cmath>

#include <hvd/train.hpp>

#include "support/program.hpp"

namespace {

struct layout {
    std::size_t samples, channels, inner;
    hvd::channel_order order;

    std::size_t size() const { return samples * channels * inner; }
    const char* name() const { return order == hvd::channel_order::first ? "first" : "last"; }
};

// A tensor and the batch norm of it. Passes of the user keep their sums in float.
template <class Comm>
class normalised_tensor {
public:
    normalised_tensor(Comm& comm, const layout& l)
        : comm_(comm),
          l_(l),
          x_(l.size()),
          y_(l.size()),
          norm_(l.channels, {.order = l.order}),
          sums_(l.channels),
          squares_(l.channels) {
        for (std::size_t i = 0; i < x_.size(); ++i)
            x_[i] = float((i * 7919 + std::size_t(comm.rank()) * 31) % 1009) / 100;
    }

    std::vector<bench::candidate> candidates() {
        return {{"hvd",
                 [this] { norm_.forward(comm_, shaped(x_), shaped(y_)); },
                 {},
                 [this] { return wrong(); }},
                {"plain", [this] { take_plain_passes(); }}};
    }

private:
    auto shaped(std::vector<float>& v) const {
        return hvd::view(v.data(), hvd::shape(l_.samples, l_.channels, l_.inner));
    }

    void take_plain_passes() {
        std::ranges::fill(sums_, 0.0f);
        std::ranges::fill(squares_, 0.0f);
        const bool first = l_.order == hvd::channel_order::first;
        if (first) sum_runs();
        else sum_rows(x_.data(), sums_.data(), squares_.data());
        const float count = float(l_.samples * l_.inner);
        for (std::size_t c = 0; c < l_.channels; ++c) {
            const float mean = sums_[c] / count, variance = squares_[c] / count - mean * mean;
            squares_[c] = 1 / std::sqrt(variance + 1e-5f);
            sums_[c] = -mean * squares_[c];
        }
        if (first) normalise_runs();
        else normalise_rows(x_.data(), y_.data(), squares_.data(), sums_.data());
    }

    void sum_rows(const float* x, float* __restrict sums, float* __restrict squares) const {
        const std::size_t channels = l_.channels;
        for (std::size_t row = 0; row < l_.size(); row += channels)
            for (std::size_t c = 0; c < channels; ++c) {
                sums[c] += x[row + c];
                squares[c] += x[row + c] * x[row + c];
            }
    }

    void normalise_rows(const float* x, float* __restrict y, const float* factor,
                        const float* offset) const {
        const std::size_t channels = l_.channels;
        for (std::size_t row = 0; row < l_.size(); row += channels)
            for (std::size_t c = 0; c < channels; ++c)
                y[row + c] = x[row + c] * factor[c] + offset[c];
    }

    template <class F>
    void for_each_run(F f) const {
        for (std::size_t run = 0; run < l_.samples * l_.channels; ++run)
            f(run * l_.inner, run % l_.channels);
    }

    void sum_runs() {
        for_each_run([&](std::size_t begin, std::size_t c) {
            float sum = 0, squares = 0;
            for (std::size_t i = begin; i < begin + l_.inner; ++i) {
                sum += x_[i];
                squares += x_[i] * x_[i];
            }
            sums_[c] += sum;
            squares_[c] += squares;
        });
    }

    void normalise_runs() {
        for_each_run([&, x = x_.data(), y = y_.data()](std::size_t begin, std::size_t c) {
            const float factor = squares_[c], offset = sums_[c];
            for (std::size_t i = begin; i < begin + l_.inner; ++i) y[i] = x[i] * factor + offset;
        });
    }

    // The elements of y that do not follow from the means and variances of all ranks.
    std::size_t wrong() const {
        std::size_t count = 0;
        const bool first = l_.order == hvd::channel_order::first;
        for (std::size_t i = 0; i < x_.size(); ++i) {
            const std::size_t c = (first ? i / l_.inner : i) % l_.channels;
            const double to =
                (double(x_[i]) - norm_.mean()[c]) / std::sqrt(norm_.variance()[c] + 1e-5);
            count += !(std::abs(double(y_[i]) - to) < 1e-5);
        }
        return count;
    }

    Comm& comm_;
    layout l_;
    std::vector<float> x_, y_;
    hvd::sync_batch_norm<float> norm_;
    std::vector<float> sums_, squares_;
};

// samples × channels × inner, with channels first and last.
const std::vector<layout>& layouts() {
    static const std::vector<layout> all = [] {
        std::vector<layout> both;
        for (const auto order : {hvd::channel_order::first, hvd::channel_order::last})
            for (const auto& [samples, channels, inner] : {std::array<std::size_t, 3>{32, 10, 49},
                                                           {64, 64, 49},
                                                           {32, 16, 196},
                                                           {256, 64, 1},
                                                           {32, 64, 196},
                                                           {16, 256, 196},
                                                           {32, 512, 49},
                                                           {32, 64, 3136},
                                                           {32, 3, 50176}})
                both.push_back({samples, channels, inner, order});
        return both;
    }();
    return all;
}

}  // namespace

int main(int argc, char** argv) {
    bench::options o;
    std::size_t most = 10000000;
    CLI::App app("Batch norm beside two plain passes over the tensor.", "batch_norm");
    bench::add_options(app, o);
    app.add_option("--most", most, "leaves out tensors of more elements");

    return bench::run_program(app, o, argc, argv, [&](auto& comm) {
        using Comm = std::remove_reference_t<decltype(comm)>;
        bench::report out(comm, "batch_norm", o);
        out.print("\n{:>8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>8} {:>7}\n", "samples", "channels",
                  "inner", "channels", "ms", "plain ms", "x plain", "#wrong");
        for (const layout& l : layouts()) {
            if (l.size() > most) continue;
            normalised_tensor<Comm> tensor(comm, l);
            const auto candidates = tensor.candidates();
            const auto timings = bench::interleave(comm, std::span(candidates), o.work);
            const double ms = timings[0].time * 1e3, plain = timings[1].time * 1e3;
            out.print("{:>8} {:>8} {:>8} {:>8} {:>10.4f} {:>10.4f} {:>8.2f} {:>7}\n", l.samples,
                      l.channels, l.inner, l.name(), ms, plain, ms / plain, timings[0].wrong);
            out.add({{"samples", l.samples},
                     {"channels", l.channels},
                     {"inner", l.inner},
                     {"order", l.name()},
                     {"ms", ms},
                     {"plain_ms", plain},
                     {"wrong", timings[0].wrong}});
        }
        out.write();
    });
}
