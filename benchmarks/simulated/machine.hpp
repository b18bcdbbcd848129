// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <simgrid/s4u.hpp>

namespace simulated {

constexpr double forever = std::numeric_limits<double>::infinity();

inline double now() { return simgrid::s4u::Engine::get_clock(); }

/// The machine that is simulated. Times are seconds, rates bytes a second.
///
/// Each node has one cable to a switch that never blocks, and each rank a lane to the others of its
/// node. Messages leave a cable or lane one after another, and arrive in the times when the far end
/// is free. A message of one packet waits for no longer ones, as among connections that share a
/// cable by packets.
struct platform {
    int ranks = 4, per_node = 4;
    double cable = 25e9 / 8, latency = 5e-6;
    double lane = 10e9, lane_latency = 1e-6;
    double overhead = 0;      ///< of the processor, for each message that a rank sends
    double slow_cable = 1;    ///< node 0 has so much of a cable
    std::size_t counted = 1;  ///< each byte of data stands for so many
    bool copies = true;       ///< false: data is counted and not copied
    double packet = 4096;     ///< bytes

    int nodes() const { return (ranks + per_node - 1) / per_node; }
    int node_of(int rank) const { return rank / per_node; }
};

class rank_state;

/// A source of events that a rank may wait for.
class awaited {
public:
    virtual ~awaited() = default;
    /// When everything begun is complete; `forever` if that is not known yet.
    virtual double complete_at() const = 0;
    virtual bool has_begun() const = 0;
};

/// The thing that one rank of the machine does at present.
class rank_state {
public:
    std::set<const awaited*> endpoints;
    std::uint64_t messages = 0, bytes = 0;  ///< sent, headers included
    std::set<int> peers;                    ///< that it has sent to
    std::uint64_t begun = 0;                ///< sends and receives
    double busy_until = 0;                  ///< the processor, with messages
    unsigned looks = 0;                     ///< at the clock, at one moment
    double looked_at = -1;

    /// Waits until an endpoint may have completed, or a time has come.
    void wait_until(double limit) {
        double until = limit;
        for (const awaited* e : endpoints) {
            if (!e->has_begun()) continue;
            if (const double at = e->complete_at(); at > now() && at < until) until = at;
        }
        while (!wake_->would_block()) wake_->acquire();
        if (until <= now()) return;
        waits_ = true;
        if (until == forever) wake_->acquire();
        else static_cast<void>(wake_->acquire_timeout(until - now()));
        waits_ = false;
    }

    /// Another rank has begun what this one may wait for.
    void wake() {
        if (waits_) wake_->release();
    }

    /// The rank that runs.
    static rank_state*& current();

private:
    simgrid::s4u::SemaphorePtr wake_ = simgrid::s4u::Semaphore::create(0);
    bool waits_ = false;
};

/// One direction at one end of a cable or lane, which is taken in its free times: messages need not
/// come to it in the order in which they were sent.
class port {
public:
    /// Takes the first free times from `begin` on, and returns when the last of them ends.
    double take(double begin, double takes) {
        while (!busy_.empty() && busy_.begin()->second <= now()) busy_.erase(busy_.begin());
        auto next = busy_.upper_bound(begin);
        double first = begin, end = begin;
        if (next != busy_.begin())
            if (const auto before = std::prev(next); before->second >= begin) {
                first = before->first;
                end = before->second;
                busy_.erase(before);
            }
        for (; next != busy_.end() && end + takes >= next->first; next = busy_.erase(next)) {
            takes -= next->first - end;
            end = next->second;
        }
        busy_.emplace_hint(next, first, end + takes);
        return end + takes;
    }

private:
    std::map<double, double> busy_;  // begin and end of times that do not touch
};

/// Both directions at both ends.
struct ends {
    port out, in, small_in;
    double small_out = 0;  // until when messages of one packet leave
};

/// All ranks and cables.
class machine {
public:
    explicit machine(const platform& p)
        : what(p),
          states(std::size_t(p.ranks)),
          cables_(std::size_t(p.nodes())),
          lanes_(std::size_t(p.ranks)) {}

    /// Sends a message and returns when it will have come.
    double transfer(int from, int to, double bytes) {
        rank_state& sender = states[std::size_t(from)];
        ++sender.messages;
        sender.bytes += std::uint64_t(bytes);
        sender.peers.insert(to);
        sender.busy_until = std::max(sender.busy_until, now()) + what.overhead;
        const int a = what.node_of(from), b = what.node_of(to);
        const bool is_small = bytes <= what.packet;
        if (a == b)
            return cross(lanes_[std::size_t(from)], lanes_[std::size_t(to)], bytes / what.lane,
                         bytes / what.lane, what.lane_latency, sender.busy_until, is_small);
        return cross(cables_[std::size_t(a)], cables_[std::size_t(b)], bytes / cable(a),
                     bytes / cable(b), what.latency, sender.busy_until, is_small);
    }

    platform what;
    std::vector<rank_state> states;

private:
    double cable(int node) const { return node == 0 ? what.cable * what.slow_cable : what.cable; }

    // A message enters the far end as soon as it has left the near one, unless others are there.
    static double cross(ends& from, ends& to, double takes, double takes_in, double latency,
                        double begin, bool is_small) {
        const double left = from.out.take(begin, takes);
        const double entered = is_small ? std::max(begin, from.small_out) : left - takes;
        const double came = to.in.take(entered + latency, takes_in);
        if (!is_small) return std::max(came, left + latency);
        from.small_out = entered + takes;
        return std::max(to.small_in.take(entered + latency, takes_in), entered + takes + latency);
    }

    std::vector<ends> cables_, lanes_;
};

/// Runs f(rank) as an actor for each rank of the machine, until all have ended. Once in a process.
void run(machine& m, const std::function<void(int rank)>& f);

}  // namespace simulated
