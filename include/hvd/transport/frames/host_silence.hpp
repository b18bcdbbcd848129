// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/clock.hpp"
#include "../../platform/linux.hpp"
#include "../../platform/network/socket.hpp"

namespace hvd::inline v0::detail {

// Finds out if the host at the other end of a connection is silent. The system of a host
// acknowledges what comes, also for a process that is busy or stopped, so a host that acknowledges
// nothing for some time is gone. The system itself would end the connection only later, or also
// because the peer does not read. Where many processes share a processor, acknowledgements come
// late, and this process looks seldom: it has watched for some time before it takes the host for
// gone.
class host_silence {
public:
    // True if the host is gone. Called again and again while the peer is waited for.
    bool look([[maybe_unused]] const descriptor& socket) {
#if HVD_LINUX
        const time_point time = now();
        if (time - looked_ < interval) return false;
        looked_ = time;
        tcp_info info{};
        socklen_t size = sizeof info;
        if (::getsockopt(socket.number(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
        return judge(info, time);
#else
        return false;
#endif
    }

#if HVD_LINUX
    bool judge(const tcp_info& info, time_point time) {
        const std::int64_t heard =
            tuning::millisecond * (info.tcpi_last_ack_recv < info.tcpi_last_data_recv
                                       ? info.tcpi_last_ack_recv
                                       : info.tcpi_last_data_recv);
        // Several probes without an answer are those of a window that is closed.
        const bool asked = info.tcpi_unacked > 0 || info.tcpi_probes > 2;
        wants_probe_ = heard > tuning::host_patience / 2 && !asked;
        const bool answered = heard < heard_before_;
        heard_before_ = heard;
        if (!asked || answered) unanswered_ = watched_time();
        const std::int64_t watched = unanswered_.look(time);
        return asked && heard > tuning::host_patience && watched > tuning::host_patience / 3;
    }
#endif

    // True if nothing is under way that the host would acknowledge.
    bool wants_probe() { return std::exchange(wants_probe_, false); }

private:
    static constexpr std::int64_t interval = 100 * tuning::millisecond;

    [[maybe_unused]] time_point looked_ = 0;
    [[maybe_unused]] std::int64_t heard_before_ = 0;
    [[maybe_unused]] watched_time unanswered_;
    bool wants_probe_ = false;
};

}  // namespace hvd::inline v0::detail
