// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "../../kernel/cuda/feedback.hpp"
#include "../gradients/registry.hpp"
#include "mirror.hpp"
#include "shard.hpp"
#include "streams.hpp"

namespace hvd::inline v0::detail {

// The gradients of a bucket on the device with error feedback, as feedback_wire has them on the
// host: their sum travels in float, and the rank that has a slice of it rounds it to 16 bits. One
// launch packs, one rounds with the residuals, and one widens the results.
template <class Comm>
class device_feedback {
public:
    // **Collective**: the ranks agree on the plans. The residuals begin with those of the members.
    device_feedback(Comm& comm, const std::vector<std::size_t>& members, const parameter_list& all,
                    const optimizer_options& options, const device_plan_options& scales)
        : session_(device_access::session_of(comm)),
          members_(members),
          id_(options.codec.travels_as<float16>() ? dtype::float16 : dtype::bfloat16) {
        std::vector<std::size_t> sizes;
        for (const std::size_t i : members) sizes.push_back(all[i].gradient.size());
        const auto each = [&](auto f) {
            return for_each_slice<feedback_element>(sizes, session_->size(), f);
        };
        const std::size_t own = each([](auto...) {}), place = own * std::size_t(session_->rank()),
                          whole = own * std::size_t(session_->size());
        sum_ = zeros(whole * sizeof(float));
        residual_ = zeros(own * sizeof(float));
        next_ = zeros(own * sizeof(float));
        rounded_ = zeros(whole * sizeof(feedback_element));
        launch_ = {floats(sum_) + place,
                   floats(residual_),
                   rounded_.data() + place * sizeof(feedback_element),
                   floats(next_),
                   own,
                   id_};
        std::vector<tile> in, out, keep;
        each([&](std::size_t n, int r, owned_slice s, std::size_t at) {
            std::byte* const gradient = all[members[n]].gradient.data() + s.begin * sizeof(float);
            cut_into_tiles(in, gradient, sum_.data() + at * sizeof(float), s.count * sizeof(float),
                           copy_kind::bytes, 1);
            cut_into_tiles(out, rounded_.data() + at * sizeof(feedback_element), gradient, s.count,
                           copy_between(id_, dtype::float32, false), 1);
            if (r == session_->rank()) places_.push_back({at - place, s.count});
        });
        cut_into_tiles(keep, next_.data(), residual_.data(), next_.size(), copy_kind::bytes, 1);
        pack_ = copy_launch(*session_, in);
        unpack_ = copy_launch(*session_, out);
        keep_ = copy_launch(*session_, keep);
        store(all);
        const auto reduced_by = [&](const auto& operation) {
            return comm.plan_reduce_scatter(device_view(floats(sum_), whole), operation,
                                            into(device_view(floats(sum_) + place, own)), scales);
        };
        reduce_ = ordered_plan(session_,
                               options.op == hvd::average ? reduced_by(average) : reduced_by(sum));
        const std::size_t bytes = own * sizeof(feedback_element);
        gather_ = ordered_plan(
            session_, comm.plan_allgather(device_view(launch_.to, bytes),
                                          into(device_view(rounded_.data(), rounded_.size())),
                                          {.name = "rounded gradients"}));
    }

    // Orders the next run behind what the stream has been given so far.
    void follow(cudaStream_t stream) { reduce_.follow(stream); }

    void begin_epoch(std::uint64_t epoch) { reduce_.begin_epoch(epoch); }

    void start(std::span<const cudaStream_t> before) {
        reduce_.start(before, [&](cudaStream_t own) { pack_.launch(own, session_->rank()); });
        gather_.start({},
                      [&](cudaStream_t own) { launch_feedback(launch_, own, session_->rank()); });
    }

    void finish(cudaStream_t stream) {
        reduce_.finish(stream);
        gather_.finish(stream);
        const current_device here(session_->device(), session_->rank());
        session_->guarded([&] { unpack_.launch(stream, session_->rank()); });
    }

    // The step with these gradients is made, unless the word is not 0.
    void commit(cudaStream_t stream, const std::uint32_t* skip) {
        keep_.launch(stream, session_->rank(), skip);
    }

    // Copies the residuals to those of the members, and waits. They are there while no bucket is.
    void fetch(parameter_list& all) const {
        host_mirror<float> mirror(*session_, std::vector{own_residuals()});
        mirror.fetch(session_->own_stream());
        const float* const from = mirror.tensors()[0].data();
        for (std::size_t n = 0; n < members_.size(); ++n)
            all[members_[n]].residual.assign(from + places_[n].begin,
                                             from + places_[n].begin + places_[n].count);
    }
    void store(const parameter_list& all) {
        host_mirror<float> mirror(*session_, std::vector{own_residuals()});
        float* const to = mirror.tensors()[0].data();
        std::fill(to, to + mirror.tensors()[0].size(), 0.0f);
        for (std::size_t n = 0; n < members_.size(); ++n)
            std::copy(all[members_[n]].residual.begin(), all[members_[n]].residual.end(),
                      to + places_[n].begin);
        mirror.store(session_->own_stream());
    }

private:
    static float* floats(const cuda_memory& m) { return reinterpret_cast<float*>(m.data()); }
    tensor_view<float, device> own_residuals() const {
        return device_view(floats(residual_), residual_.size() / sizeof(float));
    }

    // The bytes between slices are reduced too, and must not become NaNs.
    cuda_memory zeros(std::size_t bytes) const {
        const current_device here(session_->device(), session_->rank());
        cuda_memory memory(cuda_memory::kind::device, bytes, session_->rank());
        if (bytes > 0)
            check_cuda(cudaMemsetAsync(memory.data(), 0, bytes, session_->own_stream()),
                       "cudaMemsetAsync", session_->rank());
        return memory;
    }

    std::shared_ptr<device_session> session_;
    std::vector<std::size_t> members_;
    dtype id_;
    std::vector<owned_slice> places_;  // this rank's slice of each member, among its slices
    cuda_memory sum_, residual_, next_, rounded_;
    copy_launch pack_, unpack_, keep_;
    feedback_launch launch_{};
    ordered_plan reduce_, gather_;  // last: they wait for their runs before the buffers go
};

}  // namespace hvd::inline v0::detail
