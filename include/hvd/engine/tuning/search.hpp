// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <cmath>

#include "knob.hpp"

namespace hvd::inline v0::detail {

inline double median_of(std::vector<double> values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// Numbers that a seed decides, the same on all machines.
class seeded_numbers {
public:
    explicit seeded_numbers(std::uint64_t seed) : state_(seed) {}

    template <class T>
    void shuffle(std::vector<T>& items) {
        for (std::size_t i = items.size(); i > 1; --i)
            std::swap(items[i - 1], items[std::size_t(next() % i)]);
    }

private:
    std::uint64_t next() {  // splitmix64
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    std::uint64_t state_;
};

struct search_options {
    std::uint64_t seed = 1;
    int most_samples = 200;
    int margin = 2;  // percent
};

// Searches for the thresholds with the shortest step: a state machine without ranks and clock. It
// says which candidate to measure next, and is told one sample of it.
//
// One threshold after the other, the values around the present one race. Those that beat it in a
// first heat meet it again, in turns. The last race is a duel of the best candidate with the
// thresholds of the start and with the defaults. So the search ends with one of them unless another
// is faster by the margin, in the median and in nearly all turns.
class tuning_search {
public:
    enum class stage : std::uint8_t { opening, heat, final_heat, duel, over };

    tuning_search(std::vector<knob> knobs, const engine_tuning& start,
                  const search_options& options)
        : knobs_(std::move(knobs)), start_(start), options_(options), random_(options.seed) {
        if (knobs_.empty() || options.most_samples < least_samples) {
            stage_ = stage::over;
            best_ = start;
            return;
        }
        best_ = start;
        begin(stage::opening, {start, defaults()}, opening_turns);
        if (racers_.size() == 1) next_knob();
    }

    // The samples without which there is no duel.
    static constexpr int duel_turns = 9, opening_turns = 3;
    static constexpr int least_samples = 3 * duel_turns + 2 * opening_turns;

    bool is_over() const { return stage_ == stage::over; }
    stage now_at() const { return stage_; }
    // The candidate to measure; at the end, the choice.
    const engine_tuning& candidate() const { return is_over() ? best_ : racers_[turn()].values; }
    double best_seconds() const { return best_seconds_; }
    double start_seconds() const { return start_seconds_; }

    void add_sample(double seconds) {
        racers_[turn()].samples.push_back(seconds);
        ++samples_;
        turns_.pop_back();
        if (!turns_.empty()) return;
        switch (stage_) {
            case stage::opening: end_opening(); return;
            case stage::heat: end_heat(); return;
            case stage::final_heat: end_final_heat(); return;
            case stage::duel: end_duel(); return;
            case stage::over: return;
        }
    }

private:
    struct racer {
        engine_tuning values;
        std::vector<double> samples{};
        double median() const { return median_of(samples); }
    };
    static constexpr int final_turns = 3, most_in_final = 2, most_passes = 3;

    // The thresholds that are no knobs stay as they are.
    engine_tuning defaults() const {
        engine_tuning d = start_;
        for (const knob& k : knobs_) d = k.with(d, k.get(engine_tuning()));
        return d;
    }

    std::size_t turn() const { return turns_.back(); }
    double factor() const { return 1 - options_.margin / 100.0; }

    // All racers take turns, in an order that is drawn anew each time.
    void begin(stage s, const std::vector<engine_tuning>& candidates, int turns) {
        stage_ = s;
        racers_.clear();
        for (const engine_tuning& c : candidates)
            if (std::none_of(racers_.begin(), racers_.end(),
                             [&](const racer& r) { return r.values == c; }))
                racers_.push_back({c});
        for (int n = 0; n < turns; ++n) {
            std::vector<std::size_t> order(racers_.size());
            for (std::size_t r = 0; r < order.size(); ++r) order[r] = r;
            random_.shuffle(order);
            turns_.insert(turns_.end(), order.begin(), order.end());
        }
    }
    bool has_time_for(std::size_t samples) const {
        return samples_ + int(samples) + 3 * duel_turns <= options_.most_samples;
    }

    // True if a racer is faster than another one by the margin, in the median and in two of three
    // turns.
    bool beats(const racer& a, const racer& b) const {
        std::size_t won = 0;
        for (std::size_t n = 0; n < a.samples.size(); ++n) won += a.samples[n] < b.samples[n];
        return a.median() < b.median() * factor() && 3 * won >= 2 * a.samples.size();
    }
    // The same beyond the noise: the spread of the turns' ratios adds to the margin, with about two
    // standard deviations of their median.
    bool surely_beats(const racer& a, const racer& b) const {
        std::vector<double> ratios, distances;
        for (std::size_t n = 0; n < a.samples.size(); ++n)
            ratios.push_back(a.samples[n] / b.samples[n]);
        const double middle = median_of(ratios);
        for (const double r : ratios) distances.push_back(std::abs(r - middle));
        const double noise = 4 * median_of(distances) / std::sqrt(double(ratios.size()));
        return beats(a, b) && middle + noise < factor();
    }

    void end_opening() {
        if (beats(racers_[1], racers_[0])) best_ = racers_[1].values;
        next_knob();
    }

    void next_knob() {
        turns_.clear();
        if (knob_ == knobs_.size()) {
            if (!improved_ || ++pass_ == most_passes) return begin_duel();
            improved_ = false;
            knob_ = 0;
        }
        const knob& k = knobs_[knob_];
        std::vector<engine_tuning> candidates{best_};
        for (const std::int64_t v : k.around(k.get(best_), {k.get(start_), k.get(engine_tuning())}))
            candidates.push_back(k.with(best_, v));
        if (!has_time_for(candidates.size())) return begin_duel();
        begin(stage::heat, candidates, 1);
    }

    // The fastest of those that beat the present value race again.
    void end_heat() {
        std::vector<racer> faster;
        for (const racer& r : racers_)
            if (r.samples[0] < racers_[0].samples[0] * factor()) faster.push_back(r);
        std::stable_sort(faster.begin(), faster.end(), [](const racer& a, const racer& b) {
            return a.samples[0] < b.samples[0];
        });
        if (faster.size() > most_in_final) faster.resize(most_in_final);
        if (faster.empty() || !has_time_for(final_turns * (faster.size() + 1))) {
            ++knob_;
            return next_knob();
        }
        std::vector<engine_tuning> candidates{best_};
        for (const racer& r : faster) candidates.push_back(r.values);
        begin(stage::final_heat, candidates, final_turns);
    }

    // A value that wins is the present one from now on, and its neighbours race with it.
    void end_final_heat() {
        const racer* winner = &racers_[0];
        for (const racer& r : racers_)
            if (beats(r, racers_[0]) && r.median() < winner->median()) winner = &r;
        if (winner == &racers_[0]) ++knob_;
        else improved_ = true;
        best_ = winner->values;
        next_knob();
    }

    void begin_duel() {
        begin(stage::duel, {start_, defaults(), best_}, duel_turns);
        if (racers_.size() > 1) return;
        turns_.clear();
        stage_ = stage::over;
    }

    void end_duel() {
        const racer* chosen = &racers_[0];
        for (const racer& r : racers_)
            if (surely_beats(r, racers_[0]) && (chosen == &racers_[0] || surely_beats(r, *chosen)))
                chosen = &r;
        best_ = chosen->values;
        best_seconds_ = chosen->median();
        start_seconds_ = racers_[0].median();
        stage_ = stage::over;
    }

    std::vector<knob> knobs_;
    const engine_tuning start_;
    const search_options options_;
    seeded_numbers random_;
    stage stage_ = stage::opening;
    std::vector<racer> racers_;       // the first one is the present choice, in the duel the start
    std::vector<std::size_t> turns_;  // racers, the next turn last
    engine_tuning best_;
    double best_seconds_ = 0, start_seconds_ = 0;
    std::size_t knob_ = 0;
    int pass_ = 0, samples_ = 0;
    bool improved_ = false;
};

}  // namespace hvd::inline v0::detail
