// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>

#include "framed_socket.hpp"
#include "handshake.hpp"
#include "listening_place.hpp"

namespace hvd::inline v0::detail {

// A rank's message to the rendezvous, once each has proved that it knows the secret.
struct registration {
    static constexpr std::uint32_t current = 1;

    std::uint32_t version = current;
    std::int32_t size = 0;  // of the job, as the rank knows it
    listening_place place;
};

// The answer has a head, and then the places of all ranks, by rank, or the reason of a refusal.
struct rendezvous_answer {
    static constexpr std::size_t most_reason = 1024;

    std::uint16_t accepted = 0;
    std::uint16_t timed_out = 0;  // of a refusal: ranks did not come in time
    std::uint32_t size = 0;
    std::uint64_t job = 0;  // a random number that all ranks get

    static constexpr std::size_t most_bytes(int size) {
        const std::size_t places = std::size_t(size) * sizeof(listening_place);
        return sizeof(rendezvous_answer) + (places > most_reason ? places : most_reason);
    }
};

template <class T>
std::span<const std::byte> wire_bytes(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return {reinterpret_cast<const std::byte*>(&value), sizeof value};
}

}  // namespace hvd::inline v0::detail
