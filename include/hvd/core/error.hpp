// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdio>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text.hpp"

namespace hvd {
inline namespace v0 {

/// Everything hvd throws. `what()` names the call, the rank and what was expected.
class error : public std::runtime_error {
public:
    error(int rank, const std::string& what) : std::runtime_error(what), rank_(rank) {}

    /// The rank that threw, in the communicator of the call; -1 where there is none.
    int rank() const noexcept { return rank_; }

private:
    int rank_;
};

/// A call that this rank can see to be wrong by itself. Its peers get `peer_error` with the text;
/// the communicator works on.
class usage_error : public error {
public:
    using error::error;
};

/// The ranks disagree about what is being done; thrown on every rank that takes part in the call.
/// The communicator works on. Feature I4.
class mismatch_error : public error {
public:
    using table_type = std::vector<std::pair<int, std::string>>;

    mismatch_error(int rank, const std::string& what, std::string field, table_type table)
        : error(rank, what),
          details_(std::make_shared<details>(details{std::move(field), std::move(table)})) {}

    /// What they disagree about: "element type", "count", "root", …
    const std::string& field() const noexcept { return details_->field; }

    /// Each rank with its value, in rank order.
    const table_type& table() const noexcept { return details_->table; }

private:
    struct details {
        std::string field;
        table_type table;
    };
    std::shared_ptr<const details> details_;  // copying an exception must not throw
};

/// Other ranks refused the call, left, or did not come in time.
///
/// After a refusal the communicator works on; after a dead or late peer it refuses further calls.
class peer_error : public error {
public:
    peer_error(int rank, const std::string& what, std::vector<int> peers)
        : error(rank, what), peers_(std::make_shared<std::vector<int>>(std::move(peers))) {}

    /// The ranks that are the reason.
    const std::vector<int>& peers() const noexcept { return *peers_; }

private:
    std::shared_ptr<const std::vector<int>> peers_;
};

/// A call of MPI failed.
class mpi_error : public error {
public:
    mpi_error(int rank, const char* api, int code, const std::string& text,
              std::source_location where = std::source_location::current())
        : error(rank, detail::text("hvd: ", api, " failed on rank ", rank, " with code ", code, ": ", text, " (",
                                   where.file_name(), ":", where.line(), ")")),
          api_(api), code_(code), where_(where) {}

    /// The function that failed: "MPI_Allreduce".
    const char* api() const noexcept { return api_; }
    /// What it returned.
    int code() const noexcept { return code_; }
    /// Where hvd called it.
    const std::source_location& where() const noexcept { return where_; }

private:
    const char* api_;
    int code_;
    std::source_location where_;
};

/// Where hvd writes the little that it writes: one line without its end, any thread.
using message_sink = void (*)(std::string_view line);

namespace detail {

inline void write_to_stderr(std::string_view line) {
    std::fprintf(stderr, "%.*s\n", int(line.size()), line.data());
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
