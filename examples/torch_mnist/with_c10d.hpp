// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <torch/optim/sgd.h>

#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "trainer.hpp"

namespace torch_mnist {

/// Data parallelism by LibTorch's own c10d, over Gloo. After the backward pass every gradient is
/// summed, all at once in flight. (c10d's Reducer overlaps, but its header includes others that
/// libtorch-dev leaves out.)
class with_c10d {
public:
    /// `meeting` is the path of a file that does not exist yet, the same on all ranks.
    with_c10d(const std::string& meeting, int rank, int size, cnn& net, double rate)
        : parameters_(net.parameters()),
          optimizer_(parameters_, torch::optim::SGDOptions(rate).momentum(0.9)),
          group_(make_group(meeting, rank, size)) {
        for (const torch::Tensor& p : parameters_) {
            std::vector<torch::Tensor> one{p.detach()};
            group_->broadcast(one)->wait();
        }
    }

    void step(const loss_function& loss) {
        optimizer_.zero_grad();
        loss().backward();
        std::vector<c10::intrusive_ptr<c10d::Work>> pending;
        for (const torch::Tensor& p : parameters_) {
            std::vector<torch::Tensor> one{p.grad()};
            pending.push_back(group_->allreduce(one));
        }
        for (const auto& work : pending) work->wait();
        for (torch::Tensor& p : parameters_) p.mutable_grad().div_(group_->getSize());
        optimizer_.step();
    }

private:
    static c10::intrusive_ptr<c10d::ProcessGroup> make_group(const std::string& meeting, int rank,
                                                             int size) {
        auto options = c10d::ProcessGroupGloo::Options::create();
        options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface("lo"));
        auto store = c10::make_intrusive<c10d::FileStore>(meeting, size);
        return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    }

    std::vector<torch::Tensor> parameters_;
    torch::optim::SGD optimizer_;
    c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace torch_mnist
