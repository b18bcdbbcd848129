// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "rendezvous.hpp"

#include <csignal>

#include <unistd.h>

#include <hvd/transport/tcp/job_secret.hpp>
#include <hvd/transport/tcp/rendezvous.hpp>

#include "failure.hpp"

namespace hvdrun {
namespace {

using server = hvd::detail::rendezvous_server;

// Without a limit: a program may work for long before it makes its communicator.
std::unique_ptr<server> make_server(int ranks, const std::string& digits) {
    try {
        return std::make_unique<server>(
            0, ranks, hvd::detail::secret_from_hex(digits, "the job's secret"), hvd::time_span{});
    } catch (const hvd::error& error) {
        throw failure(1, error.what());
    }
}

}  // namespace

rendezvous::rendezvous(int ranks, const std::string& secret_digits)
    : server_(make_server(ranks, secret_digits)) {}

rendezvous::~rendezvous() {
    server_->stop();
    if (thread_.joinable()) thread_.join();
}

int rendezvous::port() const { return server_->port(); }

void rendezvous::serve(int told) {
    // Signals are for the main thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this, told] { serve_all(told); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void rendezvous::serve_all(int told) {
    try {
        if (!server_->serve()) return;
        state_ = state::has_met;
    } catch (const std::exception& error) {
        reason_ = error.what();
        state_ = state::has_failed;
    }
    const char byte = 'r';
    [[maybe_unused]] const ssize_t n = ::write(told, &byte, 1);
}

}  // namespace hvdrun
