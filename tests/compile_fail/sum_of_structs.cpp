// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: this backend can't reduce this element type with this operation

#include <vector>

#include <hvd/threads.hpp>

struct particle {
    float mass, x, y;
};

template <>
struct hvd::dtype_traits<particle> : hvd::transport_only<particle> {
    static constexpr std::string_view name = "particle";
};

particle heaviest(const particle& a, const particle& b) { return a.mass < b.mass ? b : a; }

void call(hvd::communicator<hvd::threads>& comm) {
    std::vector<particle> values;
    comm.allreduce(values, hvd::sum);               // BAD
    comm.allreduce(values, hvd::custom(heaviest));  // GOOD
}
