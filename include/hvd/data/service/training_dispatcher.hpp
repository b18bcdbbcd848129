// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "../part.hpp"
#include "dispatcher.hpp"

namespace hvd::inline v0::data {

/// Serves a dispatcher in a trainer, where the config file says that the trainers do so: rank r
/// serves dispatcher r.
///
/// It follows the file in a thread of its own until it is destroyed, and does nothing where there
/// is nothing to serve. Make it before `service_config::read`, which waits for it.
/// @snippet tests/data/service_snippets.cpp training_side
class [[nodiscard("hvd: it serves until it is destroyed")]] training_dispatcher {
public:
    [[nodiscard("hvd: it serves until it is destroyed")]]
    training_dispatcher(std::string path, int rank)
        : path_(std::move(path)), rank_(rank), wakes_(-1), follows_([this] { follow(); }) {
        if (!follows_) hvd::detail::refuse(rank, "no thread for a dispatcher");
    }
    template <has_ranks Communicator>
    [[nodiscard("hvd: it serves until it is destroyed")]]
    training_dispatcher(std::string path, const Communicator& world)
        : training_dispatcher(std::move(path), world.rank()) {}
    training_dispatcher(const training_dispatcher&) = delete;
    training_dispatcher& operator=(const training_dispatcher&) = delete;
    ~training_dispatcher() {
        stopping_.store(true);
        wakes_.wake();
    }

private:
    void follow() {
        while (!stopping_.load()) {
            try {
                serve(service_config::read(path_));
            } catch (const std::exception&) {  // there is no file yet, or it can't be read now
            }
            hvd::detail::sleep_until_woken(wakes_, hvd::detail::service_rest);
        }
    }

    // A file of another job takes the place of that of an earlier one.
    void serve(const service_config& config) {
        if (config.dispatcher_side != dispatcher_side::training || rank_ >= config.dispatchers)
            return;
        if (!dispatcher_ || job_ != config.job_id) {
            dispatcher_.emplace(config, rank_);
            job_ = config.job_id;
        }
        const std::size_t mine = std::size_t(rank_);
        if (config.addresses.size() <= mine || config.addresses[mine] != dispatcher_->addresses())
            dispatcher_->register_in(path_);
    }

    std::string path_;
    int rank_;
    std::string job_;
    std::optional<service_dispatcher> dispatcher_;
    hvd::detail::wake_up wakes_;
    hvd::detail::atomic<bool> stopping_{false};
    hvd::detail::thread follows_;  // the last member, so that it is joined first
};

}  // namespace hvd::inline v0::data
