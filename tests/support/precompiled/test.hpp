// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// This header is precompiled for the tests of on_ranks. Each test still includes the headers that
// it uses.
#include <atomic>
#include <cmath>
#include <complex>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hvd_test.hpp"
