// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "hvd_test.hpp"

template hvd::detail::shared<hvd::detail::session> hvd::detail::make_session<hvd_test::backend>(
    hvd::detail::owner<hvd_test::backend::link_type>, const hvd::communicator_options&);

#if defined(HVD_TEST_BACKEND_MPI)

hvd_test::communicator hvd_test::world(const hvd::communicator_options& options) {
    return communicator::world(options);
}

#else

void hvd_test::run_threads(int ranks, const std::function<void(communicator&)>& f,
                           const hvd::communicator_options& options) {
    hvd::run_threads(ranks, f, options);
}

#endif
