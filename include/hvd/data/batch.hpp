// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "batch_plan.hpp"
#include "claimed_steps.hpp"
#include "collate.hpp"
#include "stages.hpp"
#include "threaded_map.hpp"

namespace hvd::inline v0::data {

/// A pipeline up to its batches, which a `data::loader` takes.
///
/// `plan()` is its `batch_plan`, and `make(request)` returns the `made_batch` of a `batch_request`:
/// the same batch in every process, so that another one may make it.
/// **Threads**: several threads call `make` at once.
template <class P>
concept batch_pipeline = requires(P& own, const P& p, const batch_request& request) {
    typename P::batch_type;
    { own.plan() } -> std::same_as<batch_plan&>;
    { p.plan() } -> std::same_as<const batch_plan&>;
    { p.make(request) } -> std::same_as<made_batch<typename P::batch_type>>;
};

}  // namespace hvd::inline v0::data

namespace hvd::inline v0::detail {

// A pipeline whose batches are made elsewhere. It is told which of them a loader takes next, and
// knows the rank that takes them.
template <class P>
concept remote_pipeline =
    data::batch_pipeline<P> && requires(const P& p, const data::batch_request& first) {
        {
            p.begin(first, std::uint64_t(0))
        } -> std::same_as<std::shared_ptr<claimed_steps>>;  // none where all steps are known
        { p.mine() } -> std::convertible_to<part>;
    };

// A pipeline whose stages run in this process.
template <class P>
concept has_stages = requires(const P& p) {
    { p.stages() } -> std::same_as<std::vector<data::stage_statistics>>;
};

}  // namespace hvd::inline v0::detail

namespace hvd::inline v0::data {

/// A pipeline that collects its samples in batches: see `data::batch`.
template <class Make, class Collate>
class batches {
    using sample_type = typename Make::value_type;

public:
    using batch_type = std::remove_cvref_t<decltype(std::declval<const Collate&>()(
        std::declval<std::vector<sample_type>>()))>;

    batches(const samples<Make>& of, batch_plan plan, Collate collate)
        : make_(of.make), plan_(plan), collate_(std::move(collate)) {
        plan_.samples = of.size;
        plan_.seed = of.seed;
        plan_.is_shuffled = of.is_shuffled;
        plan_.may_shorten = Make::skips;
        plan_.most_skipped = of.most_skipped;
        plan_.stages = Make::number + 1;
        plan_.fingerprint = of.fingerprint;
        hvd::detail::mix_type<Collate>(plan_.fingerprint);
        for (const std::uint64_t option : {plan.batch_size, std::uint64_t(plan.last)})
            hvd::detail::mix(plan_.fingerprint, option);
    }

    const batch_plan& plan() const { return plan_; }
    batch_plan& plan() { return plan_; }

    /// Makes a rank's part of a batch: the same in every process, from the same request.
    /// @throws hvd::data::stage_error for an exception of a stage.
    made_batch<batch_type> make(const batch_request& request) const {
        sample_context context(request.seed, request.epoch);
        try {
            std::vector<sample_type> all = samples_of(request, context);
            context.begin(plan_.first_sample(request));
            context.enter(plan_.stages, "batch");
            return {collate_(std::move(all)), context.skipped(),
                    hvd::detail::message(context.last_failure())};
        } catch (...) {
            context.fail(request.mine.rank, std::current_exception());
        }
    }

    /// The work of the stages that have threads of their own, in their order.
    /// **Threads**: any thread calls it.
    std::vector<stage_statistics> stages() const {
        std::vector<stage_statistics> all;
        hvd::detail::add_statistics(make_, all);
        return all;
    }

private:
    std::vector<sample_type> samples_of(const batch_request& request,
                                        sample_context& context) const {
        const auto [first, last] = plan_.places(request);
        const hvd::detail::batch_samples which{plan_, request, first, last - first};
        std::array<hvd::detail::stage_run*, Make::queues + 1> runs{};
        const hvd::detail::opened_runs<Make> opened(make_, which, runs.data());
        context.use(runs.data());
        std::vector<sample_type> all;
        all.reserve(std::size_t(which.count));
        for (std::uint64_t place = 0; place < which.count; ++place) {
            context.begin(which.at(place), place);
            if constexpr (Make::skips) {
                if (auto sample = make_(context)) all.push_back(*std::move(sample));
            } else {
                all.push_back(make_(context));
            }
        }
        return all;
    }

    Make make_;
    batch_plan plan_;
    Collate collate_;
};

/// Options of `data::batch` and `data::equal_batch`.
struct batch_options {
    last_batch last = last_batch::keep;  ///< a last batch that is shorter
};

/// The result of `data::batch`.
template <class Collate>
struct batch_step {
    batch_plan plan;
    Collate collate;
};

/// The result of `data::equal_batch`.
template <class Collate>
struct equal_batch_step {
    batch_plan plan;
    Collate collate;
};

/// Collects samples in batches of `size`, counted over all ranks. Each rank takes its part of a
/// batch. The parts differ by one sample at most.
///
/// `collate` makes a batch of a vector of samples. Without it that is `data::default_collate`.
/// @throws hvd::usage_error for a size of 0.
template <class Collate = default_collate>
    requires(!std::convertible_to<Collate, batch_options>)
batch_step<Collate> batch(std::uint64_t size, Collate collate = {}, batch_options options = {}) {
    if (size == 0) hvd::detail::refuse(-1, "data::batch of 0 samples, and at least 1");
    return {{.batch_size = size, .last = options.last}, std::move(collate)};
}
inline batch_step<default_collate> batch(std::uint64_t size, batch_options options) {
    return batch(size, default_collate(), options);
}

/// Collects samples in batches that all have as many samples, on all ranks.
///
/// The number of ranks divides `size`. Stages that leave out samples do not compile before it. The
/// last batch is dropped or filled.
/// @throws hvd::usage_error for a size of 0, and for `last_batch::keep`.
template <class Collate = default_collate>
    requires(!std::convertible_to<Collate, batch_options>)
equal_batch_step<Collate> equal_batch(std::uint64_t size, Collate collate = {},
                                      batch_options options = {.last = last_batch::drop}) {
    if (options.last == last_batch::keep)
        hvd::detail::refuse(-1,
                            "data::equal_batch keeps a shorter batch at the end: take "
                            "last_batch::drop or last_batch::fill");
    batch_step<Collate> step = batch(size, std::move(collate), options);
    step.plan.is_equal = true;
    return {step.plan, std::move(step.collate)};
}
inline equal_batch_step<default_collate> equal_batch(std::uint64_t size, batch_options options) {
    return equal_batch(size, default_collate(), options);
}

/// Options of a pipeline's end: batches that are made before they are used.
struct prefetch_options {
    std::size_t batches = 0;  ///< 0: each is made when it is asked for
};

/// Lets a loader make so many batches before they are used. With 0 it makes each when it is asked
/// for it, in the thread that asks.
inline prefetch_options prefetch(std::size_t batches) { return {batches}; }

template <class Make, class Collate>
auto operator|(const samples<Make>& before, batch_step<Collate> step) {
    return batches<Make, Collate>(before, step.plan, std::move(step.collate));
}

template <class Make, class Collate>
auto operator|(const samples<Make>& before, equal_batch_step<Collate> step) {
    static_assert(!Make::skips,
                  "hvd: data::equal_batch needs all samples, and data::filter or "
                  "data::skip_errors leaves some out: use data::batch");
    return batches<Make, Collate>(before, step.plan, std::move(step.collate));
}

template <batch_pipeline Pipeline>
Pipeline operator|(Pipeline pipeline, prefetch_options options) {
    pipeline.plan().ahead = options.batches;
    return pipeline;
}

/// A pipeline whose batches a function changes: `data::map` after `data::batch`.
template <batch_pipeline Before, class F>
class mapped_batches {
public:
    using batch_type =
        std::remove_cvref_t<std::invoke_result_t<const F&, typename Before::batch_type>>;

    mapped_batches(Before before, F f)
        : before_(std::move(before)), f_(std::move(f)), number_(++plan().stages) {
        hvd::detail::mix_type<F>(plan().fingerprint);
    }

    const batch_plan& plan() const { return before_.plan(); }
    batch_plan& plan() { return before_.plan(); }
    part mine() const
        requires hvd::detail::remote_pipeline<Before>
    {
        return before_.mine();
    }
    auto begin(const batch_request& first, std::uint64_t steps) const
        requires hvd::detail::remote_pipeline<Before>
    {
        return before_.begin(first, steps);
    }

    std::vector<stage_statistics> stages() const
        requires hvd::detail::has_stages<Before>
    {
        return before_.stages();
    }

    made_batch<batch_type> make(const batch_request& request) const {
        auto made = before_.make(request);
        try {
            return {f_(std::move(made.batch)), made.skipped, std::move(made.last_failure)};
        } catch (...) {
            sample_context context(request.seed, request.epoch);
            context.begin(plan().first_sample(request));
            context.enter(number_, "map");
            context.fail(request.mine.rank, std::current_exception());
        }
    }

private:
    Before before_;
    F f_;
    int number_;
};

template <batch_pipeline Before, class F>
void operator|(const Before&, const threaded_map_step<F>&) {
    static_assert(!std::is_same_v<F, F>,
                  "hvd: data::map has threads of its own before data::batch alone: behind it the "
                  "loader's threads call it, loader_options::threads of them");
}

template <batch_pipeline Before, class F>
auto operator|(Before before, map_step<F> step) {
    constexpr bool is_right = std::invocable<const F&, typename Before::batch_type>;
    static_assert(is_right,
                  "hvd: after data::batch the function of data::map takes a batch, and is const, "
                  "since several threads call it");
    if constexpr (is_right) return mapped_batches<Before, F>(std::move(before), std::move(step.f));
}

}  // namespace hvd::inline v0::data
