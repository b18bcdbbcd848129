// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "../../core/dtype.hpp"
#include "../host_device.hpp"
#include "registry.hpp"

namespace hvd::inline v0::detail {

enum class update_kind : std::uint32_t { sgd, adam };

constexpr double largest_number = std::numeric_limits<double>::max();

// The settings of an optimizer, as update_rules.hpp explains them. `factor` multiplies each
// gradient first.
struct update_rule {
    update_kind kind = update_kind::sgd;
    bool nesterov = false, decoupled = false;
    double rate = 0.01, factor = 1, decay = 0;
    double max_norm = std::numeric_limits<double>::infinity();  // of the measured gradients
    double momentum = 0, dampening = 0;                         // sgd
    double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;          // adam

    // The numbers of state for each parameter.
    int states() const { return kind == update_kind::adam ? 2 : momentum != 0 ? 1 : 0; }
};

// The steps that a parameter has taken, and Adam's corrections for its next. They are in device
// memory, one for each parameter: a frozen one stands still.
struct update_clock {
    std::uint64_t steps = 0;
    double power1 = 1, power2 = 1;            // beta1 and beta2 to the power of the next step
    double correction1 = 1, correction2 = 1;  // 1 / (1 - power)
    bool runs = true;

    // The clock after `steps_` steps of the rule.
    static update_clock after(const update_rule& rule, std::uint64_t steps_) {
        update_clock c;
        c.steps = steps_;
        c.power1 = __builtin_pow(rule.beta1, double(steps_ + 1));
        c.power2 = __builtin_pow(rule.beta2, double(steps_ + 1));
        c.correction1 = 1 / (1 - c.power1);
        c.correction2 = 1 / (1 - c.power2);
        return c;
    }
};

// The numbers of an optimizer that the device counts itself, so that the host need not know which
// steps were skipped, and a captured step runs again and again. They are in device memory. The last
// block of an update brings them up to date, and the clocks of the parameters.
struct update_progress {
    double rate = 1, factor = 1;  // multiply those of the rule
    double squares = 0;           // of the gradients that were measured last
    std::uint64_t steps = 0, skipped = 0;
    std::uint32_t skip = 0;    // not 0: the next update changes nothing else, and sets it to 0
    std::uint32_t blocks = 0;  // the blocks of the update under way that are done
};

// A part of one tensor, which a block of threads updates. The rule computes in double for double
// parameters, and otherwise in float, which is the type of master and states. Null: there is none.
struct alignas(16) update_tile {
    std::byte* parameter;
    const std::byte* gradient;
    std::byte *master, *state1, *state2;
    std::uint32_t count, clock;  // the number of elements; which clock is the parameter's
    dtype parameter_id, gradient_id;
    bool aligned;  // all addresses are multiples of 16 bytes
    bool clipped;  // the gradient is scaled down if the norm is above the largest
};

HVD_KERNEL_HOST_DEVICE constexpr std::size_t bytes_of_float(dtype id) {
    return id == dtype::float64 ? 8 : id == dtype::float32 ? 4 : 2;
}

// Each thread updates one group of elements: 8 in float, which are one vector of 16-bit elements,
// or 2 in double, which takes more registers.
constexpr unsigned update_threads = 256;
template <class A>
constexpr unsigned updated_by_thread = sizeof(A) == 8 ? 2 : 8;
constexpr std::size_t elements_per_update_tile(dtype parameter) {
    return update_threads *
           (parameter == dtype::float64 ? updated_by_thread<double> : updated_by_thread<float>);
}

enum class update_work : std::uint32_t {
    look,     // sets `skip` if a gradient is not finite
    measure,  // sets `squares`
    step,     // updates; the step goes on with another launch
    finish,   // updates, and ends the step
};

// The arguments of one launch, with a block for each tile.
struct update_launch {
    const update_tile* tiles;
    update_progress* progress;
    update_clock* clocks;
    unsigned clock_count;
    unsigned blocks;
    update_work work;
    update_rule rule;
    double* sums = nullptr;               // of each block, for `measure`
    const std::uint32_t* stop = nullptr;  // if its word is not 0, nothing changes or is counted

    HVD_KERNEL_HOST_DEVICE bool is_stopped() const { return stop != nullptr && *stop != 0; }
};

}  // namespace hvd::inline v0::detail
