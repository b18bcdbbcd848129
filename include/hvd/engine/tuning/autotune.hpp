// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include "../../core/settings/autotune_settings.hpp"
#include "sample_log.hpp"
#include "search.hpp"
#include "target.hpp"

namespace hvd::inline v0 {

/// Searches for the thresholds of an engine or a communicator with which a training step is
/// shortest, while the training goes on.
///
/// `step()` comes after each step. It measures, and changes thresholds between steps. The slowest
/// rank's time counts: the ranks exchange the times of a sample in one small reduction. Each rank
/// draws the same conclusions from them. Results stay the same to the bit. The candidates are
/// compared in turns, by medians and with a margin. The last comparison is a duel of the best one
/// with the thresholds of the start and with the defaults, so that the training does not end slower
/// than it began. After at most `max_steps` the search is over; then `step()` does nothing. A
/// tuner that is destroyed before leaves the thresholds in force that it tries.
///
/// **Collective**: all ranks make it with equal options, and call `step()` equally often, with
/// nothing in flight. A rank must not join before the search is over.
/// The engine or communicator must stay where it is until then. Horovod: `HOROVOD_AUTOTUNE`.
/// @snippet tests/docs/snippets.cpp autotune
class autotune {
public:
    /// @throws hvd::usage_error for options out of their range and a log that can't be written;
    /// hvd::mismatch_error if the options of ranks differ; hvd::peer_error if another rank refuses.
    template <class Backend>
    explicit autotune(engine<Backend>& engine, autotune_options options = {})
        : autotune(std::make_unique<detail::tuned_engine<Backend>>(engine), std::move(options)) {}
    template <class Backend>
    explicit autotune(communicator<Backend>& comm, autotune_options options = {})
        : autotune(std::make_unique<detail::tuned_communicator<Backend>>(comm),
                   std::move(options)) {}

    /// A step has ended. Its time is that since the last call.
    /// @throws hvd::usage_error if a tensor of this rank is in flight, hvd::peer_error if one of
    /// another rank is: the next call tries again.
    void step() {
        if (!is_over()) step(time_span::of_nanoseconds(detail::now() - began_));
    }
    /// The same for a program that measures its steps itself.
    void step(time_span duration) {
        if (is_over()) return;
        ++steps_;
        if (wanted_) change();
        else if (skipped_ > 0) --skipped_;
        else add(double(duration.nanoseconds) * 1e-9);
        began_ = detail::now();
    }

    /// True if nothing more is tried.
    bool is_over() const noexcept { return target_ == nullptr; }
    /// The outcome, once the search is over.
    const autotune_result& result() const noexcept { return result_; }

private:
    autotune(std::unique_ptr<detail::tuned_target> target, autotune_options options)
        : target_(std::move(target)), options_(std::move(options)), calls_(target_->calls()) {
        calls_.makes_buckets = options_.changed != nullptr;
        compare_options();
        skipped_ = options_.warmup_steps;
        result_.chosen = target_->tuned();
        began_ = detail::now();
        begin();
    }

    void begin() {
        if (!options_.enabled) return target_.reset();
        if (options_.known) {
            set(*options_.known);
            return finish();
        }
        search_ = std::make_unique<detail::tuning_search>(
            detail::knobs_of(calls_, options_.fixed, target_->rank()), target_->tuned(),
            detail::search_options{.most_samples = most_samples()});
        if (search_->is_over()) return finish();
        want(search_->candidate());
    }

    // Steps after a change of thresholds that do not count. An engine learns its prediction
    // meanwhile.
    int settling_steps() const { return calls_.of_engine ? 4 : 1; }

    // All steps count. The first one ends before the first candidate is in force.
    int most_samples() const {
        const int each = settling_steps() + options_.steps_per_sample;
        return std::max(0, options_.max_steps - options_.warmup_steps - 1) / each;
    }

    void check_options() const {
        for (const detail::setting& s : detail::settings_of<autotune_options>::table) {
            if (s.kind != detail::setting_kind::integer) continue;
            const int value =
                *static_cast<const int*>(s.member(const_cast<autotune_options*>(&options_)));
            if (value < s.least || value > s.most)
                throw usage_error(target_->rank(),
                                  detail::text("hvd: ", s.key, " is ", value, "; it takes ",
                                               detail::permitted(s)));
        }
        if (!options_.file.empty())
            throw usage_error(target_->rank(),
                              detail::text("hvd: autotune.file is '", options_.file,
                                           "', and hvd::autotune reads "
                                           "no file: it takes hvd::autotune_with_file of "
                                           "hvd/interop/autotune_file.hpp"));
        if (const int least = detail::tuning_search::least_samples; most_samples() < least)
            throw usage_error(
                target_->rank(),
                detail::text("hvd: autotune.max_steps is ", options_.max_steps,
                             "; a search with these options takes at least ",
                             1 + options_.warmup_steps +
                                 least * (settling_steps() + options_.steps_per_sample)));
        (void)detail::knobs_of(calls_, options_.fixed, target_->rank());
        if (options_.known) detail::check_engine_tuning(*options_.known, target_->rank());
    }

    // Throws on all ranks if one of them can't work, or if they differ.
    void compare_options() {
        std::exception_ptr wrong;
        try {
            check_options();
            if (options_.enabled && !options_.log.empty() && target_->rank() == 0)
                log_ = detail::sample_log(options_.log, 0);
        } catch (const error&) {
            wrong = std::current_exception();
        }
        const std::vector<std::pair<const char*, std::int64_t>> mine = compared(wrong != nullptr);
        std::vector<std::int64_t> numbers;
        for (const auto& [name, value] : mine) numbers.push_back(value);
        const std::vector<std::int64_t> all = target_->numbers_of_all(numbers);
        if (wrong) std::rethrow_exception(wrong);
        const std::size_t each = numbers.size();
        for (std::size_t r = 0; r < all.size() / each; ++r)
            if (all[r * each] != 0)
                throw peer_error(target_->rank(),
                                 detail::text("hvd: an autotune on rank ", target_->rank(),
                                              ": rank ", r, " refuses its options"),
                                 {int(r)});
        for (std::size_t i = 1; i < each; ++i) compare(mine[i].first, all, i, each);
    }

    void compare(const char* name, const std::vector<std::int64_t>& all, std::size_t i,
                 std::size_t each) const {
        bool differs = false;
        std::vector<detail::message> texts;
        for (std::size_t at = i; at < all.size(); at += each) {
            texts.push_back(detail::text(all[at]));
            differs = differs || all[at] != all[i];
        }
        if (!differs) return;
        std::vector<mismatch_error::entry> entries;
        for (std::size_t r = 0; r < texts.size(); ++r) entries.emplace_back(int(r), texts[r]);
        detail::throw_mismatch(target_->rank(), "an autotune", name,
                               {entries.data(), entries.size()}, detail::table_style::rows);
    }

    // Texts and thresholds are compared by a hash.
    std::vector<std::pair<const char*, std::int64_t>> compared(bool refuses) const {
        const auto& o = options_;
        detail::hash known;
        if (o.known)
            detail::say_engine_tuning(*o.known, [&](std::string_view name, std::string_view value) {
                known.add(name).add(value);
            });
        return {{"refuses", refuses},
                {".enabled", o.enabled},
                {".warmup_steps", o.warmup_steps},
                {".steps_per_sample", o.steps_per_sample},
                {".max_steps", o.max_steps},
                {"a hash of .fixed", std::int64_t(detail::hash().add(o.fixed).value())},
                {"a hash of .known", std::int64_t(known.value())},
                {"whether there is a function .changed", o.changed != nullptr}};
    }

    void add(double seconds) {
        times_.push_back(seconds);
        if (int(times_.size()) < options_.steps_per_sample) return;
        target_->take_greatest(times_);
        const double sample = detail::median_of(times_);
        times_.clear();
        log_.add(steps_, stage_name(), sample, search_->candidate());
        search_->add_sample(sample);
        want(search_->candidate());
        change();
    }

    const char* stage_name() const {
        static constexpr const char* names[] = {"opening", "heat", "final heat", "duel", "over"};
        return names[int(search_->now_at())];
    }

    void want(const engine_tuning& to) { wanted_ = to; }

    // It throws where tensors are in flight, and is called again then. If `.changed` throws, the
    // search of this rank goes on as on the others.
    void change() {
        const engine_tuning to = *wanted_;
        const bool differs = !(to == target_->tuned());
        if (differs) {
            target_->retune(to);
            skipped_ = std::max(skipped_, settling_steps());
        }
        wanted_.reset();
        if (differs) tell_changed(to);
        if (search_->is_over()) finish();
    }
    void tell_changed(const engine_tuning& to) {
        if (!options_.changed) return;
        try {
            options_.changed(to);
        } catch (...) {
            began_ = detail::now();
            if (search_ && search_->is_over()) finish();
            throw;
        }
    }
    void set(const engine_tuning& to) {
        target_->retune(to);
        tell_changed(to);
    }

    void finish() {
        result_.chosen = target_->tuned();
        result_.steps = steps_;
        if (search_) {
            result_.seconds = search_->best_seconds();
            result_.seconds_before = search_->start_seconds();
            log_.add(steps_, "chosen", result_.seconds, result_.chosen);
        }
        log_.close();
        target_.reset();
        search_.reset();
        if (options_.finished) options_.finished(result_);
    }

    std::unique_ptr<detail::tuned_target> target_;  // null: the search is over
    autotune_options options_;
    detail::tuned_calls calls_;  // the same on all ranks
    std::unique_ptr<detail::tuning_search> search_;
    detail::sample_log log_;
    std::optional<engine_tuning> wanted_;  // to be put in force before the next sample
    std::vector<double> times_;            // of the sample that is taken
    autotune_result result_;
    int steps_ = 0, skipped_ = 0;
    detail::time_point began_ = 0;
};

}  // namespace hvd::inline v0
