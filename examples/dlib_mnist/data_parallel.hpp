// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <dlib/dnn.h>

#include <cstddef>
#include <iosfwd>
#include <utility>
#include <vector>

#include <hvd/train.hpp>

namespace dlib_mnist {

//! [replicas]
/// A network of dlib that each rank has. dlib shapes a network when the first sample passes it, so
/// pass one before these calls. All of them are collective. The communicator is its own, since a
/// trainer of dlib steps in a thread of its own.
template <class Comm, class Net>
class replicas {
public:
    replicas(Comm& comm, Net& net) : comm_(comm.split(0)), net_(net) {}

    /// Copies the parameters of rank 0 to all ranks. The thread that steps makes later calls.
    void broadcast() {
        std::vector<hvd::tensor_view<float>> all;
        dlib::visit_layer_parameters(net_, [&](dlib::tensor& t) { add(all, t); });
        hvd::broadcast_parameters(comm_, all);
        comm_.hand_over();
    }

    /// Averages the gradients of all layers over the ranks before the first layer of a step.
    void average_before(const dlib::tensor& gradient) {
        if (first_ == nullptr) first_ = &gradient;
        if (first_ == &gradient) average_gradients();
    }

    /// Averages the gradients of all layers over the ranks, in one call.
    void average_gradients() {
        std::vector<hvd::tensor_view<float>> all;
        dlib::visit_layer_parameter_gradients(net_, [&](dlib::tensor& t) { add(all, t); });
        hvd::distributed_gradients(comm_, all);
    }

private:
    static void add(std::vector<hvd::tensor_view<float>>& all, dlib::tensor& t) {
        if (t.size() > 0) all.push_back(hvd::view(t.host(), t.size()));
    }

    Comm comm_;
    Net& net_;
    const dlib::tensor* first_ = nullptr;  // the gradient that dlib's steps begin with
};
//! [replicas]

//! [distributed_solver]
/// A solver of dlib that steps with the gradients of all ranks. It makes `dlib::dnn_trainer`
/// parallel, which steps by itself. A trainer has a copy of its solver for each layer. It asks them
/// from the output to the input, after the whole backward pass. So the solver of the first layer
/// averages the gradients of all.
template <class Replicas, class Solver>
class distributed_solver {
public:
    distributed_solver() = default;
    distributed_solver(Replicas& net, Solver solver) : net_(&net), solver_(std::move(solver)) {}

    template <class Layer>
    const dlib::tensor& operator()(float rate, const Layer& layer, const dlib::tensor& gradient) {
        net_->average_before(gradient);
        return solver_(rate, layer, gradient);
    }

    friend void serialize(const distributed_solver& s, std::ostream& out) {
        serialize(s.solver_, out);
    }
    friend void deserialize(distributed_solver& s, std::istream& in) { deserialize(s.solver_, in); }
    friend std::ostream& operator<<(std::ostream& out, const distributed_solver& s) {
        return out << "distributed " << s.solver_;
    }

private:
    Replicas* net_ = nullptr;
    Solver solver_;
};
//! [distributed_solver]

}  // namespace dlib_mnist
