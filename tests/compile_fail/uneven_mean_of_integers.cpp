// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: uneven_scope::mean is of floating-point elements

#include <hvd/threads.hpp>
#include <hvd/train.hpp>

void call(hvd::uneven_scope<hvd::communicator<hvd::threads>>& scope, int whole, double part) {
    scope.mean(whole);  // BAD
    scope.mean(part);   // GOOD
}
