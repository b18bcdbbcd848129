// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <hvd/tcp.hpp>

namespace hvd_test {

// A launcher for tests: the ranks of a job of hvd::tcp are forked from this process, which serves
// their rendezvous. They get what a launcher gives them by the environment. Start it before there
// are threads.
class tcp_ranks {
public:
    // `host_size` ranks each are declared to be on a host of their own; 0: all are on this one.
    explicit tcp_ranks(int ranks, int host_size = 0) : host_size_(host_size) {
        processes_.assign(std::size_t(ranks), 0);
        reserved_ = std::make_unique<hvd::detail::rendezvous_server>(
            std::uint16_t(0), ranks, secret_, hvd::time_span::of_nanoseconds(60'000'000'000));
    }
    tcp_ranks(const tcp_ranks&) = delete;
    tcp_ranks& operator=(const tcp_ranks&) = delete;
    ~tcp_ranks() {
        kill_all();
        if (server_.joinable()) {
            reserved_->stop();
            server_.join();
        }
    }

    // Forks the ranks, which run f(rank) and end with what it returns.
    void start(const std::function<int(int)>& f) {
        std::cout.flush();  // or each rank writes it once more
        for (std::size_t r = 0; r < processes_.size(); ++r) {
            const pid_t child = fork();
            if (child == 0) std::exit(run(int(r), f));
            processes_[r] = child;
        }
        server_ = std::thread([this] {
            try {
                reserved_->serve();
            } catch (const hvd::error& e) {
                std::fprintf(stderr, "%s\n", e.what());
            }
        });
    }

    // Ranks that have not met yet are told that they will not.
    void stop_rendezvous() { reserved_->stop(); }

    pid_t process(int rank) const { return processes_[std::size_t(rank)]; }

    // Waits for one rank, and returns its status.
    int wait_for(int rank) {
        int status = 0;
        waitpid(std::exchange(processes_[std::size_t(rank)], 0), &status, 0);
        return status;
    }

    // Waits for all; the first that fails ends the others. True if all ended well.
    bool end_all_with_the_first_that_fails() {
        bool well = true;
        for (std::size_t left = processes_.size(); left > 0; --left) {
            int status = 0;
            const pid_t ended = waitpid(-1, &status, 0);
            for (pid_t& p : processes_)
                if (p == ended) p = 0;
            if (status == 0) continue;
            // The others say where they are.
            if (std::exchange(well, false)) std::this_thread::sleep_for(std::chrono::seconds(2));
            kill_all();
        }
        return well;
    }

private:
    int run(int rank, const std::function<int(int)>& f) {
        set("HVD_RANK", std::to_string(rank));
        set("HVD_SIZE", std::to_string(processes_.size()));
        set("HVD_RENDEZVOUS", "127.0.0.1:" + std::to_string(reserved_->port()));
        set("HVD_RENDEZVOUS_SERVED", "1");
        set("HVD_SECRET", std::string(std::string_view(hvd::detail::hex_of(secret_))));
        if (host_size_ > 0) set("HVD_HOST_ID", "host" + std::to_string(rank / host_size_));
        for (pid_t& p : processes_) p = 0;
        reserved_.reset();
        return f(rank);
    }
    static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

    void kill_all() {
        for (const pid_t p : processes_)
            if (p > 0) kill(p, SIGKILL);
    }

    const hvd::detail::shared_secret secret_ = hvd::detail::new_secret();
    int host_size_;
    std::vector<pid_t> processes_;  // by rank; 0: it has ended
    std::unique_ptr<hvd::detail::rendezvous_server> reserved_;
    std::thread server_;
};

}  // namespace hvd_test
