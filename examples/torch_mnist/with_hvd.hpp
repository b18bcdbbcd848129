// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <torch/optim/sgd.h>

#include <functional>

#include <hvd/hvd.hpp>
#include <hvd/interop/torch.hpp>

#include "cnn.hpp"

namespace torch_mnist {

using world = hvd::communicator<hvd::mpi>;

/// Data parallelism by hvd.
class with_hvd {
public:
    static constexpr const char* name = "hvd";

    with_hvd(world& comm, cnn& net, double rate)
        : optimizer_(comm, torch::optim::SGD(net.parameters(),
                                             torch::optim::SGDOptions(rate).momentum(0.9))),
          gradients_(optimizer_, net) {
        hvd::broadcast_module(comm, net);
    }

    void step(const std::function<torch::Tensor()>& loss) {
        optimizer_.zero_gradients();
        loss().backward();
        optimizer_.step();
    }

private:
    hvd::distributed_optimizer<world, torch::optim::SGD> optimizer_;
    hvd::torch_gradients<world, torch::optim::SGD, float> gradients_;
};

}  // namespace torch_mnist
