// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The backend of the tests of hvd::tcp. Where Gloo is there, the same programs test hvd::gloo: with
// HVD_TEST_GLOO in the environment, Gloo carries what passes between nodes.

#include <cstdlib>
#include <vector>

#include <hvd/tcp.hpp>
#if defined(HVD_TEST_WITH_GLOO)
#include <hvd/interop/gloo.hpp>
#endif

namespace hvd_test {

#if defined(HVD_TEST_WITH_GLOO)

class tcp_or_gloo_messages : public hvd::detail::gloo_messages {
public:
    using gloo_messages::gloo_messages;

    static bool needs_library(const std::vector<int>& nodes) {
        return std::getenv("HVD_TEST_GLOO") != nullptr && gloo_messages::needs_library(nodes);
    }
};
struct tcp {
    using endpoint_type = hvd::detail::job_endpoint<tcp_or_gloo_messages>;
};

#else

using tcp = hvd::tcp;

#endif

}  // namespace hvd_test
