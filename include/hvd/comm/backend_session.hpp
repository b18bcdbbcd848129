// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/hierarchical_transport.hpp"
#include "engine.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

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

// Whether the backend has a shorter way for plain tensors: one call of its library.
template <class B>
constexpr bool is_direct = requires { requires B::is_direct; };

// Shared memory where all ranks of the link have some; where those of each node have, by it inside
// the nodes and by messages between them; otherwise by messages.
template <class Link>
owner<transport> make_transport(Link& link) {
    if constexpr (requires { link.area(); }) {
        if (const node_area* const area = link.area()) {
            if (area->ranks() == link.size())
                return owner<node_transport>::make(*area, link.rank());
            if constexpr (hvd::link<Link>)
                return owner<hierarchical_transport<Link>>::make(link, *area);
        }
    }
    if constexpr (hvd::link<Link>) return owner<link_transport<Link>>::make(link);
    else return {};
}

// A session with the link of its backend.
template <class B>
class backend_session : public engine {
public:
    using link_type = typename B::link_type;

    backend_session(owner<link_type> link, const communicator_options& options)
        : engine(link->rank(), link->size(), options), link_(std::move(link)) {
        set_traits(*link_);
    }

    // While the link still lives.
    ~backend_session() { end("communicator destroyed"); }

    link_type& link() noexcept { return *link_; }
    auto& observer() noexcept { return observer_; }

private:
    using observer_type = typename observer_of<B>::type;

    void set_traits(link_type& l) {
        if constexpr (requires(operation& op, workspace& w) { l.run(op, w); }) {
            traits_.run_whole = [](void* link, operation& op, workspace& w) {
                static_cast<link_type*>(link)->run(op, w);
            };
            traits_.link = &l;
        } else {
            traits_.transport = make_transport(l);
        }
        if constexpr (requires {
                          { l.threaded() } -> std::convertible_to<bool>;
                      })
            traits_.threaded = l.threaded();
        traits_.agrees_on_names = requires { requires B::agrees_on_names; };
        if constexpr (observes<B>) {
            traits_.observer = &observer_;
            traits_.observe = [](void* self, const event& e, int phase) {
                auto& observer = *static_cast<observer_type*>(self);
                if (phase == 0) observer.on_begin(e);
                else observer.on_end(e, phase == 1);
            };
        }
    }

    owner<link_type> link_;
    [[no_unique_address]] observer_type observer_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
