// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <array>
#include <hvd/interop/mdspan.hpp>

#include "hvd_test.hpp"

using communicator = hvd_test::communicator;

namespace {

struct by_rows {};
struct by_columns {};
struct tiled {};

// The part of mdspan that the concept needs, since not every standard library has mdspan.
template <class T, std::size_t Rank, class Layout>
class span_of {
public:
    using element_type = T;
    using layout_type = Layout;
    span_of(T* data, std::array<int, Rank> extents) : data_(data), extents_(extents) {}
    static constexpr std::size_t rank() { return Rank; }
    static constexpr bool is_always_strided() { return !std::is_same_v<Layout, tiled>; }
    T* data_handle() const { return data_; }
    int extent(std::size_t d) const { return extents_[d]; }
    int stride(std::size_t d) const {
        int step = 1;
        if (std::is_same_v<Layout, by_rows>)
            for (std::size_t k = Rank; k-- > d + 1;) step *= extents_[k];
        else
            for (std::size_t k = 0; k < d; ++k) step *= extents_[k];
        return step;
    }

private:
    T* data_;
    std::array<int, Rank> extents_;
};

}  // namespace

template <>
constexpr bool hvd::is_row_major<by_rows> = true;

static_assert(hvd::writable<span_of<float, 2, by_rows>>);
static_assert(hvd::viewable<span_of<const float, 2, by_columns>>);
static_assert(!hvd::writable<span_of<const float, 2, by_rows>>);
static_assert(!hvd::viewable<span_of<float, 2, tiled>>);    // it has no strides
static_assert(!hvd::viewable<span_of<char*, 2, by_rows>>);  // no element
static_assert(!hvd::mdspan_like<std::vector<float>>);

TEST_CASE("an mdspan by rows is a contiguous tensor of its shape") {
    std::vector<float> values(6);
    const span_of<float, 2, by_rows> m(values.data(), {2, 3});
    const auto view = hvd::detail::to_view(m);
    static_assert(
        std::is_same_v<std::remove_const_t<decltype(view)>, hvd::tensor_view<float, hvd::host, 2>>);
    CHECK(view.shape() == hvd::shape(2, 3));
    CHECK(view.data() == values.data());
}

TEST_CASE("an mdspan in another order is the same tensor, element by element") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> rows = {1, 2, 3, 4, 5, 6}, columns = {1, 4, 2, 5, 3, 6}, result(6);
        comm.allreduce(span_of<float, 2, by_columns>(columns.data(), {2, 3}), hvd::sum);
        comm.allreduce(span_of<float, 2, by_rows>(rows.data(), {2, 3}), hvd::sum);
        const float n = float(comm.size());
        CHECK(rows == std::vector<float>{n, 2 * n, 3 * n, 4 * n, 5 * n, 6 * n});
        CHECK(columns == std::vector<float>{n, 4 * n, 2 * n, 5 * n, 3 * n, 6 * n});
        comm.allreduce(span_of<const float, 2, by_columns>(columns.data(), {2, 3}),
                       span_of<float, 2, by_rows>(result.data(), {2, 3}), hvd::max);
        CHECK(result == rows);
    });
}

#ifdef __cpp_lib_mdspan
TEST_CASE("std::mdspan is taken as it is") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<double> values(6, 1);
        const std::mdspan m(values.data(), 2, 3);
        comm.allreduce(m, hvd::sum);
        CHECK(values[5] == comm.size());
    });
}
#endif
