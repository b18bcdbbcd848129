// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Every policy for device tensors over a host's backend, against a serial reference.

#include <chrono>
#include <functional>

#include <hvd/nccl.hpp>

#include "reference.hpp"

namespace gpu_policies {

using reporter = std::function<void(bool right, const char* what)>;

// NCCL may sum floats in any order, and the host in that of the ranks.
template <class Gpus>
void check(Gpus& gpus, bool has_bits_of_host, bool exchanges_in_place, const reporter& report) {
    for (const std::size_t count :
         {std::size_t(0), std::size_t(1), std::size_t(1001), std::size_t(50'003)}) {
        reference::check_reduction<std::int32_t>(gpus, count, hvd::sum, report);
        reference::check_reduction<std::int64_t>(gpus, count, hvd::product, report);
        reference::check_reduction<float>(gpus, count, hvd::max, report);
        reference::check_reduction<hvd::bfloat16>(gpus, count, hvd::min, report);
        if (has_bits_of_host)
            reference::check_reduction<float>(gpus, count, hvd::average, report, 0.3, 1.7);
        reference::check_movements<std::int32_t>(gpus, count, true, report, exchanges_in_place);
        reference::check_movements<std::int16_t>(gpus, count, false, report);
        reference::check_uneven_alltoall<double>(gpus, count, report);
    }
    gpus.barrier();
}

template <class Policy, class World>
void check_policy(World& world, const reporter& report, bool has_bits_of_host,
                  bool exchanges_in_place) {
    hvd::pin_device(world, {.share = true});
    hvd::communicator<Policy> gpus(world, {.timeout = std::chrono::seconds(60)});
    check(gpus, has_bits_of_host, exchanges_in_place, report);
}

template <class Host, class World>
void check_nccl(World& world, const reporter& report) {
    check_policy<hvd::nccl>(world, report, false, false);
}
template <class Host, class World>
void check_staged(World& world, const reporter& report) {
    check_policy<hvd::staged<Host>>(world, report, true, true);
}
template <class Host, class World>
void check_per_operation(World& world, const reporter& report) {
    using staged = hvd::staged<Host>;
    check_policy<hvd::per_operation<hvd::nccl, staged, staged>>(world, report, false, true);
}
template <class Host, class World>
void check_hierarchical(World& world, const reporter& report) {
    check_policy<hvd::hierarchical<hvd::nccl, Host>>(world, report, false, true);
}

}  // namespace gpu_policies
