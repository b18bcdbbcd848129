// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <string>

#include <hvd/threads.hpp>

namespace version_tests {

TEST_CASE("the headers' version is the build system's") {
    CHECK(std::string(HVD_VERSION_STRING) == HVD_TEST_MESON_VERSION);
    CHECK(std::string(hvd::version) == HVD_TEST_MESON_VERSION);
}

TEST_CASE("the parts of the version make its text") {
    const auto parts = {HVD_VERSION_MAJOR, HVD_VERSION_MINOR, HVD_VERSION_PATCH};
    std::string text;
    for (const int part : parts) text += (text.empty() ? "" : ".") + std::to_string(part);
    CHECK(text == HVD_VERSION_STRING);
}

TEST_CASE("versions compare as numbers") {
    CHECK(HVD_VERSION == (HVD_VERSION_MAJOR * 1000 + HVD_VERSION_MINOR) * 1000 + HVD_VERSION_PATCH);
}

}  // namespace version_tests
