// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../platform/shared_memory.hpp"
#include "../protocol/agreement.hpp"

namespace hvd::inline v0::detail {

// The ticket of one rank, which all show theirs: the path travels as the text of a header, the
// numbers as extents.
template <header_channel C>
[[gnu::cold]] shared_memory::ticket ticket_of(C& channel, std::string_view name, int rank,
                                              const shared_memory::ticket& mine) {
    call_header told = agreement_header(name);
    told.dimensions = 3;
    told.extents[0] = mine.id;
    told.extents[1] = mine.device;
    told.extents[2] = mine.file;
    store(told.text, mine.path);
    const call_header theirs = agree(channel, told, never)[std::size_t(rank)];
    shared_memory::ticket t;
    if (theirs.dimensions != told.dimensions) return t;
    store(t.path, theirs.text);
    t.id = theirs.extents[0];
    t.device = theirs.extents[1];
    t.file = theirs.extents[2];
    return t;
}

template <header_channel C>
[[gnu::cold]] bool all_have(C& channel, std::string_view name, bool mine) {
    const std::int64_t told = mine ? 1 : 0;
    for (const std::int64_t has : numbers_of_all(channel, name, {&told, 1}, never))
        if (has == 0) return false;
    return true;
}

// Rank `first` of a node makes a file, which the others of the node map.
template <header_channel C>
[[gnu::cold]] shared_memory opened_together(C& channel, std::string_view name, int first,
                                            std::size_t bytes, bool named) {
    shared_memory memory;
    const bool makes_it = channel.rank() == first;
    if (makes_it) memory = shared_memory::create(bytes, named);
    const shared_memory::ticket ticket = ticket_of(channel, name, first, memory.how_to_open());
    if (!makes_it) memory = shared_memory::open(ticket, bytes);
    if (!all_have(channel, name, bool(memory))) memory = shared_memory::refused(memory.refusal());
    return memory;
}

// A part of a segment, in bytes.
struct segment_part {
    std::size_t begin = 0, end = 0;
};

// Makes a segment that all ranks of a node map. Each rank reserves [begin, end) of it, and another
// part that is mapped when it is used. `first` is the first rank of this rank's node. The segment
// is empty on all ranks of the channel if the system refuses it to one. All of them come, and wait
// for each other in agreements alone.
template <header_channel C>
[[gnu::cold]] shared_memory map_together(C& channel, std::string_view name, int first,
                                         std::size_t bytes, std::size_t begin, std::size_t end,
                                         segment_part untouched = {}) {
    shared_memory memory = opened_together(channel, name, first, bytes, false);
    if (!memory) memory = opened_together(channel, name, first, bytes, true);
    if (!memory) return memory;
    int refusal = memory.reserve(begin, end);
    if (refusal == 0) refusal = memory.reserve_untouched(untouched.begin, untouched.end);
    if (!all_have(channel, name, refusal == 0)) memory = shared_memory::refused(refusal);
    memory.all_have_it();
    return memory;
}

}  // namespace hvd::inline v0::detail
