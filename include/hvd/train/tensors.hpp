// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>

#include "../backend/concept.hpp"
#include "../core/lean/finite.hpp"
#include "../core/viewable.hpp"
#include "../fusion/fuse.hpp"

namespace hvd::inline v0::detail {

template <class X>
constexpr bool is_written_tensor = writable<X>;

// An engine, whose tensors are matched by name.
template <class Comm>
constexpr bool is_engine = requires { requires Comm::matches_by_name; };

// A communicator that moves tensors of a GPU, but not the calls of host tensors over one, which
// have a channel of their own. train/device/ has what differs for it.
template <class Comm>
concept device_communicator =
    requires { typename Comm::backend_type; } && device_backend<typename Comm::backend_type> &&
    !is_engine<Comm> && (!requires(Comm& comm) { comm.channel(); });

// The values and the gradient of a parameter are tensors that hvd can write, and views of them are
// kept.
template <class T, class P, class G>
constexpr bool check_parameter() {
    constexpr bool sized =
        !std::is_pointer_v<std::remove_cvref_t<P>> && !std::is_pointer_v<std::remove_cvref_t<G>>;
    static_assert(sized,
                  "hvd: a pointer does not say how many elements it points to: hvd::view(pointer, "
                  "count)");
    constexpr bool changes = !viewable<P> || !viewable<G> || (writable<P> && writable<G>);
    static_assert(changes,
                  "hvd: a parameter or gradient is const, and a step writes both: register it "
                  "without const");
    constexpr bool both = is_written_tensor<P> && is_written_tensor<G>;
    static_assert(both || !sized || !changes,
                  "hvd: not a tensor that can be written: values and gradients are contiguous "
                  "ranges, views, or a type with hvd::view_traits");
    constexpr bool kept = is_borrowed<P> && is_borrowed<G>;
    static_assert(kept,
                  "hvd: parameters and gradients outlive the optimizer; this temporary's memory "
                  "would be gone");
    if constexpr (both && kept) {
        using V = element_of<P>;
        using D = element_of<G>;
        static_assert(
            std::is_same_v<V, T> && std::is_same_v<D, T>,
            "hvd: values, gradient and optimizer have the same element type: an optimizer "
            "is of that of its tensors, as hvd::optimizers::sgd<float> for "
            "std::vector<float>");
        return std::is_same_v<V, T> && std::is_same_v<D, T>;
    }
    return false;
}

// The tensors of a range, which are viewed, stay where they are.
template <class Range>
constexpr bool keeps_tensors =
    is_borrowed<Range> ||
    is_borrowed<std::remove_reference_t<decltype(*std::begin(std::declval<Range&>()))>>;

// The same for ranges of tensors.
template <class T, class Values, class Gradients>
constexpr bool check_parameters() {
    constexpr bool ranges = is_range_of_tensors<std::remove_reference_t<Values>> &&
                            is_range_of_tensors<std::remove_reference_t<Gradients>>;
    static_assert(ranges,
                  "hvd: register_parameters takes a range of tensors and one of their gradients, "
                  "as std::vector<std::vector<float>>: a single tensor is for register_parameter");
    if constexpr (ranges) {
        constexpr bool kept = keeps_tensors<Values> && keeps_tensors<Gradients>;
        static_assert(kept,
                      "hvd: parameters and gradients outlive the optimizer; this temporary's "
                      "memory would be gone");
        if constexpr (kept)
            return check_parameter<T, decltype(*std::begin(std::declval<Values&>())),
                                   decltype(*std::begin(std::declval<Gradients&>()))>();
    }
    return false;
}

// Views a tensor as training needs it: memory of one space without gaps, in one dimension.
template <class Space = host, class X>
auto flat_view(X& x) {
    const auto v = to_view(x);
    using V = std::remove_const_t<decltype(v)>;
    static_assert(std::is_same_v<typename V::space, host> || std::is_same_v<Space, device>,
                  "hvd: parameters and gradients are on the host");
    static_assert(std::is_same_v<typename V::space, device> || std::is_same_v<Space, host>,
                  "hvd: parameters and gradients are on the device, as the communicator's tensors "
                  "are: hvd::device_view");
    static_assert(std::is_same_v<typename V::layout, contiguous>,
                  "hvd: parameters and gradients are memory without gaps");
    return tensor_view<typename V::element_type, Space>(v.data(), {v.size()});
}

template <class T>
std::span<T> elements(const tensor_view<T>& tensor) {
    return {tensor.data(), tensor.size()};
}

// It converts through the accumulator, since 16-bit types convert to float only.
template <class T>
double as_double(const T& x) {
    return static_cast<double>(static_cast<typename dtype_traits<T>::accumulator>(x));
}

template <class T>
T from_double(double x) {
    return static_cast<T>(static_cast<typename dtype_traits<T>::accumulator>(x));
}

template <class T>
void scale(const tensor_view<T>& tensor, double factor) {
    if (is_one(factor)) return;
    for (T& x : elements(tensor)) x = from_double<T>(as_double(x) * factor);
}

template <class T>
bool is_finite_element(const T& x) {
    if constexpr (has_float_bits<T>) return is_finite(x);
    else if constexpr (complex_like<T>) return is_finite(x.real()) && is_finite(x.imag());
    else return is_finite(as_double(x));
}

template <class T>
bool all_finite(const tensor_view<T>& tensor) {
    for (const T& x : elements(tensor))
        if (!is_finite_element(x)) return false;
    return true;
}

}  // namespace hvd::inline v0::detail
