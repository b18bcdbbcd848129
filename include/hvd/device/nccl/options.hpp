// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <string>

#include "../../core/options.hpp"
#include "../../platform/nccl_api.hpp"

namespace hvd::inline v0 {

/// Options of NCCL's for a new communicator, and for all that are derived from it. All ranks give
/// the same. Members that are left out take NCCL's default.
/// @snippet tests/device/snippets.cpp nccl_options
struct nccl_options {
    /// The least and the most blocks that a call of NCCL takes on the GPU; 0: the default. NCCL
    /// takes a least one only with a most.
    int min_ctas = 0, max_ctas = 0;
    int cga_cluster_size = -1;  ///< the blocks of a cluster; 0: no clusters; -1: the default
    /// Communicators that are derived from this one share its resources. Aborting one then ends
    /// all.
    bool split_share = false;
    int traffic_class = -1;          ///< of the network; -1: the default. NCCL 2.26.2 or later
    std::string_view net_name = {};  ///< the network plugin, such as "Socket"; empty: the default
    /// Calls of NCCL return when they are done. No deadline ends one, not even while the
    /// communicator is made, so the communicator has none. Calls may have one for their work on the
    /// GPU.
    bool blocking = false;
    int stream_priority = 0;  ///< of the communicator's own stream; lower goes first, as for CUDA
};

namespace detail {

// The options of a communicator, as NCCL takes them. Copies share the texts, to which NCCL keeps
// pointers.
class nccl_configuration {
public:
    explicit nccl_configuration(const nccl_options& options = {}, int rank = -1)
        : options_(options), net_name_(std::make_shared<const std::string>(options.net_name)) {
        const auto refuse = [&](const auto&... why) {
            throw usage_error(rank, text("hvd: nccl_options on rank ", rank, ": ", why...));
        };
        if (options.min_ctas < 0 || options.max_ctas < 0 || options.min_ctas > options.max_ctas)
            refuse(".min_ctas ", options.min_ctas, " and .max_ctas ", options.max_ctas,
                   ", expected 0 <= .min_ctas <= .max_ctas");
        if (options.cga_cluster_size < -1)
            refuse(".cga_cluster_size ", options.cga_cluster_size, ", expected -1 or more");
        if (options.traffic_class < -1)
            refuse(".traffic_class ", options.traffic_class, ", expected -1 or more");
        if (options.traffic_class >= 0)
            nccl_library(rank).require(nccl_since::traffic_class, "nccl_options", rank);
    }

    ncclConfig_t config() const {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = options_.blocking ? 1 : 0;
        if (options_.min_ctas > 0) config.minCTAs = options_.min_ctas;
        if (options_.max_ctas > 0) config.maxCTAs = options_.max_ctas;
        if (options_.cga_cluster_size >= 0) config.cgaClusterSize = options_.cga_cluster_size;
        if (options_.split_share) config.splitShare = 1;
        if (!net_name_->empty()) config.netName = net_name_->c_str();
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 2)
        if (options_.traffic_class >= 0) config.trafficClass = options_.traffic_class;
#endif
        return config;
    }

    int stream_priority() const { return options_.stream_priority; }

    // They are valid as long as this.
    nccl_options options() const {
        nccl_options own = options_;
        own.net_name = *net_name_;
        return own;
    }

    // Tells the names and values, for the ranks to agree on.
    template <class Say>
    void describe(Say& say) const {
        say(".min_ctas", text(options_.min_ctas));
        say(".max_ctas", text(options_.max_ctas));
        say(".cga_cluster_size", text(options_.cga_cluster_size));
        say(".split_share", text(int(options_.split_share)));
        say(".traffic_class", text(options_.traffic_class));
        say(".net_name", text(std::string_view(*net_name_)));
        say(".blocking", text(int(options_.blocking)));
    }

private:
    nccl_options options_;
    std::shared_ptr<const std::string> net_name_;
};

// A deadline that NCCL would not keep is refused.
inline void refuse_blocking_deadline(const nccl_options& own, const communicator_options& options,
                                     int rank) {
    if (own.blocking && options.deadline.nanoseconds != 0)
        throw usage_error(
            rank, text("hvd: communicator<nccl> on rank ", rank, ": .blocking and a .deadline of ",
                       options.deadline.nanoseconds / 1'000'000,
                       " ms: no deadline ends a blocking call of NCCL; leave one of them out"));
}

}  // namespace detail
}  // namespace hvd::inline v0
