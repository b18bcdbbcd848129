// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <atomic>
#include <exception>
#include <new>
#include <string>

#include "../collective/support.hpp"

// One rank runs out of memory at its n-th allocation, for every n until a call succeeds. All ranks
// end the call, and are in step afterwards.

namespace hvd_test {

enum class shortage { once, from_then_on };

// While it exists, this rank has memory for a number of allocations only (scarce_memory.cpp).
class scarce_memory {
public:
    // `all_kinds`: also for pages and texts, where the linker lets a program see these.
    scarce_memory(bool here, long allocations, shortage how, bool all_kinds = false);
    ~scarce_memory();
    // True if an allocation of this rank has failed since the last one was made.
    static bool has_failed();
};

// A number of allocations, of all kinds. The threads to which it is given have memory for no more.
class memory_supply {
public:
    memory_supply(long allocations, shortage how) : left_(allocations), how_(how) {}

    static void give_to_this_thread(memory_supply* own);  // null: it has memory again
    bool is_spent();                                      // called by an allocation
    bool has_failed() const { return has_failed_; }

private:
    std::atomic<long> left_;
    const shortage how_;
    std::atomic<bool> has_failed_ = false;
};

enum class outcome { success, no_memory, told_by_peer, other };

template <class F>
outcome outcome_of(F f, std::string& what) {
    try {
        f();
        return outcome::success;
    } catch (const std::bad_alloc&) {
        return outcome::no_memory;
    } catch (const hvd::peer_error& e) {
        what = e.what();
        return outcome::told_by_peer;
    } catch (const std::exception& e) {
        what = e.what();
        return outcome::other;
    }
}

// Returns the largest of all ranks' numbers.
template <class Comm>
int most_of(Comm& comm, int mine) {
    comm.allreduce(mine, hvd::max);
    return mine;
}

}  // namespace hvd_test
