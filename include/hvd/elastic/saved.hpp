// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../comm/serializer.hpp"
#include "../train/optimizer/state.hpp"
#include "../train/wrappers/grouped.hpp"

namespace hvd::inline v0 {

namespace detail {

inline void check_saved_view(std::size_t saved, std::size_t now) {
    if (saved != now)
        throw usage_error(-1, text("hvd: a view in an elastic state has ", now,
                                   " elements, and had ", saved, " at the last commit"));
}
inline void check_saved_list(std::size_t saved, std::size_t now) {
    if (saved != now)
        throw usage_error(-1, text("hvd: a list in an elastic state has ", now, " views, and had ",
                                   saved, " at the last commit"));
}

}  // namespace detail

namespace elastic {

/// How an elastic state copies and sends an object of type T. Specialise it for types that need
/// more than a copy and `broadcast_object`.
///
/// `take` copies the object to `copy`, `put_back` copies it the other way round, and `synchronize`
/// copies the root's object to all ranks, which call it together. Vectors of elements, vectors of
/// such vectors, contiguous tensor views, vectors of them, and optimizers with state have
/// specialisations. The elements that a view shows are copied and sent, and the view stays.
/// @snippet tests/elastic/snippets.cpp saved
template <class T>
struct saved {
    using copy = T;
    static void take(const T& object, copy& to) { to = object; }
    static void put_back(const copy& from, T& object) { object = from; }
    template <class Comm>
    static void synchronize(Comm& comm, T& object, root from) {
        comm.broadcast_object(object, from);
    }
};

template <optimizer_with_state O>
struct saved<O> {
    using copy = O;
    static void take(const O& object, copy& to) { to = object; }
    static void put_back(const copy& from, O& object) { object = from; }
    template <class Comm>
    static void synchronize(Comm& comm, O& object, root from) {
        broadcast_optimizer_state(comm, object, from);
    }
};

template <optimizer_with_state O>
    requires hvd::detail::has_groups<O>
struct saved<O> {
    using grouped = O;
    using copy = grouped;
    static void take(const grouped& object, copy& to) { to = object; }
    static void put_back(const copy& from, grouped& object) { object = from; }
    // The root may have groups that a newcomer has not made yet.
    template <class Comm>
    static void synchronize(Comm& comm, grouped& object, root from) {
        std::vector<std::vector<std::uint64_t>> groups;
        for (const auto& of_group : object.members)
            groups.emplace_back(of_group.begin(), of_group.end());
        comm.broadcast_object(groups, from);
        object.members.clear();
        for (const auto& of_group : groups)
            object.members.emplace_back(of_group.begin(), of_group.end());
        object.more.resize(groups.size());
        broadcast_optimizer_state(comm, object, from);
    }
};

// Vectors keep their memory where their length stays.
template <transportable T>
struct saved<std::vector<T>> {
    using copy = std::vector<T>;
    static void take(const std::vector<T>& object, copy& to) { to = object; }
    static void put_back(const copy& from, std::vector<T>& object) { object = from; }
    template <class Comm>
    static void synchronize(Comm& comm, std::vector<T>& object, root from) {
        std::uint64_t size = object.size();
        comm.broadcast_object(size, from);
        object.resize(std::size_t(size));
        comm.broadcast(object, from, {.name = "elastic state", .confirm = true});
    }
};

template <transportable T>
struct saved<std::vector<std::vector<T>>> {
    using tensors = std::vector<std::vector<T>>;
    using copy = tensors;
    static void take(const tensors& object, copy& to) { to = object; }
    static void put_back(const copy& from, tensors& object) { object = from; }
    template <class Comm>
    static void synchronize(Comm& comm, tensors& object, root from) {
        std::vector<std::uint64_t> sizes;
        for (const std::vector<T>& t : object) sizes.push_back(t.size());
        comm.broadcast_object(sizes, from);
        object.resize(sizes.size());
        for (std::size_t i = 0; i < sizes.size(); ++i) object[i].resize(std::size_t(sizes[i]));
        if (!object.empty()) broadcast_parameters(comm, object, from);
    }
};

template <transportable T, std::size_t Rank>
struct saved<tensor_view<T, host, Rank, contiguous>> {
    using tensor = tensor_view<T, host, Rank, contiguous>;
    using copy = std::vector<T>;
    static void take(const tensor& object, copy& to) {
        to.assign(object.data(), object.data() + object.size());
    }
    static void put_back(const copy& from, const tensor& object) {
        detail::check_saved_view(from.size(), object.size());
        std::copy(from.begin(), from.end(), object.data());
    }
    template <class Comm>
    static void synchronize(Comm& comm, const tensor& object, root from) {
        comm.broadcast(object, from, {.name = "elastic state", .confirm = true});
    }
};

template <transportable T, std::size_t Rank>
struct saved<std::vector<tensor_view<T, host, Rank, contiguous>>> {
    using tensor = tensor_view<T, host, Rank, contiguous>;
    using copy = std::vector<std::vector<T>>;
    static void take(const std::vector<tensor>& object, copy& to) {
        to.resize(object.size());
        for (std::size_t i = 0; i < object.size(); ++i) saved<tensor>::take(object[i], to[i]);
    }
    static void put_back(const copy& from, const std::vector<tensor>& object) {
        detail::check_saved_list(from.size(), object.size());
        for (std::size_t i = 0; i < from.size(); ++i) saved<tensor>::put_back(from[i], object[i]);
    }
    template <class Comm>
    static void synchronize(Comm& comm, const std::vector<tensor>& object, root from) {
        if (!object.empty()) broadcast_parameters(comm, object, from);
    }
};

}  // namespace elastic
}  // namespace hvd::inline v0
