// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include <hvd/engine.hpp>

namespace bench {

/// The gradients of a model, which each rank submits to an engine by name, in another random order
/// for each step.
template <class Backend>
class named_gradients {
public:
    named_gradients(hvd::communicator<Backend>& comm, std::vector<hvd::tensor_view<float>> tensors)
        : engine_(comm), tensors_(std::move(tensors)), random_(unsigned(comm.rank())) {
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            names_.push_back("layer" + std::to_string(i));
            order_.push_back(i);
        }
    }

    void step() {
        std::shuffle(order_.begin(), order_.end(), random_);
        for (const std::size_t i : order_)
            requests_.push_back(engine_.allreduce(names_[i], tensors_[i], hvd::average));
        for (hvd::request& r : requests_) r.wait();
        requests_.clear();
    }

private:
    hvd::engine<Backend> engine_;
    std::vector<hvd::tensor_view<float>> tensors_;
    std::vector<std::string> names_;
    std::vector<std::size_t> order_;
    std::vector<hvd::request> requests_;
    std::mt19937 random_;
};

}  // namespace bench
