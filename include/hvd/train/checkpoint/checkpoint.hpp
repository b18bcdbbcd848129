// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "contents.hpp"
#include "local.hpp"
#include "write_safetensors.hpp"

namespace hvd::inline v0 {
namespace detail {

// Calls f on the root. If it throws there, all ranks throw. **Collective**, and errors call it by
// `name`.
template <class Comm, class F>
void on_root_or_all_throw(Comm& comm, const char* name, F f) {
    const root_outcome outcome = run_on_root(channel_of(comm), name, never, f);
    if (!outcome.failure.empty())
        throw checkpoint_error(comm.rank(), std::string_view(outcome.failure));
}

// `local` has the local tensors of all ranks, and is empty for a file without them.
template <class Trained>
void write_training(const std::string& path, Trained& optimizer, training_progress progress,
                    checkpoint_metadata metadata, whole_residuals& residuals,
                    gathered<std::byte>& local) {
    for (const auto& [key, value] : metadata)
        if (is_reserved(key))
            refuse_file(path, "not written: the name \"", key, "\" in the metadata is hvd's own");
    std::vector<named_tensor> tensors = model_tensors(optimizer);
    add_slots(path, optimizer, tensors);
    for_each_with_slots(optimizer, [&](std::size_t i, const std::string& name, std::size_t) {
        if (!residuals[i].empty())
            tensors.push_back(named(slot_name(residual_slot, name), residuals[i]));
    });
    for (std::size_t r = 0; r < local.counts.size(); ++r)
        add_local(optimizer, int(r), local.values.data() + local.displacements[r], tensors);
    if (!local.counts.empty()) metadata[ranks_key] = digits_of(std::uint64_t(local.counts.size()));
    metadata[slots_key] = slots_by_name;
    for_each_number(optimizer.optimizer(), progress,
                    [&](const std::string& key, auto& number) { metadata[key] = written(number); });
    write_safetensors(path, tensors, metadata);
}

template <class Trained>
void check_training(const safetensors_file& file, Trained& optimizer,
                    const std::vector<named_tensor>& model, std::set<std::string> tensors) {
    std::set<std::string> keys;
    for (const auto& t : model) {
        file.require(t);
        tensors.insert(t.name);
    }
    optimizer.optimizer().for_each_slot([&](const char* slot, auto& slots) {
        for_each_with_slots(optimizer, [&](std::size_t, const std::string& name, std::size_t) {
            tensors.insert(slot_name(slot, name));
        });
        if (has_one_count(file, slots, slot)) keys.insert("optimizer." + std::string(slot));
    });
    for_each_with_slots(optimizer, [&](std::size_t, const std::string& name, std::size_t) {
        tensors.insert(slot_name(residual_slot, name));
    });
    training_progress progress;
    for_each_number(optimizer.optimizer(), progress,
                    [&](const std::string& key, auto&) { keys.insert(key); });
    check_nothing_else(file, tensors, keys);
    require_whole_slots(
        file.path(), optimizer,
        [&](const auto&, std::size_t, const std::string& key) {
            return file.tensors().contains(key);
        },
        [&](const auto& slots, const char* slot) { return has_one_count(file, slots, slot); });
}

// The one count of an older file is that of the parameters that have stepped.
template <class Trained>
void read_one_count(const safetensors_file& file, Trained& optimizer, const char* slot,
                    optimizers::step_counts& counts) {
    const std::string key = "optimizer." + std::string(slot);
    double count = 0;
    read_number(file, key, count);
    require_count(file, key, count);
    bool any = false, stepped = false;
    for_each_with_slots(optimizer, [&](std::size_t i, const std::string& name, std::size_t) {
        if (counts.size() <= i) counts.resize(i + 1);
        counts[i].clear();
        optimizer.optimizer().for_each_slot([&](const char* other, auto&) {
            if (file.tensors().contains(slot_name(other, name))) counts[i] = {count};
        });
        any = true;
        stepped = stepped || !counts[i].empty();
    });
    if (count > 0 && any && !stepped)
        refuse_file(file.path(), "has ", count, " as \"", key,
                    "\" and no other slot of any parameter");
}

template <class Trained>
void read_slots(const safetensors_file& file, Trained& optimizer, auto& restored) {
    restored.for_each_slot([&]<class S>(const char* slot, S& slots) {
        if constexpr (std::is_same_v<S, optimizers::step_counts>)
            if (has_one_count(file, slots, slot))
                return read_one_count(file, optimizer, slot, slots);
        for_each_with_slots(optimizer,
                            [&](std::size_t i, const std::string& name, std::size_t size) {
                                const std::string key = slot_name(slot, name);
                                if (slots.size() <= i) slots.resize(i + 1);
                                const bool has = file.tensors().contains(key);
                                const std::size_t numbers = has ? numbers_in(slots, size) : 0;
                                // Memory that fits is kept, since it may be the user's.
                                if (std::size_t(slots[i].size()) != numbers)
                                    slots[i].resize(numbers);
                                if (!has) return;
                                file.read(named(key, view_of_slot(slots[i])));
                                if constexpr (std::is_same_v<S, optimizers::step_counts>)
                                    require_count(file, key, slots[i][0]);
                            });
    });
}

// `local` are the names of the local tensors that the file may have.
template <class Trained>
training_progress read_training(const safetensors_file& file, Trained& optimizer,
                                std::set<std::string> local, whole_residuals& residuals) {
    const std::vector<named_tensor> model = model_tensors(optimizer);
    check_training(file, optimizer, model, std::move(local));
    // the optimizer changes only after the whole file was found correct
    auto restored = optimizer.optimizer();
    training_progress progress;
    for_each_number(restored, progress, [&](const std::string& key, auto& number) {
        if (key.starts_with(scale_prefix) && !file.metadata().contains(key)) return;
        read_number(file, key, number);
    });
    read_slots(file, optimizer, restored);
    for_each_with_slots(optimizer, [&](std::size_t i, const std::string& name, std::size_t size) {
        residuals.resize(i + 1);
        if (!file.tensors().contains(slot_name(residual_slot, name))) return;
        residuals[i].resize(size);
        file.read(named(slot_name(residual_slot, name), residuals[i]));
    });
    for (const auto& t : model) file.read(t);
    optimizer.optimizer() = std::move(restored);
    return progress;
}

// **Collective**. Brings the local tensors of all ranks to rank 0.
template <class Comm, class Trained>
gathered<std::byte> gather_local(const std::string& path, Comm& comm, Trained& optimizer) {
    std::vector<std::byte> mine;
    run_on_all(channel_of(comm), "save_checkpoint", never,
               [&] { mine = packed_local(path, optimizer); });
    std::vector<std::size_t> counts(std::size_t(comm.size()));
    counts[0] = mine.size();
    return comm.alltoall(mine, counts);
}

inline std::set<std::string> local_names(const safetensors_file& file) {
    std::set<std::string> names;
    for (const auto& [name, entry] : file.tensors())
        if (name.starts_with("local.")) names.insert(name);
    return names;
}

}  // namespace detail

/// Options of checkpoints.
struct checkpoint_options {
    /// The local parameters of all ranks are saved, and loaded by as many ranks. Otherwise they
    /// stay as they are.
    bool local = true;
};

namespace detail {

// **Collective**. `training` has its tensors on the host.
template <class Comm, class Trained>
void save_training(const std::string& path, Comm& comm, Trained& training,
                   whole_residuals residuals, const training_progress& progress,
                   const checkpoint_metadata& metadata, const checkpoint_options& options) {
    gathered<std::byte> of_all;
    if (options.local && has_local(training)) of_all = gather_local(path, comm, training);
    on_root_or_all_throw(comm, "save_checkpoint", [&] {
        write_training(path, training, progress, metadata, residuals, of_all);
    });
}

// **Collective**. The root has the parameters then, and all ranks have the optimizer's state.
template <class Comm, class Trained>
training_progress load_training(const std::string& path, Comm& comm, Trained& training,
                                whole_residuals& residuals, const checkpoint_options& options) {
    training_progress progress;
    const bool local = options.local && has_local(training);
    std::vector<std::size_t> counts(std::size_t(comm.size()));
    std::vector<std::byte> of_all;
    on_root_or_all_throw(comm, "load_checkpoint", [&] {
        const safetensors_file file(path);
        std::set<std::string> names;
        if (!options.local) names = local_names(file);
        if (local) of_all = read_local_of_all(file, training, counts, names);
        progress = read_training(file, training, std::move(names), residuals);
    });
    comm.broadcast_object(progress, root{0});
    broadcast_optimizer_state(
        comm, training.optimizer(), [&](std::size_t i) { return training.is_local(i); }, root{0});
    if (!local) return progress;
    const gathered<std::byte> mine = comm.alltoall(of_all, counts);
    if (!mine.values.empty()) unpack_local(training, mine.values.data());
    return progress;
}

}  // namespace detail

/// Rank 0 writes model, optimizer and progress in one atomic safetensors file. Parameters are named
/// `model.NAME`, buffers `buffer.NAME` and slots `optimizer.SLOT.NAME`; numbers are in the
/// metadata. Local parameters and their slots have `local.RANK.` before that. With error feedback,
/// `optimizer.residual.NAME` has the rounding errors that were not applied yet.
/// **Collective**: when it returns, the file is on the disk.
/// @throws hvd::checkpoint_error on every rank if rank 0 could not write it. It is also thrown for
/// names of `metadata` that begin with `hvd.`, `optimizer.` or `progress.`, which hvd reserves.
template <class Comm, optimizer_with_state O, class T>
void save_checkpoint(const std::string& path, distributed_optimizer<Comm, O, T>& optimizer,
                     const training_progress& progress, const checkpoint_metadata& metadata = {},
                     const checkpoint_options& options = {}) {
    const bool local = options.local && detail::has_local(optimizer);
    const auto use = local ? detail::state_use::read : detail::state_use::read_by_root;
    detail::whole_residuals residuals = optimizer.residuals();
    auto& calls = detail::host_calls_of(optimizer);
    detail::with_state_on_host(optimizer, use, [&](auto& state) {
        detail::save_training(path, calls, state, std::move(residuals), progress, metadata,
                              options);
    });
}

/// Rank 0 reads the file and broadcasts its state, so that the training goes on, on any number of
/// ranks, or on as many as before if there are local parameters in it.
/// **Collective**. The file must contain all tensors and numbers of the model and the optimizer,
/// and no others of theirs. A file that is refused changes nothing. The order of registration may
/// differ. Local parameters that the file lacks stay as they are.
/// @throws hvd::checkpoint_error on every rank, with path and reason.
template <class Comm, optimizer_with_state O, class T>
training_progress load_checkpoint(const std::string& path,
                                  distributed_optimizer<Comm, O, T>& optimizer,
                                  const checkpoint_options& options = {}) {
    training_progress progress;
    detail::whole_residuals residuals;
    auto& calls = detail::host_calls_of(optimizer);
    detail::with_state_on_host(optimizer, detail::state_use::write, [&](auto& state) {
        progress = detail::load_training(path, calls, state, residuals, options);
    });
    broadcast_parameters(optimizer);
    optimizer.take_residuals(std::move(residuals));
    return progress;
}

}  // namespace hvd::inline v0
