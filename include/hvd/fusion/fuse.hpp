// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "../core/concepts.hpp"

namespace hvd::inline v0 {

namespace detail {

// Compilers explain at length why a concept does not hold. They say only that a value is false.
template <class X>
constexpr bool is_viewable = viewable<X>;

// The runtime list of `fuse(range)`: an iterator (a pointer where the range is contiguous) and the
// number of tensors. The views are made one by one when they are asked for.
template <class Iterator>
class tensor_list {
public:
    using view_type = decltype(to_view(*std::declval<const Iterator&>()));

    constexpr tensor_list(Iterator first, std::size_t size) : first_(first), size_(size) {}

    constexpr std::size_t size() const { return size_; }

    template <class F>
    constexpr void for_each(F&& f) const {
        Iterator at = first_;
        for (std::size_t i = 0; i < size_; ++i, ++at) f(to_view(*at));
    }

private:
    Iterator first_;
    std::size_t size_;
};

template <class Part>
constexpr bool is_tensor_list = false;
template <class Iterator>
constexpr bool is_tensor_list<tensor_list<Iterator>> = true;

// Ranges with a size whose members are lvalues, so that `to_view` takes them, and viewable.
template <class X>
concept range_of_viewables = requires(X& x) {
    { std::size(x) } -> std::convertible_to<std::size_t>;
    requires std::is_lvalue_reference_v<decltype(*std::begin(x))>;
    requires viewable<decltype(*std::begin(x))>;
};

// True for a range of elements, as a std::list<float> is.
template <class X>
constexpr bool has_elements = [] {
    if constexpr (requires(X& x) { *std::begin(x); })
        return element<std::remove_cvref_t<decltype(*std::begin(std::declval<X&>()))>>;
    else return false;
}();

// A range of elements that has no view is not contiguous.
template <class X>
constexpr bool is_scattered = has_elements<X> && !is_viewable<X>;

template <class X>
constexpr bool is_range_of_tensors = range_of_viewables<X> && !has_elements<X>;

template <class X>
constexpr auto listed(X& x) {
    if constexpr (requires { std::data(x); }) return tensor_list(std::data(x), std::size(x));
    else return tensor_list(std::begin(x), std::size(x));
}

// The view that a part of a fused list gives for each of its tensors.
template <class Part>
struct part_view {
    using type = Part;
};
template <class Iterator>
struct part_view<tensor_list<Iterator>> {
    using type = typename tensor_list<Iterator>::view_type;
};

}  // namespace detail

/// Several tensors, of several element types, that one call treats as one. `fuse` makes it.
///
/// It holds views: the tensors (and runtime lists of them) outlive the call. Horovod:
/// `grouped_allreduce`.
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
    template <class Part, class F>
    static constexpr void each(const Part& part, F& f) {
        if constexpr (detail::is_tensor_list<Part>) part.for_each(f);
        else f(part);
    }

    template <class Part>
    static constexpr std::size_t count_of(const Part& part) {
        if constexpr (detail::is_tensor_list<Part>) return part.size();
        else return 1;
    }

    std::tuple<Parts...> parts_;
};

namespace detail {

template <class X>
constexpr bool is_fused = false;
template <class... P>
constexpr bool is_fused<fused<P...>> = true;

template <class X>
constexpr auto fused_part(X& x) {
    if constexpr (is_viewable<X>) return to_view(x);
    else return listed(x);
}

enum class fuse_flaw { none, bits, scattered, neither, gone };

template <class X>
constexpr fuse_flaw flaw_in_fuse() {
    using U = std::remove_reference_t<X>;
    if constexpr (packed_bools<std::remove_cv_t<U>>) return fuse_flaw::bits;
    else if constexpr (!is_viewable<X> && !is_range_of_tensors<U>) {
        if constexpr (requires(U& x) {
                          requires packed_bools<std::remove_cvref_t<decltype(*std::begin(x))>>;
                      })
            return fuse_flaw::bits;
        else return is_scattered<U> ? fuse_flaw::scattered : fuse_flaw::neither;
    } else return is_borrowed<X> ? fuse_flaw::none : fuse_flaw::gone;
}

template <class... X>
constexpr fuse_flaw first_flaw_in_fuse() {
    fuse_flaw first = fuse_flaw::none;
    ((first == fuse_flaw::none ? void(first = flaw_in_fuse<X>()) : void()), ...);
    return first;
}

// Assertions call this and do not compare: compilers explain a comparison in further lines.
template <class Flaw>
constexpr bool differ(Flaw a, Flaw b) {
    return a != b;
}

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

// The element types of a fused list. Each type appears once.
template <class Fused>
struct fused_types;
template <class... Parts>
struct fused_types<fused<Parts...>> {
    using type = typename collect_types<type_list<>, Parts...>::type;
};

template <class Fused>
using fused_types_t = typename fused_types<std::remove_cvref_t<Fused>>::type;

}  // namespace detail

/// Combines several tensors into one: `hvd::fuse(w1, b1, w2)`.
///
/// A range of tensors is a runtime list: `hvd::fuse(layers)`, where `layers` is a
/// `std::vector<std::vector<float>>`, a span of views, a `std::list` of matrices or any other range
/// with a size. Tensors and lists mix, and so do element types. Tensors that a call writes do not
/// overlap.
template <class... X>
constexpr auto fuse(X&&... tensors) {
    using detail::fuse_flaw;
    constexpr fuse_flaw flaw = detail::first_flaw_in_fuse<X...>();
    static_assert(sizeof...(X) > 0, "hvd: fuse needs at least one tensor");
    static_assert(detail::differ(flaw, fuse_flaw::bits),
                  "hvd: std::vector<bool> keeps bits, not elements; use std::vector<std::uint8_t>");
    static_assert(detail::differ(flaw, fuse_flaw::scattered),
                  "hvd: the elements are not in one piece of memory: a tensor needs a contiguous "
                  "range (std::vector, std::span, std::array)");
    static_assert(detail::differ(flaw, fuse_flaw::neither),
                  "hvd: fuse takes tensors and ranges of tensors; this is neither: a type of "
                  "another library needs hvd::view_traits");
    static_assert(detail::differ(flaw, fuse_flaw::gone),
                  "hvd: fuse keeps views only; this temporary's memory would be gone");
    if constexpr (flaw == fuse_flaw::none)
        return fused<decltype(detail::fused_part(tensors))...>(detail::fused_part(tensors)...);
    else return fused<>();  // the call that it is an argument of adds no error of its own
}

namespace detail {

// Returns the list of a plan: a fused list, or a single tensor as one.
template <class X>
constexpr auto as_list(X& x) {
    if constexpr (is_fused<std::remove_cvref_t<X>>) return x;
    else return fuse(x);
}

}  // namespace detail
}  // namespace hvd::inline v0
