// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "../../platform/network/wake_up.hpp"
#include "../../platform/thread.hpp"
#include "../../protocol/agreement.hpp"
#include "../../transport/tcp/launcher_variables.hpp"
#include "../../transport/tcp/own_place.hpp"
#include "../../transport/tcp/pending_connections.hpp"
#include "protocol.hpp"

namespace hvd::inline v0::detail {

// The addresses at which others reach a port of this process, as texts.
inline std::vector<std::string> written_addresses(std::uint16_t port) {
    const listening_place place = known_place_of(launched_options<tcp_options>(), port, false);
    std::vector<std::string> all;
    for (std::size_t i = 0; i < place.addresses; ++i) {
        const host_address& a = place.address[i];
        // a link-local address means nothing without the interface of the other host
        if (a.is_v6 != 0 && a.bytes[0] == 0xfe && (a.bytes[1] & 0xc0) == 0x80) continue;
        all.emplace_back(std::string_view(a.print(port)));
    }
    if (all.empty()) all.emplace_back(std::string_view(host_address::loopback().print(port)));
    return all;
}

// Listens, lets in the processes that know the secret, and serves each in a thread of its own.
// Nothing but a buffer of fixed size is kept for the others.
class service_server {
public:
    service_server(const shared_secret& secret, std::uint16_t port)
        : secret_(secret), listener_(-1, port, listening_addresses()), wakes_(-1) {}
    service_server(const service_server&) = delete;
    service_server& operator=(const service_server&) = delete;

    std::uint16_t port() const { return listener_.port(); }

    // `serve(link)` is called in a thread for each connection. This call returns after `stop`.
    template <class Serve>
    void run(const Serve& serve) {
        pending_connections arriving(secret_, service_rank);
        std::vector<pollfd> fds;
        while (!is_stopping()) {
            fds.clear();
            fds.push_back({wakes_.number(), POLLIN, 0});
            listener_.add_to(fds);
            arriving.add_to(fds);
            poll_sockets(fds.data(), fds.size(), tuning::second);
            if (fds[0].revents != 0) wakes_.take();
            arriving.advance(
                listener_, [&](int, std::uint64_t, descriptor socket, const shared_secret& key) {
                    service_link link(std::move(socket), key, false, most_control_bytes);
                    begin(std::move(link), serve);
                });
            end_those_that_are_over();
        }
        for (const auto& c : connections_) c->link.shut_down();
        connections_.clear();
    }

    // Ends all connections. Called by any thread.
    void stop() noexcept {
        {
            const lock_guard held(mutex_);
            stopping_ = true;
        }
        wakes_.wake();
    }

private:
    struct connection {
        service_link link;
        void* self = nullptr;
        atomic<bool> is_over{false};
        thread serves;  // the last member, so that it is joined first
    };
    template <class Serve>
    struct served : connection {
        const Serve* serve = nullptr;
        service_server* by = nullptr;
    };

    static std::vector<host_address> listening_addresses() {
        return addresses_for_ranks(launched_options<tcp_options>(), false);
    }

    bool is_stopping() {
        const lock_guard held(mutex_);
        return stopping_;
    }

    template <class Serve>
    void begin(service_link link, const Serve& serve) {
        auto made = std::make_shared<served<Serve>>();
        made->link = std::move(link);
        made->serve = &serve;
        made->by = this;
        served<Serve>* const c = made.get();
        c->serves = thread([c] {
            try {
                (*c->serve)(c->link);
            } catch (...) {  // of this connection alone: the peer asks elsewhere
            }
            c->link.shut_down();
            c->is_over.store(true);
            c->by->wakes_.wake();
        });
        if (c->serves) connections_.push_back(std::move(made));
    }
    void end_those_that_are_over() {
        std::erase_if(connections_, [](const auto& c) { return c->is_over.load(); });
    }

    shared_secret secret_;
    listening_socket listener_;
    wake_up wakes_;
    mutex mutex_;
    bool stopping_ = false;
    std::vector<std::shared_ptr<connection>> connections_;
};

// Waits for the hello of the side that connects, and answers it: with `mine`, or with the reason
// that `why_not(theirs)` gives. False if the connection is over.
template <class WhyNot>
bool answer_hello(service_link& link, const service_hello& mine, service_hello& theirs,
                  const WhyNot& why_not) {
    constexpr std::int64_t patience = 5 * tuning::second;
    if (!link.wait(now() + patience)) return false;
    message why;
    if (link.head().kind != service_frame::hello || link.contents().size() != sizeof theirs) {
        why = "the first frame is no hello of this version of hvd";
    } else {
        std::memcpy(&theirs, link.contents().data(), sizeof theirs);
        if (theirs.version != mine.version)
            why = text("version ", theirs.version, " of the protocol, and version ", mine.version,
                       " was expected");
        else if (theirs.job != mine.job) why = "another job id: its config file is of another job";
        else why = why_not(theirs);
    }
    if (why.empty()) return link.send(service_frame::welcome, 0, plain_bytes_of(mine));
    link.send_text(service_frame::refused, 0, why);
    return false;
}

}  // namespace hvd::inline v0::detail
