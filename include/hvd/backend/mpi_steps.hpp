// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <utility>

#include "../core/lean/text.hpp"
#include "../platform/clock.hpp"
#include "../platform/mpi_api.hpp"

namespace hvd::inline v0::detail {

// The steps by which the ranks of an MPI communicator make something together. In each step every
// rank does its part, which may fail on it alone; then all ranks know of it, and throw. Nobody
// waits behind the limit. MPI can't take back a call that waits for late ranks: it keeps that call,
// its memory and its communicator.
class mpi_steps {
public:
    mpi_steps() = default;  // none are left to make
    explicit mpi_steps(time_point limit) : limit_(limit) {
        check_mpi(MPI_Alloc_mem(sizeof(words), MPI_INFO_NULL, &words_), "MPI_Alloc_mem", -1);
        *words_ = words();
    }
    mpi_steps(mpi_steps&& other) noexcept { *this = std::move(other); }
    mpi_steps& operator=(mpi_steps&& other) noexcept {
        std::swap(words_, other.words_);
        std::swap(room_, other.room_);
        std::swap(room_bytes_, other.room_bytes_);
        std::swap(left_, other.left_);
        limit_ = other.limit_;
        gone_ = other.gone_;
        note_all_learn_ = other.note_all_learn_;
        asked_ = other.asked_;
        return *this;
    }
    ~mpi_steps() {
        if (left_) return;
        if (words_ != nullptr) MPI_Free_mem(words_);
        if (room_ != nullptr) MPI_Free_mem(room_);
    }

    // Nobody waits any longer, either, when gone() is true, which is asked now and then. A failure
    // that all ranks learn by a step is noted in it.
    template <class F>
    void give_up_when(const F& gone) {
        gone_ = [](const void* f) { return (*static_cast<const F*>(f))(); };
        note_all_learn_ = [](const void* f) { static_cast<const F*>(f)->all_learn = true; };
        asked_ = &gone;
    }

    bool is_over() const { return now() > limit_; }
    bool should_give_up() const { return is_over() || (gone_ != nullptr && gone_(asked_)); }

    // Duplicates a communicator of the user. MPIs mix up two such calls on one communicator if some
    // ranks have left the first one. So an earlier one is ended first, and a call that gives up
    // before its own has begun leaves that to the next: each rank makes as many.
    MPI_Comm duplicate(MPI_Comm handle) {
        words* const earlier = left_duplicate_of(handle);
        words& calls = earlier != nullptr ? *earlier : *words_;
        ++calls.owed;
        try {
            for (await(calls.duplicate); calls.owed > 0; await(calls.duplicate)) {
                --calls.owed;
                check_mpi(MPI_Comm_idup(handle, &calls.comm, &calls.duplicate), "MPI_Comm_idup",
                          -1);
            }
        } catch (...) {
            if (left_ && earlier == nullptr)
                MPI_Comm_set_attr(handle, key_of_left_duplicates(), words_);
            throw;
        }
        const MPI_Comm made = calls.comm;
        if (earlier != nullptr) {
            MPI_Comm_delete_attr(handle, key_of_left_duplicates());
            MPI_Free_mem(earlier);
        }
        return made;
    }

    // MPI makes no other communicator before a duplicate that other ranks have begun.
    void begin_owed(MPI_Comm handle) {
        words* const earlier = left_duplicate_of(handle);
        while (earlier != nullptr && earlier->owed > 0) {
            await(earlier->duplicate);
            --earlier->owed;
            check_mpi(MPI_Comm_idup(handle, &earlier->comm, &earlier->duplicate), "MPI_Comm_idup",
                      rank_);
        }
    }

    // Runs f on all ranks of `comm`. Nothing is allocated for that, so that a rank without memory
    // can tell it.
    template <class F>
    void together(MPI_Comm comm, F f) {
        std::exception_ptr failure;
        try {
            f();
        } catch (...) {
            failure = std::current_exception();
        }
        learn(comm, failure);
    }

    // Makes room for gather(): for the bytes of all ranks, and for those of this rank once more.
    void make_room(std::size_t bytes) {
        if (bytes <= room_bytes_) return;
        if (room_ != nullptr) MPI_Free_mem(std::exchange(room_, nullptr));
        room_bytes_ = 0;
        check_mpi(MPI_Alloc_mem(MPI_Aint(bytes), MPI_INFO_NULL, &room_), "MPI_Alloc_mem", rank_);
        room_bytes_ = bytes;
    }
    // Shows some bytes of this rank to all ranks of `comm`, and gets those of all, by rank.
    void gather(MPI_Comm comm, const void* mine, int bytes, void* all) {
        int size = 0;
        check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size", rank_);
        std::byte* const of_all = room_ + bytes;
        std::memcpy(room_, mine, std::size_t(bytes));
        MPI_Request request = MPI_REQUEST_NULL;
        check_mpi(MPI_Iallgather(room_, bytes, MPI_BYTE, of_all, bytes, MPI_BYTE, comm, &request),
                  "MPI_Iallgather", rank_);
        await(request);
        std::memcpy(all, of_all, std::size_t(bytes) * std::size_t(size));
    }

    // True if MPI keeps a call that was left. The communicator is not freed then.
    bool left() const { return left_; }

private:
    struct words {
        MPI_Comm comm = MPI_COMM_NULL;
        MPI_Request duplicate = MPI_REQUEST_NULL;
        int owed = 0;  // duplicates that this rank has not begun
        int mine = 0, first = 0;
        char text[256] = {};
    };

    // The communicator that was to be duplicated keeps what MPI needs of a call that was left.
    static int key_of_left_duplicates() {
        static const int key = [] {
            int made = MPI_KEYVAL_INVALID;
            check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &made,
                                             nullptr),
                      "MPI_Comm_create_keyval", -1);
            return made;
        }();
        return key;
    }
    static words* left_duplicate_of(MPI_Comm handle) {
        void* left = nullptr;
        int is_there = 0;
        check_mpi(MPI_Comm_get_attr(handle, key_of_left_duplicates(), &left, &is_there),
                  "MPI_Comm_get_attr", -1);
        return is_there != 0 ? static_cast<words*>(left) : nullptr;
    }

    [[gnu::cold]] void learn(MPI_Comm comm, const std::exception_ptr& failure) {
        int size = 0;
        check_mpi(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank", -1);
        check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size", rank_);
        words_->mine = failure ? rank_ : size;
        MPI_Request request = MPI_REQUEST_NULL;
        check_mpi(
            MPI_Iallreduce(&words_->mine, &words_->first, 1, MPI_INT, MPI_MIN, comm, &request),
            "MPI_Iallreduce", rank_);
        await(request);
        const int first = words_->first;
        if (first == size) return;
        if (first == rank_) store(words_->text, what_of(failure));
        check_mpi(MPI_Ibcast(words_->text, sizeof words_->text, MPI_CHAR, first, comm, &request),
                  "MPI_Ibcast", rank_);
        await(request);
        if (note_all_learn_ != nullptr) note_all_learn_(asked_);
        if (failure) std::rethrow_exception(failure);
        throw peer_error(rank_,
                         text("hvd: making of a communicator on rank ", rank_, ": rank ", first,
                              " refused it: ", std::string_view(words_->text)),
                         {first});
    }

    void await(MPI_Request& request) {
        backoff pauses(false);
        for (int done = 0;;) {
            check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test", rank_);
            if (done != 0) return;
            if (!pauses.pause()) continue;
            if (!should_give_up()) continue;
            left_ = true;
            throw_peer_error(is_over(), rank_,
                             "hvd: making of a communicator: other ranks did not come in time", {});
        }
    }

    time_point limit_ = never;
    bool (*gone_)(const void*) = nullptr;
    void (*note_all_learn_)(const void*) = nullptr;
    const void* asked_ = nullptr;
    words* words_ = nullptr;
    std::byte* room_ = nullptr;
    std::size_t room_bytes_ = 0;
    int rank_ = -1;
    bool left_ = false;
};

}  // namespace hvd::inline v0::detail
