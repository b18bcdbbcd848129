// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../protocol/failure_notice.hpp"

namespace hvd::inline v0::detail {

// All that goes through a connection between two ranks of a communicator is frames: a head, and the
// bytes that it announces. A message of data is one frame or several.
struct frame {
    enum class kind : std::uint32_t {
        part = 0x68766401,
        last = 0x68766402,
        notice = 0x68766403,
        probe = 0x68766404,      // nothing follows: the system of the peer acknowledges it
        encrypted = 0x68766405,  // the first one of a wire that encrypts all that follows
    };

    std::uint32_t bytes = 0;
    kind what = kind::part;

    bool is_data() const { return what == kind::part || what == kind::last; }
    // False for a frame that no rank sends on a plain wire.
    bool is_valid() const {
        if (what == kind::notice) return bytes == sizeof(failure_notice);
        if (what == kind::probe) return bytes == 0;
        return is_data() && bytes > 0 && bytes <= tuning::frame_bytes;
    }
    // The reason why a frame is not valid.
    const char* why() const {
        return what == kind::encrypted ? "it encrypts its connections, and this rank does not"
                                       : "it sent what no rank sends";
    }
};
static_assert(sizeof(frame) == 8);

}  // namespace hvd::inline v0::detail
