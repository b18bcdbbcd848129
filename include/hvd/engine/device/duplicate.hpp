// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <algorithm>

#include "../../comm/communicator.hpp"
#include "../../platform/network/socket.hpp"
#include "../../protocol/agreement.hpp"
#include "../link_tree.hpp"
#include "calls.hpp"

namespace hvd::inline v0::detail {

constexpr const char* devices_of_an_engine = "the device communicator of an engine";

// Throws on all ranks unless both communicators have the same ranks, in the same order.
template <class Comm>
void check_same_ranks(Comm& comm, const engine_devices& devices, time_point limit) {
    const int me = comm.rank(), size = comm.size();
    session& ranks = access::session_of(comm);
    run_on_all(ranks, devices_of_an_engine, limit, [&] {
        devices.each([&](const device_session& s) {
            if (s.rank() != me || s.size() != size)
                throw usage_error(me, text("hvd: ", devices_of_an_engine, ": rank ", me, " of ",
                                           size, " is rank ", s.rank(), " of ", s.size(),
                                           " there: both need the same ranks in the same order"));
        });
    });
    // Other ranks may have these numbers, too.
    std::int64_t secret = 0;
    if (me == 0) fill_random(me, reinterpret_cast<std::byte*>(&secret), sizeof secret);
    comm.broadcast(secret, hvd::root{0}, {.confirm = true});
    devices.each([&](device_session& s) {
        const time_point own = std::min(limit, s.limit_for({}));
        const auto told = numbers_of_all(s, devices_of_an_engine, {&secret, 1}, own);
        run_on_all(ranks, devices_of_an_engine, limit, [&] {
            for (std::size_t r = 0; r < told.size(); ++r)
                if (told[r] != secret)
                    throw usage_error(me, text("hvd: ", devices_of_an_engine, ": its rank ", r,
                                               " is no rank of the engine's communicator"));
        });
    });
}

template <class D>
engine_devices devices_of(const communicator<D>& gpus) {
    engine_devices devices;
    devices.reducing = device_access::session_of(gpus);
    devices.gathering = device_access::gathering_session_of(gpus);
    devices.broadcasting = device_access::broadcasting_session_of(gpus);
    devices.reduces_on_host = reduces_on_host<typename policies_of<D>::reducing>;
    return devices;
}

// The ranks may be different programs.
inline bool all_have_kernels(session& ranks, time_point limit) {
    const std::int64_t mine = has_kernels();
    const auto all = numbers_of_all(ranks, devices_of_an_engine, {&mine, 1}, limit);
    return std::ranges::all_of(all, [](std::int64_t has) { return has != 0; });
}

// The engine's own communicator of devices, on which nobody else makes calls.
template <class Backend, class D>
std::shared_ptr<device_runner> run_on_duplicate(communicator<Backend>& comm,
                                                communicator<D>& gpus) {
    session& ranks = access::session_of(comm);
    const time_point limit = limit_of(start_timeout_of(ranks));
    run_on_all(ranks, devices_of_an_engine, limit, [&] {
        if (!gpus)
            throw usage_error(comm.rank(), text("hvd: ", devices_of_an_engine, " is empty on rank ",
                                                comm.rank()));
    });
    const engine_devices devices = devices_of(gpus);
    check_same_ranks(comm, devices, limit);
    const bool packs = all_have_kernels(ranks, limit);
    std::shared_ptr<device_runner> runner;
    run_on_all(ranks, devices_of_an_engine, limit, [&] {
        const current_device here(devices.reducing->device(), comm.rank());
        engine_devices own = devices_of(gpus.split(0, comm.rank()));
        own.packs = packs;
        runner = std::make_shared<device_runner>(std::move(own));
    });
    return runner;
}

}  // namespace hvd::inline v0::detail
