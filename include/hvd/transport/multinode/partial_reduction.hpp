// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../node_map.hpp"
#include "../operation.hpp"

namespace hvd::inline v0::detail {

// The reduction of some of the ranks, which is neither divided nor postscaled in the end. Its
// results are reduced again, with the others' and with all that is left to do. Its `op` is the
// address of this.
//
// 16-bit floats are rounded in between, and a sum of a node may leave their range where the mean of
// all ranks does not. So it is made smaller by a power of two, which the second reduction takes
// back in its accumulator. It is the least that keeps the sums of the largest node in range, and
// not less than the scale that the result gets at the end: so small numbers lose no more than the
// result does.
struct partial_reduction {
    reduce_function function = nullptr;
    const void* op = nullptr;
    double power = 1;  // makes the partial results smaller: a power of two

    static void run(const reduce_args& args) {
        const partial_reduction& own = *static_cast<const partial_reduction*>(args.op);
        reduce_args part = args;
        part.op = own.op;
        part.divisor = 1;
        part.prescale *= own.power;
        part.postscale = 1;
        own.function(part);
    }

    // The prescale of the second reduction.
    double back() const { return 1 / power; }
};

// Returns the number of ranks of the largest node.
inline int largest_node(const node_map& nodes) {
    int largest = nodes.local_size();
    for (const int node : nodes.others())
        if (int(nodes.ranks(node).size()) > largest) largest = int(nodes.ranks(node).size());
    return largest;
}

// Returns the least power of two that is not less than x, but at least 1 and at most 2^100.
inline double power_for(double x) {
    double power = 1;
    for (int i = 0; i < 100 && power < x; ++i) power *= 2;
    return power;
}

inline double partial_power(dtype id, std::uint8_t op_id, double prescale, double postscale,
                            int ranks, int largest) {
    if (id != dtype::float16 && id != dtype::bfloat16) return 1;
    if (op_id != op::sum::id && op_id != op::average::id) return 1;
    const double before = prescale < 0 ? -prescale : prescale,
                 after = postscale < 0 ? -postscale : postscale,
                 growth = power_for(largest * (before > 1 ? before : 1)),
                 shrinks = power_for((op_id == op::average::id ? ranks : 1) / after);
    return 1 / (growth < shrinks ? growth : shrinks);
}

}  // namespace hvd::inline v0::detail
