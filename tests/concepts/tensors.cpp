// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <array>
#include <concepts>
#include <list>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <hvd/hvd.hpp>

namespace {

template <class... X>
constexpr bool all_viewable = (hvd::viewable<X> && ...);
template <class... X>
constexpr bool none_viewable = !(hvd::viewable<X> || ...);

using floats = std::vector<float>;

}  // namespace

static_assert(all_viewable<floats&, const floats&, std::array<int, 3>&, std::span<double>,
                           std::span<const double>>);
static_assert(all_viewable<float&, float (&)[4], float (&)[2][3], const int (&)[2]>);
static_assert(
    all_viewable<hvd::tensor_view<float, hvd::host, 2>, hvd::tensor_view<float, hvd::device, 1>>);
static_assert(none_viewable<std::vector<bool>&, std::list<float>&, std::vector<std::string>&,
                            std::vector<floats>&>);
static_assert(none_viewable<float*, int**, std::nullptr_t, std::vector<int*>&>);

static_assert(hvd::writable<floats&> && hvd::writable<std::span<float>>);
static_assert(!hvd::writable<const floats&> && !hvd::writable<std::span<const float>>);

// A view on the host without strides is a range. Calls take it as the tensor that it is.
template <class View>
constexpr bool is_range_on_host =
    std::ranges::contiguous_range<View> && std::ranges::borrowed_range<View> &&
    std::convertible_to<View, std::span<typename View::element_type>>;
static_assert(is_range_on_host<hvd::tensor_view<float>> &&
              is_range_on_host<hvd::tensor_view<const int, hvd::host, 3>>);
static_assert(!std::ranges::range<hvd::tensor_view<float, hvd::device>> &&
              !std::ranges::range<hvd::tensor_view<float, hvd::host, 1, hvd::strided>> &&
              !std::convertible_to<hvd::tensor_view<float, hvd::device>, std::span<float>>);
template <class View>
constexpr bool is_its_own_view =
    std::same_as<hvd::detail::view_of<View>, View> && !hvd::detail::is_range_of_tensors<View> &&
    std::same_as<decltype(hvd::fuse(std::declval<View&>())), hvd::fused<View>>;
static_assert(is_its_own_view<hvd::tensor_view<float>> &&
              is_its_own_view<hvd::tensor_view<float, hvd::host, 2>> &&
              is_its_own_view<hvd::tensor_view<const float, hvd::device>>);

// A view is a pointer and numbers.
static_assert(std::is_trivially_copyable_v<hvd::tensor_view<float, hvd::host, 1>>);
static_assert(std::is_trivially_copyable_v<hvd::tensor_view<double, hvd::device, 3>>);
static_assert(sizeof(hvd::tensor_view<float, hvd::host, 1>) <= 2 * sizeof(void*));
