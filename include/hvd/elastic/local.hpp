// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <type_traits>
#include <vector>

#include "saved.hpp"

namespace hvd::inline v0 {

namespace detail {
class elastic_access;
}  // namespace detail

namespace elastic {

template <class... Ts>
class state;

/// An object of an elastic state that differs between the ranks, such as a shard of an optimizer, a
/// random generator, residuals, or parameters of one rank.
///
/// Each rank keeps its own from epoch to epoch. Each commit sends a copy to another rank, on
/// another host if there is one. When ranks are lost, those who hold their copies find them in
/// `copies_of_lost()`, and the program decides who takes them over. A newcomer begins with the
/// object that it has made itself.
///
/// The object outlives it, and it outlives the state. **Threads**: one.
/// @tparam T a type with `elastic::saved<T>`, whose `copy` is one that `saved` names or
/// `serializable`
/// @snippet tests/elastic/snippets.cpp local
template <class T>
class local {
public:
    /// A copy of the object of a lost rank.
    struct lost_object {
        int rank = -1;  ///< its rank in the epoch of the last commit
        typename saved<std::remove_const_t<T>>::copy object;  ///< as it was then
    };

    explicit local(T& object) : object_(object) {}
    local(const local&) = delete;
    local& operator=(const local&) = delete;

    /// The objects of lost ranks whose copies are here, as they were at the last commit. Each is on
    /// one rank. They stay until the next commit: if it fails they are there again, with the
    /// objects as they were.
    const std::vector<lost_object>& copies_of_lost() const noexcept { return lost_; }

    /// The lost ranks whose copy is lost, too, since the rank that held it is. They are the same on
    /// all ranks, and stay until the next commit.
    const std::vector<int>& lost_without_copy() const noexcept { return gone_; }

private:
    friend struct saved<local>;
    friend class hvd::detail::elastic_access;
    template <class... Ts>
    friend class state;

    T& object_;
    typename saved<std::remove_const_t<T>>::copy first_;  // as the program has made it
    std::vector<lost_object> lost_;
    std::vector<int> gone_;
};

template <class T>
struct saved<local<T>> {
    using of_object = saved<std::remove_const_t<T>>;
    using copy = typename of_object::copy;
    static void take(const local<T>& from, copy& to) { of_object::take(from.object_, to); }
    static void put_back(const copy& from, local<T>& to) { of_object::put_back(from, to.object_); }
    template <class Comm>
    static void synchronize(Comm&, local<T>&, root) {}
};

}  // namespace elastic

namespace detail {

template <class T>
constexpr bool is_elastic_local = false;
template <class T>
constexpr bool is_elastic_local<elastic::local<T>> = true;

}  // namespace detail
}  // namespace hvd::inline v0
