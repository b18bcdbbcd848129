// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "elastic_options.hpp"
#include "setting.hpp"

namespace hvd::inline v0::detail {

template <>
struct settings_of<elastic::bounds> {
    using o = elastic::bounds;

    static constexpr setting table[] = {
        needed("hvdrun sets it, by Horovod's `--min-np`",
               from(1,
                    entry<&o::min_size>("elastic.min_size", "HVD_ELASTIC_MIN_SIZE", "",
                                        "the job waits below it"),
                    "one rank")),
        needed("hvdrun sets it, by Horovod's `--max-np`",
               from(0,
                    entry<&o::max_size>("elastic.max_size", "HVD_ELASTIC_MAX_SIZE", "",
                                        "further processes wait"),
                    "no bound")),
        entry<&o::timeout>("elastic.timeout", "HVD_ELASTIC_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT",
                           "enough ranks have come in this time"),
        needed("ranks that hang on a host that lives",
               entry<&o::straggler_timeout>("elastic.straggler_timeout",
                                            "HVD_ELASTIC_STRAGGLER_TIMEOUT", "",
                                            "a rank that comes later is left out until it comes")),
        needed("hvdrun sets it, by Horovod's `--start-timeout`",
               unless_given("`elastic.timeout`",
                            entry<&o::launcher_timeout>(
                                "elastic.launcher_timeout", "HVD_ELASTIC_LAUNCHER_TIMEOUT", "",
                                "a process that is without its launcher for longer gives up"))),
        needed("hvdrun sets it, by `--secret-file`",
               entry<&o::seal_states>("elastic.seal_states", "HVD_ELASTIC_SEAL_STATES", "",
                                      "files of `persist_in` are sealed with the job's secret")),
    };
};

}  // namespace hvd::inline v0::detail
