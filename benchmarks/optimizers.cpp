// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures the step of each optimizer that has two forms: step() of a distributed_optimizer, and
// run_and_apply() of a plan with a fused_step.
#include <hvd/hvd.hpp>
#include <hvd/train.hpp>
#include <hvd/train/fused/fused_step.hpp>

#include "support/gradients.hpp"
#include "support/memory.hpp"
#include "support/program.hpp"

namespace {

struct optimizers_options : bench::options {
    std::string set = "resnet50";
    std::size_t tensors = 0;
};

// A model of ones, whose gradients are 1/2 on every rank in every step.
struct model {
    bench::gradients parameters, gradients;
    std::vector<hvd::tensor_view<float>> parameter_list, gradient_list;

    model(const std::vector<std::size_t>& counts, std::pmr::memory_resource* memory)
        : parameters(counts, memory),
          gradients(counts, memory),
          parameter_list(parameters.views()),
          gradient_list(gradients.views()) {
        for (auto& t : parameters.tensors()) std::ranges::fill(t, 1.0f);
        for (auto& t : gradients.tensors()) std::ranges::fill(t, 0.5f);
    }
};

template <class Comm, class Optimizer>
struct plain_step : model {
    hvd::distributed_optimizer<Comm, Optimizer> optimizer;

    plain_step(Comm& comm, const std::vector<std::size_t>& counts,
               std::pmr::memory_resource* memory, Optimizer inside)
        : model(counts, memory), optimizer(comm, std::move(inside)) {
        for (std::size_t i = 0; i < counts.size(); ++i)
            optimizer.register_parameter("p" + std::to_string(i), parameter_list[i],
                                         gradient_list[i]);
    }

    void step() { optimizer.step(); }
};

template <class Comm, class Optimizer>
struct joined_step : model {
    hvd::plan<typename Comm::backend_type> plan;
    hvd::fused_step<Optimizer> fused;

    joined_step(Comm& comm, const std::vector<std::size_t>& counts,
                std::pmr::memory_resource* memory, Optimizer inside)
        : model(counts, memory),
          plan(comm.plan_allreduce(hvd::fuse(gradient_list), hvd::average)),
          fused(hvd::fuse(parameter_list), std::move(inside)) {}

    void step() { plan.run_and_apply(fused); }
};

template <class Comm>
class optimizers {
public:
    optimizers(Comm& comm, const optimizers_options& o)
        : comm_(comm),
          o_(o),
          counts_(bench::gradient_counts(o.set, o.tensors)),
          out_(comm, "optimizers", o) {}

    void run() {
        namespace rules = hvd::optimizers;
        out_.print("# {}: {} tensors, {} bytes\n{:<10} {:>7} {:>12} {:>20} {:>7}\n", o_.set,
                   counts_.size(), bench::total(counts_) * sizeof(float), "optimizer", "memory",
                   "step() (us)", "run_and_apply() (us)", "ratio");
        const std::size_t bytes = bench::total(counts_) * sizeof(float) + 4096 * counts_.size();
        bench::with_memory(comm_, 4 * bytes, [&](const auto& kinds) {
            for (const bench::memory_kind& kind : kinds) {
                measure("sgd", kind, rules::sgd<float>{});
                measure("momentum", kind, rules::sgd<float>{.momentum = 0.9f});
                measure("adam", kind, rules::adam<float>{});
                measure("adamw", kind, rules::adamw<float>{});
            }
        });
        out_.write();
    }

private:
    template <class Optimizer>
    void measure(const char* name, const bench::memory_kind& kind, const Optimizer& inside) {
        plain_step<Comm, Optimizer> plain(comm_, counts_, kind.memory, inside);
        joined_step<Comm, Optimizer> joined(comm_, counts_, kind.memory, inside);
        const std::vector<bench::candidate> candidates{{"step", [&] { plain.step(); }},
                                                       {"joined", [&] { joined.step(); }}};
        const auto timings = bench::interleave(comm_, candidates, o_.work);
        const double step = timings[0].time, fused = timings[1].time;
        out_.print("{:<10} {:>7} {:>12.1f} {:>20.1f} {:>7.2f}\n", name, kind.name, step * 1e6,
                   fused * 1e6, step / fused);
        out_.add({{"optimizer", name},
                  {"memory", kind.name},
                  {"step", step * 1e6},
                  {"run_and_apply", fused * 1e6},
                  {"ratio", step / fused}});
    }

    Comm& comm_;
    const optimizers_options& o_;
    std::vector<std::size_t> counts_;
    bench::report<Comm> out_;
};

}  // namespace

int main(int argc, char** argv) {
    optimizers_options o;
    CLI::App app("The step of each optimizer: step(), and the fused run_and_apply().",
                 "optimizers");
    bench::add_options(app, o);
    app.add_option("--set", o.set, "which gradients")->check(CLI::IsMember(bench::gradient_sets));
    app.add_option("--tensors", o.tensors, "only the first N of the set (0: all)");
    return bench::run_program(app, o, argc, argv, [&](auto& comm) { optimizers(comm, o).run(); });
}
