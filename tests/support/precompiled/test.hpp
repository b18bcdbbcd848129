// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Precompiled for the tests of on_ranks: each still includes what it uses.
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
