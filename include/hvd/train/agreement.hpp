// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "../comm/communicator.hpp"
#include "../protocol/agreement.hpp"
#include "tensors.hpp"

namespace hvd::inline v0::detail {

// The agreements of training: those of protocol/agreement.hpp, over a communicator and without a
// timeout of their own.

// The channel of a communicator: its session, or that of the communicator of devices which moves
// its tensors.
template <class Comm>
auto& channel_of(Comm& comm) {
    static_assert(!is_engine<Comm>,
                  "hvd: this takes a communicator, not an engine: the communicator that an engine "
                  "was made of stays free for calls in order");
    if constexpr (requires { comm.channel(); }) return comm.channel();
    else return access::session_of(comm);
}

// This rank refuses a call that its peers make.
template <class Comm, class... Parts>
    requires requires { typename Comm::backend_type; }
[[gnu::always_inline, noreturn]] inline void refuse_call(Comm& comm, const Parts&... parts) {
    refuse_call(channel_of(comm), parts...);
}

// Makes what this rank needs for its next call, which its peers make, too. That may fail on this
// rank alone: then the call is refused, so that the peers learn of it and the ranks stay in step.
template <class Comm, class Options, class F>
auto prepare_call(Comm& comm, collective kind, const Options& o, F make) {
    if constexpr (requires { comm.forfeit_call(o); }) {
        try {
            return make();
        } catch (...) {
            comm.forfeit_call(o);
            throw;
        }
    } else {
        return prepare(access::session_of(comm), kind, o, make);
    }
}

// **Collective**. Agrees on values that all ranks must have alike. `make` gives the header a hash
// of them as content, and this rank's number as count. It also makes what the next calls need: if
// it fails on one rank, no rank makes them. Returns the sum of the ranks' numbers.
[[gnu::cold]] inline std::uint64_t agree_on_channel(any_channel channel, const char* name,
                                                    function_ref<void(call_header&)> make,
                                                    named_values values) {
    call_header mine = agreement_header(name);
    std::uint64_t total = 0;
    for (const call_header& h : agree_on(channel, mine, never, [&] { make(mine); }, values))
        total += h.count;
    return total;
}
template <class Comm, class Make, class Values>
std::uint64_t agree_after(Comm& comm, const char* name, Make&& make, Values&& values) {
    return agree_on_channel(channel_of(comm), name, make, values);
}

// **Collective**. The same for values that are compared so rarely that a hash of their texts does.
template <class Comm, class Values>
void agree_on_values(Comm& comm, const char* name, Values&& values) {
    agree_on_values(channel_of(comm), name, never, values);
}

// The epoch that a trainer said its steps belong to. Ranks compare it in calls that are made
// anyway.
class said_epoch {
public:
    void begin(std::uint64_t epoch) {
        name_ = name_in_epoch(epoch, {});
        epoch_ = epoch;
    }
    // For calls without a plan: their name, which is empty without an epoch.
    std::string_view name() const { return name_; }
    // For plans.
    template <class Plans>
    void tell(Plans& plans) const {
        if (epoch_) plans.begin_epoch(*epoch_);
    }

private:
    std::optional<std::uint64_t> epoch_;
    message name_;
};

}  // namespace hvd::inline v0::detail
