// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "checkpoint.hpp"

namespace hvd::inline v0 {
namespace detail {

// A file of a model may have anything beside its parameters, but no other parameters.
template <class Trained>
void read_model(const safetensors_file& file, Trained& optimizer) {
    const std::vector<named_tensor> model = model_tensors(optimizer);
    std::set<std::string> names;
    for (const named_tensor& t : model) {
        file.require(t);
        names.insert(t.name);
    }
    for (const auto& [name, entry] : file.tensors())
        if ((name.starts_with("model.") || name.starts_with("buffer.")) && !names.contains(name))
            refuse_file(file.path(), "has the tensor \"", name, "\", which this model has not");
    for (const named_tensor& t : model) file.read(t);
}

// Masters of parameters that were set begin with them.
template <class Trained>
void forget_masters(Trained& optimizer) {
    using O = std::remove_cvref_t<decltype(optimizer.optimizer())>;
    if constexpr (keeps_masters<O>)
        optimizer.optimizer().for_each_slot([&](std::string_view slot, auto& masters) {
            if (slot != "master") return;
            for (std::size_t i = 0; i < masters.size(); ++i)
                if (!optimizer.is_local(i)) masters[i].resize(0);
        });
}

}  // namespace detail

/// Rank 0 writes the parameters and buffers alone, named `model.NAME` and `buffer.NAME` as in a
/// checkpoint. Local parameters are left out.
/// **Collective**: when it returns, the file is on the disk.
/// @throws hvd::checkpoint_error on every rank if rank 0 could not write it.
/// @snippet tests/train/saved_model.cpp save_model
template <class Comm, class O, class T>
void save_model(const std::string& path, distributed_optimizer<Comm, O, T>& optimizer,
                const checkpoint_metadata& metadata = {}) {
    detail::with_state_on_host(optimizer, detail::state_use::read_by_root, [&](auto& state) {
        detail::on_root_or_all_throw(detail::host_calls_of(optimizer), "save_model", [&] {
            write_safetensors(path, detail::model_tensors(state), metadata);
        });
    });
}

/// Rank 0 reads the parameters from a file of `save_model` or `save_checkpoint`, and broadcasts
/// them. The optimizer keeps its state, but for masters of 16-bit parameters, which begin anew.
/// **Collective**. The file must contain all parameters and buffers, and no others. Anything else
/// in it is left alone. A file that is refused changes nothing.
/// @throws hvd::checkpoint_error on every rank, with path and reason.
/// @snippet tests/train/saved_model.cpp load_model
template <class Comm, class O, class T>
void load_model(const std::string& path, distributed_optimizer<Comm, O, T>& optimizer) {
    detail::with_state_on_host(optimizer, detail::state_use::write, [&](auto& state) {
        detail::on_root_or_all_throw(detail::host_calls_of(optimizer), "load_model",
                                     [&] { detail::read_model(safetensors_file(path), state); });
        detail::forget_masters(state);
    });
    broadcast_parameters(optimizer);
}

/// Rank 0 writes tensors that all ranks have alike, under their own names: those of a loop without
/// a distributed optimizer. **Collective**.
/// @throws hvd::checkpoint_error on every rank if rank 0 could not write them.
template <class Comm>
    requires requires(Comm& comm) { comm.size(); }
void save_model(const std::string& path, Comm& comm, std::span<const named_tensor> tensors,
                const checkpoint_metadata& metadata = {}) {
    detail::on_root_or_all_throw(comm, "save_model",
                                 [&] { write_safetensors(path, tensors, metadata); });
}

/// Rank 0 reads the tensors, and broadcasts them. Anything else in the file is left alone.
/// **Collective**: with the same names and shapes on all ranks.
/// @throws hvd::checkpoint_error on every rank, with path and reason; then nothing has changed.
template <class Comm>
    requires requires(Comm& comm) { comm.size(); }
void load_model(const std::string& path, Comm& comm, std::span<const named_tensor> tensors) {
    detail::on_root_or_all_throw(comm, "load_model", [&] {
        const safetensors_file file(path);
        for (const named_tensor& t : tensors) file.require(t);
        for (const named_tensor& t : tensors) file.read(t);
    });
    std::vector<tensor_view<std::byte>> views;
    for (const named_tensor& t : tensors) views.push_back(view(t.data, t.bytes));
    comm.broadcast(fuse(views), root{0}, {.name = "model"});
}

}  // namespace hvd::inline v0
