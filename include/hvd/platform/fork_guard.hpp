// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include "../standard.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Tells whether this process is a fork of the one that made the guard. A look costs one load: the
// kernel wipes the page in the child.
class fork_guard {
public:
    fork_guard() : owner_(getpid()) {
        void* page =
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) return;
#ifdef MADV_WIPEONFORK
        if (madvise(page, 4096, MADV_WIPEONFORK) == 0) {
            page_ = static_cast<volatile char*>(page);
            *page_ = 1;
            return;
        }
#endif
        munmap(page, 4096);
    }

    fork_guard(const fork_guard&) = delete;
    fork_guard& operator=(const fork_guard&) = delete;

    ~fork_guard() {
        if (page_ != nullptr) munmap(const_cast<char*>(page_), 4096);
    }

    bool in_child() const { return page_ != nullptr ? *page_ == 0 : getpid() != owner_; }

private:
    volatile char* page_ = nullptr;
    pid_t owner_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
