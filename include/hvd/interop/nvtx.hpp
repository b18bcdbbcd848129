// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <cstring>

#include <nvtx3/nvToolsExt.h>

#include "../observe/observer.hpp"

namespace hvd::inline v0 {

/// An observer that makes a range of NVTX for each call and each of its phases, which Nsight
/// Systems shows beside kernels and copies:
/// `hvd::communicator<hvd::observed<hvd::mpi, hvd::nvtx_ranges>>`.
///
/// The ranges are in the domain "hvd". A call's has its name, or that of the collective, and the
/// bytes of this rank as payload. Without a profiler a range costs a few nanoseconds. NVTX consists
/// of headers of the CUDA Toolkit; link with `-ldl`. Horovod: `nvtx_op_range`.
/// @snippet tests/interop/nvtx.cpp nvtx_ranges
class nvtx_ranges {
public:
    void on_begin(const event& e) {
        call_ = start(e.name.empty() ? e.collective : e.name, e.bytes);
        phase_ = none;
    }
    void on_phase(const event& e, phase p) {
        end(phase_);
        static constexpr std::string_view names[] = {"pack", "communicate", "unpack"};
        phase_ = start(names[std::size_t(p)], e.bytes);
    }
    void on_end(const event&, bool) {
        end(phase_);
        end(call_);
    }

private:
    static constexpr nvtxRangeId_t none = 0;

    static nvtxDomainHandle_t domain() {
        static const nvtxDomainHandle_t made = nvtxDomainCreateA("hvd");
        return made;
    }
    // A call may end on another thread than it began on.
    static nvtxRangeId_t start(std::string_view name, std::size_t bytes) {
        char text[128];
        const std::size_t length = name.size() < sizeof text - 1 ? name.size() : sizeof text - 1;
        if (length > 0) std::memcpy(text, name.data(), length);
        text[length] = 0;
        nvtxEventAttributes_t attributes{};
        attributes.version = NVTX_VERSION;
        attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
        attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
        attributes.message.ascii = text;
        attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
        attributes.payload.ullValue = bytes;
        return nvtxDomainRangeStartEx(domain(), &attributes);
    }
    static void end(nvtxRangeId_t& range) {
        if (range != none) nvtxDomainRangeEnd(domain(), range);
        range = none;
    }

    nvtxRangeId_t call_ = none, phase_ = none;
};

static_assert(observer<nvtx_ranges>);

}  // namespace hvd::inline v0
