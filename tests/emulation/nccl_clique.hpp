// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nccl_calls.hpp"

// The data that the ranks of one communicator share. It is in a segment of shared memory, since
// ranks are threads of one process or processes. Each rank writes its own part and never waits for
// a lock of another process. What it has written counts once its number is there. So a process that
// is killed at any moment leaves the others as NCCL would: they wait for it until they abort.
namespace emulated_nccl {

using emulation::call;
using emulation::kind;

constexpr int most_ranks = 16;

// A collective to which a rank has come.
struct posted_call {
    std::atomic<std::uint64_t> number;  // that of the call plus 1
    call what;
    std::size_t payload;                 // what the rank brings, in its part
    std::atomic<bool> given_up;          // the rank was aborted in it
    std::atomic<bool> reduced;           // its slice of an allreduce
    std::atomic<std::uint32_t> readers;  // bits of the ranks that need it no more
};

struct posted_message {
    std::size_t payload, bytes;
};

// A rank that makes a communicator from another, or a window.
struct posted_arrival {
    std::atomic<std::uint64_t> number;  // that of the meeting plus 1, or 0: it has left again
    int flavour, color, key;
    std::uint64_t area;  // it has this one to offer for the communicator
};

// The part of one rank. The memory is zero at first.
struct rank_part {
    static constexpr std::size_t most_calls = 256, most_messages = 4096, most_arrivals = 16;

    std::atomic<pid_t> process;  // 0: the rank has not come
    std::atomic<bool> is_dead;   // its network is lost
    std::atomic<bool> is_gone;   // it was aborted or revoked, or has ended
    // The rank connects for collectives, and for messages to and from others.
    std::atomic<bool> connects, sends_to[most_ranks], receives_from[most_ranks];
    posted_call calls[most_calls];
    posted_arrival arrivals[most_arrivals];
    std::atomic<std::uint64_t> sent[most_ranks], taken[most_ranks];
    posted_message messages[most_ranks][most_messages];
    // The number of growths for which it has taken the id, and the growth of which it made one.
    std::atomic<std::uint64_t> growths_taken, growth_made;
    ncclUniqueId growth_id;
};

// The memory of a communicator and of those that descend from it. An id names its file, which has
// no path: it is there as long as a process has it open or mapped.
class shared_file {
public:
    // A new file is kept until all ranks have come, or to the end of the process.
    static std::shared_ptr<shared_file> make();
    // Returns a file that has nobody else if the process that made it has ended.
    static std::shared_ptr<shared_file> named(const ncclUniqueId& id);
    static void forget_all();

    shared_file(int file, std::uint64_t key);
    shared_file(const shared_file&) = delete;
    ~shared_file();

    ncclUniqueId id() const;
    std::byte* map(std::uint64_t at, std::size_t bytes) const;
    std::uint64_t new_area() { return header_->areas.fetch_add(1) + 1; }
    // All ranks have it: nobody opens it any more.
    void is_known_to_all();

private:
    struct header {
        std::atomic<std::uint64_t> key, areas;
    };

    int file_;
    std::uint64_t key_;
    header* header_;
};

// An area of the file, as one rank of its communicator sees it.
class clique {
public:
    clique(std::shared_ptr<shared_file> file, std::uint64_t area, int size, int rank);
    clique(const clique&) = delete;
    ~clique();

    const int size, rank;
    const std::shared_ptr<shared_file> file;

    rank_part& part(int of) const { return *reinterpret_cast<rank_part*>(begin_of(of)); }
    rank_part& own() const { return part(rank); }

    bool is_complete() const;
    bool has_dead_rank() const;
    // False if a rank is of another process, which can't wake this one, or has not come yet.
    bool is_within_this_process() const;

    // Collectives. A post needs room, and copies what the rank brings.
    bool has_room_for_call(std::uint64_t number, std::size_t bytes);
    void post(std::uint64_t number, const call& what, bool is_given_up);
    bool have_come_to(std::uint64_t number) const;
    bool has_been_given_up(std::uint64_t number) const;
    bool have_reduced(std::uint64_t number) const;
    posted_call& call_of(int of, std::uint64_t number) const {
        return part(of).calls[number % rank_part::most_calls];
    }
    emulation::collective seen(std::uint64_t number) const;
    // True if the rank's input is still what it was when it came.
    bool input_is_as_posted(std::uint64_t number) const;
    // The rank needs nothing of the others any more.
    void leave_call(std::uint64_t number);
    // The rank takes part in nothing any more. Calls to which not all have come are given up.
    void leave();

    // Messages, which a rank takes in the order in which another has sent them.
    bool has_room_for_message(int to, std::size_t bytes);
    void send(int to, const std::byte* data, std::size_t bytes);
    bool has_message(int from) const;
    std::span<const std::byte> message(int from) const;
    void take_message(int from);

    // Meetings.
    struct came {
        int color, key, rank;
        std::uint64_t area;
    };
    void arrive(std::uint64_t meeting, int flavour, int color, int key, std::uint64_t area);
    void leave_meeting(std::uint64_t meeting);
    std::vector<came> arrivals(std::uint64_t meeting, int flavour) const;

    // Growths. The id of the next one is empty until a rank has made it.
    bool last_growth_is_complete() const;
    void make_growth(const ncclUniqueId& id);
    const ncclUniqueId* next_growth() const;

private:
    struct lease {  // of a place in the rank's own part
        std::size_t begin, end;
        int to;                // the receiver of a message, or -1: of a call
        std::uint64_t number;  // of the message or the call
    };

    std::byte* begin_of(int of) const;
    std::byte* payload(int of, std::size_t at) const { return begin_of(of) + at; }
    bool is_over(const lease& l) const;
    bool is_read_by_all(const posted_call& posted) const;
    std::size_t room_for(std::size_t bytes) const;
    bool has_room(std::size_t bytes);
    std::size_t take_room(std::size_t bytes, int to, std::uint64_t number);
    std::uint64_t growths_made() const;

    std::byte* memory_;
    std::vector<lease> leases_;  // in the order of their places
};

}  // namespace emulated_nccl
