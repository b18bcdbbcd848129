// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <string>

#include "../../core/options.hpp"
#include "../../platform/nccl_api.hpp"

namespace hvd::inline v0 {

/// Options of NCCL's for a new communicator, and for all that are derived from it. All ranks give
/// the same.
/// @snippet tests/device/snippets.cpp nccl_options
struct nccl_options {
    /// NCCL's own configuration, which NCCL checks. The texts that it points to may end with the
    /// call. `blocking` left undefined is 0. If it is 1, calls of NCCL return when they are done:
    /// no timeout ends one, not even while the communicator is made, so the communicator has none.
    /// Calls may have one for their work on the GPU. With `splitShare` aborting one of the
    /// communicators that share ends all.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int stream_priority = 0;  ///< of the communicator's own stream; lower goes first, as for CUDA
};

namespace detail {

// The options of a communicator, as NCCL takes them. Copies share the texts, to which NCCL keeps
// pointers.
class nccl_configuration {
public:
    explicit nccl_configuration(const nccl_options& options = {}, int rank = -1)
        : options_(options), net_name_(kept(options_.config.netName)) {
        int& blocking = options_.config.blocking;
        if (blocking == NCCL_CONFIG_UNDEF_INT) blocking = 0;
        if (blocking != 0 && blocking != 1)
            throw usage_error(rank, text("hvd: nccl_options on rank ", rank, ": .config.blocking ",
                                         blocking, ", expected 0 or 1"));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 2)
        if (options_.config.trafficClass != NCCL_CONFIG_UNDEF_INT)
            nccl_library(rank).require(nccl_since::traffic_class, "nccl_options", rank);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
        comm_name_ = kept(options_.config.commName);
#endif
    }

    ncclConfig_t config() const { return options_.config; }
    int stream_priority() const { return options_.stream_priority; }

    // They are valid as long as this.
    nccl_options options() const { return options_; }

    // Tells the names and values, for the ranks to agree on.
    template <class Say>
    void describe(Say& say) const {
        const ncclConfig_t& c = options_.config;
        const auto number = [&](std::string_view name, int value) {
            say(name, value == NCCL_CONFIG_UNDEF_INT ? text("undefined") : text(value));
        };
        number(".config.blocking", c.blocking);
        number(".config.cgaClusterSize", c.cgaClusterSize);
        number(".config.minCTAs", c.minCTAs);
        number(".config.maxCTAs", c.maxCTAs);
        number(".config.splitShare", c.splitShare);
        say(".config.netName", net_name_ ? text(std::string_view(*net_name_)) : text("undefined"));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 2)
        number(".config.trafficClass", c.trafficClass);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
        number(".config.collnetEnable", c.collnetEnable);
        number(".config.CTAPolicy", c.CTAPolicy);
        number(".config.shrinkShare", c.shrinkShare);
        number(".config.nvlsCTAs", c.nvlsCTAs);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
        number(".config.nChannelsPerNetPeer", c.nChannelsPerNetPeer);
        number(".config.nvlinkCentricSched", c.nvlinkCentricSched);
#endif
    }

private:
    using kept_text = std::shared_ptr<const std::string>;

    // Keeps a copy of the user's text, and puts it in its place.
    static kept_text kept(const char*& given) {
        if (given == nullptr) return {};
        kept_text copy = std::make_shared<const std::string>(given);
        given = copy->c_str();
        return copy;
    }

    nccl_options options_;
    kept_text net_name_, comm_name_;
};

// A timeout that NCCL would not keep is refused.
inline void refuse_blocking_timeout(const nccl_options& own, const communicator_options& options,
                                    int rank) {
    if (own.config.blocking == 1 && options.timeout.is_time())
        throw usage_error(
            rank,
            text("hvd: communicator<nccl> on rank ", rank, ": .config.blocking and a .timeout of ",
                 options.timeout.time().nanoseconds / 1'000'000,
                 " ms: no timeout ends a blocking call of NCCL; leave one of them out"));
}

}  // namespace detail
}  // namespace hvd::inline v0
