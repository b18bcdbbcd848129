// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "hvd_test.hpp"

template class hvd::communicator<hvd_test::backend>;

#if defined(HVD_TEST_LAUNCHED)

hvd_test::communicator hvd_test::world(const hvd::communicator_options& options) {
    return communicator::world(options);
}

#else

void hvd_test::run_threads(int ranks, const std::function<void(communicator&)>& f,
                           const hvd::communicator_options& options) {
#if defined(HVD_TEST_BACKEND_APART)
    run_apart(ranks, f, options);
#else
    hvd::run_threads(ranks, f, options);
#endif
}

#endif
