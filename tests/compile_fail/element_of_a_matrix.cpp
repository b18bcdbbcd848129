// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: [] takes a view of one dimension; span()[i] is an element of others

#include <hvd/core/tensor_view.hpp>

float first(float* memory) {
    return hvd::view(memory, hvd::shape(2, 2))[0];  // BAD
    return hvd::view(memory, hvd::shape(4))[0];     // GOOD
}
