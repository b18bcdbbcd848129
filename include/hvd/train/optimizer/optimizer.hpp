// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <type_traits>
#include <utility>

#include "../agreement.hpp"
#include "../gradients/buffers.hpp"
#include "host_gradients.hpp"
#include "optimizers.hpp"

namespace hvd::inline v0 {
/// O shows its state to `broadcast_optimizer_state` and checkpoints. `for_each_slot(f)` calls
/// `f(name, slots)`, and `for_each_number(f)` calls `f(name, number&)`, each in a fixed order.
/// `slots` has one array for each parameter: `optimizers::slots<T>&`, `optimizers::step_counts&`,
/// or a `std::vector` of another library's arrays that have `value_type`, `data()`, `size()` and
/// `resize(n)`. An array is as large as its parameter, or empty.
///
/// Checkpoints refuse parameters that have some of the slots and lack others, unless
/// `O::is_optional_slot(name)` is true for those.
template <class O>
concept optimizer_with_state = requires(O& o) {
    o.for_each_slot([](const char*, auto&) {});
    o.for_each_number([](const char*, auto&) {});
};

namespace detail {

// The fewest and the most steps that a parameter has taken, as text.
template <class IsLocal>
message range_of(const optimizers::step_counts& steps, IsLocal is_local) {
    double fewest = 0, most = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        if (is_local(i) || steps[i].empty()) continue;
        if (fewest == 0 || steps.of(i) < fewest) fewest = steps.of(i);
        if (steps.of(i) > most) most = steps.of(i);
    }
    return fewest == most ? text(most) : text(fewest, " to ", most);
}

// **Collective**. A step with other numbers would make other parameters of the same gradients.
// `is_local(i)` is true for a parameter whose steps are this rank's own.
template <class Comm, optimizer_with_state O, class IsLocal>
void agree_on_numbers(Comm& comm, O& optimizer, IsLocal is_local) {
    agree_on_values(comm, "distributed_optimizer", [&](auto say) {
        // first, since it says how many numbers there are
        if constexpr (requires { optimizer.described_groups(); })
            say("parameters of groups", optimizer.described_groups());
        optimizer.for_each_number([&]<class N>(const char* name, const N& number) {
            if constexpr (std::is_arithmetic_v<N>) say(name, text(number));
        });
        optimizer.for_each_slot([&]<class S>(const char* name, const S& slots) {
            if constexpr (std::is_same_v<S, optimizers::step_counts>)
                say(name, range_of(slots, is_local));
        });
    });
}

// A distributed_optimizer of something that is no element goes on with float, so that compilers say
// one text only.
template <class T>
using trained = std::conditional_t<is_float_element<T>, T, float>;

struct no_arguments_of_an_optimizer {};

template <class Optimizer, class R>
constexpr bool check_rate() {
    constexpr bool is_rate = requires(Optimizer& o, const R& rate) { o.rate = rate; };
    static_assert(is_rate,
                  "hvd: set_rate(0.1) takes a number, and an optimizer with a member rate");
    return is_rate;
}

template <class Comm, class O>
using stepped_by = std::conditional_t<device_communicator<Comm>, std::remove_reference_t<O>, O>;

}  // namespace detail

/// Makes an optimizer for one rank an optimizer for all ranks: it averages the gradients, then lets
/// the optimizer step.
///
/// Register every parameter with the memory of its gradient, run backward passes that *add* to the
/// gradients, and call `step()`. With `gradient_ready(i)` it reduces gradients while the backward
/// pass still runs. Buckets are filled in the order of the reports, which the ranks learn from the
/// first step: see `bucket_order`. A bucket starts when its last gradient is ready and the buckets
/// before it have started.
///
/// Gradients that are not reported travel as they are. For zeros call `nothing_ready()`.
/// **Collective**: the first report or `synchronize()` after a registration, `freeze` or `unfreeze`
/// (the ranks compare options and parameters) and in the steps that `bucket_order` names, each
/// `synchronize()`, and `apply` with Adasum or `skip_nonfinite`. Between the first report and
/// `synchronize()`, other calls on the communicator must come in the same order relative to the
/// reports on all ranks; use another communicator there.
/// With an `engine` in place of the communicator (include hvd/train_engine.hpp) gradients travel
/// under the names of their parameters as they are reported, in any order. The ranks then compare
/// everything in `synchronize()`.
/// **Errors**: a step whose collectives fail is over on every rank. The gradients hold the results
/// that were complete by then, and the next step begins with `zero_gradients()`.
/// **Buffers**: parameters and gradients (on the host, without gaps) and the communicator outlive
/// it.
/// **Threads**: the communicator's rule; on an engine any thread reports gradients. Horovod:
/// `DistributedOptimizer`.
/// @tparam Optimizer models `optimizer_of<T>` or `self_contained_optimizer`. `O&` refers to an
/// optimizer that outlives this one and keeps its state: an optimizer with a name, as in
/// `distributed_optimizer(comm, adam)`, is referred to. One without is moved in.
/// @snippet tests/train/snippets.cpp distributed_optimizer
/// @snippet tests/train/engine_snippets.cpp engine_optimizer
template <class Comm, class Optimizer,
          class T = typename detail::optimizer_element<Optimizer>::type>
class distributed_optimizer
    : public detail::host_gradients<detail::steps_of<Comm>, detail::trained<T>>,
      public detail::registered_buffers<host> {
    using element = detail::trained<T>;
    static constexpr bool is_element = std::is_same_v<element, T>;
    // An optimizer of other elements tells so by itself.
    static constexpr bool is_elements_type =
        is_element || std::is_same_v<T, typename detail::optimizer_element<Optimizer>::type>;
    static_assert(
        is_elements_type,
        "hvd: the third argument of distributed_optimizer<…> is the type of the elements: "
        "float, double, hvd::float16 or hvd::bfloat16; leave it out for the optimizer's");
    static constexpr bool is_steppable =
        !is_element || optimizer_of<Optimizer, T> || self_contained_optimizer<Optimizer>;
    static_assert(is_steppable,
                  "hvd: an optimizer has step(parameters, gradients) for tensors of this element "
                  "type, or step(): see hvd::optimizer_of");

    using reducer = detail::host_gradients<detail::steps_of<Comm>, element>;

public:
    /// @throws hvd::usage_error for options that contradict each other or an empty communicator.
    [[gnu::cold]] distributed_optimizer(Comm& comm, Optimizer optimizer,
                                        optimizer_options options = {})
        : reducer(comm, std::move(options), detail::abilities_of<typename Comm::backend_type>),
          detail::registered_buffers<host>(comm.rank()),
          comm_(comm),
          optimizer_(std::forward<Optimizer>(optimizer)) {
        detail::check_masters<Optimizer>(comm.rank(), this->options());
        this->agrees_on_numbers_ = optimizer_with_state<Optimizer>;
    }

    /// Registers a buffer as the optimizer's other part says: see `registered_buffers`.
    template <class X>
        requires writable<X>
    void register_buffer(std::string_view name, X&& value,
                         buffer_policy policy = buffer_policy::averaged) {
        detail::registered_buffers<host>::register_buffer(name, std::forward<X>(value), policy);
        // programs without buffers do not compile this
        synchronize_buffers_ = [](distributed_optimizer& self) {
            self.synchronize_buffers_over(self.comm(), root{0});
        };
    }

    /// Completes the reduction of all gradients. The ranks also compare the numbers of the
    /// optimizer (the rate, the momentum, …), if it shows them by `for_each_number`: in the first
    /// step, and on `checked<…>` in each. With `synchronize_buffers` the buffers become equal, too.
    /// **Collective**.
    /// @throws hvd::mismatch_error if the ranks have other options, parameters, numbers or buffers,
    /// hvd::peer_error.
    synchronized_gradients<element> synchronize() {
        auto synchronized = reducer::synchronize(steps_rows());
        agree_on_numbers();
        if (this->options().synchronize_buffers && synchronize_buffers_ != nullptr)
            synchronize_buffers_(*this);
        return synchronized;
    }

    /// Steps with the gradients of `synchronize()`. It returns false if `skip_nonfinite` left the
    /// step out.
    /// @throws with Adasum as a collective does. The parameters are then as before, though the
    /// optimizer has seen the step.
    bool apply(synchronized_gradients<element>&& synchronized) {
        return this->apply_by(
            std::move(synchronized),
            [](void* self, double factor) {
                static_cast<distributed_optimizer*>(self)->step_alone(factor);
            },
            this);
    }

    // Anything else is refused.
    template <class... A>
    bool apply(A&&...) {
        constexpr bool has_gradients = sizeof...(A) > 99;
        static_assert(has_gradients,
                      "hvd: apply(std::move(gradients)) takes what synchronize() returned; step() "
                      "does both");
        return false;
    }

    /// Calls `apply(synchronize())`.
    bool step() { return apply(synchronize()); }

    /// The communicator of the gradients, or for hvd what stands for it on an engine.
    auto& comm() noexcept {
        if constexpr (detail::is_engine<Comm>) return this->calls();
        else return comm_;
    }

    /// The optimizer that steps.
    Optimizer& optimizer() noexcept { return optimizer_; }

    /// Gives the optimizer another rate for the steps that come: the same on all ranks. They
    /// compare it in the first step, and on `checked<…>` in each.
    template <class R>
    void set_rate(const R& rate) {
        constexpr bool is_rate = detail::check_rate<Optimizer, R>();
        if constexpr (is_rate) optimizer_.rate = static_cast<decltype(optimizer_.rate)>(rate);
    }

private:
    bool steps_rows() const {
        if constexpr (!row_optimizer_of<Optimizer, element>) return false;
        else if constexpr (requires { optimizer_.steps_rows(); }) return optimizer_.steps_rows();
        else return true;
    }

    void step_alone(double factor) {
        if constexpr (detail::scales_gradients<Optimizer>)
            optimizer_.gradient_factor = float(factor);
        else this->scale_gradients(factor);
        if constexpr (row_optimizer_of<Optimizer, element>)
            if (!this->tables().empty()) return step_by_rows();
        if constexpr (optimizer_of<Optimizer, element>)
            optimizer_.step(optimizers::tensors<element>(this->values_),
                            optimizers::tensors<element>(this->gradients_));
        else optimizer_.step();
    }

    // The next synchronize() lists the tables again.
    void step_by_rows() {
        auto &values = this->values_, &gradients = this->gradients_;
        this->for_each_rows([&](std::size_t i, const sparse_view<element>& rows) {
            optimizer_.step_rows(i, values[i], rows);
            values[i] = gradients[i] = {};
        });
        optimizer_.step(optimizers::tensors<element>(values),
                        optimizers::tensors<element>(gradients));
    }

    void agree_on_numbers() {
        if constexpr (optimizer_with_state<Optimizer>) {
            if (!this->agrees_on_numbers_) return;
            detail::agree_on_numbers(this->calls(), optimizer_,
                                     [this](std::size_t i) { return this->is_local(i); });
            if constexpr (requires { optimizer_.require_members_of(1); })
                optimizer_.require_members_of(this->values_.size());
            this->agrees_on_numbers_ = requires { requires Comm::backend_type::agrees_on_names; };
        }
    }

    Comm& comm_;
    Optimizer optimizer_;
    void (*synchronize_buffers_)(distributed_optimizer&) = nullptr;  // once there is a buffer
};

// Arguments that fit no constructor.
template <class O, class T>
class distributed_optimizer<detail::no_arguments_of_an_optimizer, O, T> {
public:
    static constexpr bool has_arguments = !std::is_same_v<O, O>;
    static_assert(has_arguments,
                  "hvd: distributed_optimizer takes a communicator, an optimizer, and members of "
                  "hvd::optimizer_options in their order: (world, hvd::optimizers::sgd<float>{.rate"
                  " = 0.1f}, {.bucket_bytes = 1 << 20})");
    // Options in braces are for the three points.
    template <class A>
    explicit distributed_optimizer(A&&, ...);
    template <class A, class B>
    distributed_optimizer(A&&, B&&, ...);
};

namespace optimizers {

/// Says that a `distributed_optimizer` refers to an optimizer that lives elsewhere:
/// `distributed_optimizer(world, by_reference{adam})`. An optimizer with a name is referred to
/// without it, too.
///
/// The optimizer, whose slots and numbers stay its own, outlives the distributed one.
template <class O>
struct by_reference {
    explicit by_reference(O& o) : optimizer(o) {}
    operator O&() const { return optimizer; }

    O& optimizer;  ///< the optimizer that is referred to
};

}  // namespace optimizers

// An optimizer with a name is referred to, unless it is const. One whose state is on a device is
// not: see device/optimizer.hpp.
template <class Comm, class O>
distributed_optimizer(Comm&, O&) -> distributed_optimizer<Comm, detail::stepped_by<Comm, O&>>;
template <class Comm, class O>
distributed_optimizer(Comm&, O&, optimizer_options)
    -> distributed_optimizer<Comm, detail::stepped_by<Comm, O&>>;
template <class Comm, class O>
distributed_optimizer(Comm&, const O&) -> distributed_optimizer<Comm, O>;
template <class Comm, class O>
distributed_optimizer(Comm&, const O&, optimizer_options) -> distributed_optimizer<Comm, O>;
template <class Comm, class O>
distributed_optimizer(Comm&, optimizers::by_reference<O>) -> distributed_optimizer<Comm, O&>;
template <class Comm, class O>
distributed_optimizer(Comm&, optimizers::by_reference<O>, optimizer_options)
    -> distributed_optimizer<Comm, O&>;
distributed_optimizer(...)
    -> distributed_optimizer<detail::no_arguments_of_an_optimizer, void, float>;

}  // namespace hvd::inline v0
