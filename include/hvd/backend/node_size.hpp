// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <climits>
#include <cstdlib>
#include <vector>

#include "../core/error.hpp"
#include "../core/options.hpp"
#include "../core/units.hpp"
#include "../core/version_text.hpp"
#include "../platform/shared_memory.hpp"
#include "../protocol/agreement.hpp"

namespace hvd::inline v0::detail {

// Returns how many consecutive ranks are taken as one node, so that several nodes can be tried on
// one machine. 0 takes the real nodes.
inline int declared_node_size(const communicator_options& options) {
    if (options.node_size < 0)
        throw usage_error(-1, text("hvd: .node_size is ", options.node_size,
                                   "; it takes a number of ranks, or 0 for as it is"));
    if (options.node_size > 0) return options.node_size;
    const char* const variable = std::getenv("HVD_NODE_SIZE");
    if (variable == nullptr || *variable == 0) return 0;
    std::int64_t size = 0;
    if (!read_number(variable, no_unit, size) || size < 1 || size > INT_MAX)
        throw usage_error(
            -1, text("hvd: HVD_NODE_SIZE is '", variable, "'; it takes a number of ranks from 1"));
    return int(size);
}

// Returns a number for each rank, equal for ranks that share a node.
inline std::vector<int> nodes_of_one_host(int ranks, const communicator_options& options) {
    const int size = declared_node_size(options);
    std::vector<int> nodes(std::size_t(ranks), 0);
    for (int r = 0; size > 0 && r < ranks; ++r) nodes[std::size_t(r)] = r / size;
    return nodes;
}

// Ranks whose options differ would wait for each other without end while they make a communicator,
// and those of different versions of hvd would misread each other. So they agree on them first,
// over a channel of protocol/agreement.hpp.
template <header_channel C>
[[gnu::cold]] int agreed_node_size(C& channel, const char* making,
                                   const communicator_options& options) {
    int node_size = 0;
    call_header mine = agreement_header(making);
    const std::exception_ptr failure = attempt(mine, [&] {
        check_tuning(options.tuning, channel.rank());
        check_times(options, channel.rank());
        if constexpr (!requires { typename C::environment_type; })
            refuse_options_of_mpi(options, channel.rank());
        node_size = declared_node_size(options);
    });
    const auto values = [&](auto say) {
        say("the version of hvd", version);
        if constexpr (requires { channel.transport_name(); })
            say("the backend", channel.transport_name());
        say(".node_size", text(node_size));
        say(".mpi_between_nodes", options.mpi_between_nodes ? "true" : "false");
        say(".shared_memory_bytes",
            text(tuning::windows * shared_memory::whole_pages(window_bytes_of(options))));
        say_tuning(options.tuning, say);
    };
    mine.content = content_of_values(values);
    exchange_after(failure, [&] { agree_on(channel, mine, never, values); });
    return node_size;
}

}  // namespace hvd::inline v0::detail
