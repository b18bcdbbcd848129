// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <charconv>
#include <set>

#include "../optimizer/state.hpp"
#include "safetensors_file.hpp"

namespace hvd {
inline namespace v0 {

/// The position of a training. A sampler needs nothing else to go on, on any number of ranks.
struct training_progress {
    std::uint64_t step = 0;
    std::uint64_t epoch = 0;
    std::uint64_t seed = 0;
    std::uint64_t samples_done = 0;  ///< in this epoch, by all ranks together
    bool operator==(const training_progress&) const = default;
};

namespace detail {

// Slots are named after their parameters, since another program may register these in another
// order. Files without this mark numbered them.
constexpr const char* slots_key = "hvd.slots";
constexpr const char* slots_by_name = "by name";

inline bool is_reserved(std::string_view key) {
    return key.starts_with("hvd.") || key.starts_with("optimizer.") || key.starts_with("progress.");
}

inline std::string slot_name(const char* slot, const std::string& parameter) {
    return "optimizer." + std::string(slot) + "." + parameter;
}

template <class Comm, class O, class T>
std::vector<named_tensor> model_tensors(const distributed_optimizer<Comm, O, T>& optimizer) {
    std::vector<named_tensor> model;
    optimizer.for_each_shared(
        [&](const std::string& name, tensor_view<T> value, const auto& shape) {
            model.push_back(named("model." + name, value));
            model.back().shape = shape;
        });
    return model;
}

// Calls f(index, name, size) for the parameters whose slots belong to a checkpoint. It returns the
// number of all parameters.
template <class Comm, class O, class T, class F>
std::size_t for_each_with_slots(const distributed_optimizer<Comm, O, T>& optimizer, F f) {
    std::size_t i = 0;
    optimizer.for_each_parameter([&](const std::string& name, const tensor_view<T>& value) {
        if (!optimizer.is_local(i)) f(i, name, value.size());
        ++i;
    });
    return i;
}

// Calls f(key, number&) for every number that is written as text.
template <class O, class F>
void for_each_number(O& optimizer, training_progress& p, F f) {
    f("progress.step", p.step);
    f("progress.epoch", p.epoch);
    f("progress.seed", p.seed);
    f("progress.samples_done", p.samples_done);
    optimizer.for_each_number(
        [&](const char* name, auto& number) { f("optimizer." + std::string(name), number); });
}

// Returns the number in the type that is written: an int for bool, a float for 16-bit floats.
template <class N>
auto in_digits(N number) {
    if constexpr (std::is_same_v<N, bool>) return int(number);
    else if constexpr (std::is_arithmetic_v<N>) return number;
    else return static_cast<float>(number);
}

template <class N>
std::string written(N number) {
    char digits[40];
    return {digits, std::to_chars(digits, digits + sizeof digits, in_digits(number)).ptr};
}

template <class N>
void read_number(const safetensors_file& file, const std::string& key, N& number) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end())
        refuse_file(file.path(), "has no \"", key, "\" in its metadata");
    const std::string& text = found->second;
    auto value = in_digits(number);
    const auto end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    number = static_cast<N>(value);
    const bool fits = value != value || in_digits(number) == value;
    if (stopped != end || error != std::errc() || !fits)
        refuse_file(file.path(), "has \"", text, "\" as \"", key, "\", which is no number for it");
}

// A file of another model or optimizer may contain all that is needed, and more.
inline void check_nothing_else(const safetensors_file& file, const std::set<std::string>& tensors,
                               const std::set<std::string>& keys) {
    const auto mark = file.metadata().find(slots_key);
    const bool by_name = mark != file.metadata().end() && mark->second == slots_by_name;
    for (const auto& [name, entry] : file.tensors()) {
        if (!by_name && name.starts_with("optimizer."))
            refuse_file(file.path(), "has the tensor \"", name, "\" without saying in \"",
                        slots_key,
                        "\" that slots go by their parameters' names: an older hvd numbered them");
        if (!tensors.contains(name))
            refuse_file(file.path(), "has the tensor \"", name,
                        "\", which this model and optimizer have not");
    }
    for (const auto& [key, text] : file.metadata())
        if (is_reserved(key) && key != slots_key && !keys.contains(key))
            refuse_file(file.path(), "has \"", key, "\", which this optimizer has not");
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
