// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "../train/optimizer/optimizer.hpp"
#include "described_tensor.hpp"

namespace hvd::inline v0 {
namespace detail {

inline dtype dtype_of(torch::ScalarType type) {
    switch (type) {
        case torch::kInt8: return dtype::int8;
        case torch::kInt16: return dtype::int16;
        case torch::kInt32: return dtype::int32;
        case torch::kInt64: return dtype::int64;
        case torch::kUInt8: return dtype::uint8;
        case torch::kBool: return dtype::boolean;
        case torch::kFloat16: return dtype::float16;
        case torch::kBFloat16: return dtype::bfloat16;
        case torch::kFloat32: return dtype::float32;
        case torch::kFloat64: return dtype::float64;
        default: return dtype::user;
    }
}

inline described_tensor describe(const torch::Tensor& t) {
    if (!t.defined()) throw usage_error(-1, "hvd: this tensor of LibTorch is undefined");
    if (t.layout() != torch::kStrided)
        throw usage_error(
            -1, "hvd: this tensor of LibTorch is sparse or opaque; views are of strided ones");
    const described_tensor d{"LibTorch",
                             t.data_ptr(),
                             dtype_of(t.scalar_type()),
                             t.is_cpu(),
                             t.is_cuda(),
                             {t.sizes().data(), t.sizes().size()},
                             {t.strides().data(), t.strides().size()}};
    if (d.type == dtype::user)
        refuse_tensor(d, "has elements of ", torch::toString(t.scalar_type()),
                      ", which are none of hvd's");
    return d;
}

// The memory in which a communicator expects its tensors.
template <class Comm>
using torch_space = std::conditional_t<device_communicator<Comm>, device, host>;

// The stream of LibTorch on which a CUDA tensor is worked on. interop/torch_cuda.hpp defines it,
// for communicators of devices.
template <class Comm>
struct torch_stream {
    static_assert(!device_communicator<Comm>,
                  "hvd: CUDA modules of LibTorch need hvd/interop/torch_cuda.hpp");
};

}  // namespace detail

/// Views a tensor of LibTorch in its own memory, as one dimension.
///
/// T and Space (`hvd::host`, `hvd::device`) are the element type and memory that the caller
/// expects; a backend takes one of the spaces. The tensor must be contiguous. For others
/// `torch_view<T, Space, Rank>` gives a strided view, which collectives pack.
/// **Buffers**: autograd does not see the writes of a collective, as with optimizers under no_grad.
/// The tensor outlives the view.
/// @throws hvd::usage_error if its elements, memory or layout differ.
/// @code
/// world.allreduce(hvd::torch_view<float>(loss), hvd::average);
/// @endcode
template <class T, class Space = host>
tensor_view<T, Space> torch_view(const torch::Tensor& tensor) {
    return detail::flat_view_of<T, Space>(detail::describe(tensor));
}

/// Views the tensor in its own number of dimensions. Gaps are allowed.
template <class T, class Space, std::size_t Rank>
tensor_view<T, Space, Rank, strided> torch_view(const torch::Tensor& tensor) {
    return detail::strided_view_of<T, Space, Rank>(detail::describe(tensor));
}

/// Calls `f(view)` with a flat view of the tensor's element type.
template <class Space = host, class F>
decltype(auto) with_torch_view(const torch::Tensor& tensor, F&& f) {
    return detail::with_flat_view<Space>(detail::describe(tensor), f);
}

/// Copies the root's parameters and buffers (running means, counters) of a module to all ranks.
///
/// **Collective**: with the same module on all ranks. A module on CUDA devices is for a
/// communicator of devices, behind the work of LibTorch's current stream, and with
/// hvd/interop/torch_cuda.hpp.
/// @throws hvd::usage_error as `torch_view`, otherwise as `broadcast`.
template <class Comm>
void broadcast_module(Comm& of, const torch::nn::Module& module, root from = root{0}) {
    typename detail::training_calls<Comm>::type comm(of);
    const auto send = [&](const torch::Tensor& tensor) {
        with_torch_view<detail::torch_space<Comm>>(tensor, [&](const auto& view) {
            if constexpr (detail::device_communicator<Comm>)
                comm.broadcast(view, from, {.stream = detail::torch_stream<Comm>::of(tensor)});
            else comm.broadcast(view, from, {.name = "module"});
        });
    };
    for (const auto& parameter : module.parameters()) send(parameter);
    for (const auto& buffer : module.buffers()) send(buffer);
}

namespace detail {

// State that was saved on the root's GPU goes to `device`, that of this rank.
template <class Comm>
void broadcast_torch_state(Comm& of, torch::optim::Optimizer& optimizer, root from,
                           const std::optional<torch::Device>& device) {
    typename training_calls<Comm>::type comm(of);
    std::string bytes;
    if (comm.rank() == from.rank) {
        torch::serialize::OutputArchive archive;
        optimizer.save(archive);
        std::ostringstream out;
        archive.save_to(out);
        bytes = out.str();
    }
    comm.broadcast_object(bytes, from);
    if (comm.rank() == from.rank) return;
    torch::serialize::InputArchive archive;
    std::istringstream in(bytes);
    if (device) archive.load_from(in, *device);
    else archive.load_from(in);
    optimizer.load(archive);
}

}  // namespace detail

/// Copies the root's optimizer state and options to all ranks. They travel in the form that
/// LibTorch writes to files. Ranks that have stepped less, or not at all, then go on as the root
/// does.
///
/// **Collective**: with an optimizer of the same class and parameters on all ranks.
/// @throws as `broadcast_object`, and the exceptions of LibTorch.
template <class Comm>
void broadcast_optimizer_state(Comm& comm, torch::optim::Optimizer& optimizer,
                               root from = root{0}) {
    detail::broadcast_torch_state(comm, optimizer, from, {});
}

/// Connects a module to a distributed optimizer. It hands over the parameters and gradients, and
/// reports each gradient from inside `backward()` as soon as it is accumulated. So communication
/// overlaps the rest of the pass.
///
/// Any optimizer of LibTorch works in `distributed_optimizer` as it is: `step()` averages the
/// gradients, then steps the optimizer. A module on CUDA devices works with a communicator of
/// devices and hvd/interop/torch_cuda.hpp: each gradient is reported on LibTorch's current stream,
/// and `step(stream)` gets that stream. The gradients get their memory here and keep it, so zero
/// them by the distributed optimizer's `zero_gradients()`. Parameters without `requires_grad` are
/// frozen and have no gradient meanwhile; LibTorch's optimizers then leave them alone.
/// **Collective** as the reports are: the same module on all ranks.
/// **Threads**: `backward()` reports from the thread that calls it, for CUDA modules from a thread
/// of LibTorch: MPI below such a communicator needs the level SERIALIZED or more. The optimizer,
/// the module and this object outlive the passes. Nothing is reported after this object has gone.
/// Horovod: `DistributedOptimizer`.
/// @code
/// hvd::distributed_optimizer optimizer(world, torch::optim::SGD(net->parameters(), 0.01));
/// hvd::torch_gradients gradients(optimizer, *net);
/// hvd::broadcast_module(world, *net);
/// for (auto& [images, labels] : batches) {
///     optimizer.zero_gradients();
///     torch::nll_loss(net->forward(images), labels).backward();
///     optimizer.step();
/// }
/// @endcode
template <class Comm, class Optimizer, class T>
class torch_gradients {
public:
    /// @throws hvd::usage_error for a parameter whose elements are not T, that is not in the memory
    /// of the communicator's tensors, or that has gaps. It also throws as `register_parameter`.
    torch_gradients(distributed_optimizer<Comm, Optimizer, T>& optimizer,
                    const torch::nn::Module& module)
        : state_(std::make_shared<state>(optimizer)) {
        for (const auto& item : module.named_parameters()) {
            const torch::Tensor& p = item.value();
            if (!p.grad().defined()) p.mutable_grad() = torch::zeros_like(p.detach());
            const std::size_t i = optimizer.register_parameter(item.key(), torch_view<T, space>(p),
                                                               torch_view<T, space>(p.grad()));
            if constexpr (detail::device_communicator<Comm>)
                stream::used_by(p.grad(), optimizer.comm());
            state_->parameters.push_back({i, item.key(), p, p.grad(), nullptr});
        }
        follow_requires_grad();
    }

    /// Freezes and unfreezes parameters as `requires_grad()` now says. Call it between steps, alike
    /// on all ranks.
    void follow_requires_grad() {
        for (std::size_t i = 0; i < state_->parameters.size(); ++i) {
            parameter& p = state_->parameters[i];
            if (!p.tensor.requires_grad()) {
                state_->optimizer.freeze(p.index);
                // With a gradient of zeros, weight decay and momentum would still make a step.
                p.tensor.mutable_grad() = torch::Tensor();
            } else {
                state_->optimizer.unfreeze(p.index);
                if (!p.tensor.grad().defined()) p.tensor.mutable_grad() = p.gradient;
                if (!p.accumulator) hook(i);
            }
        }
    }

private:
    using space = detail::torch_space<Comm>;
    using stream = detail::torch_stream<Comm>;

    struct parameter {
        std::size_t index;
        std::string name;
        torch::Tensor tensor;
        torch::Tensor gradient;  // the optimizer keeps its memory while the gradient is not in use
        // A leaf holds its accumulator weakly. Without this handle a later pass would make a new
        // one, without the hook.
        std::shared_ptr<torch::autograd::Node> accumulator;
    };

    struct state {
        explicit state(distributed_optimizer<Comm, Optimizer, T>& o) : optimizer(o) {}
        distributed_optimizer<Comm, Optimizer, T>& optimizer;
        std::vector<parameter> parameters;

        void report(const parameter& p) {
            const torch::Tensor& now = p.tensor.grad();
            if (!now.defined() || now.data_ptr() != p.gradient.data_ptr())
                detail::refuse(
                    optimizer.comm().rank(), "the gradient of \"", p.name,
                    "\" is not where it was: use zero_gradients(), not set_to_none, and no "
                    "create_graph");
            if constexpr (detail::device_communicator<Comm>)
                optimizer.gradient_ready(p.index, stream::of(now));
            else optimizer.gradient_ready(p.index);
        }
    };

    void hook(std::size_t i) {
        parameter& p = state_->parameters[i];
        using torch::autograd::variable_list;
        p.accumulator = torch::autograd::impl::grad_accumulator(p.tensor);
        p.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [known = std::weak_ptr<state>(state_), i](const variable_list& outputs,
                                                      const variable_list&) {
                if (const auto alive = known.lock()) alive->report(alive->parameters[i]);
                return outputs;
            }));
    }

    std::shared_ptr<state> state_;
};

}  // namespace hvd::inline v0
