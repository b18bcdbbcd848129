// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "../core/dtype.hpp"

namespace hvd {
inline namespace v0 {

/// The data that an observer receives about a collective. The texts are valid only during the call.
struct event {
    std::string_view collective;  ///< "allreduce", "broadcast", …
    std::string_view name;        ///< from the call's options
    dtype id;                     ///< element type
    std::size_t bytes;            ///< the bytes that this rank contributes
    int rank;
    int size;
    std::int64_t time;  ///< time on the steady clock, in nanoseconds
};

/// Receives events and never calls back. `on_begin` is called when a collective starts to move
/// data, `on_end` when it ends or fails. Both run on the thread that runs the collective, one at a
/// time per communicator.
///
/// If `on_begin` throws, the call is refused: this rank throws the exception, and its peers
/// `hvd::peer_error` with the text. An exception of `on_end` is thrown when the call is complete,
/// or ignored if the call has failed. The communicator works on.
template <class O>
concept observer = std::default_initializable<O> && requires(O& o, const event& e, bool succeeded) {
    o.on_begin(e);
    o.on_end(e, succeeded);
};

}  // namespace v0
}  // namespace hvd
