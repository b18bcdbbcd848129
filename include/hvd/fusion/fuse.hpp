// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "../core/concepts.hpp"

namespace hvd {
inline namespace v0 {

/// Several tensors, of several element types, that one call treats as one. `fuse` makes it.
///
/// It holds views: the tensors (and runtime lists of views) outlive the call. Features B5, D4.
template <class... Parts>
class fused {
public:
    constexpr explicit fused(Parts... parts) : parts_(parts...) {}

    /// Calls `f` with each tensor's view, in order.
    template <class F>
    constexpr void for_each(F&& f) const {
        std::apply([&f](const Parts&... part) { (each(part, f), ...); }, parts_);
    }

    /// The number of tensors.
    constexpr std::size_t count() const {
        return std::apply(
            [](const Parts&... part) { return (std::size_t(0) + ... + count_of(part)); }, parts_);
    }

    constexpr const std::tuple<Parts...>& parts() const { return parts_; }

private:
    template <class T, class S, std::size_t R, class L, class F>
    static constexpr void each(const tensor_view<T, S, R, L>& view, F& f) {
        f(view);
    }
    template <class V, class F>
    static constexpr void each(std::span<const V> list, F& f) {
        for (const V& view : list) f(view);
    }

    template <class T, class S, std::size_t R, class L>
    static constexpr std::size_t count_of(const tensor_view<T, S, R, L>&) {
        return 1;
    }
    template <class V>
    static constexpr std::size_t count_of(std::span<const V> list) {
        return list.size();
    }

    std::tuple<Parts...> parts_;
};

namespace detail {

template <class X>
constexpr bool is_fused = false;
template <class... P>
constexpr bool is_fused<fused<P...>> = true;

// A runtime list: any contiguous range of views.
template <class X>
concept view_list =
    is_range<X> && is_tensor_view<std::remove_cvref_t<decltype(*std::data(std::declval<X&>()))>>;

template <class X>
constexpr auto fused_part(X& x) {
    if constexpr (view_list<X>) {
        using V = std::remove_cvref_t<decltype(*std::data(x))>;
        return std::span<const V>(std::data(x), std::size(x));
    } else {
        return to_view(x);
    }
}

template <class X>
constexpr bool fusible_argument() {
    constexpr bool known = view_list<std::remove_reference_t<X>> || viewable<X>;
    if constexpr (!check_no_bits<X>()) return false;
    else {
        static_assert(known, "hvd: fuse takes tensors and runtime lists of views; this is neither");
        static_assert(is_borrowed<X>,
                      "hvd: fuse keeps views only; this temporary's memory would be gone");
        return known && is_borrowed<X>;
    }
}

template <class Part>
struct part_view {
    using type = Part;
};
template <class V>
struct part_view<std::span<const V>> {
    using type = V;
};

// True if a call may write the tensors of a fused list.
template <class Fused>
constexpr bool is_written = false;
template <class... Parts>
constexpr bool is_written<fused<Parts...>> = (writable<typename part_view<Parts>::type> && ...);

template <class... T>
struct type_list {
    static constexpr std::size_t size = sizeof...(T);
};

template <class List, class T>
struct with_type;
template <class... L, class T>
struct with_type<type_list<L...>, T> {
    using type =
        std::conditional_t<(std::is_same_v<L, T> || ...), type_list<L...>, type_list<L..., T>>;
};

template <class List, class... Parts>
struct collect_types {
    using type = List;
};
template <class List, class P, class... Rest>
struct collect_types<List, P, Rest...> {
    using T = typename part_view<P>::type::value_type;
    using type = typename collect_types<typename with_type<List, T>::type, Rest...>::type;
};

// The element types of a fused list, each once.
template <class Fused>
struct fused_types;
template <class... Parts>
struct fused_types<fused<Parts...>> {
    using type = typename collect_types<type_list<>, Parts...>::type;
};

template <class Fused>
using fused_types_t = typename fused_types<std::remove_cvref_t<Fused>>::type;

}  // namespace detail

/// Combines several tensors into one: `hvd::fuse(w1, b1, w2)`, or a runtime list,
/// `hvd::fuse(std::span(views))`. The two mix, and so do element types. Tensors that a call writes
/// do not overlap.
template <class... X>
constexpr auto fuse(X&&... tensors) {
    static_assert(sizeof...(X) > 0, "hvd: fuse needs at least one tensor");
    if constexpr ((detail::fusible_argument<X>() && ...))
        return fused<decltype(detail::fused_part(tensors))...>(detail::fused_part(tensors)...);
}

namespace detail {

// Returns the list of a plan: a fused list, or a single tensor as one.
template <class X>
constexpr auto as_list(X& x) {
    if constexpr (is_fused<std::remove_cvref_t<X>>) return x;
    else return fuse(x);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
