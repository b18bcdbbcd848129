// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <string_view>

#include "named_calls.hpp"

namespace hvd::inline v0::detail {

// A first argument that is no name.
template <class X>
concept unnamed = !std::convertible_to<X, std::string_view>;

// The calls of an engine without a name, which are refused: at once, since their type is that of
// the body.
class unnamed_calls {
    template <class X>
    static request refuse() {
        static_assert(!unnamed<X>,
                      "hvd: a tensor of an engine has a name, which comes first: "
                      "engine.allreduce(\"gradient\", x, hvd::average)");
        return {};
    }

public:
    template <unnamed X>
    auto allreduce(X&&, ...) {
        return refuse<X>();
    }
    template <unnamed X, class Op>
    auto allreduce(X&&, const Op&, const named_options&) {
        return refuse<X>();
    }
    template <unnamed X>
    auto allgather(X&&, ...) {
        return refuse<X>();
    }
    template <unnamed X>
    auto broadcast(X&&, ...) {
        return refuse<X>();
    }
    template <unnamed X>
    auto reduce_scatter(X&&, ...) {
        return refuse<X>();
    }
    template <unnamed X>
    auto alltoall(X&&, ...) {
        return refuse<X>();
    }
    template <unnamed X>
    auto reduce(X&&, ...) {
        return refuse<X>();
    }
    template <unnamed X>
    auto gather(X&&, ...) {
        return refuse<X>();
    }
    template <unnamed X>
    auto scatter(X&&, ...) {
        return refuse<X>();
    }
};

}  // namespace hvd::inline v0::detail
