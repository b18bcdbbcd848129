// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the host can't read a view of device memory: copy the elements first

#include <hvd/core/tensor_view.hpp>

float first(float* memory) {
    return hvd::device_view(memory, 4)[0];  // BAD
    return hvd::view(memory, 4)[0];         // GOOD
}
