// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <thread>

#include <hvd/transport/tcp/job_secret.hpp>
#include <hvd/transport/tcp/rendezvous.hpp>

#include "failure.hpp"
#include "listening_addresses.hpp"
#include "meeting_place.hpp"

namespace hvdrun {
namespace {

class rendezvous final : public meeting_place {
public:
    // Without a limit: a program may work for long before it makes its communicator.
    rendezvous(int ranks, const std::string& digits, int told, const std::vector<std::string>& at)
        : meeting_place(told),
          server_(0, ranks, hvd::detail::secret_from_hex(digits, "the job's secret"),
                  hvd::time_span{}, -1, listening_addresses(at)) {}
    ~rendezvous() override {
        server_.stop();
        if (thread_.joinable()) thread_.join();
    }

    int port() const override { return server_.port(); }
    void serve() override {
        const signals_blocked blocked;
        thread_ = std::thread([this] { serve_all(); });
    }

private:
    void serve_all() {
        try {
            if (server_.serve()) tell({.what = job_event::kind::has_met});
        } catch (const std::exception& error) {
            tell({.what = job_event::kind::has_not_met, .why = error.what()});
        }
    }

    hvd::detail::rendezvous_server server_;
    std::thread thread_;
};

}  // namespace

std::unique_ptr<meeting_place> make_rendezvous(int ranks, const std::string& secret_digits,
                                               int told, const std::vector<std::string>& at) {
    try {
        return std::make_unique<rendezvous>(ranks, secret_digits, told, at);
    } catch (const hvd::error& error) {
        throw failure(1, error.what());
    }
}

}  // namespace hvdrun
