// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

namespace hvd::inline v0::detail {
class rendezvous_server;
}

namespace hvdrun {

// The place where the ranks of a job find each other, in a thread of hvdrun.
class rendezvous {
public:
    enum class state { waits, has_met, has_failed };

    rendezvous(int ranks, const std::string& secret_digits);
    rendezvous(const rendezvous&) = delete;
    rendezvous& operator=(const rendezvous&) = delete;
    ~rendezvous();

    int port() const;
    // Begins to serve. Ranks that came before wait. The file of this number gets a byte at the end.
    void serve(int told);
    state now() const { return state_; }
    // Why it has failed.
    const std::string& reason() const { return reason_; }

private:
    void serve_all(int told);

    std::unique_ptr<hvd::detail::rendezvous_server> server_;
    std::atomic<state> state_{state::waits};
    std::string reason_;
    std::thread thread_;
};

}  // namespace hvdrun
