// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "../../core/error.hpp"
#include "../../core/options.hpp"

namespace hvd::inline v0::data {

/// A data service can't be reached, refuses this process, or its config file is wrong. `what()`
/// names the file or the addresses, and the value that was found and the one that was expected.
class service_error : public error {
public:
    using error::error;
};

/// The job whose processes serve the dispatchers of a data service.
enum class dispatcher_side : std::uint8_t {
    compute,   ///< the job of `hvd-compute`
    training,  ///< the trainers
};

/// The longest time in which a config file and its service must be there:
/// `data::wait_for_file{30s}`.
struct wait_for_file {
    time_span limit = {};
};

/// The places of a data service, which its processes read from a JSON file.
///
/// The file holds the secret of the service, so only its owner may read it.
/// @snippet tests/data/service_snippets.cpp config
struct service_config {
    int version = 1;                 ///< of the file's form
    std::string job_id = {};         ///< drawn when the service starts
    int dispatchers = 1;             ///< 0 for workers at `worker_addresses`
    int workers_per_dispatcher = 1;  ///< with which the service is complete
    /// who starts the dispatchers
    data::dispatcher_side dispatcher_side = data::dispatcher_side::compute;
    /// The addresses of each dispatcher, one for each interface of its host, as in "10.0.0.1:4000".
    std::vector<std::vector<std::string>> addresses = {};
    std::vector<std::string> worker_addresses = {};  ///< of a service without a dispatcher
    std::string key = {};                            ///< the secret, 64 hexadecimal digits
    /// The time in which a worker answers. A batch that takes longer is asked for elsewhere, and a
    /// trainer for which no worker answers throws.
    time_span timeout = time_span::of_nanoseconds(60 * hvd::detail::tuning::second);
    /// Batches for trainers on a worker's host go by shared memory.
    bool shared_memory = true;
    /// Connections between trainers and workers have TLS 1.3. Their programs include
    /// `hvd/interop/openssl_data_service.hpp`, and link OpenSSL.
    bool encrypted = false;
    /// The file from which it was read. Processes read it again if a dispatcher is lost.
    std::string path = {};

    /// Makes a config with a job id and a secret of its own, for `write`.
    /// @throws hvd::usage_error for a number of dispatchers or workers below 0.
    static service_config make(int dispatchers, int workers_per_dispatcher,
                               data::dispatcher_side side = data::dispatcher_side::compute);

    /// Reads a file as it is.
    /// @throws hvd::data::service_error for a file that is absent, open to other users, too large,
    /// torn or of another kind.
    static service_config read(const std::string& path);

    /// Waits until a file is there, and all of its dispatchers answer as those of its job. So the
    /// file of an earlier job is never taken.
    /// @throws hvd::data::service_error as above, and with the reason when the time has passed.
    static service_config read(const std::string& path, wait_for_file wait);

    /// Writes the file with mode 0600. A reader gets the old file or the new one, whenever it
    /// looks.
    /// @throws hvd::checkpoint_error if it can't be written.
    void write(const std::string& path) const;
};

}  // namespace hvd::inline v0::data

#include "service_config_inline.hpp"
