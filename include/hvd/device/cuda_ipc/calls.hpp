// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "../../protocol/comparison.hpp"
#include "board.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The calls on a board, in their order, as one rank compares them: without waiting, when it comes
// by. A call whose streams have met is there on all ranks. Calls have the numbers of their turns.
class ipc_calls {
public:
    ipc_calls() = default;
    ipc_calls(std::shared_ptr<ipc_board> board, int rank, int size)
        : board_(std::move(board)), rank_(rank), size_(size) {}

    // False while a rank has not compared the call whose entry the next one takes.
    bool has_room() const {
        for (int r = 0; r < size_; ++r)
            if (board_->of(r).compared.load() + ipc_board_place::most_calls <= posted_)
                return false;
        return true;
    }

    // Posts a call. With `answers` the caller waits for the others' messages about it, which
    // compare() adds there, and compares them itself.
    void post(const ipc_message& message, std::uint64_t turn,
              std::vector<ipc_message>* answers = nullptr) {
        ipc_board_place& own = board_->of(rank_);
        ipc_message& entry = own.entries[++posted_ % ipc_board_place::most_calls];
        copy_header(entry.header, message.header);
        std::memcpy(entry.places, message.places, sizeof message.places);
        turns_[posted_ % ipc_board_place::most_calls] = turn;
        answers_ = answers;
        own.posted.store(posted_);
    }
    std::uint64_t posted() const { return posted_; }

    // Compares the calls that all ranks have posted, and returns true if this rank has no others.
    // `fail(why)` is called for one that only a stream waits for.
    template <class F>
    bool compare(F&& fail) {
        while (all_have_next()) {
            if (answers_ != nullptr && compared_ + 1 == posted_) take_answers();
            else compare_next(fail);
            board_->of(rank_).compared.store(++compared_);  // others may overwrite their entries
        }
        return compared_ == posted_;
    }

    // Throws if the ranks' calls differed.
    void throw_failure_of(std::uint64_t call) {
        for (std::size_t i = 0; i < failures_.size(); ++i) {
            if (failures_[i].call != call) continue;
            const std::exception_ptr why = failures_[i].why;
            failures_.erase(failures_.begin() + std::ptrdiff_t(i));
            std::rethrow_exception(why);
        }
    }

    // It is always true.
    bool leave_to_stream(std::uint64_t call) {
        if (compared_ < posted_) left_to_streams_.push_back(call);
        return true;
    }

private:
    struct failure {
        std::uint64_t call;
        std::exception_ptr why;
    };

    bool all_have_next() const {
        for (int r = 0; r < size_; ++r)
            if (board_->of(r).posted.load() <= compared_) return false;
        return true;
    }

    const ipc_message& next_of(int rank) const {
        return board_->of(rank).entries[(compared_ + 1) % ipc_board_place::most_calls];
    }

    void take_answers() {
        for (int r = 0; r < size_; ++r) answers_->push_back(next_of(r));
        answers_ = nullptr;
    }

    template <class F>
    void compare_next(F&& fail) {
        const std::uint64_t call = turns_[(compared_ + 1) % ipc_board_place::most_calls];
        const bool is_left = std::erase(left_to_streams_, call) > 0;
        std::erase_if(left_to_streams_, [&](std::uint64_t before) { return before < call; });
        table<const call_header*> headers{std::size_t(size_)};
        for (int r = 0; r < size_; ++r) headers[std::size_t(r)] = &next_of(r).header;
        try {
            check_headers(rank_, headers.data(), size_);
        } catch (const error& e) {
            if (is_left) fail(e.what());
            else failures_.push_back({call, std::current_exception()});
        }
    }

    std::shared_ptr<ipc_board> board_;
    int rank_ = 0, size_ = 0;
    std::uint64_t posted_ = 0, compared_ = 0;
    std::uint64_t turns_[ipc_board_place::most_calls] = {};
    std::vector<ipc_message>* answers_ = nullptr;
    std::vector<std::uint64_t> left_to_streams_;
    std::vector<failure> failures_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
