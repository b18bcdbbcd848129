// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "threshold_settings.hpp"

namespace hvd::inline v0::detail {

template <>
struct settings_of<communicator_options> {
    using o = communicator_options;
    using t = tuning_options;
    static constexpr std::int64_t most_bytes = 4 * std::int64_t(tuning::GiB);

    static constexpr setting table[] = {
        unless_given("forever",
                     entry<&o::timeout>("timeout", "HVD_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS",
                                        "ends a call that waits for so long")),
        needed("a deployment's timeout",
               entry<&o::destructor_timeout>("destructor_timeout", "HVD_DESTRUCTOR_TIMEOUT", "",
                                             "ends the wait of a destructor")),
        unless_given("10s", entry<&o::waiting_notice>("waiting_notice", "HVD_WAITING_NOTICE",
                                                      "HOROVOD_STALL_CHECK_TIME_SECONDS",
                                                      "a rank that has waited for so long says "
                                                      "for whom")),
        needed("hosts that are several nodes, and tests on one host",
               from(1,
                    entry<&o::node_size>("node_size", "HVD_NODE_SIZE", "",
                                         "ranks that are taken as one node"),
                    "the real nodes")),
        needed("networks whose hardware reduces for MPI",
               entry<&o::mpi_between_nodes>("mpi_between_nodes", "HVD_MPI_BETWEEN_NODES", "",
                                            "MPI_Allreduce reduces between nodes")),
        needed("containers with little shared memory",
               in_bytes(entry<&o::shared_memory_bytes>(
                            "shared_memory_bytes", "HVD_SHARED_MEMORY_BYTES", "",
                            "memory of each rank that its node has mapped"),
                        1, most_bytes)),
        entry<&o::cpus>("cpus", "HVD_CPUS", "HOROVOD_THREAD_AFFINITY",
                        "the processors of hvd's threads, by local rank"),
        needed("the search for the rank that brings a NaN",
               entry<&o::check_finite>("check_finite", "HVD_CHECK_FINITE", "",
                                       "reductions look for inputs that are not finite")),
        in_range_of("chunk_bytes",
                    entry<&o::tuning, &t::chunk_bytes>("tuning.chunk_bytes", "HVD_CHUNK_BYTES",
                                                       "HOROVOD_ADASUM_MPI_CHUNK_SIZE",
                                                       "a chunk of a reduction between nodes")),
        in_range_of("bucket_bytes",
                    entry<&o::tuning, &t::bucket_bytes>("tuning.bucket_bytes", "HVD_BUCKET_BYTES",
                                                        "HOROVOD_FUSION_THRESHOLD",
                                                        "gradients that travel together")),
        needed("tests and experiments",
               entry<&o::tuning, &t::unstable>("tuning.unstable", "HVD_TUNING", "",
                                               "thresholds for tests and experiments")),
    };
};

}  // namespace hvd::inline v0::detail
