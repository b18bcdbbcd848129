// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../comm/communicator.hpp"
#include "../protocol/call_header.hpp"
#include "post_refusal.hpp"
#include "refuse.hpp"
#include "unequal.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The value of a field that all ranks must have alike.
struct statement {
    const char* field;
    std::string value;
};

template <class... Parts>
std::string words(const Parts&... parts) {
    return std::string(std::string_view(text(parts...)));
}

inline std::string shown(const std::vector<std::size_t>& shape) {
    std::string all = "[";
    for (std::size_t d = 0; d < shape.size(); ++d) all += text(d ? ", " : "", shape[d]);
    return all + "]";
}

// **Collective**. The first message of what ranks do together: each sends a hash of what all are to
// say alike, and a number. Every call begins with one of the same form, so that ranks that are in
// different calls find that out, too.
template <class Comm>
class agreement {
public:
    agreement(Comm& comm, const char* name, hash said, std::uint64_t number = 0)
        : comm_(comm), name_(name) {
        const std::uint64_t mine[] = {said.add(name).value(), number};
        // A row of two: no other call's numbers are taken for it.
        const auto all = comm.allgather(view(mine, shape(1, 2)), {.name = name});
        for (std::size_t r = 0; r < all.values.size(); r += 2) {
            reached_ = reached_ && all.values[r] == mine[0];
            total_ += all.values[r + 1];
        }
    }

    bool reached() const { return reached_; }
    std::uint64_t total() const { return total_; }  // of the numbers

    // **Collective**: where one rank has not reached it, none has. Tells what the first difference
    // is.
    [[gnu::cold, noreturn]] void fail(const std::vector<statement>& mine) const {
        std::vector<std::string> values = {name_};  // lists of other calls differ here
        for (const statement& s : mine) values.push_back(s.value);
        const auto all = comm_.allgather_object(values);
        for (std::size_t i = 0; i < values.size(); ++i)
            require_equal_at(all, i, i == 0 ? "call" : mine[i - 1].field);
        refuse(comm_.rank(), name_, ": ranks disagree");
    }

private:
    void require_equal_at(const std::vector<std::vector<std::string>>& all, std::size_t i,
                          const char* field) const {
        std::vector<std::string> said;
        for (const auto& values : all) said.push_back(values[i]);
        require_equal(comm_.rank(), text(name_, ": ranks disagree on ", field), field, said);
    }

    Comm& comm_;
    const char* name_;
    bool reached_ = true;
    std::uint64_t total_ = 0;
};

// The same of what is not said often enough for the words to matter.
template <class Comm>
void agree(Comm& comm, const char* name, const std::vector<statement>& mine) {
    hash said;
    for (const statement& s : mine) said.add(std::string_view(s.field)).add(s.value);
    const agreement<Comm> all(comm, name, said);
    if (!all.reached()) all.fail(mine);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
