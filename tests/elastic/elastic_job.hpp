// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <hvd/elastic.hpp>

namespace hvd_test {

// An elastic job whose processes are threads of this one. The first coordinates, or a launcher.
class elastic_job {
public:
    explicit elastic_job(int size, bool has_launcher = false, hvd::elastic::bounds bounds = {})
        : size_(size), bounds_(bounds), has_launcher_(has_launcher) {
        if (has_launcher) {
            launcher_.emplace(hvd::detail::coordinator_rules_of(options(0).tcp, bounds),
                              hvd::detail::membership_secret(secret_));
            port_ = launcher_->port();
        } else {
            port_ = free_port();
        }
    }

    // The variables of a process, as options. Newcomers have higher ranks than those of the start.
    hvd::elastic::options options(int rank) const {
        hvd::elastic::options o;
        o.tcp = {};
        o.tcp.rank = rank;
        o.tcp.size = size_;
        o.tcp.rendezvous = "127.0.0.1:" + std::to_string(port_);
        o.tcp.rendezvous_served = has_launcher_;
        o.tcp.secret = std::string(std::string_view(hvd::detail::hex_of(secret_)));
        o.bounds = bounds_;
        return o;
    }

    void start(int rank, std::function<void(const hvd::elastic::options&)> f) {
        threads_.emplace_back([f, o = options(rank)] { f(o); });
    }
    void kill_launcher() { launcher_.reset(); }
    void await() {
        for (std::thread& t : threads_) t.join();
        threads_.clear();
    }
    ~elastic_job() { await(); }

    std::uint16_t port() const { return port_; }

private:
    // A port that no outgoing connection takes meanwhile.
    static std::uint16_t free_port() {
        std::random_device random;
        for (;;) try {
                const auto port = std::uint16_t(20'000 + random() % 12'000);
                return hvd::detail::listening_socket(-1, port).port();
            } catch (const hvd::usage_error&) {
            }
    }

    const hvd::detail::shared_secret secret_ = hvd::detail::new_secret();
    int size_;
    hvd::elastic::bounds bounds_;
    bool has_launcher_;
    std::uint16_t port_ = 0;
    std::optional<hvd::detail::coordinator_server> launcher_;
    std::vector<std::thread> threads_;
};

}  // namespace hvd_test
