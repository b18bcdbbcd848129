// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <vector>

#include "../../platform/nccl_api.hpp"
#include "../../protocol/call_header.hpp"

namespace hvd::inline v0::detail {

struct nccl_memory {
    void operator()(void* memory) const { ncclMemFree(memory); }
};

// Memory of ncclMemAlloc, and what NCCL knows it by, if anything.
struct nccl_window {
    const std::byte* data = nullptr;
    ncclWindow_t window = nullptr;
    void* registration = nullptr;  // instead of a window, before NCCL had any
    std::uint64_t number = 0;      // of the window; 0: there is none
};

// The memory of one rank that is, or may become, a window.
class nccl_windows {
public:
    void add(const std::byte* data) { all_.push_back({data}); }
    bool contains(const std::byte* data) const {
        return std::any_of(all_.begin(), all_.end(),
                           [&](const nccl_window& w) { return w.data == data; });
    }

    // Remembers that the ranks have made memory a window.
    void open(const std::byte* data, ncclWindow_t window) {
        nccl_window& opened = at(data);
        opened.window = window;
        opened.number = ++opened_;
    }
    void open_registration(const std::byte* data, void* registration) {
        at(data).registration = registration;
    }

    nccl_window take(const std::byte* data) {
        const nccl_window taken = at(data);
        std::erase_if(all_, [&](const nccl_window& w) { return w.data == data; });
        return taken;
    }

    // Names the windows that are open. NCCL gives a window the first free place of a space, and
    // multicast needs the same place on all ranks. It is the same if the same windows are open.
    std::uint64_t places() const {
        hash numbers;
        for (const nccl_window& w : all_)
            if (w.number > 0) numbers.add(w.number);
        return numbers.value();
    }

private:
    nccl_window& at(const std::byte* data) {
        return *std::find_if(all_.begin(), all_.end(),
                             [&](const nccl_window& w) { return w.data == data; });
    }

    std::vector<nccl_window> all_;
    std::uint64_t opened_ = 0;
};

}  // namespace hvd::inline v0::detail
