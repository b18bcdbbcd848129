// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../../core/lean/handles.hpp"
#include "../../core/op.hpp"
#include "wire_codec.hpp"

namespace hvd::inline v0 {

namespace detail {

// Code behind options that most programs do not use. An option that names it has the address of the
// code, so that all other programs do not compile it. feedback_wire.hpp and adasum_step.hpp have
// the bodies. An engine and devices, of which fewer programs have one, compile theirs always.
class any_communicator;
template <class Calls>
class bucket_feedback;
struct feedback_arguments;
using feedback_maker = owner<bucket_feedback<any_communicator>> (*)(const any_communicator&,
                                                                    const feedback_arguments&);
template <class = void>
owner<bucket_feedback<any_communicator>> make_feedback(const any_communicator&,
                                                       const feedback_arguments&);

struct withheld_arguments;
using withheld_stepper = void (*)(any_communicator&, const withheld_arguments&);
template <class Calls>
void step_by_adasum(Calls&, const withheld_arguments&);
struct code_of_options;

}  // namespace detail

/// The way in which the ranks' gradients become one: `hvd::average`, `hvd::sum`, or `hvd::adasum`,
/// with which each rank steps by itself and Adasum combines the changes of the parameters.
class gradient_op {
public:
    constexpr gradient_op(op::average) : id_(op::average::id) {}
    constexpr gradient_op(op::sum) : id_(op::sum::id) {}
    template <std::same_as<op::adasum> Op>
    constexpr gradient_op(Op)
        : id_(Op::id), by_adasum_(&detail::step_by_adasum<detail::any_communicator>) {}

    // Another operation.
    template <class Op>
        requires requires { Op::id; } && (!std::same_as<Op, op::adasum>)
    constexpr gradient_op(Op) : id_(0) {
        static_assert(Op::id < 0,
                      "hvd: gradients are reduced by hvd::average, hvd::sum or "
                      "hvd::adasum");
    }

    /// The name of the operation.
    constexpr const char* name() const { return detail::op_names[id_]; }
    friend constexpr bool operator==(gradient_op a, gradient_op b) { return a.id_ == b.id_; }
    friend constexpr bool operator==(gradient_op a, op::adasum) { return a.id_ == op::adasum::id; }

private:
    friend struct detail::code_of_options;

    int id_;
    detail::withheld_stepper by_adasum_ = nullptr;
};

class gradient_codec;
namespace codec {
template <std::same_as<gradient_codec> Codec>
constexpr Codec error_feedback(Codec);
}  // namespace codec

/// The element type of floating-point gradients while they travel: `hvd::codec::none`,
/// `hvd::codec::cast<hvd::bfloat16>` or one of float16. With `error_feedback` around a cast,
/// rounding errors are added to the parameter's next gradient, or to the row's next gradient if it
/// is sparse: the sum travels in float and its result in the codec's type, so that one rank knows
/// the error of each element. Horovod: `Compression.fp16`.
class gradient_codec {
public:
    constexpr gradient_codec(codec::none_t) {}
    template <class To>
    constexpr gradient_codec(codec::cast_t<To>)
        : id_(dtype_traits<To>::id), functions_(&detail::wire_codec_of<To>::functions) {}
    template <class To>
    constexpr gradient_codec(codec::error_feedback_t<codec::cast_t<To>>)
        : gradient_codec(codec::cast_t<To>()) {
        feedback_ = &detail::make_feedback<>;
    }

    /// True if gradients travel as this type.
    template <class Half>
    constexpr bool travels_as() const {
        return id_ == dtype_traits<Half>::id;
    }
    /// True with `error_feedback`.
    constexpr bool keeps_residual() const { return feedback_ != nullptr; }
    /// The name of the codec.
    constexpr const char* name() const {
        if (id_ == dtype::user) return "none";
        if (id_ == dtype::float16) return keeps_residual() ? "float16 with feedback" : "float16";
        return keeps_residual() ? "bfloat16 with feedback" : "bfloat16";
    }
    friend constexpr bool operator==(gradient_codec a, gradient_codec b) {
        return a.id_ == b.id_ && a.keeps_residual() == b.keeps_residual();
    }

private:
    friend struct detail::code_of_options;
    template <std::same_as<gradient_codec> Codec>
    friend constexpr Codec codec::error_feedback(Codec);

    dtype id_ = dtype::user;  // none
    const detail::wire_codec* functions_ = nullptr;
    detail::feedback_maker feedback_ = nullptr;
};

/// The same for a codec that is chosen at run time. `none` loses nothing and stays as it is.
template <std::same_as<gradient_codec> Codec>
constexpr Codec codec::error_feedback(Codec codec) {
    if (codec.id_ != dtype::user) codec.feedback_ = &hvd::detail::make_feedback<>;
    return codec;
}

namespace detail {

// The code that an operation or a codec has brought.
struct code_of_options {
    // A step of an optimizer on a communicator of the host; null but for Adasum.
    static withheld_stepper by_adasum(gradient_op op) { return op.by_adasum_; }
    // Those of a codec that is not none.
    static const wire_codec& functions(gradient_codec codec) { return *codec.functions_; }
    // Null but with error feedback.
    static feedback_maker feedback(gradient_codec codec) { return codec.feedback_; }
};

}  // namespace detail

/// The way in which sparse gradients travel. Horovod: `sparse_as_dense`.
enum class sparse_policy : std::uint8_t {
    gather,  ///< sends each rank's rows by allgather
    dense,   ///< sends the whole table by allreduce (Horovod's `sparse_as_dense`)
    /// chooses for each call the one that moves fewer bytes, from the rows of all ranks
    automatic,
};

/// The order in which buckets of gradients start. Gradients whose order is not known go from the
/// last registered to the first.
enum class bucket_order : std::uint8_t {
    /// as the gradients were reported: learnt from the first step, and looked at again before steps
    /// 10, 100, 1000, 2000, 3000, … Each time costs the ranks two small messages.
    adaptive,
    learnt_once,  ///< learnt from the first step with reports, for models that never change
    reverse,      ///< from the last registered to the first
};

/// Options of a distributed optimizer. All ranks give the same, which is compared before the first
/// step. Horovod: `backward_passes_per_step`, `gradient_predivide_factor`, `groups`, `compression`.
struct optimizer_options {
    gradient_op op = hvd::average;  ///< `average`, `sum` or `adasum`
    /// size of a bucket: gradients that travel together. 0 takes the `.tuning.bucket_bytes` that
    /// the communicator has when the optimizer is made; 1 sends each gradient by itself.
    std::size_t bucket_bytes = 0;
    /// Gradients, by index, that travel together whatever their size. The others fill buckets.
    std::vector<std::vector<std::size_t>> groups = {};
    bucket_order order = bucket_order::adaptive;  ///< in which buckets start
    /// Gradients, by index, that may stay unreported. Their buckets are the last, so that they stop
    /// no others. See `unreported()`.
    std::vector<std::size_t> may_be_unreported = {};
    /// number of passes that add to the gradients before they travel
    int backward_passes_per_step = 1;
    /// divides by the number of passes; Horovod's Torch form does not. A step of which a rank has
    /// reported fewer passes is refused.
    bool average_passes = false;
    /// an average is divided by this factor before the sum, and by the rest after it
    double gradient_predivide_factor = 1;
    /// A step that is not applied leaves the errors of an `error_feedback` as they were.
    /// Checkpoints have them.
    gradient_codec codec = hvd::codec::none;
    bool scale_local_gradients = true;  ///< local gradients are divided by the number of ranks
    /// a step with an infinity or NaN on any rank is left out on all ranks
    bool skip_nonfinite = false;
    /// each rank looks at its gradients before they travel. A NaN or infinity ends the step on all
    /// ranks by `not_finite_error`, which names the rank, the gradient and the element. It is for
    /// dense gradients on the host, averages and sums; `docs/reference/errors.md` has its cost
    bool check_finite = false;
    /// Each step also makes the registered buffers equal on all ranks, as `synchronize_buffers`
    /// does with rank 0 as the root. It is for buffers on the host. PyTorch: `broadcast_buffers`.
    bool synchronize_buffers = false;
    /// On the device each rank steps its slice of every shared parameter and keeps the optimizer's
    /// state of it alone: the gradients are reduced by reduce_scatter, and the new values travel by
    /// allgather.
    bool shard_state = false;
};

namespace detail {

constexpr const char* name_of(bucket_order order) {
    constexpr const char* names[] = {"adaptive", "learnt_once", "reverse"};
    return names[std::size_t(order)];
}

constexpr const char* name_of(sparse_policy policy) {
    constexpr const char* names[] = {"gather", "dense", "automatic"};
    return names[std::size_t(policy)];
}

}  // namespace detail
}  // namespace hvd::inline v0
