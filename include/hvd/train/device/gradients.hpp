// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../gradients/gradients.hpp"
#include "host_calls.hpp"
#include "mirror.hpp"
#include "streams.hpp"

namespace hvd::inline v0 {
namespace detail {

// Calls f with the codec of plans that the options name.
template <class F>
decltype(auto) with_plan_codec(gradient_codec codec, F f) {
    if (codec.travels_as<float16>()) return f(codec::cast<float16>);
    if (codec.travels_as<bfloat16>()) return f(codec::cast<bfloat16>);
    return f(codec::none);
}

// Plans cast floats only.
template <class T>
constexpr const char* no_plan_codec(gradient_codec codec) {
    return codec == hvd::codec::none || std::is_same_v<T, float>
               ? nullptr
               : "a codec of device tensors is for gradients of float; these have another type";
}

template <class Comm, class Views, class Op>
void reduce_on_device(Comm& comm, const Views& gradients, const Op& op, const gradient_options& o,
                      cudaStream_t stream) {
    run_between(*device_access::session_of(comm), stream, [&](cudaStream_t own) {
        if (o.codec == hvd::codec::none)
            return comm.allreduce_async(
                fuse(gradients), op,
                {.prescale = o.prescale, .postscale = o.postscale, .stream = own});
        return with_plan_codec(o.codec, [&](auto codec) {
            return comm
                .plan_allreduce(
                    fuse(gradients), op,
                    {.name = "gradients", .prescale = o.prescale, .postscale = o.postscale}, codec)
                .run_async(own);
        });
    });
}

template <class Comm, class Views>
void combine_by_adasum(Comm& comm, const Views& gradients, const gradient_options& o,
                       cudaStream_t stream) {
    refuse_capture(*device_access::session_of(comm), stream, "Adasum");
    host_calls<Comm> calls(comm);
    host_mirror mirror(calls.channel().session(), gradients);
    mirror.fetch(stream);
    const auto tensors = mirror.tensors();
    adasum_allreduce(calls, fuse(tensors), {.prescale = o.prescale, .postscale = o.postscale});
    mirror.store(stream);
}

}  // namespace detail

/// Combines the gradients of a backward pass on the device over all ranks, in place.
///
/// **Collective**. **Buffers**: ready on `stream`, which is the default stream if none is given.
/// **Completion**: later work of `stream` comes after the call; the host does not wait. With
/// Adasum, which is computed on the host, it does. A codec, which is for float, makes a plan at
/// each call: `distributed_optimizer` makes it once. @throws as `allreduce`.
/// @snippet tests/train/device_snippets.cpp distributed_gradients
template <detail::device_communicator Comm, class Views>
void distributed_gradients(Comm& comm, const Views& gradients, const gradient_options& o = {},
                           cudaStream_t stream = nullptr) {
    using T = typename std::remove_cvref_t<decltype(*std::data(gradients))>::value_type;
    detail::device_session& session = *detail::device_access::session_of(comm);
    if (const char* const why = detail::no_plan_codec<T>(o.codec))
        detail::refuse(session.rank(), why);
    if (o.op == hvd::adasum) {
        if (o.codec != hvd::codec::none)
            detail::refuse(
                session.rank(),
                "gradients combined by Adasum travel in their own type; there is a codec");
        detail::combine_by_adasum(comm, gradients, o, stream);
    } else if (o.op == hvd::average) {
        detail::reduce_on_device(comm, gradients, average, o, stream);
    } else {
        detail::reduce_on_device(comm, gradients, sum, o, stream);
    }
}

/// Combines all gradients on the device but those of local parameters, which stay and are divided
/// by the number of ranks unless `scale_local_gradients` is false.
/// @throws hvd::usage_error if there are not as many gradients as parameters, and to divide without
/// hvd's kernels.
template <detail::device_communicator Comm, class Values, class Views>
void partial_distributed_gradients(Comm& comm, const Values& parameters, const Views& gradients,
                                   const local_parameters& local, const gradient_options& o = {},
                                   cudaStream_t stream = nullptr) {
    const std::size_t count = std::size(parameters);
    if (count != std::size(gradients))
        detail::refuse(comm.rank(), "there are ", count, " parameters and ", std::size(gradients),
                       " gradients");
    std::vector<std::remove_cvref_t<decltype(*std::data(gradients))>> shared, kept;
    for (std::size_t i = 0; i < count; ++i)
        (local.contains(std::data(parameters)[i]) ? kept : shared)
            .push_back(std::data(gradients)[i]);
    distributed_gradients(comm, shared, o, stream);
    const detail::device_session& session = *detail::device_access::session_of(comm);
    if (o.scale_local_gradients)
        for (const auto& tensor : kept)
            detail::scale_on_device(session, tensor, 1.0 / comm.size(), stream);
}

}  // namespace hvd::inline v0
