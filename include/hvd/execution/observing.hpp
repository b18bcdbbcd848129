// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <initializer_list>

#include "../observe/observer.hpp"

namespace hvd::inline v0::detail {

// The functions of an observer.
enum class observed_moment : std::uint8_t {
    begin,
    end,
    failure,
    pack,
    communicate,
    unpack,
    submitted,
    rank_ready,
    ready,
    complete,
    incomplete,
    arrivals,
};

// The observer of a communicator, for code that does not know its type: null if there is none.
struct observing {
    void (*call)(void* observer, const event&, observed_moment, int rank) = nullptr;
    void* observer = nullptr;
    std::uint32_t wanted = 0;  // the moments for which the observer has a function
    // Also in `wanted`, so that calls without observers and checks ask once for both. It comes
    // while other threads look: an optimizer of an engine asks for it.
    static constexpr std::uint32_t looks_at_input = std::uint32_t(1) << 31;

    bool wants(observed_moment m) const {
        return (__atomic_load_n(&wanted, __ATOMIC_RELAXED) >> unsigned(m) & 1) != 0;
    }
    void tell(const event& e, observed_moment m, int rank = -1) const {
        call(observer, e, m, rank);
    }
};

template <class O>
constexpr std::uint32_t moments_of() {
    std::uint32_t wanted = 0;
    const auto add = [&](bool wants, std::initializer_list<observed_moment> moments) {
        for (const observed_moment m : moments)
            if (wants) wanted |= 1U << unsigned(m);
    };
    using enum observed_moment;
    add(true, {begin, end, failure});
    add(observes_phases<O>, {pack, communicate, unpack});
    add(observes_submissions<O>, {submitted});
    add(observes_ranks<O>, {rank_ready});
    add(observes_readiness<O>, {ready});
    add(observes_completion<O>, {complete, incomplete});
    add(observes_arrivals<O>, {arrivals});
    return wanted;
}

template <class O>
void tell_observer(O& o, const event& e, observed_moment m, [[maybe_unused]] int rank) {
    using enum observed_moment;
    switch (m) {
        case begin: return o.on_begin(e);
        case end: return o.on_end(e, true);
        case failure: return o.on_end(e, false);
        case pack:
        case communicate:
        case unpack:
            if constexpr (observes_phases<O>)
                o.on_phase(e, phase(unsigned(m) - unsigned(observed_moment::pack)));
            return;
        case submitted:
            if constexpr (observes_submissions<O>) o.on_submitted(e);
            return;
        case rank_ready:
            if constexpr (observes_ranks<O>) o.on_rank_ready(e, rank);
            return;
        case ready:
            if constexpr (observes_readiness<O>) o.on_ready(e);
            return;
        case complete:
        case incomplete:
            if constexpr (observes_completion<O>) o.on_complete(e, m == complete);
            return;
        case arrivals:
            if constexpr (observes_arrivals<O>) o.on_arrivals(e);
            return;
    }
}

template <class O>
observing observing_by(O& observer) {
    return {[](void* self, const event& e, observed_moment m, int rank) {
                tell_observer(*static_cast<O*>(self), e, m, rank);
            },
            &observer, moments_of<O>()};
}

}  // namespace hvd::inline v0::detail
