// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: deleted

#include <utility>

#include <hvd/threads.hpp>

hvd::communicator<hvd::threads> call(hvd::communicator<hvd::threads>& comm) {
    return comm;             // BAD
    return std::move(comm);  // GOOD
}
