// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <torch/optim/sgd.h>

#include <hvd/hvd.hpp>
#include <hvd/interop/torch.hpp>

#include "trainer.hpp"

namespace torch_mnist {

/// Data parallelism by hvd, on the host or on GPUs.
template <class Comm>
class with_hvd {
public:
    with_hvd(Comm& comm, cnn& net, double rate)
        : optimizer_(comm, torch::optim::SGD(net.parameters(),
                                             torch::optim::SGDOptions(rate).momentum(0.9))),
          gradients_(optimizer_, net) {
        hvd::broadcast_module(comm, net);
    }

    /// Communicators of GPUs take the stream on which LibTorch works.
    template <class... Stream>
    void step(const loss_function& loss, Stream... stream) {
        optimizer_.zero_gradients(stream...);
        loss().backward();
        optimizer_.step(stream...);
    }

private:
    hvd::distributed_optimizer<Comm, torch::optim::SGD> optimizer_;
    hvd::torch_gradients<Comm, torch::optim::SGD, float> gradients_;
};

}  // namespace torch_mnist
