// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <sstream>

#include "ranks.hpp"
#include "watchdog.hpp"

namespace {

hvd_test::watchdog* dog = nullptr;

[[noreturn]] void bark(const std::string& what) {
    std::fprintf(stderr, "watchdog: after %ld s still in: %s\n", hvd_test::watchdog::patience(),
                 what.c_str());
    std::_Exit(EXIT_FAILURE);
}

struct names_the_test_case : hvd_test::listener {
    explicit names_the_test_case(const doctest::ContextOptions&) {}
    void test_case_start(const doctest::TestCaseData& test) override { dog->begin(test.m_name); }
};

DOCTEST_REGISTER_LISTENER("names_the_test_case", 1, names_the_test_case);

}  // namespace

const std::vector<int>& hvd_test::thread_counts() {
    static const std::vector<int> counts = [] {
        const char* wanted = std::getenv("HVD_TEST_RANKS");
        std::istringstream text(wanted != nullptr && *wanted != '\0' ? wanted : "1,2,3,4,5,7");
        std::vector<int> counts;
        for (std::string count; std::getline(text, count, ',');) counts.push_back(std::stoi(count));
        return counts;
    }();
    return counts;
}

int main(int argc, char** argv) {
    hvd_test::watchdog watchdog(bark);
    dog = &watchdog;
    doctest::Context context(argc, argv);
    return hvd_test::run(context, watchdog);
}
