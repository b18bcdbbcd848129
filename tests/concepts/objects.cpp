// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <array>
#include <chrono>
#include <complex>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hvd/hvd.hpp>

// Which objects hvd sends without a serializer of the user's: those without addresses.

namespace {

struct plain {
    int steps;
    double rate;
};
struct with_text {
    char name[100];
    plain rest;
};
struct with_classes {
    std::complex<float> z;
    std::chrono::nanoseconds time;
};
struct derived : plain {
    bool is_last;
};
struct empty {};

struct with_pointer {
    int size;
    const char* text;
};
struct with_nested_pointer {
    plain first;
    with_pointer second;
};
struct with_array_of_pointers {
    int sizes[3];
    std::array<float*, 2> rows;
};
struct with_reference {
    std::reference_wrapper<int> counter;
};
struct with_view {
    int rows;
    hvd::tensor_view<float> values;
};
struct with_function {
    plain numbers[2];
    void (*f)(int);
};
struct with_nothing_before {
    empty nothing;
    int* next;
};
struct derived_with_pointer : plain {
    plain* other;
};

template <class... T>
constexpr bool all_sent = (hvd::serializable<T> && ...);
template <class... T>
constexpr bool none_sent = !(hvd::serializable<T> || ...);

}  // namespace

static_assert(all_sent<int, double, plain, with_text, with_classes, derived, empty>);
static_assert(all_sent<std::string, std::vector<plain>, std::vector<std::vector<std::string>>,
                       std::array<int, 300>, hvd::bfloat16>);

static_assert(none_sent<int*, const char*, int plain::*, std::span<int>, std::string_view,
                        std::reference_wrapper<plain>, hvd::tensor_view<float>>);
static_assert(none_sent<with_pointer, with_nested_pointer, with_array_of_pointers, with_reference,
                        with_view, with_function, with_nothing_before, derived_with_pointer>);
static_assert(none_sent<std::array<int*, 2>, std::vector<with_pointer>, std::map<int, int>>);
