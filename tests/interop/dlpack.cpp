// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <complex>
#include <hvd/interop/dlpack.hpp>
#include <string>

#include "hvd_test.hpp"

using communicator = hvd_test::communicator;

namespace {

// A tensor as a library would hand it over: six numbers, and a deleter that counts.
struct foreign {
    std::vector<std::int64_t> shape = {2, 3}, steps = {3, 1};
    std::vector<float> values = {0, 1, 2, 3, 4, 5};
    DLManagedTensor managed{};
    int deleted = 0;

    foreign() {
        auto& t = managed.dl_tensor;
        t.data = values.data();
        t.device = {kDLCPU, 0};
        t.ndim = 2;
        t.dtype = {kDLFloat, 32, 1};
        t.shape = shape.data();
        managed.manager_ctx = this;
        managed.deleter = [](DLManagedTensor* self) {
            ++static_cast<foreign*>(self->manager_ctx)->deleted;
        };
    }
    foreign(const foreign&) = delete;
    DLTensor& tensor() { return managed.dl_tensor; }
};

template <class T, class Space = hvd::host>
std::string refusal(const DLTensor& tensor) {
    try {
        static_cast<void>(hvd::dlpack_view<T, Space>(tensor));
    } catch (const hvd::usage_error& e) {
        return e.what();
    }
    return "accepted";
}

}  // namespace

TEST_CASE("a DLPack tensor is reduced where it lies") {
    hvd_test::on_ranks([](communicator& comm) {
        foreign f;
        comm.allreduce(hvd::dlpack_view<float>(f.tensor()), hvd::sum);
        for (std::size_t i = 0; i < 6; ++i) CHECK(f.values[i] == float(i) * float(comm.size()));
        f.tensor().byte_offset = 4 * sizeof(float);
        f.shape = {1, 2};
        const auto rest = hvd::dlpack_view<float>(f.tensor());
        CHECK(rest.data() == f.values.data() + 4);
        CHECK(rest.size() == 2);
    });
}

TEST_CASE("a DLPack tensor with gaps is packed, and the gaps stay") {
    hvd_test::on_ranks([](communicator& comm) {
        foreign f;
        f.shape = {3, 1};  // a column of the 3 × 2 matrix
        f.steps = {2, 1};
        f.tensor().strides = f.steps.data();
        CHECK(refusal<float>(f.tensor()).find("has gaps") != std::string::npos);
        comm.allreduce(hvd::dlpack_view<float, hvd::host, 2>(f.tensor()), hvd::sum);
        const float n = float(comm.size());
        CHECK(f.values == std::vector<float>{0, 1, 2 * n, 3, 4 * n, 5});
    });
}

TEST_CASE("the element type of a DLPack tensor is found at run time") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto check = [&]<class T>(T one, DLDataType type) {
            std::vector<T> values(6, one);
            foreign f;
            f.tensor().data = values.data();
            f.tensor().dtype = type;
            bool same = false;
            hvd::with_dlpack_view(f.tensor(), [&](auto view) {
                using U = typename decltype(view)::value_type;
                same = hvd::dtype_traits<U>::id == hvd::dtype_traits<T>::id;
                comm.allreduce(view, hvd::max);
            });
            CHECK(same);
            CHECK(values[5] == one);
        };
        check(std::int8_t(-1), {kDLInt, 8, 1});
        check(std::int16_t(-1), {kDLInt, 16, 1});
        check(std::int32_t(-1), {kDLInt, 32, 1});
        check(std::int64_t(-1), {kDLInt, 64, 1});
        check(std::uint8_t(1), {kDLUInt, 8, 1});
        check(std::uint64_t(1), {kDLUInt, 64, 1});
        check(hvd::float16(1.5f), {kDLFloat, 16, 1});
        check(hvd::bfloat16(1.5f), {kDLBfloat, 16, 1});
        check(1.5f, {kDLFloat, 32, 1});
        check(1.5, {kDLFloat, 64, 1});
    });
}

TEST_CASE("a DLPack tensor that is not what the caller says is refused with both") {
    foreign f;
    auto& t = f.tensor();
    const auto says = [&](const std::string& text, const char* words) {
        CAPTURE(text);
        CHECK(text.find(words) != std::string::npos);
    };
    says(refusal<double>(t), "has elements of float32, expected float64");
    says(refusal<float, hvd::device>(t), "is in host memory, expected hvd::device");
    t.device = {kDLCUDA, 0};
    says(refusal<float>(t), "is in device memory, expected hvd::host");
    CHECK(refusal<float, hvd::device>(t) == "accepted");
    t.device = {kDLCUDAManaged, 0};
    CHECK(refusal<float>(t) == "accepted");
    CHECK(refusal<float, hvd::device>(t) == "accepted");
    t.device = {kDLVulkan, 0};
    says(refusal<float>(t), "device of type 7");
    t.device = {kDLCPU, 0};
    t.dtype = {kDLFloat, 32, 4};
    says(refusal<float>(t), "4 lanes, which are none of hvd's");
    t.dtype = {kDLComplex, 32, 1};
    says(refusal<float>(t), "has elements of code 5, 32 bits");
    t.dtype = {kDLFloat, 32, 1};
    CHECK_THROWS_WITH_AS((hvd::dlpack_view<float, hvd::host, 3>(t)),
                         doctest::Contains("has 2 dimensions, expected 3"), hvd::usage_error);
}

TEST_CASE("steps of dimensions of one element, and of empty tensors, do not matter") {
    foreign f;
    f.shape = {1, 6};
    f.steps = {99, 1};
    f.tensor().strides = f.steps.data();
    CHECK(hvd::dlpack_view<float>(f.tensor()).size() == 6);
    f.shape = {0, 6};
    f.steps = {5, 7};
    CHECK(hvd::dlpack_view<float>(f.tensor()).size() == 0);
}

TEST_CASE("a tensor that was handed over is deleted once, by its last owner") {
    foreign f;
    {
        hvd::dlpack_tensor first(&f.managed);
        CHECK((*first).ndim == 2);
        hvd::dlpack_tensor second(std::move(first));
        CHECK_FALSE(bool(first));
        CHECK(bool(second));
        CHECK(f.deleted == 0);
    }
    CHECK(f.deleted == 1);
    CHECK_THROWS_AS(hvd::dlpack_tensor(nullptr), hvd::usage_error);
}

TEST_CASE("a view of hvd becomes a DLPack tensor, and comes back as it was") {
    std::vector<double> values(12);
    hvd::dlpack_export<2> whole(hvd::view(values.data(), hvd::shape(3, 4)));
    CHECK((*whole).shape[1] == 4);
    CHECK((*whole).strides[0] == 4);
    CHECK(hvd::dlpack_view<double>(*whole).data() == values.data());
    hvd::dlpack_export<2> columns(hvd::view(values.data(), hvd::shape(3, 2), hvd::strides(4, 2)));
    const auto back = hvd::dlpack_view<double, hvd::host, 2>(*columns);
    CHECK(back.shape() == hvd::shape(3, 2));
    CHECK(back.stride(1) == 2);
    float on_device = 0;
    hvd::dlpack_export<1> device(hvd::device_view(&on_device, 1), 3);
    CHECK((*device).device.device_type == kDLCUDA);
    CHECK((*device).device.device_id == 3);
}

TEST_CASE("a DLPack tensor whose shape or memory cannot be is refused") {
    foreign f;
    const auto says = [&](const std::string& text, const char* words) {
        CAPTURE(text);
        CHECK(text.find(words) != std::string::npos);
    };
    f.shape = {-3, 2};
    says(refusal<float>(f.tensor()), "has a dimension of -3 elements");
    f.shape = {std::int64_t(1) << 40, std::int64_t(1) << 40};
    says(refusal<float>(f.tensor()), "more elements than there is memory");
    f.shape = {2, 3};
    f.tensor().data = nullptr;
    says(refusal<float>(f.tensor()), "has 6 elements at a null pointer");
    CHECK_THROWS_AS((hvd::dlpack_view<float, hvd::host, 2>(f.tensor())), hvd::usage_error);
    f.shape = {0, 3};
    CHECK(refusal<float>(f.tensor()) == "accepted");
    f.tensor().shape = nullptr;
    says(refusal<float>(f.tensor()), "has 2 dimensions without a shape");
}

TEST_CASE("complex numbers come by DLPack and go by it") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<std::complex<float>> values(3, {1, 2});
        hvd::dlpack_export<1> exported(hvd::view(values.data(), 3));
        CHECK((*exported).dtype.code == kDLComplex);
        CHECK((*exported).dtype.bits == 64);
        comm.allreduce(hvd::dlpack_view<std::complex<float>>(*exported), hvd::sum);
        CHECK(values[2] == std::complex<float>(float(comm.size()), 2 * float(comm.size())));
        CHECK_THROWS_WITH_AS(hvd::dlpack_view<std::complex<double>>(*exported),
                             doctest::Contains("has elements of complex64"), hvd::usage_error);
    });
}
