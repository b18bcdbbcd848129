// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../agreement.hpp"
#include "adasum.hpp"
#include "gradient_wire.hpp"
#include "options.hpp"

namespace hvd::inline v0 {

/// The parameters whose gradients `partial_distributed_gradients` leaves on their rank. They are
/// known by their memory.
class local_parameters {
public:
    /// Keeps this parameter's gradient on its rank.
    template <class P>
        requires viewable<P>
    void register_local(P&& parameter) {
        static_assert(detail::is_borrowed<P>,
                      "hvd: a parameter is known by its memory; this temporary's would be gone");
        memory_.push_back(detail::to_view(parameter).data());
    }

    /// True if the parameter was registered.
    template <class P>
        requires viewable<P>
    bool contains(P&& parameter) const {
        const void* const data = detail::to_view(parameter).data();
        for (const void* const known : memory_)
            if (known == data) return true;
        return false;
    }

private:
    std::vector<const void*> memory_;
};

/// Options of the tape's gradients.
struct gradient_options {
    gradient_op op = hvd::average;            ///< `average`, `sum` or `adasum`
    double prescale = 1;                      ///< each rank's gradients are multiplied by it
    double postscale = 1;                     ///< the result is multiplied by it
    gradient_codec codec = hvd::codec::none;  ///< not with Adasum, which computes in double
    bool scale_local_gradients = true;  ///< local gradients are divided by the number of ranks
};

namespace detail {

template <class Comm, class Views, class Op>
void reduce_gradients(Comm& comm, const Views& gradients, const Op& op, gradient_codec codec,
                      const reduce_options& scales) {
    if (codec == hvd::codec::none) return comm.allreduce(fuse(gradients), op, scales);
    using backend = typename Comm::backend_type;
    if (!reduces_wire_of<backend>(codec)) refuse_call(comm, no_wire_text);
    const reduce_options o{.name = scales.name};
    std::vector<flat_tensor> list;
    gradient_wire wire = prepare_call(comm, collective::allreduce, o, [&] {
        list = flat_list(gradients);
        return gradient_wire(codec, size_of(list));
    });
    wire.encode(list, scales.prescale);
    with_wire_type<backend>(codec,
                            [&]<class Half>(Half) { comm.allreduce(wire.as<Half>(), op, o); });
    wire.decode(list, scales.postscale);
}

}  // namespace detail

/// Combines the gradients of a backward pass over all ranks, in place, as Horovod's gradient tape
/// does.
///
/// @tparam Views a contiguous range of `tensor_view`s, equal in number and sizes on all ranks.
/// **Collective**. **Completion**: done on return. @throws as `allreduce`. Horovod:
/// `DistributedGradientTape`.
/// @snippet tests/train/snippets.cpp distributed_gradients
template <class Comm, class Views>
    requires(!detail::device_communicator<Comm>)
void distributed_gradients(Comm& comm, const Views& gradients, const gradient_options& o = {}) {
    const reduce_options scales{
        .name = "gradients", .prescale = o.prescale, .postscale = o.postscale};
    if (o.op == hvd::adasum) {
        if (o.codec != hvd::codec::none)
            detail::refuse_call(
                comm, "gradients combined by Adasum travel in their own type; there is a codec");
        comm.allreduce(fuse(gradients), adasum, scales);
    } else if (o.op == hvd::average) {
        detail::reduce_gradients(comm, gradients, average, o.codec, scales);
    } else {
        detail::reduce_gradients(comm, gradients, sum, o.codec, scales);
    }
}

/// Combines all gradients but those of local parameters. Local gradients stay and are divided by
/// the number of ranks, unless `scale_local_gradients` is false. The same parameters are local on
/// all ranks. Horovod: `PartialDistributedGradientTape`, `register_local_var`.
/// @throws hvd::usage_error if there are not as many gradients as parameters; the other ranks get
/// hvd::peer_error.
template <class Comm, class Values, class Views>
    requires(!detail::device_communicator<Comm>)
void partial_distributed_gradients(Comm& comm, const Values& parameters, const Views& gradients,
                                   const local_parameters& local, const gradient_options& o = {}) {
    const std::size_t count = std::size(parameters);
    if (count != std::size(gradients))
        detail::refuse_call(comm, "there are ", count, " parameters and ", std::size(gradients),
                            " gradients");
    const auto is_local = [&](std::size_t i) { return local.contains(std::data(parameters)[i]); };
    const auto shared = detail::prepare_call(
        comm, detail::collective::allreduce, reduce_options{.name = "gradients"}, [&] {
            std::vector<std::remove_cvref_t<decltype(*std::data(gradients))>> all;
            for (std::size_t i = 0; i < count; ++i)
                if (!is_local(i)) all.push_back(std::data(gradients)[i]);
            return all;
        });
    distributed_gradients(comm, shared, o);
    if (!o.scale_local_gradients) return;
    for (std::size_t i = 0; i < count; ++i)  // this comes last: a call that fails changes nothing
        if (is_local(i)) detail::scale(std::data(gradients)[i], 1.0 / comm.size());
}

}  // namespace hvd::inline v0
