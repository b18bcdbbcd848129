// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "home.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Device memory of each rank that all ranks can reach. Memory that peers have mapped may not be
// freed: call `close` first, on all of them.
class ipc_memory {
public:
    // The data that a rank sends about its memory.
    struct offer {
        cudaIpcMemHandle_t handle;
        std::byte* data;
    };

    ipc_memory() = default;
    ipc_memory(const ipc_memory&) = delete;
    ipc_memory& operator=(const ipc_memory&) = delete;
    ~ipc_memory() { close(); }

    // Less than 2 MiB would be part of a block of CUDA's, which other processes would get whole.
    void allocate(std::size_t bytes, int rank) {
        constexpr std::size_t block = tuning::device_block;
        own_ = cuda_memory(cuda_memory::kind::device, (bytes + block - 1) / block * block, rank);
        size_ = bytes;
    }

    offer exported(const std::vector<ipc_home>& homes, int rank) const {
        offer mine{};
        mine.data = own_.data();
        for (const ipc_home& peer : homes)
            if (!peer.shares_process_with(homes[std::size_t(rank)])) {
                check_cuda(cudaIpcGetMemHandle(&mine.handle, own_.data()), "cudaIpcGetMemHandle",
                           rank);
                break;
            }
        return mine;
    }

    void open(const std::vector<offer>& offers, const std::vector<ipc_home>& homes, int rank) {
        for (std::size_t p = 0; p < offers.size(); ++p) {
            if (homes[p].shares_process_with(homes[std::size_t(rank)])) {
                places_.push_back({offers[p].data, false});
                continue;
            }
            void* mapped = nullptr;
            const cudaError_t opened =
                cudaIpcOpenMemHandle(&mapped, offers[p].handle, cudaIpcMemLazyEnablePeerAccess);
            if (opened == cudaErrorPeerAccessUnsupported) {
                cudaGetLastError();
                throw_no_access(rank, int(p), homes[p]);
            }
            check_cuda(opened, "cudaIpcOpenMemHandle", rank);
            places_.push_back({static_cast<std::byte*>(mapped), true});
        }
    }

    std::byte* of(int rank) const { return places_[std::size_t(rank)].data; }
    std::byte* own() const { return own_.data(); }
    std::size_t size() const { return size_; }
    bool has(const std::byte* first, std::size_t bytes) const {
        return first >= own() && first + bytes <= own() + size_;
    }

    // Closes the memory of the others.
    void close() noexcept {
        const capture_relaxed relaxed;
        for (const place& p : places_)
            if (p.mapped) cudaIpcCloseMemHandle(p.data);
        places_.clear();
    }

    // Keeps the memory forever, if peers did not report that they have closed it.
    void keep() noexcept {
        places_.clear();
        own_.leak();
    }

private:
    struct place {
        std::byte* data;
        bool mapped;
    };

    cuda_memory own_;
    std::size_t size_ = 0;
    std::vector<place> places_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
