// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <hvd/data_service.hpp>

#include "options.hpp"

namespace hvd_compute {

// The part of a data service that this rank has: rank 0 writes the config file, and the first rank
// of each group serves a dispatcher.
class service {
public:
    // Waits until the file of this job is there with all dispatchers of the compute side, or this
    // process is asked to end.
    // @throws hvd::error when the timeout has passed.
    explicit service(const options& o);
    service(const service&) = delete;
    service& operator=(const service&) = delete;
    // Rank 0 removes the file, if it is still that of this job.
    ~service();

    // True if the file is that of another job now. Where the trainers serve the dispatchers, the
    // first file that this rank sees may be that of an earlier job.
    bool has_another_file();

    // Tells of the dispatcher of this rank, if a second has passed: a line, and a file for
    // Prometheus.
    // @throws hvd::error if the file can't be written the first time.
    void tell();

    // Those of the dispatcher, at one time.
    struct counts {
        std::size_t workers = 0, trainers = 0;
        std::uint64_t batches = 0;
        double making = 0;  // seconds
        std::vector<hvd::data::stage_statistics> stages = {};
    };

private:
    void write_file();
    void wait_for_file();
    void print_progress(double seconds, const counts& seen);
    std::string metrics_file() const;
    void write_metrics(const counts& seen);

    const options& options_;
    hvd::data::service_config config_;
    std::unique_ptr<hvd::data::service_dispatcher> dispatcher_;
    std::int64_t told_ = 0;
    counts before_;
};

}  // namespace hvd_compute
