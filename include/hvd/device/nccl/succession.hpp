// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "communicator.hpp"

namespace hvd::inline v0::detail {

// The last communicator of a rank, as it tells the others.
struct told_communicator {
    std::int64_t number = 0;  // 0: it has none
    std::int64_t rank = 0, size = 0;
    bool can_shrink = false, can_grow = false;  // NCCL can make others from it
    bool knows_growth = false;                  // the library of this rank does
};

enum class descent : std::uint8_t { none, shrinks, grows };

// How the next communicator descends from the last.
struct nccl_descent {
    descent how = descent::none;
    int stayed = 0;         // so many ranks had the last communicator
    std::vector<int> lost;  // its other ranks
};

// The ranks that had the last communicator come first, in its order. It shrinks if some of them are
// lost, and grows if others follow. If both happen, another one is made from nothing at once.
inline nccl_descent descent_of(std::span<const told_communicator> all) {
    const told_communicator& first = all[0];
    const auto is_of_last = [&](const told_communicator& c) { return c.number == first.number; };
    const auto newcomers = std::ranges::find_if_not(all, is_of_last);
    const std::span stayed = all.first(std::size_t(newcomers - all.begin()));
    const std::span came = all.subspan(stayed.size());
    const bool has_order = std::ranges::is_sorted(stayed, {}, &told_communicator::rank) &&
                           std::ranges::none_of(came, is_of_last);
    if (first.number == 0 || stayed.size() < 2 || !has_order) return {};
    if (came.empty() && std::ranges::all_of(stayed, &told_communicator::can_shrink)) {
        nccl_descent shrunk{descent::shrinks, int(stayed.size()), {}};
        for (std::int64_t r = 0; r < first.size; ++r)
            if (std::ranges::find(stayed, r, &told_communicator::rank) == stayed.end())
                shrunk.lost.push_back(int(r));
        return shrunk;
    }
    if (!came.empty() && std::int64_t(stayed.size()) == first.size &&
        std::ranges::all_of(stayed, &told_communicator::can_grow) &&
        std::ranges::all_of(came, &told_communicator::knows_growth))
        return {descent::grows, int(stayed.size()), {}};
    return {};
}

// The communicators of ranks of which some are lost, and others come. Each is made on the ranks of
// a host's communicator, all of which live. If one is lost meanwhile, its calls throw.
class nccl_succession {
public:
    explicit nccl_succession(const nccl_options& own) : own_(own) {}

    communicator<nccl>& last() { return last_; }

    // Makes the next one, with a number that no other has.
    template <class Host>
    void follow(communicator<Host>& hosts, std::int64_t number,
                const communicator_options& options) {
        const nccl_descent descent = agree(hosts, options);
        communicator<nccl> next;
        if (descent.how != descent::none) next = descended(hosts, descent, options);
        if (!next) {
            give_up_last();
            next = communicator<nccl>(hosts, options, own_);
        }
        last_ = std::move(next);
        last_.is_of_job_ = true;
        number_ = number;
    }

private:
    void give_up_last() {
        last_.abort();
        last_ = {};
        number_ = 0;
    }

    template <class Host>
    nccl_descent agree(communicator<Host>& hosts, const communicator_options& options) {
        const nccl_library library(hosts.rank());
        const bool has_one = last_ && last_.native_handle() != nullptr;
        const bool is_healthy = has_one && !last_.session().broken();
        const bool knows_growth = library.has(nccl_since::growing);
        const std::int64_t mine[] = {number_,
                                     last_.rank(),
                                     last_.size(),
                                     has_one && library.has(nccl_since::revoking),
                                     is_healthy && knows_growth,
                                     knows_growth};
        const auto said = numbers_of_all(access::session_of(hosts), "elastic::run", mine,
                                         limit_of(options.timeout));
        std::vector<told_communicator> all;
        for (std::size_t i = 0; i < said.size(); i += std::size(mine))
            all.push_back({said[i], said[i + 1], said[i + 2], said[i + 3] != 0, said[i + 4] != 0,
                           said[i + 5] != 0});
        return descent_of(all);
    }

    // Returns an empty one on all ranks if NCCL failed on one of them.
    template <class Host>
    communicator<nccl> descended(communicator<Host>& hosts, const nccl_descent& descent,
                                 const communicator_options& options) {
        communicator<nccl> next;
        try {
            if (descent.how == descent::shrinks) next = shrunk(hosts, descent.lost);
            else next = grown(hosts, descent.stayed, options);
        } catch (const nccl_error&) {  // all ranks agree below
        } catch (const peer_error&) {
        }
        try {
            const std::int64_t is_made = next ? 1 : 0;
            const auto made = numbers_of_all(access::session_of(hosts), "elastic::run",
                                             {&is_made, 1}, limit_of(options.timeout));
            if (std::ranges::count(made, 0) == 0) return next;
        } catch (...) {
            next.abort();  // its end would wait for a lost rank
            if (descent.how == descent::grows) give_up_last();  // others may still use its id
            throw;
        }
        next.abort();
        return {};
    }

    template <class Host>
    communicator<nccl> shrunk(communicator<Host>& hosts, const std::vector<int>& lost) {
        auto left = std::make_unique<host_ranks_of<Host>>(hosts.split(0, hosts.rank()));
        communicator<nccl> next = last_.shrunk(lost, left.get());
        next.session().connect(std::move(left));
        next.topology_ = place_of(hosts);
        return next;
    }

    template <class Host>
    communicator<nccl> grown(communicator<Host>& hosts, int stayed,
                             const communicator_options& options) {
        nccl_beginning growth{.grows = true};
        if (hosts.rank() < stayed) growth.parent = last_.native_handle();
        return {hosts, options, own_, growth};
    }

    const nccl_options& own_;
    communicator<nccl> last_;
    std::int64_t number_ = 0;
};

}  // namespace hvd::inline v0::detail
