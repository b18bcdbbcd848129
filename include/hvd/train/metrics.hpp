// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/lean/finite.hpp"
#include "agreement.hpp"
#include "tensors.hpp"

namespace hvd::inline v0 {

/// The mean of a metric over this rank's samples.
struct metric {
    std::string name;
    double mean = 0;
};

/// Replaces each mean by the mean over all ranks' samples: Σ count · mean / Σ count. A rank without
/// samples does not count. If no rank has samples, the means are NaN. All ranks name the same
/// metrics in the same order, which is compared.
/// **Collective**. @throws hvd::mismatch_error, also for different names. Horovod:
/// `MetricAverageCallback`.
template <class Comm>
    requires(!detail::device_communicator<Comm>)
void average_metrics(Comm& comm, std::vector<metric>& metrics, double count) {
    std::string names;
    for (const metric& m : metrics) names += (names.empty() ? "" : ", ") + m.name;
    detail::agree_on_values(comm, "average_metrics",
                            [&](auto say) { say("metrics", std::string_view(names)); });
    std::vector<double> sums = {count};
    for (const metric& m : metrics) sums.push_back(count == 0 ? 0 : count * m.mean);
    comm.allreduce(sums, sum, {.name = "metrics"});
    for (std::size_t i = 0; i < metrics.size(); ++i) metrics[i].mean = sums[i + 1] / sums[0];
}

/// Calls f on rank 0 alone, and returns on all ranks what it returns. If f throws, the other ranks
/// throw `usage_error` with its text, so that they do not go on without it. A result is
/// serializable, and has a default. **Collective**.
/// @snippet tests/train/snippets.cpp on_root
template <class Comm, class F>
    requires(!detail::device_communicator<Comm>)
auto on_root(Comm& comm, F&& f) {
    using result = std::remove_cvref_t<std::invoke_result_t<F&>>;
    if constexpr (std::is_void_v<result>) {
        const auto outcome =
            detail::run_on_root(detail::channel_of(comm), "on_root", detail::never, f);
        if (outcome.exception) std::rethrow_exception(outcome.exception);
        if (!outcome.failure.empty()) detail::refuse(comm.rank(), "on_root: ", outcome.failure);
    } else {
        result mine{};
        on_root(comm, [&] { mine = f(); });
        return comm.copy_of_root(mine, root{0}, {.name = "on_root"});
    }
}

/// Tells if a checkpoint is the best so far. Equal values are no better, and NaN is never better.
///
///     if (best.improves(accuracy)) save_checkpoint(...)
///
/// Call it with a metric that is equal on all ranks (`average_metrics`), so that they all get the
/// same answer.
class best_so_far {
public:
    /// An accuracy gets better as it goes up, a loss as it goes down.
    enum class direction : std::uint8_t { up, down };

    explicit best_so_far(direction better) : sign_(better == direction::up ? 1 : -1) {}

    bool improves(double value) {
        if (detail::is_nan(value) || !(sign_ * value > best_)) return false;
        best_ = sign_ * value;
        return true;
    }

    double best() const { return sign_ * best_; }

private:
    double sign_;
    double best_ = -std::numeric_limits<double>::infinity();
};

}  // namespace hvd::inline v0
