// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/lean/handles.hpp"

namespace hvd::inline v0::detail {

// Knows that the ranks of a communicator wait in vain, from another source than their messages. Any
// thread may ask it, about once in a millisecond of waiting.
class failure_detector : public counted {
public:
    bool has_detected() { return ask_(*this); }

protected:
    explicit failure_detector(bool (*ask)(failure_detector&)) : ask_(ask) {}
    ~failure_detector() = default;

private:
    bool (*const ask_)(failure_detector&);
};

}  // namespace hvd::inline v0::detail
