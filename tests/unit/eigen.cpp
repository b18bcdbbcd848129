// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <hvd/interop/eigen.hpp>
#include <hvd/threads.hpp>

namespace eigen_tests {

// Eigen's types as tensors.

namespace {

using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class F>
void on_two_ranks(F f) {
    hvd::run_threads(2, [&](hvd::communicator<hvd::threads>& comm) { f(comm); });
}

}  // namespace

TEST_CASE("Eigen's 16-bit numbers travel as hvd's") {
    CHECK(hvd::dtype_traits<Eigen::half>::id == hvd::dtype::float16);
    CHECK(hvd::dtype_traits<Eigen::bfloat16>::id == hvd::dtype::bfloat16);
    on_two_ranks([](auto& comm) {
        Eigen::half x(comm.rank() == 0 ? 2048.0f : 1.0f);
        Eigen::bfloat16 y(1.5f);
        comm.allreduce(x, hvd::sum);
        comm.allreduce(y, hvd::sum);
        CHECK(float(x) == float(hvd::float16(2049)));
        CHECK(float(y) == 3);
    });
}

TEST_CASE("matrices and vectors are reduced and broadcast whole, in either storage order") {
    on_two_ranks([](auto& comm) {
        Eigen::MatrixXf columns = Eigen::MatrixXf::Constant(3, 5, float(comm.rank() + 1));
        row_major rows = row_major::Constant(3, 5, float(comm.rank() + 1));
        Eigen::Vector3d fixed = Eigen::Vector3d::Constant(comm.rank());
        Eigen::ArrayXi array = Eigen::ArrayXi::LinSpaced(4, 0, 3) + 10 * comm.rank();
        comm.allreduce(columns, hvd::sum);
        comm.allreduce(hvd::fuse(rows, fixed), hvd::sum);
        comm.broadcast(array, hvd::root{1});
        CHECK(columns == Eigen::MatrixXf::Constant(3, 5, 3));
        CHECK(rows == row_major::Constant(3, 5, 3));
        CHECK(fixed == Eigen::Vector3d::Constant(1));
        CHECK(array(3) == 13);
    });
}

TEST_CASE(
    "blocks, rows, columns and maps are reduced where they lie, and what is around them stays") {
    on_two_ranks([](auto& comm) {
        Eigen::MatrixXi m = Eigen::MatrixXi::Ones(4, 6);
        Eigen::MatrixXi expected = m;
        comm.allreduce(m.block(1, 1, 2, 3), hvd::sum);
        expected.block(1, 1, 2, 3).setConstant(2);
        CHECK(m == expected);
        comm.allreduce(m.row(3), hvd::sum);
        expected.row(3).setConstant(2);
        CHECK(m == expected);
        comm.allreduce(m.col(5), hvd::sum);
        expected.col(5) *= 2;
        CHECK(m == expected);
        int memory[6] = {1, 2, 3, 4, 5, 6};
        comm.allreduce(Eigen::Map<Eigen::VectorXi, 0, Eigen::InnerStride<2>>(memory, 3), hvd::sum);
        CHECK(memory[0] == 2);
        CHECK(memory[1] == 2);
        CHECK(memory[4] == 10);
        CHECK(memory[5] == 6);
    });
}

TEST_CASE("constant matrices are gathered, and an owning temporary is not borrowed") {
    CHECK(!hvd::writable<const Eigen::MatrixXf&>);
    CHECK(hvd::writable<Eigen::MatrixXf&>);
    CHECK(!hvd::detail::is_borrowed<Eigen::MatrixXf>);
    CHECK(hvd::detail::is_borrowed<Eigen::Map<Eigen::MatrixXf>>);
    on_two_ranks([](auto& comm) {
        const Eigen::VectorXf mine = Eigen::VectorXf::Constant(2, float(comm.rank()));
        CHECK(comm.allgather(mine).values == std::vector<float>{0, 0, 1, 1});
    });
}

TEST_CASE("an Eigen::Ref of const that had to copy is not borrowed") {
    CHECK(!hvd::detail::is_borrowed<Eigen::Ref<const Eigen::VectorXf>>);
}

TEST_CASE("a tensor has the shape of its matrix, slowest dimension first, and gaps where it may") {
    Eigen::MatrixXf columns(2, 5);
    row_major rows(2, 5);
    Eigen::VectorXf vector(4);
    CHECK(hvd::detail::to_view(columns).shape() == hvd::shape(5, 2));
    CHECK(hvd::detail::to_view(rows).shape() == hvd::shape(2, 5));
    CHECK(hvd::detail::to_view(vector).shape() == hvd::shape(4));
    auto row = columns.row(1);
    CHECK(hvd::detail::to_view(row).shape() == hvd::shape(5));
    CHECK(hvd::detail::to_view(row).stride(0) == 2);

    const auto without_gaps = []<class X>(X&) {
        return std::is_same_v<typename hvd::detail::view_of<X&>::layout, hvd::contiguous>;
    };
    Eigen::Matrix3f fixed;
    Eigen::Map<Eigen::MatrixXf> map(columns.data(), 5, 2);
    Eigen::Map<const Eigen::VectorXf> constant(columns.data(), 10);
    Eigen::Map<Eigen::Matrix3f, 0, Eigen::OuterStride<3>> outer(fixed.data());
    Eigen::Map<Eigen::Matrix3f, 0, Eigen::OuterStride<4>> apart(columns.data());
    Eigen::Map<Eigen::MatrixXf, 0, Eigen::OuterStride<>> unknown(columns.data(), 2, 2,
                                                                 Eigen::OuterStride<>(4));
    Eigen::Map<Eigen::VectorXf, 0, Eigen::InnerStride<2>> second(columns.data(), 5);
    Eigen::Ref<Eigen::VectorXf> reference(vector);
    auto column = columns.col(1);
    CHECK(without_gaps(columns));
    CHECK(without_gaps(map));
    CHECK(without_gaps(constant));
    CHECK(without_gaps(outer));
    CHECK(without_gaps(reference));
    CHECK(without_gaps(column));
    CHECK_FALSE(without_gaps(row));
    CHECK_FALSE(without_gaps(apart));
    CHECK_FALSE(without_gaps(unknown));
    CHECK_FALSE(without_gaps(second));
}

}  // namespace eigen_tests
