// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: no hvd::serializer for this type; specialise it or include

#include <hvd/threads.hpp>

struct sample {
    int index;
    const float* values;  // BAD
    float values;         // GOOD
};

void call(hvd::communicator<hvd::threads>& comm, sample& s) { comm.broadcast_object(s); }
