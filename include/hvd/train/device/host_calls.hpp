// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <vector>

#include "../../comm/serializer.hpp"
#include "../../device/ranks.hpp"
#include "../agreement.hpp"
#include "../tensors.hpp"

namespace hvd::inline v0::detail {

// The agreements of training between the ranks of a communicator of devices. A refusal takes the
// place of an agreement of the peers, on backends that compare no calls, too.
class device_channel {
public:
    explicit device_channel(std::shared_ptr<device_session> session)
        : session_(std::move(session)) {}

    device_session& session() const { return *session_; }
    int rank() const { return session_->rank(); }
    int size() const { return session_->size(); }

    table<call_header> exchange_headers(const call_header& mine, time_point limit) {
        return session_->exchange_headers(mine, limit == never ? session_->limit_for({}) : limit);
    }
    void post_refusal(const call_header& mine, time_point limit) { exchange_headers(mine, limit); }

private:
    std::shared_ptr<device_session> session_;
};

// The calls of host tensors that training makes beside those of its gradients, over a communicator
// of devices: numbers of an optimizer, metrics, sparse rows, Adasum. A tensor goes through pinned
// memory and device memory, and the host waits for it.
template <device_communicator Comm>
class host_calls {
public:
    using backend_type = typename Comm::backend_type;

    explicit host_calls(Comm& comm)
        : comm_(comm), channel_(device_access::session_of(comm)), stream_(make_stream()) {}

    int rank() const { return comm_.rank(); }
    int size() const { return comm_.size(); }
    device_channel& channel() { return channel_; }

    // Called in a handler: this rank could not prepare a call that its peers make. Not all calls
    // here are compared, so that the communicator is given up.
    template <class Options>
    [[gnu::cold]] void forfeit_call(const Options&) {
        channel_.session().give_up(what_of(std::current_exception()));
    }

    template <class X, class Op>
    void allreduce(X&& x, const Op& op, const reduce_options& o = {}) {
        const auto whole = flat_view(x);
        through("allreduce", whole, whole, [&](const auto& in, const auto&) {
            return comm_.allreduce_async(
                in, op,
                {.prescale = o.prescale, .postscale = o.postscale, .stream = stream_.get()});
        });
    }

    template <class X>
    auto allgather(const X& mine, const options& = {}) {
        const auto in = flat_view(mine);
        gathered<typename decltype(in)::value_type> all;
        std::size_t total = 0;
        const std::int64_t count = std::int64_t(in.size());
        for (const std::int64_t n : numbers_of_all(channel_, "allgather", {&count, 1}, never)) {
            all.counts.push_back(std::size_t(n));
            all.displacements.push_back(total);
            total += std::size_t(n);
        }
        all.values.resize(total);
        gather(in, view(all.values.data(), total), all.counts);
        return all;
    }

    template <class X, class View>
    void allgather(const X& mine, const into_view<View>& to, const options& = {}) {
        const auto in = flat_view(mine);
        std::vector<std::size_t> counts;
        const std::int64_t count = std::int64_t(in.size());
        for (const std::int64_t n : numbers_of_all(channel_, "allgather", {&count, 1}, never))
            counts.push_back(std::size_t(n));
        gather(in, flat_view(to.view), counts);
    }

    template <class X>
    auto alltoall(const X& x, std::span<const std::size_t> counts, const options& = {}) {
        const auto in = flat_view(x);
        gathered<typename decltype(in)::value_type> got;
        const std::vector<std::uint64_t> sent(counts.begin(), counts.end());
        const auto all = allgather(sent).values;
        std::size_t total = 0;
        for (std::size_t p = 0; p < counts.size(); ++p) {
            got.counts.push_back(std::size_t(all[p * counts.size() + std::size_t(rank())]));
            got.displacements.push_back(total);
            total += got.counts.back();
        }
        got.values.resize(total);
        through("alltoall", in, view(got.values.data(), total),
                [&](const auto& from, const auto& to) {
                    return comm_.alltoall_async(
                        from, into(to),
                        {.stream = stream_.get(), .counts = counts, .receive_counts = got.counts});
                });
        return got;
    }

    template <class X>
    void broadcast(X&& x, root from, const options& = {}) {
        const auto one = [&](const auto& tensor) {
            through("broadcast", tensor, tensor, [&](const auto& whole, const auto&) {
                return comm_.broadcast_async(whole, from, {.stream = stream_.get()});
            });
        };
        if constexpr (is_fused<std::remove_cvref_t<X>>) x.for_each(one);
        else one(flat_view(x));
    }

    template <class T>
    T& broadcast_object(T& object, root from, const options& = {}) {
        std::vector<std::byte> bytes;
        run_on_all(channel_, "broadcast_object", never, [&] {
            if (rank() == from.rank) serializer<T>::write(bytes, object);
        });
        std::uint64_t size = bytes.size();
        broadcast(size, from);
        bytes.resize(std::size_t(size));
        broadcast(bytes, from);
        if (rank() != from.rank) {
            std::span<const std::byte> rest(bytes);
            object = serializer<T>::read(rest);
        }
        return object;
    }

private:
    cuda_stream make_stream() const {
        const device_session& s = channel_.session();
        const current_device here(s.device(), s.rank());
        return cuda_stream(s.rank());
    }

    template <class In, class Out>
    void gather(const In& in, const Out& out, std::span<const std::size_t> counts) {
        through("allgather", in, out, [&](const auto& from, const auto& to) {
            return comm_.allgather_async(from, into(to),
                                         {.stream = stream_.get(), .counts = counts});
        });
    }

    // Calls `begin(in, out)` with device tensors in the place of the host's. They are one tensor if
    // the host's are.
    template <class In, class Out, class F>
    void through(const char* label, const In& in, const Out& out, F begin) {
        using T = typename Out::value_type;
        device_session& s = channel_.session();
        const current_device here(s.device(), s.rank());
        const bool in_place =
            static_cast<const void*>(in.data()) == static_cast<const void*>(out.data());
        const std::size_t given = in.size() * sizeof(T), taken = out.size() * sizeof(T),
                          place = in_place ? 0 : (given + 255) / 256 * 256;
        s.guarded([&] {
            reserve(place + (place + taken > given ? taken : given));
            if (given > 0) std::memcpy(pinned_.data(), in.data(), given);
            copy_async(memory_.data(), pinned_.data(), given, cudaMemcpyHostToDevice, stream_.get(),
                       s.rank());
        });
        const tensor_view<T, device> from(reinterpret_cast<T*>(memory_.data()), {in.size()}),
            to(reinterpret_cast<T*>(memory_.data() + place), {out.size()});
        device_request under_way = begin(from, to);
        s.guarded([&] {
            copy_async(pinned_.data() + place, to.data(), taken, cudaMemcpyDeviceToHost,
                       stream_.get(), s.rank());
        });
        s.wait(s.mark(stream_.get()), label, s.limit_for({}));
        under_way.wait();
        if (taken > 0) std::memcpy(out.data(), pinned_.data() + place, taken);
    }

    void reserve(std::size_t bytes) {
        if (memory_.size() >= bytes) return;
        memory_ = {};
        pinned_ = {};
        memory_ = cuda_memory(cuda_memory::kind::device, bytes, rank());
        pinned_ = cuda_memory(cuda_memory::kind::pinned, bytes, rank());
    }

    Comm& comm_;
    device_channel channel_;
    cuda_stream stream_;
    cuda_memory memory_, pinned_;
};

}  // namespace hvd::inline v0::detail
