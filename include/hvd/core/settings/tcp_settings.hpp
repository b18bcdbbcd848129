// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "setting.hpp"
#include "tcp_options.hpp"

namespace hvd::inline v0::detail {

template <>
struct settings_of<tcp_options> {
    using o = tcp_options;

    static constexpr setting table[] = {
        from(0, entry<&o::rank>("tcp.rank", "HVD_RANK", "HOROVOD_RANK", "this process's rank"),
             "a job of one"),
        from(1, entry<&o::size>("tcp.size", "HVD_SIZE", "HOROVOD_SIZE", "the number of ranks"),
             "a job of one"),
        entry<&o::rendezvous>("tcp.rendezvous", "HVD_RENDEZVOUS",
                              "HOROVOD_GLOO_RENDEZVOUS_ADDR, HOROVOD_GLOO_RENDEZVOUS_PORT",
                              "host:port where the ranks find each other"),
        needed("hvdrun sets it",
               entry<&o::rendezvous_served>("tcp.rendezvous_served", "HVD_RENDEZVOUS_SERVED", "",
                                            "the launcher serves the rendezvous, and not rank 0")),
        needed("a deployment's secret", entry<&o::secret_file>("tcp.secret_file", "HVD_SECRET_FILE",
                                                               "", "a file with the job's secret")),
        needed("a deployment's secret",
               hidden(entry<&o::secret>("tcp.secret", "HVD_SECRET", "",
                                        "the job's secret, 64 hexadecimal digits"))),
        entry<&o::network_interface>("tcp.network_interface", "HVD_NETWORK_INTERFACE",
                                     "HOROVOD_GLOO_IFACE",
                                     "the interface by which others reach this process"),
        needed("a deployment's address",
               entry<&o::address>("tcp.address", "HVD_ADDRESS", "",
                                  "the address by which others reach this process")),
        entry<&o::host_id>("tcp.host_id", "HVD_HOST_ID", "HOROVOD_HOSTNAME",
                           "equal for processes that share memory"),
        entry<&o::start_timeout>("tcp.start_timeout", "HVD_START_TIMEOUT",
                                 "HOROVOD_GLOO_TIMEOUT_SECONDS",
                                 "all ranks have come in this time"),
    };
};

}  // namespace hvd::inline v0::detail
