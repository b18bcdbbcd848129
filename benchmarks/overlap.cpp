// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures a training step whose gradients travel while the backward pass goes on. The pass is a
// timed wait, as long as communication alone takes. That resembles a device that computes while the
// host is idle. tests/network/lab.py measures between hosts.
#include <hvd/train.hpp>

#include "support/pattern.hpp"
#include "support/program.hpp"

namespace {

// Leaves parameters as they are, since only the gradients' communication is measured.
struct no_optimizer {
    void step() {}
};

template <class Comm>
class training_step {
public:
    training_step(Comm& comm, std::size_t layers, std::size_t bytes, std::size_t bucket_bytes)
        : comm_(comm),
          gradients_(layers, std::vector<float>(bytes / layers / sizeof(float))),
          parameters_(gradients_),
          optimizer_(comm, no_optimizer(), {.bucket_bytes = bucket_bytes}) {
        for (std::size_t i = 0; i < layers; ++i)
            optimizer_.register_parameter(std::to_string(i), parameters_[i], gradients_[i]);
    }

    bench::candidate communication() {
        return checked("communication alone", [this] { step(0, true); });
    }
    bench::candidate computation(double seconds) {
        return {"computation alone", [this, seconds] { compute(seconds, false); }};
    }
    bench::candidate overlapped(double seconds) {
        return checked("step, overlapped", [this, seconds] { step(seconds, true); });
    }
    bench::candidate in_turn(double seconds) {
        return checked("step, one after the other", [this, seconds] { step(seconds, false); });
    }

private:
    void step(double seconds, bool report) {
        compute(seconds, report);
        optimizer_.step();
    }

    // The last layer's gradient is ready first. Each is ready at its time, however long the calls
    // between took.
    void compute(double seconds, bool report) {
        const auto begin = bench::clock::now();
        for (std::size_t done = 1; done <= gradients_.size(); ++done) {
            const std::chrono::duration<double> due(seconds * double(done) /
                                                    double(gradients_.size()));
            std::this_thread::sleep_until(begin +
                                          std::chrono::duration_cast<bench::clock::duration>(due));
            if (report) optimizer_.gradient_ready(gradients_.size() - done);
        }
    }

    bench::candidate checked(const char* name, std::function<void()> call) {
        return {name, std::move(call),
                [this] {
                    for (auto& g : gradients_)
                        bench::fill(g.data(), g.size(), comm_.rank(), comm_.size());
                },
                [this] {
                    std::size_t wrong = 0;
                    for (const auto& g : gradients_)
                        wrong += bench::count_unequal(g.data(), g.size(), [this](std::size_t i) {
                            return bench::expected_average(i, comm_.size());
                        });
                    return wrong;
                }};
    }

    Comm& comm_;
    std::vector<std::vector<float>> gradients_;
    std::vector<std::vector<float>> parameters_;
    hvd::distributed_optimizer<Comm, no_optimizer> optimizer_;
};

template <class Out, class Comm>
void measure(Out& out, Comm& comm, const bench::options& o, training_step<Comm>& step) {
    const auto alone = step.communication();
    if (alone.prepare) alone.prepare();
    alone.call();
    const double seconds = bench::estimate(comm, alone, 3);
    const std::vector<bench::candidate> candidates = {
        alone, step.computation(seconds), step.overlapped(seconds), step.in_turn(seconds)};
    const auto timings = bench::interleave(comm, std::span(candidates), o.work);
    const double longer = std::max(timings[0].time, timings[1].time);
    out.print("\n{:>10} {:>17} {:>7}  {}\n", "ms", "of the longer one", "#wrong", "what");
    for (std::size_t c = 0; c < candidates.size(); ++c) {
        const bench::timing& t = timings[c];
        out.print("{:>10.1f} {:>17.2f} {:>7}  {}\n", t.time * 1e3, t.time / longer,
                  candidates[c].wrong ? std::to_string(t.wrong) : "-", candidates[c].name);
        bench::json row{
            {"what", candidates[c].name}, {"ms", t.time * 1e3}, {"of_longer", t.time / longer}};
        if (candidates[c].wrong) row["wrong"] = t.wrong;
        out.add(std::move(row));
    }
}

}  // namespace

int main(int argc, char** argv) {
    bench::options o;
    std::size_t layers = 50, bytes = std::size_t(100) << 20, bucket = std::size_t(4) << 20;
    CLI::App app(
        "A training step whose gradients travel during the backward pass, which is a timed wait.",
        "overlap");
    bench::add_options(app, o);
    app.add_option("--layers", layers)->check(CLI::PositiveNumber);
    app.add_option("--bytes", bytes, "of all gradients (float)")
        ->transform(CLI::AsSizeValue(false));
    app.add_option("--bucket", bucket, "bytes that travel together")
        ->transform(CLI::AsSizeValue(false));

    return bench::run_program(app, o, argc, argv, [&](auto& comm) {
        bench::report out(comm, "overlap", o);
        out.print(
            "# {} gradients, {:.0f} MiB together, buckets of {:.1f} MiB; the backward pass is a "
            "timed wait\n",
            layers, double(bytes) / (1 << 20), double(bucket) / (1 << 20));
        training_step step(comm, layers, bytes, bucket);
        measure(out, comm, o, step);
        out.write();
    });
}
