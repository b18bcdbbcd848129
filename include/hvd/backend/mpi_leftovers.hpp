// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../core/lean/handles.hpp"
#include "../platform/thread.hpp"
#include "mpi_messages.hpp"

namespace hvd::inline v0::detail {

// The messages of endpoints that have ended before MPI was done with them: a peer has not departed
// yet, or a message is still under way. Nobody waits for them. The list is looked through whenever
// an endpoint is made or ends. MPI owns it, as an attribute of MPI_COMM_SELF, whose deletion is the
// first thing that MPI_Finalize does.
class mpi_leftovers {
public:
    // Frees the messages, now or when MPI is done with them.
    [[gnu::cold]] static void end(owner<mpi_messages> messages) noexcept {
        reap();
        if (messages->is_over()) return messages->free();
        mpi_leftovers* const all = of_process();
        try {
            if (all == nullptr) throw std::bad_alloc();
            const lock_guard lock(all->mutex_);
            all->list_.push_back(std::move(messages));
        } catch (const std::bad_alloc&) {
            messages.release();  // it stays for good
        }
    }

    // Frees what MPI is done with.
    [[gnu::cold]] static void reap() noexcept {
        if (mpi_leftovers* const all = of_process()) all->look();
    }

    // `tell(self)` is called when MPI_Finalize begins. False if MPI refuses the attribute.
    [[gnu::cold]] static bool tell_end(void (*tell)(void*) noexcept, void* self) {
        mpi_leftovers* const all = of_process();
        if (all == nullptr) return false;
        const lock_guard lock(all->mutex_);
        all->told_.push_back({tell, self});
        return true;
    }
    [[gnu::cold]] static void tell_no_more(void* self) noexcept {
        mpi_leftovers* const all = of_process();
        const lock_guard lock(all->mutex_);
        std::size_t kept = 0;
        for (const told& t : all->told_)
            if (t.self != self) all->told_[kept++] = t;
        all->told_.resize(kept);
    }

private:
    struct told {
        void (*tell)(void*) noexcept;
        void* self;
    };

    // Null if MPI refuses the attribute. The pointer is never used after MPI_Finalize.
    static mpi_leftovers* of_process() noexcept {
        static mpi_leftovers* const all = make();
        return all;
    }

    static mpi_leftovers* make() noexcept {
        int key = MPI_KEYVAL_INVALID;
        if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &finalize, &key, nullptr) != MPI_SUCCESS)
            return nullptr;
        mpi_leftovers* const all = new (std::nothrow) mpi_leftovers;
        const int kept = MPI_Comm_set_attr(MPI_COMM_SELF, key, all);
        MPI_Comm_free_keyval(&key);  // the attribute keeps it
        return kept == MPI_SUCCESS ? all : nullptr;
    }

    static int finalize(MPI_Comm, int, void* attribute, void*) {
        const owner<mpi_leftovers> all(static_cast<mpi_leftovers*>(attribute));
        if (!all) return MPI_SUCCESS;
        for (const told& t : all->told_) t.tell(t.self);
        all->look();
        for (const owner<mpi_messages>& messages : all->list_) messages->abandon();
        return MPI_SUCCESS;
    }

    void look() noexcept {
        const lock_guard lock(mutex_);
        std::size_t kept = 0;
        for (owner<mpi_messages>& messages : list_) {
            if (messages->is_over()) messages->free();
            else std::swap(list_[kept++], messages);
        }
        while (list_.size() > kept) list_.pop_back();
    }

    mutex mutex_;
    std::vector<owner<mpi_messages>> list_;
    std::vector<told> told_;  // when MPI ends
};

}  // namespace hvd::inline v0::detail
