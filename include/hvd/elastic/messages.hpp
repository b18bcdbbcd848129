// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <compare>

#include "../transport/tcp/rendezvous_messages.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Says which state a process has: the last step that it has committed, and the epoch in which it
// did so. A new process has committed nothing.
struct state_stamp {
    std::int64_t step = -1;
    std::uint64_t epoch = 0;

    friend auto operator<=>(const state_stamp&, const state_stamp&) = default;
};

// A process of an elastic job, as the others know it.
struct elastic_member {
    std::uint64_t id = 0;         // a random number that it has chosen
    listening_place place;        // for the connections of the next epoch
    listening_place coordinator;  // where it listens as a coordinator
};

// The most ranks of an elastic job. It bounds the size of a message.
inline constexpr std::size_t most_members = 4096;

// A process comes to the coordinator, at first and after each epoch. The ids of the members of its
// last epoch follow, by rank.
struct join_message {
    static constexpr std::uint32_t current = 1;
    static constexpr std::size_t most_bytes();

    std::uint32_t version = current;
    std::uint32_t finished = 0;  // 1: it has done all its steps
    elastic_member self;
    state_stamp stamp;
    std::uint64_t epoch = 0;      // its last one; 0: none
    std::uint64_t served_by = 0;  // the process that coordinated that epoch; 0: a launcher
};
constexpr std::size_t join_message::most_bytes() {
    return sizeof(join_message) + most_members * sizeof(std::uint64_t);
}

// The coordinator says one of these. The members follow an epoch, by rank, and the reason follows a
// refusal.
struct coordinator_message {
    enum word : std::uint32_t { epoch_begins, job_has_ended, others_wait, try_another, refused };
    static constexpr std::size_t most_reason = 1024;
    static constexpr std::size_t most_bytes();

    word what = refused;
    std::uint32_t rank = 0, size = 0;
    std::uint32_t source = 0;  // the rank whose state all take
    std::uint32_t equal = 0;   // 1: all have that state
    std::uint32_t unused = 0;
    state_stamp stamp;  // the state of the source
    std::uint64_t epoch = 0;
    std::uint64_t served_by = 0;  // as above
    std::uint64_t job = 0;        // a random number for the connections of this epoch
};
constexpr std::size_t coordinator_message::most_bytes() {
    return sizeof(coordinator_message) + most_members * sizeof(elastic_member);
}

// A message that was received: its head, and what follows it.
struct join_request {
    join_message said;
    std::vector<std::uint64_t> members;  // of its last epoch
};

// Reads what a process says. Returns why it can't be, or an empty text.
inline const char* read_join(std::span<const std::byte> bytes, join_request& request) {
    join_message& said = request.said;
    if (bytes.size() < sizeof said) return "its message is too short";
    std::memcpy(static_cast<void*>(&said), bytes.data(), sizeof said);
    if (said.version != join_message::current) return "it speaks another version of the protocol";
    bytes = bytes.subspan(sizeof said);
    const std::size_t count = bytes.size() / sizeof(std::uint64_t);
    if (bytes.size() % sizeof(std::uint64_t) != 0 || count > most_members)
        return "its message has a wrong size";
    if ((said.epoch == 0) != (count == 0)) return "its last epoch does not fit its members";
    if (said.self.id == 0) return "it has no number";
    if (said.self.place.addresses > listening_place::most_addresses ||
        said.self.coordinator.addresses > listening_place::most_addresses)
        return "it gives too many addresses";
    request.members.resize(count);
    if (count > 0) std::memcpy(request.members.data(), bytes.data(), bytes.size());
    return "";
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
