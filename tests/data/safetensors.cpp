// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <hvd/interop/safetensors.hpp>

#include "data_test.hpp"
#include "temporary_directory.hpp"

namespace data_safetensors_tests {

namespace data = hvd::data;

namespace {

std::string written(const hvd_test::temporary_directory& folder) {
    const std::string header = R"({"x":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},)"
                               R"("y":{"dtype":"I32","shape":[3],"data_offsets":[24,36]},)"
                               R"("none":{"dtype":"F32","shape":[0,5],"data_offsets":[36,36]},)"
                               R"("thin":{"dtype":"F32","shape":[4,0],"data_offsets":[36,36]},)"
                               R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[36,40]}})";
    const std::uint64_t length = header.size();
    const float x[] = {1, 2, 3, 4, 5, 6}, scalar = 7;
    const std::int32_t y[] = {10, 20, 30};
    const std::string path = (folder / "data.safetensors").string();
    std::ofstream file(path, std::ios::binary);
    const auto write = [&](const void* bytes, std::size_t n) {
        file.write(static_cast<const char*>(bytes), std::streamsize(n));
    };
    write(&length, sizeof length);
    write(header.data(), header.size());
    write(x, sizeof x);
    write(y, sizeof y);
    write(&scalar, sizeof scalar);
    return path;
}

}  // namespace

TEST_CASE("a sample of a tensor is a slice along its first dimension") {
    const hvd_test::temporary_directory folder;
    const std::string path = written(folder);
    const data::safetensors_rows<float> x(path, "x");
    CHECK(x.shape() == std::vector<std::size_t>{3, 2});
    CHECK(x.read(1) == std::vector<float>{3, 4});
    CHECK(data::safetensors_rows<float>(path, "none").size() == 0);
    CHECK(data::safetensors_rows<float>(path, "thin").read(3).empty());
    const data::safetensors_rows<std::int32_t> y(path, "y");
    const auto pipeline = data::from(data::zip(x, y)) | data::map([](const auto& sample) {
                              const auto& [points, label] = sample;
                              return int(points[1]) + label[0];
                          }) |
                          data::batch(2);
    for (const int ranks : {1, 2, 3, 4})
        CHECK(data_tests::on_all_ranks(pipeline, ranks, 0) ==
              std::vector<std::vector<int>>{{12, 24}, {36}});
}

TEST_CASE("a tensor that has no samples of the type is refused") {
    const hvd_test::temporary_directory folder;
    const std::string path = written(folder);
    const auto refused = [&](const char* tensor, const char* text) {
        CHECK_THROWS_WITH_AS(data::safetensors_rows<float>(path, tensor), doctest::Contains(text),
                             hvd::checkpoint_error);
    };
    refused("z", "has no tensor \"z\"");
    refused("y", "tensor \"y\" is of I32, and of float32 was expected");
    refused("scalar", "has no dimension for samples");
    CHECK_THROWS_WITH_AS(data::safetensors_rows<float>(path, "x").read(3),
                         doctest::Contains("sample 3 of 3"), hvd::checkpoint_error);
    CHECK_THROWS_AS(data::safetensors_rows<float>(path + "x", "x"), hvd::checkpoint_error);
}

}  // namespace data_safetensors_tests
