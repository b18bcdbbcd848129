// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <hvd/hvd.hpp>

#include "cnn.hpp"

namespace torch_mnist {

using world = hvd::communicator<hvd::mpi>;

/// Returns the loss of a batch, by a forward pass.
using loss_function = std::function<torch::Tensor()>;

/// A network and what trains it.
struct trainer {
    std::string name;
    std::shared_ptr<cnn> net;
    torch::Device device;
    std::function<void(const loss_function&)> step;
};

/// All trainers begin with this network.
inline std::shared_ptr<cnn> make_net(torch::Device device) {
    torch::manual_seed(1);
    auto net = std::make_shared<cnn>();
    net->to(device);
    return net;
}

}  // namespace torch_mnist
