// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Images per second of a synthetic training step at 1 to N ranks. It communicates the model's real
// gradients, and waits for the time that a device would compute. Forward is a third of the step and
// backward two thirds. A gradient is ready when its share of the elements of the backward pass,
// last layer first, is done.
//
// Scaling efficiency is defined as by Horovod: images/s of N ranks over N times those of one rank
// alone.
#include <chrono>
#include <map>
#include <thread>

#include "support/gradients.hpp"
#include "support/memory.hpp"
#include "support/pattern.hpp"
#include "support/program.hpp"

namespace {

using bench::clock;

// Images per second of one device at a batch of 64. Inception V3, ResNet-101 and VGG-16 are from
// Horovod's README of v0.9.5, on one Pascal GPU. ResNet-50 is not there: its rate is twice
// ResNet-101's, since it has half the multiplications. See --rate.
const std::map<std::string, double> device_rates{{"resnet50", 238.8},
                                                 {"resnet101", 119.4},
                                                 {"inception_v3_aux", 134.4},
                                                 {"inception_v3_noaux", 134.4},
                                                 {"vgg16", 130.9}};

struct scaling_options : bench::options {
    std::vector<std::string> models{"resnet50", "resnet101", "inception_v3_aux", "vgg16"};
    std::size_t batch = 64, steps = 5, tensors = 0, bucket = std::size_t(25) << 20;
    double rate = 0;
};

// Waits as the host does while a device computes.
void compute_until(clock::time_point end) { std::this_thread::sleep_until(end); }

std::chrono::nanoseconds seconds(double s) {
    return std::chrono::nanoseconds(std::int64_t(s * 1e9));
}

template <class Comm>
class training {
    using views = std::vector<hvd::tensor_view<float>>;
    using plan = hvd::plan<typename Comm::backend_type>;

public:
    training(Comm& comm, const std::vector<std::size_t>& counts, std::pmr::memory_resource* memory,
             double step, std::size_t bucket)
        : comm_(comm), gradients_(counts, memory), step_(step) {
        all_ = gradients_.views();
        std::reverse(all_.begin(), all_.end());  // in the order of the backward pass
        for (const auto& v : all_)
            ready_.push_back((ready_.empty() ? 0 : ready_.back()) + double(v.size()));
        for (double& r : ready_) r = step_ * (1 + 2 * r / ready_.back()) / 3;
        if (comm.size() > 1) make_plans(bucket);
    }

    // Does one step and returns its time.
    double run(bool overlap, bool fused) {
        comm_.barrier();
        const auto begin = clock::now();
        if (comm_.size() == 1) compute_until(begin + seconds(step_));
        else if (overlap) run_overlapped(begin, fused);
        else run_after(begin, fused);
        return bench::seconds_since(begin);
    }

    std::size_t wrong(bool overlap, bool fused) {
        for (const auto& v : all_) bench::fill(v.data(), v.size(), comm_.rank(), comm_.size());
        run(overlap, fused);
        std::size_t count = 0;
        for (const auto& v : all_)
            count += bench::count_unequal(v.data(), v.size(), [&](std::size_t i) {
                return bench::expected_average(i, comm_.size());
            });
        return comm_.size() == 1 ? 0 : count;
    }

private:
    struct part {
        views tensors;
        plan average;
        double ready = 0;
    };

    void make_plans(std::size_t bucket) {
        whole_ = comm_.plan_allreduce(hvd::fuse(all_), hvd::average);
        std::size_t bytes = bucket;
        for (std::size_t t = 0; t < all_.size(); ++t) {
            if (bytes >= bucket) parts_.emplace_back(), bytes = 0;
            parts_.back().tensors.push_back(all_[t]);
            parts_.back().ready = ready_[t];
            bytes += all_[t].size() * sizeof(float);
        }
        for (part& p : parts_) p.average = comm_.plan_allreduce(hvd::fuse(p.tensors), hvd::average);
    }

    void run_after(clock::time_point begin, bool fused) {
        compute_until(begin + seconds(step_));
        if (fused) return whole_.run();
        for (const auto& v : all_) comm_.allreduce(v, hvd::average);
    }

    void run_overlapped(clock::time_point begin, bool fused) {
        std::vector<hvd::request> pending;
        if (fused)
            for (part& p : parts_)
                compute_until(begin + seconds(p.ready)), pending.push_back(p.average.run_async());
        else
            for (std::size_t t = 0; t < all_.size(); ++t)
                compute_until(begin + seconds(ready_[t])),
                    pending.push_back(comm_.allreduce_async(all_[t], hvd::average));
        for (auto& request : pending) request.wait();
    }

    Comm& comm_;
    bench::gradients gradients_;
    double step_;
    views all_;
    std::vector<double> ready_;
    plan whole_;
    std::vector<part> parts_;
};

struct mode {
    const char* name;
    bool overlap, fused;
};
constexpr mode modes[] = {{"calls after the backward pass", false, false},
                          {"one plan after the backward pass", false, true},
                          {"calls during the backward pass", true, false},
                          {"plans during the backward pass", true, true}};

template <class Comm>
class scaling {
public:
    scaling(Comm& comm, const scaling_options& o) : comm_(comm), o_(o), out_(comm, "scaling", o) {}

    void run() {
        out_.print("{:>20} {:>6} {:>10} {:>10} {:>8}  {}\n", "model", "ranks", "images/s",
                   "efficiency", "#wrong", "how");
        for (const std::string& model : o_.models) {
            const auto counts = bench::gradient_counts(model, o_.tensors);
            const double step = double(o_.batch) / (o_.rate > 0 ? o_.rate : device_rates.at(model));
            double alone = 0;
            for (int ranks = 1; ranks <= comm_.size(); ++ranks) {
                std::vector<int> members;
                for (int r = 0; r < ranks; ++r) members.push_back(r);
                if (auto some = comm_.subset(members)) measure(some, model, counts, step, alone);
                comm_.barrier();
            }
        }
        out_.write();
    }

private:
    void measure(Comm& some, const std::string& model, const std::vector<std::size_t>& counts,
                 double step, double& alone) {
        bench::with_memory(
            some, bench::total(counts) * sizeof(float) + 4096 * counts.size(),
            [&](const auto& kinds) {
                for (const auto& kind : kinds) {
                    training<Comm> train(some, counts, kind.memory, step, o_.bucket);
                    std::vector<double> times[std::size(modes)];
                    const std::size_t used = some.size() == 1 ? 1 : std::size(modes);
                    for (std::size_t s = 0; s <= o_.steps; ++s)
                        for (std::size_t m = 0; m < used; ++m) {
                            const double time =
                                bench::slowest(some, train.run(modes[m].overlap, modes[m].fused));
                            if (s > 0) times[m].push_back(time);  // the first one warms up
                        }
                    for (std::size_t m = 0; m < used; ++m) {
                        const double rate =
                            double(some.size()) * double(o_.batch) / bench::median(times[m]);
                        if (some.size() == 1) alone = rate;
                        std::size_t wrong = 0;
                        for (const std::size_t w :
                             some.allgather(train.wrong(modes[m].overlap, modes[m].fused)).values)
                            wrong += w;
                        add(model, some.size(), kind.name,
                            some.size() == 1 ? "alone" : modes[m].name, rate,
                            rate / (some.size() * alone), wrong);
                    }
                }
            });
    }

    void add(const std::string& model, int ranks, const std::string& memory, const char* how,
             double rate, double efficiency, std::size_t wrong) {
        out_.print("{:>20} {:>6} {:>10.1f} {:>9.1f}% {:>8}  {}, {}\n", model, ranks, rate,
                   100 * efficiency, wrong, how, memory);
        out_.add({{"model", model},
                  {"ranks", ranks},
                  {"memory", memory},
                  {"how", how},
                  {"images_per_second", rate},
                  {"efficiency", efficiency},
                  {"wrong", wrong}});
    }

    Comm& comm_;
    const scaling_options& o_;
    bench::report<Comm> out_;
};

}  // namespace

int main(int argc, char** argv) {
    scaling_options o;
    CLI::App app(
        "Images a second and scaling efficiency of a synthetic training step, with and without "
        "overlap and fusion.",
        "scaling");
    bench::add_options(app, o);
    app.add_option("--models", o.models)->delimiter(',')->check(CLI::IsMember(device_rates));
    app.add_option("--batch", o.batch, "images a step on each rank")->check(CLI::PositiveNumber);
    app.add_option("--rate", o.rate,
                   "images a second of one device (0: the model's, of a Pascal GPU)")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--steps", o.steps, "measured steps of each kind, which take turns")
        ->check(CLI::PositiveNumber);
    app.add_option("--bucket", o.bucket,
                   "bytes of gradients that are averaged at once during the backward pass")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::PositiveNumber);
    app.add_option("--tensors", o.tensors, "only the first N gradients of each model (0: all)");

    return bench::run_program(app, o, argc, argv, [&](auto& comm) { scaling(comm, o).run(); });
}
