// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Somebody else's trainer: steps on three threads with uneven data, and saves and loads a
// checkpoint. In the compiled form it does not compile nlohmann-json.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <hvd/checkpoint.hpp>
#include <hvd/threads.hpp>
#include <hvd/train.hpp>

#if defined(HVD_COMPILED) && defined(NLOHMANN_JSON_VERSION_MAJOR)
#error "the compiled form needs no nlohmann-json"
#endif

namespace {

using communicator = hvd::communicator<hvd::threads>;

struct model {
    std::vector<float> weights = std::vector<float>(100, 1), gradients = weights;
    hvd::distributed_optimizer<communicator, hvd::optimizers::adam<float>> optimizer;

    explicit model(communicator& comm) : optimizer(comm, {}) {
        optimizer.register_parameter("weights", weights, gradients);
    }
};

double train(communicator& comm, model& m) {
    hvd::uneven_scope scope(comm);
    for (std::size_t step = 0; scope.begin_step(step < std::size_t(comm.rank()) + 2); ++step) {
        m.optimizer.zero_gradients();
        for (float& g : m.gradients) g = float(comm.rank());
        scope.mean(m.gradients);
        m.optimizer.step();
    }
    std::vector<hvd::metric> metrics = {{"weight", m.weights[0]}};
    hvd::average_metrics(comm, metrics, 1);
    return metrics[0].mean;
}

bool resumes(communicator& comm, const std::string& file) {
    model trained(comm), loaded(comm);
    const double weight = train(comm, trained);
    hvd::save_checkpoint(file, trained.optimizer, {.step = 4});
    const hvd::training_progress progress = hvd::load_checkpoint(file, loaded.optimizer);
    return weight < 1 && progress.step == 4 && loaded.weights == trained.weights &&
           train(comm, trained) == train(comm, loaded);
}

}  // namespace

int main(int, char** argv) {
    const std::string file = std::string(argv[0]) + ".safetensors";
    std::vector<int> right(3);
    hvd::run_threads(
        3, [&](communicator& comm) { right[std::size_t(comm.rank())] = resumes(comm, file); });
    std::remove(file.c_str());
    return right == std::vector<int>{1, 1, 1} ? EXIT_SUCCESS : EXIT_FAILURE;
}
