// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>

#include "../backend/operation.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What a call needs of its communicator. Who only uses communicators compiles no more than this; what
// is behind it (engine.hpp) is compiled where communicators are made.
class session : public std::enable_shared_from_this<session> {
public:
    session(int rank, int size, const communicator_options& options) : options_(options), work_(size), rank_(rank), size_(size) {}
    virtual ~session() = default;
    session(const session&) = delete;
    session& operator=(const session&) = delete;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    workspace& work() noexcept { return work_; }
    const communicator_options& options() const noexcept { return options_; }
    int next_context() noexcept { return ++contexts_; }
    std::uint64_t next_plan() noexcept { return ++plans_; }

    // A blocking call, after all that were made before it.
    virtual void run(operation& op, time_span deadline) = 0;
    // Ends the calls under way within the destructor's deadline, and tells the peers.
    virtual void close(const char* reason) noexcept = 0;

protected:
    communicator_options options_;
    workspace work_;

private:
    int rank_, size_;
    int contexts_ = 0;
    std::uint64_t plans_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
