// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "batch_plan.hpp"
#include "stage_pool.hpp"
#include "stages.hpp"

namespace hvd::inline v0::detail {

// A rank's samples of one batch.
struct batch_samples {
    const data::batch_plan& plan;
    data::batch_request request;
    std::uint64_t first = 0, count = 0;

    std::uint64_t at(std::uint64_t place) const { return plan.sample_at(request, first + place); }
};

// The samples of a batch in a stage with threads, with the stages before it up to another such one.
template <class Before>
class stage_run_of final : public stage_run {
public:
    using sample_context = data::sample_context;
    using made_type = decltype(std::declval<const Before&>()(std::declval<sample_context&>()));

    stage_run_of(stage_pool& pool, const Before& before, const batch_samples& which,
                 stage_run* const* runs)
        : stage_run(which.count, pool.queue()),
          pool_(pool),
          before_(before),
          which_(which),
          runs_(runs),
          slots_(room()) {
        if (count() > 0) pool_.open(*this);
    }
    ~stage_run_of() override {
        if (count() > 0) pool_.close(*this);
    }

    void make(std::uint64_t place) override {
        sample_context c(which_.request.seed, which_.request.epoch);
        c.begin(which_.at(place), place);
        c.use(runs_);
        slot& mine = slots_[place % slots_.size()];
        try {
            mine.sample.emplace(before_(c));
        } catch (...) {
            mine.failure = std::current_exception();
        }
        if (c.waited() > 0) pool_.was_idle(c.waited());
        mine.context.emplace(std::move(c));
    }

    made_type take(sample_context& c) {
        slot mine;
        c.wait_for(pool_.take(*this, c.place(), [&] {
            mine = std::exchange(slots_[c.place() % slots_.size()], slot());
        }));
        c.take_over(*std::move(mine.context));
        if (mine.failure) std::rethrow_exception(std::move(mine.failure));
        return *std::move(mine.sample);
    }

private:
    struct slot {
        std::optional<made_type> sample;
        std::exception_ptr failure;
        std::optional<sample_context> context;
    };

    stage_pool& pool_;
    const Before& before_;
    const batch_samples which_;
    stage_run* const* runs_;
    std::vector<slot> slots_;
};

// A stage whose samples threads of its own make, up to a number before they are taken.
template <class Before>
struct threaded_stage {
    using value_type = typename Before::value_type;
    using result = value_type;
    static constexpr bool skips = Before::skips;
    static constexpr int number = Before::number;
    static constexpr std::size_t queues = Before::queues + 1;

    auto operator()(data::sample_context& c) const {
        if (!pool->has_threads()) return before(c);
        return static_cast<stage_run_of<Before>*>(c.run(queues - 1))->take(c);
    }

    Before before;
    std::shared_ptr<stage_pool> pool;
};

template <class Make>
constexpr bool has_own_threads = false;
template <class Before>
constexpr bool has_own_threads<threaded_stage<Before>> = true;

// The runs of a batch in all stages with threads. Those of later stages end first.
template <class Make, std::size_t Left = Make::queues>
class opened_runs {
public:
    opened_runs(const Make& make, const batch_samples& which, stage_run** runs)
        : before_(make.before, which, runs) {
        if constexpr (has_own_threads<Make>)
            if (make.pool->has_threads())
                runs[Make::queues - 1] = &run_.emplace(*make.pool, make.before, which, runs);
    }

private:
    struct none {};
    template <class M>
    struct run_type {
        using type = none;
    };
    template <class Before>
    struct run_type<threaded_stage<Before>> {
        using type = std::optional<stage_run_of<Before>>;
    };

    opened_runs<std::remove_cvref_t<decltype(std::declval<const Make&>().before)>> before_;
    typename run_type<Make>::type run_;
};
template <class Make>
class opened_runs<Make, 0> {
public:
    opened_runs(const Make&, const batch_samples&, stage_run**) {}
};

// Adds the statistics of all stages with threads, in their order.
template <class Make>
void add_statistics(const Make& make, std::vector<data::stage_statistics>& all) {
    if constexpr (Make::queues > 0) {
        add_statistics(make.before, all);
        if constexpr (has_own_threads<Make>)
            if (make.pool->has_threads()) all.push_back(make.pool->statistics());
    }
}

}  // namespace hvd::inline v0::detail

namespace hvd::inline v0::data {

/// The result of `data::map` with options.
template <class F>
struct threaded_map_step {
    F f;
    map_options options;
};

/// Changes each sample in threads of its own, with a queue of the samples that are made before they
/// are taken: `data::map(decode, {.threads = 4, .queue = 16})`.
///
/// The stages before it run in its threads, too, back to another one that has threads. The order,
/// the random numbers and the errors are those without threads. The queue is full while what
/// follows is slower: the threads wait, so that no more memory is taken. All copies of the
/// pipeline, and the trainers of a worker, share the threads, which start with the first batch. A
/// queue serves one batch; the next one needs a second thread of the loader.
/// **Threads**: `f` is called by several threads at once.
/// @snippet tests/data/snippets.cpp threaded_map
template <class F>
threaded_map_step<F> map(F f, map_options options) {
    return {std::move(f), options};
}

template <class Make, class F>
auto operator|(const samples<Make>& before, threaded_map_step<F> step) {
    constexpr bool is_right = hvd::detail::takes_sample<F, typename Make::result>;
    static_assert(is_right,
                  "hvd: the function of data::map takes (sample) or (sample, data::random&), and "
                  "is const, since several threads call it");
    if constexpr (is_right) {
        using Stage = hvd::detail::map_stage<Make, F>;
        auto pool = std::make_shared<hvd::detail::stage_pool>(Stage::number, step.options);
        return hvd::detail::with_stage(
            before,
            hvd::detail::threaded_stage<Stage>{{before.make, std::move(step.f)}, std::move(pool)});
    }
}

}  // namespace hvd::inline v0::data
