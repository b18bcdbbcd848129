// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <type_traits>

#include "../../core/concepts.hpp"
#include "../../core/options.hpp"
#include "../../fusion/fuse.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

template <class Backend, class X>
constexpr bool moves_memory_of = [] {
    if constexpr (requires { typename Backend::space_type; })
        return std::is_same_v<typename view_of<X>::space, typename Backend::space_type>;
    else return on_host<X>;
}();

// Values instead of concepts: compilers explain at length why a concept does not hold, but not why
// a value is false.
template <class X>
constexpr bool is_viewable = viewable<X>;
template <class X>
constexpr bool is_writable = writable<X>;
template <class T, class Backend>
constexpr bool is_transportable = transportable<T, Backend>;
template <class T, class Op, class Backend>
constexpr bool is_reducible = reducible<T, Op, Backend>;

// The checks come in the order in which a user would ask, and stop at the first that fails. So the
// compiler prints one message.
template <class Backend, class X>
constexpr bool check_tensor() {
    if constexpr (!check_no_bits<X>()) {
        return false;
    } else if constexpr (!is_viewable<X>) {
        static_assert(
            is_viewable<X>,
            "hvd: not a tensor: needs a contiguous range, array or view whose elements have "
            "hvd::dtype_traits");
        return false;
    } else if constexpr (!moves_memory_of<Backend, X>) {
        static_assert(
            moves_memory_of<Backend, X>,
            "hvd: the memory space of this view (hvd::host or hvd::device) is not the one this "
            "backend moves");
        return false;
    } else {
        static_assert(is_transportable<element_of<X>, Backend>,
                      "hvd: this backend does not move this element type");
        return is_transportable<element_of<X>, Backend>;
    }
}

// Checks a tensor that the call writes.
template <class Backend, class X>
constexpr bool check_written() {
    if constexpr (!check_tensor<Backend, X>()) {
        return false;
    } else if constexpr (!is_writable<X>) {
        static_assert(is_writable<X>,
                      "hvd: the call writes this tensor, but its elements are const");
        return false;
    } else {
        static_assert(is_borrowed<X>,
                      "hvd: the result would be lost with this temporary, which owns its memory; "
                      "name it first");
        return is_borrowed<X>;
    }
}

// Checks a tensor that an asynchronous call reads after it has returned.
template <class Backend, class X>
constexpr bool check_kept() {
    if constexpr (!check_tensor<Backend, X>()) {
        return false;
    } else {
        static_assert(
            is_borrowed<X>,
            "hvd: an asynchronous call reads this temporary after it is gone; name it first");
        return is_borrowed<X>;
    }
}

template <class Backend, class T, class Op>
constexpr bool check_reducible() {
    using plain = plain_op_t<Op>;
    constexpr bool integer_average =
        is_integer_element<T> && std::same_as<plain, op::average> && !is_rounded<Op> &&
        is_reducible<T, decltype(average(rounding::toward_zero)), Backend>;
    constexpr bool whole_vectors = std::same_as<plain, op::adasum>;
    if constexpr (whole_vectors) {
        static_assert(!whole_vectors,
                      "hvd: hvd::adasum combines whole vectors, for which there is allreduce(x, "
                      "hvd::adasum) alone: "
                      "in place, blocking, no plan");
        return false;
    } else if constexpr (integer_average) {
        static_assert(!integer_average,
                      "hvd: the average of integers needs a rounding: "
                      "hvd::average(hvd::rounding::toward_zero)");
        return false;
    } else if constexpr (!is_transportable<T, Backend>) {
        static_assert(is_transportable<T, Backend>,
                      "hvd: this backend does not move this element type");
        return false;
    } else {
        static_assert(is_reducible<T, Op, Backend>,
                      "hvd: this backend can't reduce this element type with this operation "
                      "(hvd::reducible)");
        return is_reducible<T, Op, Backend>;
    }
}

// Checks a list that is moved: host memory and elements that travel.
template <class Backend, class Fused>
constexpr bool check_fused_moved() {
    return []<class... P>(const std::tuple<P...>*) {
        return (check_tensor<Backend, typename part_view<P>::type>() && ...);
    }(static_cast<const std::remove_cvref_t<decltype(std::declval<const Fused&>().parts())>*>(
               nullptr));
}

// Checks a list that the call writes.
template <class Backend, class Fused>
constexpr bool check_fused_written() {
    constexpr bool written = is_written<std::remove_cvref_t<Fused>>;
    static_assert(written, "hvd: the call writes these tensors, but the elements of one are const");
    return written && check_fused_moved<Backend, std::remove_cvref_t<Fused>>();
}

template <class Backend, class Op, class Fused>
constexpr bool check_fused_reducible() {
    if constexpr (!check_fused_moved<Backend, std::remove_cvref_t<Fused>>()) return false;
    else
        return []<class... T>(type_list<T...>) {
            return (check_reducible<Backend, T, Op>() && ...);
        }(fused_types_t<Fused>{});
}

template <class Op>
concept operation_like = !std::convertible_to<Op, reduce_options> && !viewable<Op> && !is_fused<Op>;

template <class Op>
constexpr bool check_operation() {
    constexpr bool known = operation_like<Op>;
    static_assert(
        known,
        "hvd: this is no operation: it takes hvd::sum and its like, or a callable of two elements");
    return known;
}

// A plain callable is an operation that need not commute.
template <class Op>
constexpr auto as_operation(const Op& op) {
    if constexpr (operation_tag<Op>) return op;
    else return custom(op);
}

template <class Op>
using operation_of = decltype(as_operation(std::declval<const Op&>()));

}  // namespace detail

/// `Comm` can reduce tensors like X in place with Op. Generic code can ask this before it calls.
template <class Comm, class X, class Op>
concept can_allreduce =
    writable<X> && detail::is_borrowed<X> &&
    reducible<detail::element_of<X>, detail::operation_of<Op>, typename Comm::backend_type>;

/// `Comm` can broadcast tensors like X.
template <class Comm, class X>
concept can_broadcast = writable<X> && detail::is_borrowed<X> &&
                        transportable<detail::element_of<X>, typename Comm::backend_type>;

}  // namespace v0
}  // namespace hvd
