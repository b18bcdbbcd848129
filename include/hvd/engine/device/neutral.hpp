// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <span>
#include <vector>

#include "../../device/session.hpp"
#include "../neutral.hpp"

namespace hvd::inline v0::detail {

// Device memory of a rank that has joined: elements that change no result, and room for the results
// that nobody reads. It grows, and is used by one stream at a time.
class neutral_memory {
public:
    // `bytes` of elements that change nothing in such a reduction. The device is current, and the
    // thread is inside the session.
    void prepare(device_session& session, const call_header& h, std::size_t bytes) {
        const kind wanted{h.id, h.op, h.prescale};
        if (wanted == kind_ && elements_.size() >= bytes) return;
        grow(session, elements_, bytes);
        kind_ = {};
        std::vector<std::byte> values(elements_.size());
        fill_neutral(h.id, values.data(), values.size() / element_bytes_of(h.id), h.op, h.prescale);
        copy_async(elements_.data(), values.data(), values.size(), cudaMemcpyHostToDevice,
                   session.own_stream(), session.rank());
        finish(session);
        kind_ = wanted;
    }
    void make_room(device_session& session, std::size_t bytes) { grow(session, results_, bytes); }

    const std::byte* elements() const { return elements_.data(); }
    std::byte* results() const { return results_.data(); }

private:
    struct kind {
        dtype id = dtype::user;
        int op = 0;
        double prescale = 1;
        bool operator==(const kind&) const = default;
    };

    // Work of the stream may still use the memory.
    static void grow(device_session& session, cuda_memory& memory, std::size_t bytes) {
        if (memory.data() != nullptr && memory.size() >= bytes) return;
        finish(session);
        {
            const cuda_memory freed(std::move(memory));
        }
        memory = cuda_memory(cuda_memory::kind::device, (bytes / 256 + 1) * 256, session.rank());
    }
    static void finish(device_session& session) {
        const cuda_event done = session.mark(session.own_stream());
        const time_point limit = session.limit_for({});
        backoff pauses(false);
        while (!done.reached(session.rank()))
            if (pauses.pause() && session.must_end(limit))
                session.expire("a tensor of ranks that have joined");
    }

    cuda_memory elements_, results_;
    kind kind_;
};

}  // namespace hvd::inline v0::detail
