// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <initializer_list>
#include <type_traits>

#include "../../core/concepts.hpp"
#include "../../core/options.hpp"
#include "../../fusion/fuse.hpp"

namespace hvd::inline v0 {
namespace detail {

template <class Backend, class X>
constexpr bool moves_memory_of = [] {
    if constexpr (std::is_same_v<Backend, any_backend>) return true;
    else if constexpr (requires { typename Backend::space_type; })
        return std::is_same_v<typename view_of<X>::space, typename Backend::space_type>;
    else return on_host<X>;
}();

// Values in the place of concepts, for the reason that `is_viewable` gives.
template <class X>
constexpr bool is_writable = writable<X>;
template <class T, class Backend>
constexpr bool is_transportable = transportable<T, Backend>;
template <class T, class Op, class Backend>
constexpr bool is_reducible = reducible<T, Op, Backend>;

template <class X>
concept pointer_like = std::is_pointer_v<std::remove_cvref_t<X>>;

// The flaws of an argument are found as values, and one function tells the first of them: compilers
// print some lines for every function between the user's call and the failed assertion.

enum class tensor_use { read, written, kept };  // kept: read after the call has returned

enum class tensor_flaw {
    none,
    bits,
    pointer,
    strings,
    list,
    scattered,
    foreign,
    space,
    element,
    constant,
    lost,
    gone
};

// A string or a view of one: it has the traits of its characters.
template <class T>
constexpr bool is_text = requires {
    typename T::traits_type;
    typename T::size_type;
};

// The flaw of an argument that is no view: it may be a range of something that hvd knows.
template <class U>
constexpr tensor_flaw flaw_of_foreign() {
    if constexpr (is_range_of_tensors<U>)
        return is_text<std::remove_cvref_t<decltype(*std::begin(std::declval<U&>()))>>
                   ? tensor_flaw::strings
                   : tensor_flaw::list;
    else return is_scattered<U> ? tensor_flaw::scattered : tensor_flaw::foreign;
}

// The order is that in which a user would ask.
template <class Backend, class X, tensor_use Use>
constexpr tensor_flaw flaw_of_one() {
    if constexpr (packed_bools<std::remove_cvref_t<X>>) return tensor_flaw::bits;
    else if constexpr (pointer_like<X>) return tensor_flaw::pointer;
    else if constexpr (!is_viewable<X>) return flaw_of_foreign<std::remove_reference_t<X>>();
    else if constexpr (!moves_memory_of<Backend, X>) return tensor_flaw::space;
    else if constexpr (!is_transportable<element_of<X>, Backend>) return tensor_flaw::element;
    else if constexpr (Use == tensor_use::read) return tensor_flaw::none;
    else if constexpr (Use == tensor_use::written && !is_writable<X>) return tensor_flaw::constant;
    else if constexpr (is_borrowed<X>) return tensor_flaw::none;
    else return Use == tensor_use::written ? tensor_flaw::lost : tensor_flaw::gone;
}

// The first flaw of the tensors of a fused list. The list keeps views, which outlive it.
template <class Backend, tensor_use Use, class... Parts>
constexpr tensor_flaw flaw_of_parts(const std::tuple<Parts...>*) {
    tensor_flaw first = tensor_flaw::none;
    ((first == tensor_flaw::none
          ? void(first = flaw_of_one<Backend, typename part_view<Parts>::type, Use>())
          : void()),
     ...);
    return first;
}

template <class Backend, class X, tensor_use Use>
constexpr tensor_flaw flaw_of_tensor() {
    using U = std::remove_cvref_t<X>;
    if constexpr (is_fused<U>)
        return flaw_of_parts<Backend, Use>(
            static_cast<const std::remove_cvref_t<decltype(std::declval<const U&>().parts())>*>(
                nullptr));
    else return flaw_of_one<Backend, X, Use>();
}

// X, a tensor or a fused list, can be an argument of a call over the backend.
template <class Backend, class X, tensor_use Use = tensor_use::read>
constexpr bool check_tensor() {
    using enum tensor_flaw;
    constexpr tensor_flaw flaw = flaw_of_tensor<Backend, X, Use>();
    static_assert(differ(flaw, bits),
                  "hvd: std::vector<bool> keeps bits, not elements; use std::vector<std::uint8_t>");
    static_assert(differ(flaw, pointer),
                  "hvd: a pointer does not say how many elements there are: write "
                  "hvd::view(pointer, count)");
    static_assert(differ(flaw, strings),
                  "hvd: a list of strings is no tensor: comm.broadcast_object(list) sends it from "
                  "the root to all");
    static_assert(differ(flaw, list), "hvd: this is a list of tensors: write hvd::fuse(list)");
    static_assert(differ(flaw, scattered),
                  "hvd: the elements are not in one piece of memory: a tensor needs a contiguous "
                  "range (std::vector, std::span, std::array)");
    static_assert(differ(flaw, foreign),
                  "hvd: not a tensor: needs a contiguous range, array or view whose elements have "
                  "hvd::dtype_traits, or a type with hvd::view_traits");
    static_assert(differ(flaw, space),
                  "hvd: the memory space of this view (hvd::host or hvd::device) is not the one "
                  "this backend moves");
    static_assert(differ(flaw, element), "hvd: this backend does not move this element type");
    static_assert(differ(flaw, constant),
                  "hvd: the call writes this tensor, but its elements are const");
    static_assert(differ(flaw, lost),
                  "hvd: the result would be lost with this temporary, which owns its memory; "
                  "name it first");
    static_assert(differ(flaw, gone),
                  "hvd: an asynchronous call reads this temporary after it is gone; name it first");
    return flaw == none;
}

// Calls that take one tensor have no form for several.
template <class... X>
constexpr bool check_unfused() {
    constexpr bool unfused = !(is_fused<std::remove_cvref_t<X>> || ...);
    static_assert(unfused, "hvd: this form of the call takes no fuse(…): call it for each tensor");
    return unfused;
}

// Memory for a result that was not marked by hvd::into: a tensor that is no number, or a list.
template <class X>
concept bare_output =
    (viewable<X> && !element<std::remove_cvref_t<X>>) || is_fused<std::remove_cvref_t<X>>;

template <class X>
constexpr bool has_into = !bare_output<X>;

// The result of a call that does not compile. Other than void, it is no further error where the
// program gives it a name.
struct refused_call {};

// A tensor that is written as numbers in braces.
template <class T>
refused_call refuse_braces() {
    static_assert(!std::is_object_v<T>,
                  "hvd: numbers in braces are no tensor: name it first, as in "
                  "std::vector<float> x{1, 2}");
    return {};
}

// An operation between < and >.
template <auto Op>
refused_call refuse_operation_in_brackets() {
    static_assert(!std::is_object_v<decltype(Op)>,
                  "hvd: the operation is an argument: allreduce(x, hvd::sum)");
    return {};
}

template <class Op>
concept operation_like = !std::convertible_to<Op, reduce_options> && !viewable<Op> && !is_fused<Op>;

// True for std::NAME<>, which is known by its name: <functional> is slow to compile.
template <class F>
constexpr bool is_standard(std::string_view name) {
    std::string_view all = __PRETTY_FUNCTION__;
    const std::size_t at = all.find("F = std::");
    if (at == all.npos) return false;
    all.remove_prefix(at + 9);
    if (all.starts_with("__1::")) all.remove_prefix(5);  // libc++
    return all.starts_with(name) && (all.substr(name.size()).starts_with("<void>") ||
                                     all.substr(name.size()).starts_with("<>"));
}

// A plain callable is an operation that need not commute.
template <class Op>
constexpr auto as_operation(const Op& f) {
    if constexpr (operation_tag<Op>) return f;
    else if constexpr (is_standard<Op>("plus")) return op::sum();
    else if constexpr (is_standard<Op>("multiplies")) return op::product();
    else if constexpr (is_standard<Op>("bit_and")) return op::bit_and();
    else if constexpr (is_standard<Op>("bit_or")) return op::bit_or();
    else if constexpr (is_standard<Op>("bit_xor")) return op::bit_xor();
    else if constexpr (is_standard<Op>("logical_and")) return op::logical_and();
    else if constexpr (is_standard<Op>("logical_or")) return op::logical_or();
    else return custom(f);
}

template <class Op>
using operation_of = decltype(as_operation(std::declval<const Op&>()));

// MPI_SUM is a pointer in Open MPI and an int in MPICH.
template <class Op>
constexpr bool is_operation =
    operation_like<Op> &&
    !(std::is_pointer_v<Op> && !std::is_function_v<std::remove_pointer_t<Op>>);

// `tensor`: check_tensor tells it.
enum class reduction_flaw { none, tensor, missing, no_operation, adasum, rounding, operation };

template <class Backend, class T, class Op>
constexpr reduction_flaw flaw_of_reducing() {
    using plain = plain_op_t<Op>;
    if constexpr (std::same_as<plain, op::adasum>) return reduction_flaw::adasum;
    else if constexpr (is_reducible<T, Op, Backend>) return reduction_flaw::none;
    else if constexpr (is_integer_element<T> && std::same_as<plain, op::average> &&
                       !is_rounded<Op> &&
                       is_reducible<T, decltype(average(rounding::toward_zero)), Backend>)
        return reduction_flaw::rounding;
    else return reduction_flaw::operation;
}

// The first flaw of the element types of a fused list.
template <class Backend, class Op, class... T>
constexpr reduction_flaw flaw_of_reducing_each(type_list<T...>) {
    reduction_flaw first = reduction_flaw::none;
    ((first == reduction_flaw::none ? void(first = flaw_of_reducing<Backend, T, Op>()) : void()),
     ...);
    return first;
}

template <class Backend, class X, class Op>
constexpr reduction_flaw flaw_of_reduction() {
    if constexpr (differ(flaw_of_tensor<Backend, X, tensor_use::read>(), tensor_flaw::none))
        return reduction_flaw::tensor;
    else if constexpr (std::is_same_v<Op, reduce_options> || std::is_same_v<Op, root>)
        return reduction_flaw::missing;
    else if constexpr (!is_operation<Op>) return reduction_flaw::no_operation;
    else if constexpr (is_fused<std::remove_cvref_t<X>>)
        return flaw_of_reducing_each<Backend, operation_of<Op>>(fused_types_t<X>{});
    else return flaw_of_reducing<Backend, element_of<X>, operation_of<Op>>();
}

// A tensor or a fused list that passes check_tensor can be reduced with Op over the backend.
template <class Backend, class X, class Op>
constexpr bool check_reduced() {
    using enum reduction_flaw;
    constexpr reduction_flaw flaw = flaw_of_reduction<Backend, X, Op>();
    static_assert(differ(flaw, missing),
                  "hvd: the operation is missing: write hvd::sum, hvd::average, … after the "
                  "tensor");
    static_assert(differ(flaw, no_operation),
                  "hvd: this is no operation: write hvd::sum, hvd::average, … (hvd::sum for "
                  "MPI_SUM), or a callable of two elements");
    static_assert(differ(flaw, reduction_flaw::adasum),
                  "hvd: hvd::adasum combines whole vectors, for which there is allreduce(x, "
                  "hvd::adasum) alone: in place, blocking, no plan");
    static_assert(differ(flaw, reduction_flaw::rounding),
                  "hvd: the average of integers needs a rounding: "
                  "hvd::average(hvd::rounding::toward_zero)");
    static_assert(differ(flaw, operation),
                  "hvd: this backend can't reduce this element type with this operation "
                  "(hvd::reducible)");
    return flaw == none;
}

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

}  // namespace hvd::inline v0
