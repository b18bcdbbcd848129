// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdio>
#include <string_view>

#include "lean/atomic.hpp"

namespace hvd::inline v0 {

/// Receives a line that hvd writes, without its end. It is called by any thread, also by several at
/// once. It must not throw, and must not call hvd.
using message_sink = void (*)(std::string_view line);

namespace detail {

inline void write_to_stderr(std::string_view line) {
    std::fprintf(stderr, "%.*s\n", int(line.size()), line.data());
}

// All parts of a program have one sink, so that it is a variable of the process: a function
// pointer, which is constant until somebody replaces it.
[[gnu::visibility("default")]] inline constinit atomic<message_sink> present_sink{&write_to_stderr};

inline void write_line(std::string_view line) { present_sink.load()(line); }

}  // namespace detail

/// Replaces the function that gets everything hvd writes, and returns the one before. A null
/// pointer is standard error, where hvd writes unless told otherwise.
///
/// hvd writes that a rank waits for others (see `communicator_options::waiting_notice`), and why it
/// aborts a job. **Threads**: may be called by any thread.
/// @snippet tests/docs/snippets.cpp message_sink
inline message_sink set_message_sink(message_sink sink) noexcept {
    return detail::present_sink.exchange(sink != nullptr ? sink : &detail::write_to_stderr);
}

}  // namespace hvd::inline v0
