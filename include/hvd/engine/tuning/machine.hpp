// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <cstdio>

#include "../../kernel/pack.hpp"
#include "target.hpp"

namespace hvd::inline v0 {

/// A machine and a set of tensors, for which tuned thresholds are good.
struct tuning_key {
    std::string processor;    ///< the model of rank 0's processor
    int ranks = 0;            ///< of the communicator
    int ranks_per_node = 0;   ///< on rank 0's node
    std::string backend;      ///< the name of the backend's type
    bool of_engine = false;   ///< tensors go by name
    std::uint64_t tensors{};  ///< a hash of element types and shapes, in their order

    friend bool operator==(const tuning_key&, const tuning_key&) = default;
};

namespace detail {

// The model of the processor as the system tells it; "unknown" where it does not.
[[gnu::cold]] inline std::string processor_model() {
    std::string model = "unknown";
#if HVD_LINUX
    std::FILE* const info = std::fopen("/proc/cpuinfo", "r");
    char line[512];
    while (info != nullptr && std::fgets(line, sizeof line, info) != nullptr) {
        const std::string_view all(line);
        const std::size_t colon = all.find(": ");
        if (!all.starts_with("model name") || colon == all.npos) continue;
        model = all.substr(colon + 2, all.find('\n') - colon - 2);
        break;
    }
    if (info != nullptr) std::fclose(info);
#endif
    return model;
}

// The name of a type as the compiler writes it, without the inline namespace of hvd.
template <class T>
std::string name_of_type() {
    const std::string_view all(__PRETTY_FUNCTION__);
    std::size_t begin = all.find("T = ") + 4;
    const std::size_t end = std::min(all.find(';', begin), all.rfind(']'));
    std::string name(all.substr(begin, end - begin));
    for (const char* const left_out : {"hvd::v0::", "hvd::"})
        for (std::size_t at; (at = name.find(left_out)) != name.npos;)
            name.erase(at, std::string_view(left_out).size());
    return name;
}

template <class X>
std::uint64_t hash_of_tensors(X& tensors) {
    hash all;
    as_list(tensors).for_each([&](const auto& view) {
        using element_type =
            std::remove_const_t<typename std::remove_cvref_t<decltype(view)>::element_type>;
        all.add(std::string_view(dtype_name<element_type>()));
        for (std::size_t d = 0; d < view.rank(); ++d) all.add(std::uint64_t(view.extent(d)));
        all.add(std::uint64_t(view.rank()));
    });
    return all.value();
}

template <class Backend, class Holder, class X>
tuning_key key_for(const Holder& holder, bool of_engine, X& tensors) {
    return {processor_model(),       holder.size(), holder.local_size(),
            name_of_type<Backend>(), of_engine,     hash_of_tensors(tensors)};
}

}  // namespace detail

/// The key of tensors that an engine or a communicator reduces: `hvd::fuse(…)` or a single one.
/// @snippet tests/interop/autotune_file.cpp autotune_file
template <class Backend, class X>
tuning_key tuning_key_of(const engine<Backend>& engine, X&& tensors) {
    return detail::key_for<Backend>(engine, true, tensors);
}
template <class Backend, class X>
tuning_key tuning_key_of(const communicator<Backend>& comm, X&& tensors) {
    return detail::key_for<Backend>(comm, false, tensors);
}

}  // namespace hvd::inline v0
