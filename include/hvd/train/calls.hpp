// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../comm/communicator.hpp"
#include "tensors.hpp"

namespace hvd::inline v0::detail {

// The calls of training: those of a communicator, or those that train/engine/ makes of an engine.
template <class Comm>
struct training_calls {
    using type = Comm&;  // first: clang reads the class no further than a failed assertion
    static_assert(!is_engine<Comm>,
                  "hvd: training on an engine needs #include <hvd/train_engine.hpp>");
};

}  // namespace hvd::inline v0::detail
