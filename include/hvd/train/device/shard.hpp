// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../../device/ranks.hpp"
#include "../gradients/slices.hpp"

namespace hvd::inline v0::detail {

// Copies between tensors that one launch makes, again and again.
class copy_launch {
public:
    copy_launch() = default;
    copy_launch(device_session& session, const std::vector<tile>& tiles)
        : blocks_(tiles.size()),
          tiles_(cuda_memory::kind::device, tiles.size() * sizeof(tile), session.rank()) {
        const finish_before_leaving finish{session.own_stream()};
        copy_async(tiles_.data(), tiles.data(), tiles_.size(), cudaMemcpyHostToDevice,
                   session.own_stream(), session.rank());
    }

    void launch(cudaStream_t stream, int rank, const std::uint32_t* stop = nullptr) const {
        launch_tiles_of(reinterpret_cast<const tile*>(tiles_.data()), blocks_, stream, rank, stop);
    }

private:
    std::size_t blocks_ = 0;
    cuda_memory tiles_;
};

// The memory in which the tensors of a bucket lie by ranks: first all slices of rank 0, and so on.
// A reduce_scatter leaves each rank the gradients of its slices there, and an allgather brings the
// new values of all slices.
template <class T>
class shard_buffers {
    using tensor = tensor_view<T, device>;

public:
    shard_buffers(device_session& session, const std::vector<tensor>& gradients,
                  const std::vector<tensor>& values)
        : rank_(session.rank()) {
        for (const tensor& t : gradients) {
            places_.push_back(own_count_);
            own_count_ += slice_length<T>(t.size(), session.size());
        }
        const current_device here(session.device(), session.rank());
        const std::size_t bytes = own_count_ * std::size_t(session.size()) * sizeof(T);
        for (cuda_memory* m : {&gradients_, &values_}) {
            *m = cuda_memory(cuda_memory::kind::device, bytes, rank_);
            // The bytes between slices are reduced too, and must not become NaNs.
            if (bytes > 0)
                check_cuda(cudaMemsetAsync(m->data(), 0, bytes, session.own_stream()),
                           "cudaMemsetAsync", rank_);
        }
        std::vector<tile> in, out, back;
        for (std::size_t i = 0; i < gradients.size(); ++i)
            for (int r = 0; r < session.size(); ++r) {
                const owned_slice s = slice_of<T>(gradients[i].size(), r, session.size());
                const std::size_t place = std::size_t(r) * own_count_ + places_[i];
                copy(in, gradients[i].data() + s.begin, at(gradients_, place), s.count);
                T* const value = values[i].data() + s.begin;
                if (r == rank_) copy(out, value, at(values_, place), s.count);
                else copy(back, at(values_, place), value, s.count);
            }
        pack_gradients_ = copy_launch(session, in);
        pack_values_ = copy_launch(session, out);
        unpack_values_ = copy_launch(session, back);
    }

    tensor gradients() const { return whole(gradients_); }
    tensor own_gradients() const { return own(gradients_); }
    tensor values() const { return whole(values_); }
    tensor own_values() const { return own(values_); }

    // This rank's slice of the reduced gradient of the i-th tensor.
    tensor gradient(std::size_t i, std::size_t count) const {
        return device_view(at(gradients_, std::size_t(rank_) * own_count_ + places_[i]), count);
    }

    void pack_gradients(cudaStream_t stream) const { pack_gradients_.launch(stream, rank_); }
    void pack_values(cudaStream_t stream) const { pack_values_.launch(stream, rank_); }
    void unpack_values(cudaStream_t stream, const std::uint32_t* stop) const {
        unpack_values_.launch(stream, rank_, stop);
    }

private:
    static T* at(const cuda_memory& m, std::size_t place) {
        return reinterpret_cast<T*>(m.data()) + place;
    }
    tensor whole(const cuda_memory& m) const { return device_view(at(m, 0), m.size() / sizeof(T)); }
    tensor own(const cuda_memory& m) const {
        return device_view(at(m, std::size_t(rank_) * own_count_), own_count_);
    }
    static void copy(std::vector<tile>& tiles, const T* from, T* to, std::size_t count) {
        cut_into_tiles(tiles, reinterpret_cast<const std::byte*>(from),
                       reinterpret_cast<std::byte*>(to), count * sizeof(T), copy_kind::bytes, 1);
    }

    int rank_;
    std::size_t own_count_ = 0;        // elements of one rank
    std::vector<std::size_t> places_;  // of each tensor's slice among those of its rank
    cuda_memory gradients_, values_;
    copy_launch pack_gradients_, pack_values_, unpack_values_;
};

}  // namespace hvd::inline v0::detail
