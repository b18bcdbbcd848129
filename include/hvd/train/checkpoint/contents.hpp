// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <set>

#include "../../core/compiled.hpp"
#include "../optimizer/loss_scale.hpp"
#include "../optimizer/state.hpp"
#include "safetensors_file.hpp"

namespace hvd::inline v0 {

/// The position of a training. A sampler needs nothing else to go on, on any number of ranks, and a
/// loss scale begins with its own.
struct training_progress {
    std::uint64_t step = 0;
    std::uint64_t epoch = 0;
    std::uint64_t seed = 0;
    std::uint64_t samples_done = 0;  ///< in this epoch, by all ranks together
    loss_scale scale = {};           ///< for a scaled loss
    bool operator==(const training_progress&) const = default;

    /// The progress at the position of a `data::loader`, whose `resume` takes it back:
    /// `save_checkpoint(path, optimizer, training_progress::at(loader.state()))`.
    /// @snippet tests/train/checkpoint.cpp save_loader
    template <class State>
        requires requires(const State& s) {
            { s.seed } -> std::convertible_to<std::uint64_t>;
            { s.epoch } -> std::convertible_to<std::uint64_t>;
            { s.samples_done } -> std::convertible_to<std::uint64_t>;
        }
    static training_progress at(const State& position, std::uint64_t step = 0) {
        return {.step = step,
                .epoch = position.epoch,
                .seed = position.seed,
                .samples_done = position.samples_done};
    }
};

namespace detail {

// Slots are named after their parameters, since another program may register these in another
// order. Files without this mark numbered them.
constexpr const char* slots_key = "hvd.slots";
constexpr const char* slots_by_name = "by name";
// The number of ranks whose local parameters are in the file.
constexpr const char* ranks_key = "hvd.ranks";
// The residuals of error feedback are named as a slot is. A file without them has none pending.
constexpr const char* residual_slot = "residual";

HVD_API bool is_reserved(std::string_view key);
HVD_API std::string slot_name(const char* slot, const std::string& parameter);

// `Trained` here and below is a distributed optimizer, or the copy on the host of one on the
// device.
template <class Trained>
std::vector<named_tensor> model_tensors(const Trained& optimizer) {
    std::vector<named_tensor> model;
    optimizer.for_each_shared([&](const std::string& name, auto value, const auto& shape) {
        model.push_back(named("model." + name, value));
        model.back().shape = shape;
    });
    optimizer.for_each_buffer([&](const std::string& name, auto value, const auto& shape) {
        model.push_back(named("buffer." + name, value));
        model.back().shape = shape;
    });
    return model;
}

// The parameters that all ranks have alike, or those of one rank.
enum class held_by : std::uint8_t { all, one };

// Calls f(index, name, size) for these parameters. It returns the number of all parameters.
template <class Trained, class F>
std::size_t for_each_with_slots(const Trained& optimizer, F f, held_by holder = held_by::all) {
    std::size_t i = 0;
    optimizer.for_each_parameter([&](const std::string& name, const auto& value, const auto&) {
        if (optimizer.is_local(i) == (holder == held_by::one)) f(i, name, value.size());
        ++i;
    });
    return i;
}

// The slot of one parameter, which may be an array of another library.
template <class Slot>
auto view_of_slot(Slot& slot) {
    return view(slot.data(), std::size_t(slot.size()));
}

// The numbers in a slot of a parameter of `size` elements.
template <class Slots>
std::size_t numbers_in(const Slots&, std::size_t size) {
    return std::is_same_v<Slots, optimizers::step_counts> ? 1 : size;
}

template <class O>
constexpr bool is_optional_slot(std::string_view slot) {
    if constexpr (requires { O::is_optional_slot(slot); }) return O::is_optional_slot(slot);
    else return false;
}

// Refuses a parameter of which some slots are there and others are not: the next step would take
// moments of zeros for those of many steps. `has(slots, i, key)` is true for a slot that is there,
// and `may_lack(slots, slot)` for one that need not be.
template <class Trained, class Has, class MayLack>
void require_whole_slots(const std::string& path, Trained& optimizer, Has has, MayLack may_lack,
                         held_by holder = held_by::all) {
    using O = std::remove_cvref_t<decltype(optimizer.optimizer())>;
    const auto check = [&](std::size_t i, const std::string& name, std::size_t) {
        std::string there, missing;
        optimizer.optimizer().for_each_slot([&](const char* slot, auto& slots) {
            if (is_optional_slot<O>(slot) || may_lack(slots, slot)) return;
            const std::string key = slot_name(slot, name);
            (has(slots, i, key) ? there : missing) = key;
        });
        if (!there.empty() && !missing.empty())
            refuse_file(path, "parameter \"", name, "\" has the slot \"", there, "\" and lacks \"",
                        missing, "\"");
    };
    for_each_with_slots(optimizer, check, holder);
}

// A state that could not be loaded again is not written.
template <class Trained>
void add_slots(const std::string& path, Trained& optimizer, std::vector<named_tensor>& tensors,
               held_by holder = held_by::all) {
    const auto has = [](const auto& slots, std::size_t i, const std::string&) {
        return i < slots.size() && slots[i].size() > 0;
    };
    optimizer.optimizer().for_each_slot([&](const char* slot, auto& slots) {
        const auto add = [&](std::size_t i, const std::string& name, std::size_t size) {
            if (!has(slots, i, name)) return;
            if (std::size_t(slots[i].size()) != numbers_in(slots, size))
                refuse_file(path, "not written: \"", slot_name(slot, name), "\" has ",
                            slots[i].size(), " elements, its parameter ", size);
            tensors.push_back(named(slot_name(slot, name), view_of_slot(slots[i])));
        };
        const std::size_t all = for_each_with_slots(optimizer, add, holder);
        if (slots.size() > all)
            refuse_file(path, "not written: the optimizer has ", slots.size(), " of \"", slot,
                        "\" for ", all, " parameters");
    });
    require_whole_slots(
        path, optimizer, has, [](const auto&, const char*) { return false; }, holder);
}

// Files of an older hvd have no loss scale.
constexpr const char* scale_prefix = "progress.scale.";

// Calls f(key, number&) for every number that is written as text.
template <class O, class F>
void for_each_number(O& optimizer, training_progress& p, F f) {
    f("progress.step", p.step);
    f("progress.epoch", p.epoch);
    f("progress.seed", p.seed);
    f("progress.samples_done", p.samples_done);
    p.scale.for_each_number(
        [&](const char* name, auto& number) { f(scale_prefix + std::string(name), number); });
    optimizer.for_each_number(
        [&](const char* name, auto& number) { f("optimizer." + std::string(name), number); });
}

// Returns the number in the type that is written: whole numbers as 64 bits, a float for 16-bit
// floats.
template <class N>
auto in_digits(N number) {
    if constexpr (std::is_integral_v<N> && std::is_signed_v<N>) return std::int64_t(number);
    else if constexpr (std::is_integral_v<N>) return std::uint64_t(number);
    else if constexpr (std::is_arithmetic_v<N>) return number;
    else return static_cast<float>(number);
}

// The digits of a number, and the number of digits: as few as tell it from all others. Reading
// returns false for a text that is no such number.
HVD_API std::string digits_of(std::int64_t number);
HVD_API std::string digits_of(std::uint64_t number);
HVD_API std::string digits_of(float number);
HVD_API std::string digits_of(double number);
HVD_API std::string digits_of(long double number);
HVD_API bool read_digits(std::string_view text, std::int64_t& number);
HVD_API bool read_digits(std::string_view text, std::uint64_t& number);
HVD_API bool read_digits(std::string_view text, float& number);
HVD_API bool read_digits(std::string_view text, double& number);
HVD_API bool read_digits(std::string_view text, long double& number);

template <class N>
std::string written(N number) {
    return digits_of(in_digits(number));
}

// @throws hvd::checkpoint_error for a file without it.
HVD_API const std::string& metadata_of(const safetensors_file& file, const std::string& key);
[[noreturn]] HVD_API void refuse_number(const safetensors_file& file, const std::string& key);

template <class N>
void read_number(const safetensors_file& file, const std::string& key, N& number) {
    auto value = in_digits(number);
    const bool is_number = read_digits(metadata_of(file, key), value);
    number = static_cast<N>(value);
    if (!is_number || (value == value && in_digits(number) != value)) refuse_number(file, key);
}

// Older files have one count of steps for all parameters, as a number.
HVD_API bool has_one_count(const safetensors_file& file, const std::string& key);
template <class Slots>
bool has_one_count(const safetensors_file& file, const Slots&, const char* slot) {
    return std::is_same_v<Slots, optimizers::step_counts> &&
           has_one_count(file, "optimizer." + std::string(slot));
}
// @throws hvd::checkpoint_error unless it is a whole number of steps.
HVD_API void require_count(const safetensors_file& file, const std::string& key, double count);

// A file of another model or optimizer may contain all that is needed, and more.
HVD_API void check_nothing_else(const safetensors_file& file, const std::set<std::string>& tensors,
                                const std::set<std::string>& keys);

}  // namespace detail
}  // namespace hvd::inline v0

#ifndef HVD_COMPILED
#include "contents_inline.hpp"
#endif
