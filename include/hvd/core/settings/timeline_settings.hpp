// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "setting.hpp"
#include "timeline_options.hpp"

namespace hvd::inline v0::detail {

template <>
struct settings_of<timeline_options> {
    using o = timeline_options;

    static constexpr setting table[] = {
        entry<&o::file>("timeline.file", "HVD_TIMELINE_FILE", "HOROVOD_TIMELINE",
                        "records a timeline to this file of each rank, `{rank}` is its number"),
        needed("disks with little room",
               in_bytes(entry<&o::max_bytes>("timeline.max_bytes", "HVD_TIMELINE_MAX_BYTES", "",
                                             "ends the recording when the file is as long"),
                        65536, 1024 * std::int64_t(tuning::GiB))),
        entry<&o::mark_units>("timeline.mark_units", "HVD_TIMELINE_MARK_UNITS",
                              "HOROVOD_TIMELINE_MARK_CYCLES",
                              "marks each unit of an engine, which is Horovod's cycle"),
    };
};

}  // namespace hvd::inline v0::detail
