// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <string>

#include "../../core/lean/text.hpp"
#include "../../observe/prometheus_text.hpp"

namespace hvd::inline v0::data {

/// The work of a data service for one trainer, in the epoch since it began or was resumed, or in
/// all epochs.
struct service_statistics {
    std::uint64_t batches = 0;           ///< that the trainer took
    std::uint64_t bytes = 0;             ///< of these
    std::uint64_t in_shared_memory = 0;  ///< of these batches, that came by shared memory
    std::uint64_t asked = 0;             ///< requests that are open now
    std::uint64_t ready = 0;             ///< batches that came and were not taken yet
    std::uint64_t workers = 0;           ///< that are connected now
    std::uint64_t asked_again = 0;       ///< requests that another worker got
    double seconds = 0;                  ///< since the epoch began
    double waited = 0;                   ///< seconds in which batches were waited for

    double batches_per_second() const { return seconds > 0 ? double(batches) / seconds : 0; }
    double bytes_per_second() const { return seconds > 0 ? double(bytes) / seconds : 0; }
    /// The share of the time in which the trainer waited for workers, from 0 to 1.
    double waiting_share() const { return seconds > 0 ? waited / seconds : 0; }
    /// "input-bound" if the trainer waits for workers in more than a tenth of the time, so that
    /// more workers would help. "compute-bound" if not.
    const char* verdict() const { return waiting_share() > 0.1 ? "input-bound" : "compute-bound"; }

    /// One line for people.
    std::string text() const {
        return std::string(std::string_view(hvd::detail::text(
            verdict(), ": waited ", rounded(100 * waiting_share()), " % of ", rounded(seconds),
            " s; ", batches, " batches, ", rounded(batches_per_second()), " a second, ",
            rounded(bytes_per_second() / 1e6), " MB/s, ", in_shared_memory, " by shared memory; ",
            workers, " workers, ", asked, " asked, ", ready, " ready, ", asked_again,
            " asked again")));
    }
    /// A JSON object of one line.
    std::string json() const {
        return std::string(std::string_view(hvd::detail::text(
            "{\"verdict\": \"", verdict(), "\", \"waiting_share\": ", waiting_share(),
            ", \"seconds\": ", seconds, ", \"waited\": ", waited, ", \"batches\": ", batches,
            ", \"bytes\": ", bytes, ", \"in_shared_memory\": ", in_shared_memory,
            ", \"batches_per_second\": ", batches_per_second(), ", \"bytes_per_second\": ",
            bytes_per_second(), ", \"workers\": ", workers, ", \"asked\": ", asked,
            ", \"ready\": ", ready, ", \"asked_again\": ", asked_again, "}")));
    }

private:
    // To one digit behind the point.
    static double rounded(double x) { return double(std::uint64_t(10 * x + 0.5)) / 10; }
};

}  // namespace hvd::inline v0::data

namespace hvd::inline v0::detail {

// The counts of a rank, which only grow if they are those of all epochs.
inline prometheus_group metrics_of(const data::service_statistics& s, int rank) {
    prometheus_group all("hvd_data_", "rank", rank);
    all.counter("batches", "Batches that the trainer took.", s.batches)
        .counter("bytes", "Bytes of these batches.", s.bytes)
        .counter("shared_memory_batches", "Batches that came by shared memory.", s.in_shared_memory)
        .counter("asked_again", "Requests that another worker got.", s.asked_again)
        .counter("seconds", "Time since the first epoch began.", s.seconds)
        .counter("waiting_seconds", "Time in which the trainer waited for workers.", s.waited)
        .gauge("requests_open", "Requests that workers have not answered.", s.asked)
        .gauge("batches_ready", "Batches that came and were not taken.", s.ready)
        .gauge("workers_connected", "Workers that are connected.", s.workers);
    return all;
}

}  // namespace hvd::inline v0::detail
