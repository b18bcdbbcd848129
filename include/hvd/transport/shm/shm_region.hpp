// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "../../core/lean/atomic.hpp"
#include "../../core/tuning.hpp"
#include "../../platform/clock.hpp"
#include "../../protocol/call_header.hpp"
#include "segments.hpp"
#include "sleepers.hpp"

namespace hvd::inline v0::detail {

// The thing that a rank shows to the others in a step.
enum class content : std::uint32_t {
    nothing,
    places,         // where the rank's tensors lie, which all ranks can reach: no data is copied
    data,           // from here on: data
    data_and_room,  // and it has memory for as much from each rank
    deposited,      // data in the deposit of this step
    left,           // the same, and the rank may have left the call
};

// Where the data of a rank lie in its windows, and how.
struct window_layout {
    std::uint64_t at = 0;      // in bytes, from the beginning of the first window
    std::uint64_t rounds = 0;  // how many windows are filled one after another
    std::uint64_t chunk = 0;   // bytes that a peer gets in a round
    std::uint64_t stride = 0;  // distance between the chunks of peers; 0: all peers read the same
};

// A rank arrives at a step by writing this line, which has everything that its peers need in most
// steps. So they wait for one line to come to their processor, and not for several.
struct alignas(tuning::cache_line) step_line {
    atomic<std::uint64_t> step{0};  // the number of the step, written last
    std::uint64_t count = 0, rest = 0;
    std::uint32_t signs = 0;  // with the two before: the digest of the call's header
    content what = content::nothing;
    union {
        window_layout layout{};
        std::byte small[sizeof(window_layout)];  // data, or places, that fit here
    };
};
static_assert(sizeof(step_line) == tuning::cache_line);

// A call that failed after ranks had left it. Those are told in a later call, in which all meet.
struct late_record {
    atomic<std::uint64_t> found{0};  // the call in which this rank found the failure; 0: none
    std::uint64_t failed = 0;        // the call that failed: this one, or one before it
    bool is_thrown = false;          // by this rank; otherwise it is told, too
    collective kind = collective::barrier;
    char name[sizeof(call_header::name)] = {};  // of that call
    char reason[256] = {};
};

// The state that one rank shows to the others of its node. Only that rank writes it, so that a rank
// that dies in the middle leaves nothing locked.
struct alignas(tuning::cache_line) node_slot {
    // By number of the step: a rank that writes one of them has seen every rank arrive after it had
    // read it.
    step_line steps[tuning::steps_kept];
    // How many chunks this rank has brought through each stage of shm_ring, since the beginning.
    alignas(tuning::cache_line) atomic<std::uint64_t> chunks[3];
    alignas(tuning::cache_line) atomic<std::uint32_t> left{0};
    atomic<std::uint32_t> reaches{0};  // the rank may be reading or writing tensors of others
    atomic<std::int64_t> process{0};   // 0: a thread; -1: a process that can't be asked about
    atomic<std::uint64_t> unmade{0};   // the last communicator that this rank could not make
    atomic<std::uint64_t> word{0};     // of its process: others try whether they can read it there
    std::uint64_t started = 0;         // when the process was started (process_status)
    processor_set processors;          // the processors that this rank may run on
    std::int32_t culprit = -1;         // it left because this rank was gone; -1: for its own sake
    char farewell[256] = {};
    late_record late[2];  // the last two
    // By number of the collective: read by peers until they have arrived at later steps.
    alignas(tuning::cache_line) call_header entry[tuning::steps_kept];
};
static_assert((tuning::steps_kept & (tuning::steps_kept - 1)) == 0 &&
              tuning::steps_kept > 2 * tuning::most_ahead + 2 &&
              tuning::deposits > tuning::most_ahead);

// How many calls have failed on a rank after others had left them, and how many ranks have left. A
// rank that does not know of all of them leaves no call.
struct alignas(tuning::cache_line) late_failures {
    atomic<std::uint64_t> count{0};
};

// How a rank shows the data of a message: the place where it lies, or two windows for its chunks,
// which follow this line.
struct alignas(tuning::cache_line) message_line {
    content what = content::nothing;
    std::byte where[sizeof(place)] = {};
};

// The memory that all ranks of a node have mapped: a slot for each rank, what messages between two
// of them need, its windows, a ring that is filled one after another, and its deposits. It also
// knows the segments in which the ranks can reach each other's tensors.
class shm_region {
public:
    // The size of a window: whole pages, and at least one page for each rank.
    static std::size_t window_for(int ranks, std::size_t requested) {
        const std::size_t least = std::size_t(ranks) * shared_memory::whole_pages(1);
        return shared_memory::whole_pages(requested < least ? least : requested);
    }
    static std::size_t bytes(int ranks, std::size_t window) {
        return deposits_of(ranks, ranks, window);
    }
    // The offset of a rank's windows.
    static std::size_t windows_of(int rank, int ranks, std::size_t window) {
        return slots_bytes(ranks) + tuning::windows * std::size_t(rank) * window;
    }
    // The offset of a rank's deposits, behind all windows: whole pages, which many programs do not
    // touch.
    static std::size_t deposits_of(int rank, int ranks, std::size_t window) {
        return windows_of(ranks, ranks, window) + std::size_t(rank) * deposits_bytes;
    }

    shm_region(void* memory, int ranks, std::size_t window, shared<segments> reachable)
        : memory_(static_cast<std::byte*>(memory)),
          ranks_(ranks),
          window_(window),
          reachable_(std::move(reachable)) {}

    // Called by one rank, before the others look.
    void construct() const {
        for (int r = 0; r < ranks_; ++r)
            ::new (memory_ + std::size_t(r) * sizeof(node_slot)) node_slot;
        ::new (memory_ + std::size_t(ranks_) * sizeof(node_slot)) sleepers;
        ::new (static_cast<void*>(&failures())) late_failures;
        for (int r = 0; r < ranks_; ++r) {
            for (int p = 0; p < ranks_; ++p)
                ::new (static_cast<void*>(&progress(r, p))) atomic<std::uint64_t>{0};
            ::new (static_cast<void*>(&line_of_messages(r))) message_line;
        }
    }

    // The slots of all ranks, and their windows, one rank's after another's.
    node_slot* slots() const { return std::launder(reinterpret_cast<node_slot*>(memory_)); }
    std::byte* windows() const { return memory_ + slots_bytes(ranks_); }
    node_slot& slot(int rank) const { return slots()[rank]; }
    // They sleep until all ranks have arrived, or one leaves.
    sleepers& all_sleepers() const {
        std::byte* const behind_slots = memory_ + std::size_t(ranks_) * sizeof(node_slot);
        return *std::launder(reinterpret_cast<sleepers*>(behind_slots));
    }

    late_failures& failures() const {
        return *reinterpret_cast<late_failures*>(memory_ + std::size_t(ranks_) * sizeof(node_slot) +
                                                 sizeof(sleepers));
    }
    // The data that a rank leaves to the others in a step.
    std::byte* deposit(int rank, std::uint64_t step) const {
        return memory_ + deposits_of(rank, ranks_, window_) +
               std::size_t(step % tuning::deposits) * tuning::deposit_bytes;
    }

    // How far rank `from` has come in its messages with rank `to`. Only `from` writes it.
    atomic<std::uint64_t>& progress(int from, int to) const {
        std::byte* const row =
            memory_ + before_messages(ranks_) + std::size_t(from) * progress_bytes(ranks_);
        return reinterpret_cast<atomic<std::uint64_t>*>(row)[to];
    }
    // A rank sends one message at a time.
    message_line& line_of_messages(int rank) const {
        return *reinterpret_cast<message_line*>(
            memory_ + before_messages(ranks_) + std::size_t(ranks_) * progress_bytes(ranks_) +
            std::size_t(rank) * (sizeof(message_line) + 2 * tuning::message_window));
    }
    std::byte* message_window(int rank, std::size_t number) const {
        return reinterpret_cast<std::byte*>(&line_of_messages(rank) + 1) +
               number * tuning::message_window;
    }

    // Tells the others that a rank leaves, and why. It may leave since another rank, the culprit,
    // was gone. The first reason is kept.
    void leave(int rank, std::string_view reason, int culprit = -1) const noexcept {
        node_slot& mine = slot(rank);
        if (mine.left.load_relaxed() != 0) return;
        mine.culprit = culprit;
        store(mine.farewell, reason);
        mine.left.exchange(1);
        failures().count.add(1);
        if (all_sleepers().are_there()) all_sleepers().ring();
    }

    bool has_left(int rank) const { return slot(rank).left.load() != 0; }

    // The processors that each rank has for itself; 0 if ranks outnumber the processors that they
    // run on. The same on all ranks, once all have told their processors.
    int processors_each() const {
        processor_set all;
        for (int r = 0; r < ranks_; ++r) all.add(slot(r).processors);
        return all.count() / ranks_;
    }

    // Every rank of the node can read the private memory of every other one.
    bool reads_private() const { return reads_private_; }
    void set_reads_private(bool all_can) { reads_private_ = all_can; }
    // Copies private memory of a rank. Returns 0, or why the system refuses.
    int read_private(int rank, std::uint64_t address, std::byte* to, std::size_t bytes) const {
        return read_memory_of(pid_t(slot(rank).process.load_relaxed()),
                              reinterpret_cast<const void*>(std::uintptr_t(address)), to, bytes);
    }

    int ranks() const { return ranks_; }
    std::size_t window_bytes() const { return window_; }
    segments& reachable() const { return *reachable_; }

private:
    static constexpr std::size_t deposits_bytes =
        shared_memory::whole_pages(tuning::deposits * tuning::deposit_bytes);
    static std::size_t slots_bytes(int ranks) {
        return shared_memory::whole_pages(
            before_messages(ranks) +
            std::size_t(ranks) *
                (progress_bytes(ranks) + sizeof(message_line) + 2 * tuning::message_window));
    }
    static std::size_t before_messages(int ranks) {
        return std::size_t(ranks) * sizeof(node_slot) + sizeof(sleepers) + sizeof(late_failures);
    }
    // The counters of a rank, in cache lines of its own.
    static std::size_t progress_bytes(int ranks) {
        const std::size_t bytes = std::size_t(ranks) * sizeof(atomic<std::uint64_t>);
        return (bytes + tuning::cache_line - 1) / tuning::cache_line * tuning::cache_line;
    }

    std::byte* memory_;
    int ranks_;
    std::size_t window_;
    bool reads_private_ = false;
    shared<segments> reachable_;
};

}  // namespace hvd::inline v0::detail
