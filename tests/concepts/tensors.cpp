// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <array>
#include <list>
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

// A view is a pointer and numbers.
static_assert(std::is_trivially_copyable_v<hvd::tensor_view<float, hvd::host, 1>>);
static_assert(std::is_trivially_copyable_v<hvd::tensor_view<double, hvd::device, 3>>);
static_assert(sizeof(hvd::tensor_view<float, hvd::host, 1>) <= 2 * sizeof(void*));
