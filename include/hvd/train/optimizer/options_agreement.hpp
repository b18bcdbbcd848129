// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../agreement.hpp"
#include "../gradients/gradient_wire.hpp"
#include "../gradients/options.hpp"
#include "../gradients/registry.hpp"
#include "optimizers.hpp"

namespace hvd::inline v0::detail {

// The abilities of a backend, for code that does not know it.
struct backend_abilities {
    bool reduces_float16, reduces_bfloat16, moves_devices, compares_calls;

    bool reduces_wire(gradient_codec codec) const {
        if (codec.travels_as<float16>()) return reduces_float16;
        return codec == hvd::codec::none || reduces_bfloat16;
    }
};

template <class Backend>
constexpr backend_abilities abilities_of = {reduces_wire<float16, Backend>,
                                            reduces_wire<bfloat16, Backend>,
                                            device_backend<Backend>, !is_direct<Backend>};

[[gnu::cold]] inline void check_options(int rank, const optimizer_options& o,
                                        const backend_abilities& backend) {
    if (o.backward_passes_per_step < 1)
        refuse(rank, "backward_passes_per_step is ", o.backward_passes_per_step,
               ", and at least 1");
    const double f = o.gradient_predivide_factor;
    if (!is_finite(f) || !(f > 0))
        refuse(rank, "gradient_predivide_factor is ", f, ", and above 0");
    if (f != 1 && o.op != hvd::average)
        refuse(rank, "gradient_predivide_factor is part of an average; the op is another");
    if (o.codec != hvd::codec::none && o.op == hvd::adasum)
        refuse(rank,
               "a codec is for averages and sums; the op is Adasum, whose changes travel as they "
               "are");
    if (!backend.reduces_wire(o.codec)) refuse(rank, no_wire_text);
    if (o.shard_state && !backend.moves_devices)
        refuse(rank, "shard_state is for parameters on the device; see plan.run_and_apply");
    if (o.synchronize_buffers && backend.moves_devices)
        refuse(rank, "synchronize_buffers in each step is for buffers on the host: call ",
               "hvd::synchronize_buffers, in which the host waits");
    if (o.check_finite && (o.skip_nonfinite || o.op == hvd::adasum || o.codec.keeps_residual()))
        refuse(rank,
               "check_finite is for averages and sums without error_feedback, whose steps "
               "are not left out by skip_nonfinite");
    if (o.check_finite && backend.moves_devices)
        refuse(rank, "check_finite is for gradients on the host");
    if (o.check_finite && !backend.compares_calls)
        refuse(rank,
               "check_finite is for ranks that tell each other of their calls; those of "
               "direct<> don't");
    if (o.shard_state && (o.op == hvd::adasum || o.codec != hvd::codec::none))
        refuse(rank, "shard_state is for averages and sums without a codec");
}

// Adasum changes parameters after the step, and masters would undo that.
template <class Optimizer>
void check_masters(int rank, const optimizer_options& o) {
    if constexpr (keeps_masters<Optimizer>)
        if (o.op == hvd::adasum)
            refuse(rank,
                   "float_masters are for averages and sums; the op is Adasum, which changes the "
                   "parameters after the step");
}

// Calls `say` with the name and the value of each option: all ranks must have them alike.
[[gnu::cold]] inline void say_options(const optimizer_options& o, value_sink say) {
    message groups = "{";
    for (const auto& group : o.groups)
        groups += text(&group == o.groups.data() ? "" : ", ", print_list(group));
    groups += "}";
    say("op", o.op.name());
    say("bucket_bytes", text(o.bucket_bytes));
    say("groups", groups);
    say("order", name_of(o.order));
    say("may_be_unreported", print_list(o.may_be_unreported));
    say("backward_passes_per_step", text(o.backward_passes_per_step));
    say("average_passes", text(o.average_passes));
    say("gradient_predivide_factor", text(o.gradient_predivide_factor));
    say("codec", o.codec.name());
    say("scale_local_gradients", text(o.scale_local_gradients));
    say("skip_nonfinite", text(o.skip_nonfinite));
    say("check_finite", text(o.check_finite));
    say("synchronize_buffers", text(o.synchronize_buffers));
    say("shard_state", text(o.shard_state));
}

// **Collective**.
template <class Comm>
void agree_on_options(Comm& comm, const char* name, const optimizer_options& o,
                      const parameter_list& parameters) {
    agree_on_values(comm, name, [&](auto say) {
        say_options(o, say);
        say("parameters", described(parameters));
    });
}

}  // namespace hvd::inline v0::detail
