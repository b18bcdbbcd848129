// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../transport/multinode/multinode_transport.hpp"
#include "call_driver.hpp"

namespace hvd::inline v0::detail {

template <class B>
concept observes = requires { typename B::observer_type; };

struct no_observer {};

template <class B>
struct observer_of {
    using type = no_observer;
};
template <observes B>
struct observer_of<B> {
    using type = typename B::observer_type;
};

// True if the backend runs plain tensors by one call of its library.
template <class B>
constexpr bool is_direct = requires { requires B::is_direct; };

// Chooses the transport. It is shared memory if all ranks of the endpoint share some. If only those
// of each node do, it is shared memory inside the nodes and messages between them. Otherwise it is
// messages.
template <class Endpoint>
owner<transport> make_transport(Endpoint& endpoint) {
    if constexpr (requires { endpoint.region(); }) {
        if (const shm_region* const region = endpoint.region()) {
            if (region->ranks() == endpoint.size())
                return owner<shm_transport>::make(*region, endpoint.rank());
            if constexpr (hvd::endpoint<Endpoint>)
                return owner<multinode_transport<Endpoint>>::make(endpoint, *region);
        }
    }
    if constexpr (hvd::endpoint<Endpoint>)
        return owner<endpoint_transport<Endpoint>>::make(endpoint);
    else return {};
}

// The key of the records of a communicator that is made of no other one: ranks that are processes
// make them in one order.
[[gnu::cold]] inline std::uint64_t number_of_world() noexcept {
    static atomic<std::uint64_t> made{0};
    return made.add(1);
}

// A session with the endpoint of its backend.
template <class B>
class backend_session : public call_driver {
public:
    using endpoint_type = typename B::endpoint_type;

    // Takes the endpoint, unless it throws.
    backend_session(owner<endpoint_type>& endpoint, const communicator_options& options)
        : call_driver(endpoint->rank(), endpoint->size(), options) {
        check_tuning(options.tuning, rank());
        check_times(options, rank());
        if constexpr (shared_endpoint<endpoint_type> &&
                      !requires { typename endpoint_type::environment_type; })
            refuse_options_of_mpi(options, rank());
        if (is_direct<B> && options.timeout.is_time()) throw_no_timeout("a communicator");
        if (is_direct<B> && options.check_finite) throw_no_checks();
        set_traits(*endpoint);
        if (traits_.transport && !(options.tuning == tuning_options{})) {
            traits_.transport->prepare(options.tuning);
            traits_.transport->retune(options.tuning);
        }
        endpoint_ = std::move(endpoint);
    }

    // It ends while the endpoint still lives.
    ~backend_session() { end("communicator destroyed"); }

    endpoint_type& endpoint() noexcept { return *endpoint_; }
    auto& observer() noexcept { return observer_; }

private:
    using observer_type = typename observer_of<B>::type;

    void set_traits(endpoint_type& l) {
        if constexpr (requires(operation& op, workspace& w) { l.run(op, w); }) {
            traits_.run_whole = [](void* endpoint, operation& op, workspace& w) {
                static_cast<endpoint_type*>(endpoint)->run(op, w);
            };
            traits_.endpoint = &l;
        } else {
            transport_ = make_transport(l);
            traits_.transport = transport_.get();
        }
        if constexpr (requires {
                          { l.threaded() } -> std::convertible_to<bool>;
                      })
            traits_.threaded = l.threaded();
        traits_.knows_no_timeout = is_direct<B>;
        traits_.agrees_on_names = requires { requires B::agrees_on_names; };
        if constexpr (requires { l.tell_end(nullptr, nullptr); })
            l.tell_end(
                [](void* self) noexcept { static_cast<call_driver*>(self)->end_of_library(); },
                static_cast<call_driver*>(this));
        if constexpr (requires { endpoint_type::note_death(); })
            traits_.note_death = &endpoint_type::note_death;
        if constexpr (requires { l.record_key(); }) record().head.key = l.record_key();
        else record().head.key = number_of_world();
        if constexpr (observes<B>) traits_.observing = observing_by(observer_);
        if (options_.check_finite) take_finite_checks();
    }

    owner<endpoint_type> endpoint_;
    owner<transport> transport_;
    [[no_unique_address]] observer_type observer_;
};

}  // namespace hvd::inline v0::detail
