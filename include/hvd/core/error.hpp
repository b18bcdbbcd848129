// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <source_location>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lean/handles.hpp"
#include "lean/slice.hpp"
#include "lean/table.hpp"
#include "lean/text.hpp"
#include "version_text.hpp"

namespace hvd::inline v0 {

/// The base of all exceptions that hvd throws. `what()` names the call, the rank and the
/// expectation that failed.
///
/// Copies of an error share its contents, so copying one does not throw.
class error : public std::exception {
public:
    error(int rank, std::string_view what) : what_(shared_text::make(what)), rank_(rank) {}

    const char* what() const noexcept override { return what_->value.c_str(); }

    /// The rank that threw, in the communicator of the call; -1 where there is none.
    int rank() const noexcept { return rank_; }

private:
    using shared_text = detail::shared<detail::counted_value<detail::message>>;
    shared_text what_;
    int rank_;
};

/// This rank alone can see that the call is wrong. Its peers get `peer_error` with the text. The
/// communicator works on.
class usage_error : public error {
public:
    using error::error;
};

/// The ranks disagree about the call. Every rank that takes part in the call throws it. The
/// communicator works on.
class mismatch_error : public error {
public:
    /// A rank and its value as text. The text is valid while some copy of the error lives.
    using entry = std::pair<int, std::string_view>;

    mismatch_error(int rank, std::string_view what, std::string_view field,
                   detail::slice<const entry> table)
        : error(rank, what), details_(detail::shared<details>::make(field, table)) {}

    /// The field that they disagree about: "element type", "count", "root", …
    std::string_view field() const noexcept { return details_->field; }

    /// Each rank with its value, in rank order.
    template <class Entry = entry>  // a template is compiled only where it is used: see slice
    std::span<const Entry> table() const noexcept {
        return std::span<const Entry>(details_->table.data(), details_->table.size());
    }

private:
    struct details final : detail::counted {
        details(std::string_view f, detail::slice<const entry> entries)
            : field(f), table(entries.size()) {
            for (const entry& e : entries) texts += e.second;
            const char* text = texts.c_str();
            for (std::size_t i = 0; i < entries.size(); ++i) {
                table[i] = {entries[i].first, {text, entries[i].second.size()}};
                text += entries[i].second.size();
            }
        }
        detail::message field, texts;
        detail::table<entry> table;
    };
    detail::shared<details> details_;
};

/// Other ranks refused the call, left, or did not come in time (`timeout_error`).
///
/// After a refusal the communicator works on. After a dead or late peer it refuses further calls.
class peer_error : public error {
public:
    peer_error(int rank, std::string_view what, std::vector<int> peers)
        : error(rank, what),
          peers_(detail::shared<detail::counted_value<std::vector<int>>>::make(std::move(peers))) {}

    /// The ranks that refused, left or are late.
    const std::vector<int>& peers() const noexcept { return peers_->value; }

private:
    detail::shared<detail::counted_value<std::vector<int>>> peers_;
};

/// Other ranks did not come in time: a timeout has passed, and `peers()` are late.
///
/// Between nodes every rank that waits for them throws it, whichever timeout passed first. The late
/// ranks get `peer_error`. The communicator refuses further calls.
class timeout_error : public peer_error {
public:
    using peer_error::peer_error;
};

/// A rank gives a NaN or an infinity to a reduction of which the ranks look at what they give:
/// `.check_finite` of a communicator or an optimizer. Every rank that takes part in the call throws
/// it, with the same values, before anything is summed. The communicator works on.
class not_finite_error : public error {
public:
    not_finite_error(int rank, std::string_view what, int source, std::string_view tensor,
                     std::size_t index, double value)
        : error(rank, what),
          tensor_(shared_text::make(tensor)),
          source_(source),
          index_(index),
          value_(value) {}

    /// The rank that gives the value: the lowest of several.
    int source() const noexcept { return source_; }
    /// The words for its tensor where the call has several: "tensor 3", or "gradient 'w1'" of an
    /// optimizer. Empty for a call of one tensor. Valid while some copy of the error lives.
    std::string_view tensor() const noexcept { return tensor_->value; }
    /// The index of the first such element of the tensor, row-major.
    std::size_t index() const noexcept { return index_; }
    /// A NaN or an infinity.
    double value() const noexcept { return value_; }

private:
    using shared_text = detail::shared<detail::counted_value<detail::message>>;
    shared_text tensor_;
    int source_;
    std::size_t index_;
    double value_;
};

/// A call of a library under hvd failed: `mpi_error`, `cuda_error` and `nccl_error` say of which.
class library_error : public error {
public:
    library_error(int rank, const char* api, int code, std::string_view text,
                  std::source_location where)
        : error(rank, detail::text("hvd: ", api, " failed on rank ", rank, " with code ", code,
                                   ": ", text, " (", where.file_name(), ":", where.line(), ")")),
          api_(api),
          code_(code),
          where_(where) {}

    /// The function that failed: "MPI_Allreduce".
    const char* api() const noexcept { return api_; }
    /// The code that the function returned.
    int code() const noexcept { return code_; }
    /// The place where hvd called it.
    const std::source_location& where() const noexcept { return where_; }

private:
    const char* api_;
    int code_;
    std::source_location where_;
};

/// A call of MPI failed.
class mpi_error : public library_error {
public:
    // nvcc takes no inherited constructor whose default is the place of the call.
    mpi_error(int rank, const char* api, int code, std::string_view text,
              std::source_location where = std::source_location::current())
        : library_error(rank, api, code, text, where) {}
};

namespace detail {

// `timed_out`: the others are named since they did not come in time.
[[gnu::cold, noreturn]] inline void throw_peer_error(bool timed_out, int rank,
                                                     std::string_view what,
                                                     std::vector<int> peers) {
    if (timed_out) throw timeout_error(rank, what, std::move(peers));
    throw peer_error(rank, what, std::move(peers));
}

// These two are called where a failure is told, perhaps that of a rank without memory.
inline message what_of(const std::exception_ptr& failure) noexcept {
    try {
        std::rethrow_exception(failure);
    } catch (const std::exception& e) {
        return text_or(no_memory_for_text, e.what());
    } catch (...) {
        return message::fixed("unknown exception");
    }
}

// The ranks that a peer_error names.
inline std::vector<int> peers_of(const std::exception_ptr& failure) noexcept {
    try {
        try {
            std::rethrow_exception(failure);
        } catch (const peer_error& e) {
            return e.peers();
        }
    } catch (...) {  // another exception, or no memory for the ranks
    }
    return {};
}

// The exception that `make` returns, or the one that it throws for want of memory.
template <class Make>
std::exception_ptr made_or_thrown(Make&& make) noexcept try {
    return std::make_exception_ptr(make());
} catch (...) {
    return std::current_exception();
}

}  // namespace detail
}  // namespace hvd::inline v0
