// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <compare>
#include <tuple>

#include "../../transport/tcp/rendezvous_messages.hpp"

namespace hvd::inline v0::detail {

// Says which state a process has: the last step that it has committed, and the epoch in which it
// did so. A new process has committed nothing, or an earlier job has, in epoch 0. Steps of this job
// count more than those of an earlier one.
struct state_stamp {
    std::int64_t step = -1;
    std::uint64_t epoch = 0;

    friend bool operator==(const state_stamp&, const state_stamp&) = default;
    friend auto operator<=>(const state_stamp& a, const state_stamp& b) {
        return std::tuple(a.epoch > 0, a.step, a.epoch) <=>
               std::tuple(b.epoch > 0, b.step, b.epoch);
    }
};

// A process of an elastic job, as the others know it.
struct elastic_member {
    std::uint64_t id = 0;         // a random number that it has chosen
    std::int64_t started_as = 0;  // the rank that the launcher gave it
    listening_place place;        // for the connections of the next epoch
    listening_place coordinator;  // where it listens as a coordinator
    std::uint64_t network = 0;    // network_identity()
};

// The most ranks of an elastic job. It bounds the size of a message.
inline constexpr std::size_t most_members = 4096;

// An epoch, as one of its members tells of it.
struct told_epoch {
    std::uint64_t number = 0;            // 0: there was none
    std::uint64_t served_by = 0;         // the process that coordinated it; 0: a launcher
    std::vector<std::uint64_t> members;  // by rank

    bool has(std::uint64_t id) const { return std::ranges::find(members, id) != members.end(); }
    bool operator==(const told_epoch&) const = default;
};

// The head of an epoch in a message.
struct epoch_head {
    std::uint64_t number = 0, served_by = 0;
    std::uint32_t members = 0, unused = 0;
};

// The begin of each message of a process to the coordinator.
struct member_head {
    static constexpr std::uint32_t current = 3;
    enum word : std::uint32_t { joins, works, finds_gone };

    std::uint32_t version = current;
    word what = joins;
};

// A process comes to the coordinator, at first and after each epoch. The ids of the members of both
// epochs follow, by rank. It has recorded an epoch when it was connected to all members. An epoch
// has worked when all of them have recorded it.
struct join_message {
    static constexpr std::size_t most_bytes();

    member_head head;
    std::uint8_t finished = 0;  // 1: it has done all its steps
    std::uint8_t leaves = 0;    // 1: it goes to another coordinator, and lives
    std::uint8_t saw_end = 0;   // 1: the process `ended` has closed its connection
    std::uint8_t is_brief = 0;  // 1: it is sent on sooner
    std::uint32_t unused = 0;
    elastic_member self;
    state_stamp stamp;
    epoch_head worked, recorded;
    std::uint64_t ended = 0;
};
constexpr std::size_t join_message::most_bytes() {
    return sizeof(join_message) + 2 * most_members * sizeof(std::uint64_t);
}

// A member tells a launcher how far it is. The launcher does not answer.
struct work_message {
    member_head head = {member_head::current, member_head::works};
    std::int64_t step = 0;     // that is committed
    std::int64_t samples = 0;  // of all steps that this process has committed so far
};

// The coordinator says one of these. Then come the members of the epoch, by rank, or those whom to
// ask instead, and the reason of a refusal.
struct coordinator_message {
    enum word : std::uint32_t {
        epoch_begins,
        epoch_ends,   // a member has left it or is lost
        others_wait,  // who want to be members
        still_waits,  // the coordinator lives, and others have not come
        try_another,
        job_has_ended,
        refused,
    };
    static constexpr std::size_t most_reason = 1024;
    static constexpr std::size_t most_bytes();

    word what = refused;
    std::uint32_t rank = 0, size = 0;
    std::uint32_t source = 0;  // the rank whose state all take
    std::uint32_t equal = 0;   // 1: all have that state
    std::uint32_t unused = 0;
    state_stamp stamp;  // the state of the source
    std::uint64_t epoch = 0;
    std::uint64_t served_by = 0;
    std::uint64_t job = 0;  // a random number for the connections of this epoch
};
constexpr std::size_t coordinator_message::most_bytes() {
    return sizeof(coordinator_message) + most_members * sizeof(elastic_member) + most_reason;
}

// A join_message as it was read.
struct join_request {
    join_message said;
    told_epoch worked, recorded;
};

inline epoch_head head_of(const told_epoch& epoch) {
    return {epoch.number, epoch.served_by, std::uint32_t(epoch.members.size()), 0};
}

// Takes the members of an epoch from the front of the bytes.
inline bool take_epoch(const epoch_head& head, std::span<const std::byte>& bytes,
                       told_epoch& epoch) {
    const std::size_t size = head.members * sizeof(std::uint64_t);
    if (head.members > most_members || size > bytes.size()) return false;
    if ((head.number == 0) != (head.members == 0)) return false;
    epoch = {head.number, head.served_by, std::vector<std::uint64_t>(head.members)};
    if (size > 0) std::memcpy(epoch.members.data(), bytes.data(), size);
    bytes = bytes.subspan(size);
    return true;
}

// Reads the begin of what a process says. Returns why it can't be, or an empty text; so do those
// that read the rest.
inline const char* read_head(std::span<const std::byte> bytes, member_head& head) {
    if (bytes.size() < sizeof head) return "its message is too short";
    std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof head);
    if (head.version != member_head::current) return "it speaks another version of the protocol";
    if (head.what > member_head::finds_gone) return "its message has no meaning";
    return "";
}

inline const char* read_work(std::span<const std::byte> bytes, work_message& said) {
    if (bytes.size() != sizeof said) return "its message has a wrong size";
    std::memcpy(static_cast<void*>(&said), bytes.data(), sizeof said);
    return said.step < 0 || said.samples < 0 ? "it counts less than nothing" : "";
}

// A process that has joined tells the numbers of those that are gone for certain.
inline const char* read_gone(std::span<const std::byte> bytes, std::vector<std::uint64_t>& ids) {
    bytes = bytes.subspan(sizeof(member_head));
    if (bytes.size() % sizeof(std::uint64_t) != 0) return "its message has a wrong size";
    ids.resize(bytes.size() / sizeof(std::uint64_t));
    if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
    return "";
}

inline const char* read_join(std::span<const std::byte> bytes, join_request& request) {
    join_message& said = request.said;
    if (bytes.size() < sizeof said) return "its message is too short";
    std::memcpy(static_cast<void*>(&said), bytes.data(), sizeof said);
    bytes = bytes.subspan(sizeof said);
    if (!take_epoch(said.worked, bytes, request.worked) ||
        !take_epoch(said.recorded, bytes, request.recorded) || !bytes.empty())
        return "the members of its epochs have a wrong size";
    if (said.self.id == 0) return "it has no number";
    if (said.self.place.addresses > listening_place::most_addresses ||
        said.self.coordinator.addresses > listening_place::most_addresses)
        return "it gives too many addresses";
    return "";
}

}  // namespace hvd::inline v0::detail
