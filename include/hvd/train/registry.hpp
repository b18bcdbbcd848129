// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../backend/record.hpp"
#include "../comm/communicator.hpp"
#include "refuse.hpp"
#include "tensors.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

enum class parameter_kind : std::uint8_t { shared, local, sparse };

template <class T>
struct registered_parameter {
    std::string name;
    tensor_view<T> value;
    tensor_view<T> gradient;
    std::vector<std::size_t> shape;  // of both, slowest dimension first
    parameter_kind kind;
    bool frozen = false;
    int reports = 0;  // of its gradient, since the last step

    bool travels() const { return kind == parameter_kind::shared && !frozen; }
};

template <class T>
using parameter_list = std::vector<registered_parameter<T>>;

template <class T>
void check_registration(int rank, const parameter_list<T>& known,
                        const registered_parameter<T>& p) {
    for (const auto& other : known)
        if (other.name == p.name)
            refuse(rank, "a parameter named \"", p.name, "\" is registered already");
    if (p.value.size() != p.gradient.size())
        refuse(rank, "parameter \"", p.name, "\" has ", p.value.size(), " elements, its gradient ",
               p.gradient.size());
}

// Of everything that the ranks must say alike.
template <class T>
std::uint64_t digest(const parameter_list<T>& parameters) {
    hash all;
    for (const auto& p : parameters) {
        all.add(p.name).add(p.shape.size());
        for (const std::size_t extent : p.shape) all.add(extent);
        all.add(std::uint64_t(p.kind)).add(std::uint64_t(p.frozen));
    }
    return all.value();
}

inline std::string shown(const std::vector<std::size_t>& shape) {
    std::string all = "[";
    for (std::size_t d = 0; d < shape.size(); ++d) all += text(d ? ", " : "", shape[d]);
    return all + "]";
}

template <class T>
std::string described(const parameter_list<T>& parameters) {
    std::string all;
    for (const auto& p : parameters) {
        if (!all.empty()) all += ", ";
        all += p.name + " " + shown(p.shape);
        if (p.kind == parameter_kind::local) all += " (local)";
        if (p.kind == parameter_kind::sparse) all += " (sparse)";
        if (p.frozen) all += " (frozen)";
    }
    return all;
}

// **Collective**. Sends 8 bytes where all agree, and the names where they don't.
template <class Comm, class T>
void agree_on(Comm& comm, const parameter_list<T>& parameters) {
    const auto digests = comm.allgather(digest(parameters), {.name = "parameters"});
    bool same = true;
    for (const std::uint64_t d : digests.values) same = same && d == digests.values[0];
    if (same) return;
    const auto lists = comm.allgather_object(described(parameters));
    std::vector<mismatch_error::entry> table;
    std::string rows;
    for (std::size_t r = 0; r < lists.size(); ++r) {
        table.emplace_back(int(r), lists[r]);
        rows += text("\n  rank ", int(r), ": ", lists[r]);
    }
    throw mismatch_error(comm.rank(), text("hvd: the ranks registered different parameters:", rows),
                         "parameters", table);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
