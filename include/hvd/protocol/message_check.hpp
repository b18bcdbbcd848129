// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "comparison.hpp"

namespace hvd::inline v0::detail {

// True if the header is that of a message to or from this rank. Both ranks of a message know then
// what the other one calls, also where the two do not fit.
inline bool is_message_with(int me, const call_header& theirs) {
    return is_message(theirs.kind) && theirs.root == me;
}

// The first field in which the two headers of a message do not fit.
[[gnu::cold]] inline field message_difference(int me, const call_header& mine,
                                              const call_header& theirs) {
    if (!is_message_with(me, theirs) || theirs.kind == mine.kind) return field::collective;
    call_header turned = theirs;
    turned.kind = mine.kind;
    turned.root = mine.root;
    return first_difference(turned, mine);
}

[[gnu::cold, noreturn]] inline void throw_message_difference(int me, const call_header& mine,
                                                             const call_header& theirs, field f) {
    const int other = mine.root;
    const message said = print_field(mine, f), others_said = print_field(theirs, f);
    const mismatch_error::entry own{me, said}, others{other, others_said};
    const mismatch_error::entry values[] = {me < other ? own : others, me < other ? others : own};
    throw_mismatch(me, mine.label(), field_names[int(f)], {values, 2}, table_style::one_line);
}

// Throws on both ranks of a message if one refuses it, or if their headers do not fit.
inline void check_message(int me, const call_header& mine, const call_header& theirs) {
    if (mine.refused) throw usage_error(me, text(std::string_view(mine.text), " (rank ", me, ")"));
    if (theirs.refused && is_message_with(me, theirs))
        throw peer_error(me,
                         text("hvd: ", mine.label(), " on rank ", me, ": rank ", mine.root,
                              " refused it: ", std::string_view(theirs.text)),
                         {mine.root});
    const field f = message_difference(me, mine, theirs);
    if (f != field::none) [[unlikely]]
        throw_message_difference(me, mine, theirs, f);
}

}  // namespace hvd::inline v0::detail
