// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>

#include "../core/lean/handles.hpp"
#include "../core/options.hpp"
#include "concept.hpp"

namespace hvd::inline v0::detail {

// The endpoint of a communicator that does not compile. It has all that a communicator may ask for,
// so that the compiler says why there is none and nothing else.
struct refused_endpoint {
    template <class Handle, class Ownership>
    refused_endpoint(const Handle&, Ownership, const communicator_options&) {}
    static owner<refused_endpoint> world(const communicator_options&) { return {}; }

    int rank() const { return -1; }
    int size() const { return 0; }
    void send(int, const std::byte*, std::size_t) {}
    void recv(int, std::byte*, std::size_t) {}
    bool poll() { return true; }
    bool pending(int) const { return false; }
    void cancel() noexcept {}
    void* native_handle() const { return nullptr; }
    owner<refused_endpoint> subset(std::span<const int>, int) const { return {}; }
};

struct refused_backend {
    using endpoint_type = refused_endpoint;
};

// The backend of `communicator c(MPI_COMM_WORLD, hvd::borrow)`.
struct backend_not_named : refused_backend {};

// B, or a backend that compiles in the place of a B that is none.
template <class B>
using backend_or_refused = std::conditional_t<is_host_backend<B>, B, refused_backend>;

}  // namespace hvd::inline v0::detail
