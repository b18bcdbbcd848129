// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include <sys/types.h>

#include "file_descriptor.hpp"

namespace hvdrun {

// The signals of the kernel and the user to a job. The first one that ends a process is for the
// main loop to see; the second one kills all ranks and ends hvdrun at once. Those of `passed_on`
// are for the ranks.
class signal_watch {
public:
    explicit signal_watch(const std::set<int>& passed_on);
    signal_watch(const signal_watch&) = delete;
    signal_watch& operator=(const signal_watch&) = delete;
    ~signal_watch();

    // There is something to read when a signal has come; a byte written to `wake()` does the same.
    int number() const { return ends_.read.number(); }
    int wake() const { return ends_.write.number(); }
    void take() const;

    // The signals that came since for the ranks.
    static std::vector<int> take_passed_on();
    // 0, or the signal by which the user ends the job.
    static int asked_to_end();

    // The place of a process among those whose end the kernel has told, by their order. If several
    // end before hvdrun runs again, the kernel tells the first one, and the others come last.
    static std::size_t order_of_end(pid_t id);

    // The second signal kills the group, and tells the shell of another host to do so.
    static void kill_at_second(pid_t group, int input);
    static void forget(pid_t group);

private:
    pipe_ends ends_;
};

// Lets a signal end hvdrun while it has no ranks. The kernel gives the first process of a container
// only those that it handles.
void end_at_signals();
// Signals for the ranks end no job, also while it has none. It comes after end_at_signals().
void ignore_without_ranks(const std::set<int>& passed_on);

}  // namespace hvdrun
