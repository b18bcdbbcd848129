// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <sched.h>

#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "../core/lean/atomic.hpp"
#include "../core/lean/handles.hpp"
#include "../platform/clock.hpp"
#include "../platform/network/socket.hpp"
#include "../platform/thread.hpp"

namespace hvd::inline v0::detail {

// Where a pair of Gloo listens. Ranks send it.
struct gloo_place {
    std::uint32_t size = 0;
    char bytes[::gloo::transport::Address::kMaxByteSize] = {};

    void take(const std::vector<char>& address) {
        size = std::uint32_t(address.size() < sizeof bytes ? address.size() : sizeof bytes);
        std::copy_n(address.begin(), size, bytes);
    }
    std::vector<char> address() const {
        return {bytes, bytes + (size < sizeof bytes ? size : sizeof bytes)};
    }
};

// Gloo writes to connections that may be broken. A program's own handler is left alone.
inline void ignore_broken_pipes() {
    struct sigaction present{};
    if (::sigaction(SIGPIPE, nullptr, &present) == 0 && present.sa_handler == SIG_DFL)
        ::signal(SIGPIPE, SIG_IGN);
}

// Threads that begin while it lives get no signals of the program.
class no_signals {
public:
    no_signals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    no_signals(const no_signals&) = delete;
    ~no_signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};

// Returns Gloo's thread for an address of this host. It serves all pairs there, and ends with the
// last of them.
inline std::shared_ptr<::gloo::transport::Device> gloo_device(const std::string& address) {
    struct last_device {
        mutex only_one;
        std::weak_ptr<::gloo::transport::Device> device;
        std::string address;
        pid_t process = 0;  // a forked child has no such thread
    };
    static last_device last;
    const lock_guard lock(last.only_one);
    if (last.process == getpid() && last.address == address)
        if (auto device = last.device.lock()) return device;
    const no_signals on_its_thread;
    auto device = ::gloo::transport::tcp::CreateDevice(address.c_str());
    last.device = device;
    last.address = address;
    last.process = getpid();
    return device;
}

// A message that Gloo carries. Memory of the caller is used without a copy: Gloo lets go of it when
// the buffer is destroyed.
class gloo_message {
public:
    gloo_message(int peer, bool receives, std::unique_ptr<::gloo::transport::UnboundBuffer> buffer)
        : peer_(peer), receives_(receives), buffer_(std::move(buffer)) {}

    int peer() const { return peer_; }

    // A failure is kept, and the message never completes.
    void begin(::gloo::transport::Pair& pair) {
        try {
            if (receives_) pair.recv(buffer_.get(), slot, 0, buffer_->size);
            else pair.send(buffer_.get(), slot, 0, buffer_->size);
        } catch (const std::exception& e) {
            failure_ = e.what();
        }
    }

    // True if it completes within so many milliseconds. Gloo throws when the time has passed, as it
    // does when the pair has failed.
    bool wait(int milliseconds) {
        if (!is_complete_ && failure_.empty()) try {
                is_complete_ = gloo_waits(milliseconds);
            } catch (const std::exception&) {
            }
        return is_complete_;
    }

    // Why it never completes; empty if it may. A wait that is broken off at once only throws if the
    // pair has failed.
    const message& failure() {
        if (!is_complete_ && failure_.empty()) try {
                if (receives_) buffer_->abortWaitRecv();
                else buffer_->abortWaitSend();
                gloo_waits(1);
            } catch (const std::exception& e) {
                failure_ = e.what();
            }
        return failure_;
    }

private:
    static constexpr std::uint64_t slot = 0;  // messages of one slot keep their order

    bool gloo_waits(int milliseconds) {
        const std::chrono::milliseconds time(milliseconds);
        return receives_ ? buffer_->waitRecv(time) : buffer_->waitSend(time);
    }

    int peer_;
    bool receives_;
    bool is_complete_ = false;
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer_;
    message failure_;
};

// The messages of one rank by pairs of Gloo.
class gloo_pairs final : public counted {
public:
    // The pairs listen at an address of this host.
    gloo_pairs(int rank, int size, const message& address)
        : own_(owner<things>::make()), lanes_(std::size_t(size)), rank_(rank) {
        ignore_broken_pipes();
        try {
            own_->context = gloo_device(address.c_str())->createContext(rank, size);
            own_->context->setTimeout(::gloo::kNoTimeout);
            // A message that is not there in time would end all pairs that the context knows.
            for (int p = 0; p < size; ++p)
                own_->pairs.push_back(p == rank ? nullptr
                                                : std::move(own_->context->createPair(p)));
        } catch (const std::exception& e) {
            throw_failure(e.what());
        }
        check_for_descriptors(size);
    }

    // A forked child has no thread of Gloo, and leaves everything as it is.
    ~gloo_pairs() {
        if (getpid() != process_) own_.release();
    }

    // Where each rank finds its pair.
    std::vector<gloo_place> places() const {
        std::vector<gloo_place> all(own_->pairs.size());
        for (std::size_t p = 0; p < all.size(); ++p)
            if (own_->pairs[p]) all[p].take(own_->pairs[p]->address().bytes());
        return all;
    }

    // Gloo blocks until a peer has come, however late. So a thread of its own does it: poll() says
    // when all have come.
    void connect(std::vector<gloo_place> peers) {
        own_->peers = std::move(peers);
        const no_signals on_its_thread;
        own_->connects = thread([all = own_.get()] { all->connect(); });
        if (!own_->connects) throw_failure("the system starts no thread");
    }

    void send(int peer, const std::byte* data, std::size_t bytes) {
        ++lanes_[std::size_t(peer)].sent;
        begin(peer, false, const_cast<std::byte*>(data), bytes);
    }
    void receive(int peer, std::byte* data, std::size_t bytes) {
        ++lanes_[std::size_t(peer)].received;
        begin(peer, true, data, bytes);
    }
    std::uint64_t sends_begun(int peer) const { return lanes_[std::size_t(peer)].sent; }
    std::uint64_t receives_begun(int peer) const { return lanes_[std::size_t(peer)].received; }

    // Gloo's thread may wait for the processor of this one.
    bool poll() {
        const bool complete = await(0);
        if (!complete) sched_yield();
        return complete;
    }
    // Waits until all is complete, or some time has passed.
    void sleep(std::int64_t nanoseconds) {
        if (own_->connects) sleep_for(tuning::millisecond);
        else await(int(nanoseconds / tuning::millisecond) + 1);
    }
    bool pending(int peer) const {
        if (own_->connects) return own_->connecting.load() == peer;
        for (std::size_t i = first_; i < own_->messages.size(); ++i)
            if (own_->messages[i].peer() == peer && !own_->messages[i].wait(0)) return true;
        return false;
    }

    void cancel() noexcept {
        own_->close();
        own_->messages.clear();
        first_ = 0;
    }

    // Why messages with a rank never complete; empty if they may, or none is under way.
    std::string_view failure(int peer) {
        for (std::size_t i = first_; i < own_->messages.size(); ++i)
            if (own_->messages[i].peer() == peer && !own_->messages[i].failure().empty())
                return own_->messages[i].failure();
        return {};
    }
    bool is_connecting() const { return bool(own_->connects); }

private:
    // Gloo's thread says nothing where it has no descriptor for a connection that arrives, and the
    // peer waits for ever. So each pair's is there before any rank connects.
    void check_for_descriptors(int pairs) const {
        std::vector<descriptor> spare;
        for (int p = 0; p < pairs; ++p) {
            spare.push_back(make_socket(AF_UNIX));
            if (!spare.back()) throw_failure(strerror(errno));
        }
    }

    using pair = std::unique_ptr<::gloo::transport::Pair>;

    // All that Gloo's thread may use.
    struct things {
        std::shared_ptr<::gloo::transport::Context> context;
        std::vector<pair> pairs;  // by rank
        std::vector<gloo_message> messages;
        std::vector<gloo_place> peers;
        message failure;  // of the connecting
        int failed_peer = -1;
        atomic<int> connecting{0};
        atomic<bool> stops{false};
        thread connects;

        ~things() {
            if (connects) close();
        }
        void connect() noexcept {
            for (std::size_t p = 0; p < pairs.size() && !stops.load(); ++p) {
                connecting.store(int(p));
                try {
                    if (pairs[p]) pairs[p]->connect(peers[p].address());
                } catch (...) {
                    failure = what_of(std::current_exception());
                    failed_peer = int(p);
                    break;
                }
            }
            connecting.store(-1);
        }
        void close() noexcept {
            stops.store(true);
            for (const pair& p : pairs) try {
                    if (p) p->close();
                } catch (const std::exception&) {  // it was closed
                }
            connects.join();
        }
    };
    // The messages with one rank that have begun.
    struct lane {
        std::uint64_t sent = 0, received = 0;
    };

    void begin(int peer, bool receives, std::byte* data, std::size_t bytes) {
        own_->messages.emplace_back(peer, receives,
                                    own_->context->createUnboundBuffer(data, bytes));
        own_->messages.back().begin(*own_->pairs[std::size_t(peer)]);
    }

    bool await(int milliseconds) {
        if (own_->connects && !has_connected()) return false;
        while (first_ < own_->messages.size() && own_->messages[first_].wait(milliseconds))
            ++first_;
        if (first_ < own_->messages.size()) return false;
        own_->messages.clear();
        first_ = 0;
        return true;
    }

    bool has_connected() {
        if (own_->connecting.load() >= 0) return false;
        own_->connects.join();
        if (own_->failed_peer < 0) return true;
        throw peer_error(rank_,
                         text("hvd: Gloo can't connect rank ", rank_, " with rank ",
                              own_->failed_peer, ": ", own_->failure),
                         {own_->failed_peer});
    }

    [[noreturn]] void throw_failure(std::string_view why) const {
        throw error(rank_, text("hvd: Gloo failed on rank ", rank_, ": ", why));
    }

    const pid_t process_ = getpid();
    owner<things> own_;
    std::vector<lane> lanes_;
    const int rank_;
    std::size_t first_ = 0;  // of the messages: those before it are complete
};

}  // namespace hvd::inline v0::detail
