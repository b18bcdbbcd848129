// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: staged<…> takes a backend of the host

#include <hvd/threads.hpp>

#include <hvd/nccl.hpp>

hvd::staged<hvd::nccl> policy;     // BAD
hvd::staged<hvd::threads> policy;  // GOOD
