// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "batch_queue.hpp"
#include "batch_waits.hpp"
#include "stage_metrics.hpp"

namespace hvd::inline v0::data {

/// Options of a loader.
struct loader_options {
    /// Threads that make batches. With 0, `next` makes each batch when it is asked for it.
    std::size_t threads = 1;
};

/// The position of a loader, which all ranks have alike. It is trivially copyable: put it into
/// checkpoints, elastic states and broadcasts as it is.
struct loader_state {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint64_t samples_done = 0;  ///< of this epoch, by all ranks together
    bool operator==(const loader_state&) const = default;
};

template <batch_pipeline Pipeline>
class loader;

/// The batches of an epoch, for a loop: see `data::loader::epoch`.
template <class Pipeline>
class [[nodiscard]] epoch_batches {
public:
    class iterator {
    public:
        using iterator_concept = std::input_iterator_tag;
        using value_type = typename Pipeline::batch_type;
        using difference_type = std::ptrdiff_t;

        iterator() = default;
        explicit iterator(epoch_batches& of) : of_(&of) {}

        value_type& operator*() const { return *of_->batch_; }
        value_type* operator->() const { return &*of_->batch_; }
        iterator& operator++() {
            of_->batch_.reset();  // its memory is free before the next one is taken
            of_->take();
            return *this;
        }
        void operator++(int) { ++*this; }
        bool operator==(std::default_sentinel_t) const { return !of_->batch_; }

    private:
        epoch_batches* of_ = nullptr;
    };

    iterator begin() {
        take();
        return iterator(*this);
    }
    std::default_sentinel_t end() const { return {}; }

private:
    friend loader<Pipeline>;

    explicit epoch_batches(loader<Pipeline>& from) : from_(&from), begun_(from.begun_) {}

    void take() {
        if (from_->begun_ != begun_) from_->refuse_older_range();
        batch_ = from_->next();
    }

    loader<Pipeline>* from_;
    std::uint64_t begun_;
    std::optional<typename Pipeline::batch_type> batch_;
};

/// Makes this rank's parts of the batches of a pipeline, in threads of its own, and gives them in
/// their order.
///
/// A batch depends on the seed, the epoch and its place in it alone: it is the same with any number
/// of ranks and threads. All ranks have as many batches. Constructing a loader and `next` need no
/// communication. The destructor waits for the batches that are in the making, not for others.
/// **Threads**: call a loader from one thread at a time.
/// @snippet tests/data/snippets.cpp loader
template <batch_pipeline Pipeline>
class [[nodiscard("hvd: batches are loaded until it is destroyed")]] loader {
public:
    using batch_type = typename Pipeline::batch_type;

    /// For this rank of a communicator, which is used for its rank and size alone.
    template <has_ranks Communicator>
    loader(Pipeline pipeline, const Communicator& world, loader_options options = {})
        : loader(std::move(pipeline), part{world.rank(), world.size()}, options) {}

    /// @throws hvd::usage_error for a rank that does not exist, and for batches of equal size that
    /// the ranks do not divide.
    loader(Pipeline pipeline, part mine, loader_options options = {})
        : pipeline_(std::move(pipeline)),
          mine_(hvd::detail::checked(mine)),
          options_(options),
          state_{plan().seed, 0, 0} {
        if (plan().is_equal && plan().share != batch_share::whole &&
            plan().share != batch_share::claims &&
            plan().batch_size % std::uint64_t(mine.size) != 0)
            hvd::detail::refuse(mine.rank, "batches of ", plan().batch_size,
                                " samples can't be equal on ", mine.size,
                                " ranks: a multiple of the ranks was expected");
    }
    /// For a pipeline that knows its rank: see `data::send_to_data_service`.
    explicit loader(Pipeline pipeline, loader_options options = {})
        requires hvd::detail::remote_pipeline<Pipeline>
        : loader(pipeline, pipeline.mine(), options) {}
    loader(const loader&) = delete;
    loader& operator=(const loader&) = delete;

    /// Begins an epoch, and returns its batches for a loop, until another one begins. After
    /// `resume`, that epoch goes on.
    epoch_batches<Pipeline> epoch(std::uint64_t number) {
        begin_epoch(number);
        return epoch_batches<Pipeline>(*this);
    }

    /// Begins an epoch, whose batches `next` returns. After `resume`, that epoch goes on.
    void begin_epoch(std::uint64_t number) {
        if (!has_resumed_ || state_.epoch != number) state_.samples_done = 0;
        state_.epoch = number;
        begin();
    }

    /// Returns the next batch. It is empty at the end of the epoch. The first call begins epoch 0,
    /// or the rest of the epoch of `resume`, unless `begin_epoch` was called.
    /// @throws hvd::data::stage_error for an exception of a stage; so does each call after it,
    /// until `begin_epoch` or `resume`.
    std::optional<batch_type> next() {
        if (failure_) std::rethrow_exception(failure_);
        if (!is_begun_) begin();
        try {
            std::optional<made_batch<batch_type>> made =
                waits_.around([this] { return next_made(); });
            tell_stages(!made);
            if (!made) return at_end();
            count_skipped(*made);
            advance();
            return std::move(made->batch);
        } catch (...) {
            failure_ = std::current_exception();
            queue_.reset();
            throw;
        }
    }

    /// Records in the timeline of a communicator's observer each time in which `next` waits for a
    /// batch: `loader.record_waits(world.observer())`. They have a track of their own there. Stages
    /// with threads have one each with the samples that are ready, and how busy they are.
    /// @snippet tests/data/service_snippets.cpp timeline
    template <hvd::detail::observes_splits Observer>
    void record_waits(Observer& of) {
        waits_ = hvd::detail::batch_waits(of, mine_);
    }

    /// The position after the batch that was returned last. A batch counts as done as soon as it is
    /// returned.
    ///
    /// With `processing_mode::first_come_first_served` it is the position before which all ranks
    /// have had their batches, as far as rank 0 knows; other ranks learn it with their next batch.
    const loader_state& state() const {
        if (claims_ && !failure_) state_.samples_done = claims_->samples_done();
        return state_;
    }

    /// Goes to a position that `state` returned, on any number of ranks. The samples that follow
    /// are exactly those that would have followed there.
    /// @throws hvd::usage_error for more samples than there are.
    void resume(const loader_state& state) {
        if (state.samples_done > plan().samples)
            hvd::detail::refuse(mine_.rank, "a loader of ", plan().samples,
                                " samples resumes after ", state.samples_done);
        queue_.reset();
        claims_.reset();
        failure_ = nullptr;
        state_ = state;
        is_begun_ = false;
        has_resumed_ = true;
    }

    /// The same with the position in a `training_progress`, which `load_checkpoint` returns.
    /// @snippet tests/train/checkpoint.cpp load_loader
    template <class Progress>
        requires(!std::convertible_to<const Progress&, loader_state> &&
                 requires(const Progress& p) {
                     loader_state{p.seed, p.epoch, p.samples_done};
                     p.step;
                 })
    void resume(const Progress& progress) {
        resume(loader_state{progress.seed, progress.epoch, progress.samples_done});
    }

    /// The batches that are left in the epoch, the same number on all ranks. With
    /// `processing_mode::first_come_first_served` those of all ranks together.
    std::uint64_t steps() const { return plan().steps_after(state().samples_done); }

    /// The number of samples of all ranks in the batch that was returned last. A rank that divides
    /// the sum of its gradients by it, and takes the sum over the ranks, has the mean. Samples that
    /// `data::filter` or `data::skip_errors` left out count. With
    /// `processing_mode::first_come_first_served` they are those of this rank's batch alone.
    std::uint64_t samples_of_all() const {
        const bool has_whole = plan().share == batch_share::whole;
        return has_whole ? last_size_ * std::uint64_t(mine_.size) : last_size_;
    }

    /// The samples that `data::skip_errors` left out on this rank, in the epoch since it began or
    /// was resumed.
    std::uint64_t skipped() const { return skipped_; }

    /// The work of the stages that have threads of their own: `data::map(f, {.threads = 4})`.
    /// **Threads**: any thread calls it.
    /// @snippet tests/data/snippets.cpp threaded_map
    std::vector<stage_statistics> stages() const
        requires hvd::detail::has_stages<Pipeline>
    {
        return pipeline_.stages();
    }
    /// The same as a text file for Prometheus: `hvd_data_stage_…`, with the labels `rank` and
    /// `stage`. It is empty without such stages.
    std::string prometheus() const
        requires hvd::detail::has_stages<Pipeline>
    {
        return hvd::detail::metrics_of(stages(), mine_.rank).text();
    }
    /// Writes this file at once, as `hvd::prometheus_metrics::write` does.
    /// @throws hvd::usage_error naming the file and the system's reason
    /// @snippet tests/data/snippets.cpp stage_metrics
    void write_prometheus(const std::string& file) const
        requires hvd::detail::has_stages<Pipeline>
    {
        hvd::detail::metrics_of(stages(), mine_.rank).write(file, mine_.rank);
    }

    /// A hash of the pipeline's types, options and `data::version`, for processes that must have
    /// the same. Compilers name types differently, so it is for programs of one compiler.
    std::uint64_t fingerprint() const { return plan().fingerprint; }

private:
    friend epoch_batches<Pipeline>;

    [[noreturn, gnu::cold]] void refuse_older_range() const {
        hvd::detail::refuse(mine_.rank, "the batches of an epoch are asked for after epoch ",
                            state_.epoch, " has begun: a loader makes one epoch at a time");
    }

    // Makes the batches of one epoch by their number, with all that it needs.
    struct maker {
        // None behind the last batch.
        std::optional<made_batch<batch_type>> operator()(std::uint64_t step) const {
            batch_request request = first;
            if (claims != nullptr) {
                const std::optional<std::uint64_t> position = claims->position(step);
                if (!position) return std::nullopt;
                request.first = *position;
            } else {
                request.first += step * pipeline->plan().batch_size;
            }
            return pipeline->make(request);
        }
        const Pipeline* pipeline;
        batch_request first;
        hvd::detail::claimed_steps* claims;
    };

    const batch_plan& plan() const { return std::as_const(pipeline_).plan(); }

    void begin() {
        queue_.reset();
        claims_.reset();
        failure_ = nullptr;
        has_resumed_ = false;
        is_begun_ = true;
        ++begun_;
        skipped_ = returned_ = 0;
        if constexpr (hvd::detail::remote_pipeline<Pipeline>)
            claims_ = pipeline_.begin(maker_here().first, steps());
        if (options_.threads > 0 && plan().ahead > 0)
            queue_.emplace(maker_here(), most_made(), options_.threads, made_ahead());
    }

    // A rank that claims asks at the end of an epoch as well, and is told if others are not there.
    std::uint64_t most_made() const {
        return claims_ ? std::max<std::uint64_t>(steps(), 1) : steps();
    }

    // Batches of others lie ready as bytes, so few of them are made at once.
    std::size_t made_ahead() const {
        if constexpr (hvd::detail::remote_pipeline<Pipeline>)
            if (plan().ahead > options_.threads) return options_.threads + 1;
        return plan().ahead;
    }

    maker maker_here() const {
        return {&pipeline_, {state_.seed, state_.epoch, state_.samples_done, mine_}, claims_.get()};
    }

    std::optional<made_batch<batch_type>> next_made() {
        if (queue_) {
            auto taken = queue_->take();
            return taken ? *std::move(taken) : std::nullopt;
        }
        if (claims_) return maker_here()(returned_);
        if (steps() == 0) return std::nullopt;
        return maker_here()(0);
    }

    void count_skipped(const made_batch<batch_type>& made) {
        skipped_ += made.skipped;
        if (skipped_ > plan().most_skipped && made.skipped > 0)
            throw stage_error(mine_.rank,
                              hvd::detail::text(skipped_, " samples of epoch ", state_.epoch,
                                                " were skipped, at most ", plan().most_skipped,
                                                " may be; the last: ", made.last_failure),
                              -1, 0, nullptr);
    }

    void tell_stages([[maybe_unused]] bool is_end) {
        if constexpr (hvd::detail::has_stages<Pipeline>)
            if (waits_.wants_stages(is_end)) waits_.tell(pipeline_.stages());
    }

    // Rank 0 is told, so that it knows it when the ranks have met behind the epoch.
    std::nullopt_t at_end() {
        if (claims_) claims_->returned(returned_, true);
        return std::nullopt;
    }

    void advance() {
        if (claims_) {
            last_size_ = plan().size_at(*claims_->position(returned_));
            return claims_->returned(++returned_, false);
        }
        last_size_ = plan().size_at(state_.samples_done);
        const bool is_last = steps() == 1;
        state_.samples_done = is_last ? plan().samples : state_.samples_done + last_size_;
    }

    Pipeline pipeline_;
    part mine_;
    loader_options options_;
    mutable loader_state state_;  // `state` brings the claims of all ranks up to date
    std::uint64_t begun_ = 0;     // epochs so far
    bool is_begun_ = false;
    bool has_resumed_ = false;
    std::uint64_t skipped_ = 0;
    std::uint64_t returned_ = 0;  // batches since it began
    std::uint64_t last_size_ = 0;
    std::exception_ptr failure_;
    hvd::detail::batch_waits waits_;
    std::shared_ptr<hvd::detail::claimed_steps> claims_;
    // the last member, so that its threads end before the pipeline does
    std::optional<hvd::detail::batch_queue<maker>> queue_;
};

}  // namespace hvd::inline v0::data
