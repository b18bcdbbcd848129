// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The search for thresholds in isolation: a cost function makes the times up.

#include <cmath>
#include <random>
#include <set>

#include <hvd/autotune.hpp>
#include <hvd/settings.hpp>

#include "engine_test.hpp"
#include "variables.hpp"

namespace search_tests {

using namespace hvd_test;
using hvd::detail::knob;
using hvd::detail::tuning_search;

namespace {

constexpr hvd::detail::tuned_calls everything{
    .of_engine = true, .cross_nodes = true, .makes_buckets = true};

// A made-up step: each threshold that matters costs more the further it is from its best value, or
// beyond it. Some steps are noisy, and a neighbour makes some times of the machine's slow.
class made_up_step {
public:
    made_up_step(unsigned seed, double noise, double neighbour)
        : knobs_(hvd::detail::knobs_of(everything, "", 0)),
          random_(seed),
          noise_(noise),
          neighbour_(neighbour) {
        for (const knob& k : knobs_) {
            const double middle = std::max(size_of(k.get({})), 18.0);
            best_.push_back(middle + (uniform() - 0.5) * 16);
            weight_.push_back(uniform() < 0.6 ? 0 : 0.02 + 1.5 * uniform() * uniform());
            is_cliff_.push_back(uniform() < 0.3);
        }
    }

    double exact(const hvd::engine_tuning& t) const {
        double seconds = 1;
        for (std::size_t i = 0; i < knobs_.size(); ++i) {
            const double off = size_of(knobs_[i].get(t)) - best_[i];
            seconds += weight_[i] * (is_cliff_[i] ? off > 0 : std::min(std::abs(off) / 10, 1.5));
        }
        return seconds;
    }
    double operator()(const hvd::engine_tuning& t) {
        if (slow_steps_ == 0 && uniform() < neighbour_) {
            slow_steps_ = 10 + int(50 * uniform());
            slower_ = 1.3 + 1.2 * uniform();
        }
        const double beside = slow_steps_ > 0 ? slower_ : 1;
        slow_steps_ -= slow_steps_ > 0;
        return exact(t) * beside * (1 + noise_ * -std::log(1 - uniform()));
    }
    hvd::engine_tuning drawn() {
        hvd::engine_tuning t;
        for (const knob& k : knobs_) {
            const auto values = k.around(k.get(t), {});
            if (uniform() < 0.5)
                t = k.with(t, values[std::size_t(uniform() * double(values.size()))]);
        }
        return t;
    }
    const std::vector<knob>& knobs() const { return knobs_; }

private:
    static double size_of(std::int64_t value) { return std::log2(double(value) + 1); }
    double uniform() { return double(random_() >> 11) * 0x1p-53; }

    std::vector<knob> knobs_;
    std::mt19937_64 random_;
    std::vector<double> best_, weight_;
    std::vector<bool> is_cliff_;
    double noise_, neighbour_, slower_ = 1;
    int slow_steps_ = 0;
};

// Runs a search on made-up steps, five for a sample, and counts the samples.
struct searched {
    hvd::engine_tuning choice;
    std::vector<hvd::engine_tuning> tried;

    searched(made_up_step& step, const hvd::engine_tuning& start, std::uint64_t seed,
             int most_samples = 220) {
        tuning_search search(step.knobs(), start, {seed, most_samples, 2});
        while (!search.is_over()) {
            tried.push_back(search.candidate());
            std::vector<double> times(5);
            for (double& t : times) t = step(search.candidate());
            search.add_sample(hvd::detail::median_of(times));
        }
        choice = search.candidate();
    }
};

std::set<std::int64_t> as_set(const std::vector<std::int64_t>& values) {
    return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("the search never ends worse than it began, and gains from bad starts") {
    double gain = 1;
    int bad_starts = 0;
    for (unsigned seed = 1; seed <= 200; ++seed) {
        INFO("cost function ", seed);
        made_up_step step(seed, 0.03, 0.005);
        const hvd::engine_tuning start = seed % 2 == 0 ? step.drawn() : hvd::engine_tuning{};
        const searched s(step, start, seed);
        CHECK(s.tried.size() <= 220);
        CHECK(step.exact(s.choice) <= step.exact(start));
        // The defaults win only by the margin, so that they may be faster by that.
        CHECK(step.exact(s.choice) <= step.exact({}) * 1.05);
        if (step.exact(start) > 2) {
            ++bad_starts;
            gain *= step.exact(start) / step.exact(s.choice);
        }
    }
    CHECK(bad_starts > 20);
    CHECK(std::pow(gain, 1.0 / bad_starts) > 1.3);
}

TEST_CASE("sizes of units and buckets are tried at their ends, and a choice both ways") {
    using hvd::detail::tuning::GiB;
    const char* const size_of_units = "engine.fusion_threshold";
    for (const knob& k : hvd::detail::knobs_of(everything, "", 0)) {
        INFO(k.key());
        std::set<std::int64_t> tried{k.get({})};
        for (std::size_t before = 0; before < tried.size();) {
            before = tried.size();
            for (const std::int64_t v : std::set(tried)) tried.merge(as_set(k.around(v, {})));
        }
        for (const std::int64_t v : tried) CHECK(k.get(k.with({}, v)) == v);
        if (k.key() == "engine.prediction" || k.key() == "engine.largest_first")
            CHECK(tried == std::set<std::int64_t>{0, 1});
        for (const char* const size : {size_of_units, "tuning.bucket_bytes"})
            if (k.key() == size) {
                CHECK(*tried.begin() == (k.key() == size_of_units ? 0 : 4096));
                CHECK(*tried.rbegin() >= std::int64_t(GiB));
                CHECK(tried.size() >= 7);
            }
    }
}

TEST_CASE("a machine too busy to tell keeps the thresholds of the start, or takes faster ones") {
    int kept = 0;
    for (unsigned seed = 1; seed <= 60; ++seed) {
        INFO("cost function ", seed);
        made_up_step step(seed, 2, 0.02);
        const searched s(step, {}, seed);
        CHECK(step.exact(s.choice) <= step.exact({}) * 1.05);
        kept += s.choice == hvd::engine_tuning{};
    }
    CHECK(kept > 10);
}

TEST_CASE("a seed and the same times make the same search") {
    std::vector<std::vector<hvd::engine_tuning>> tried;
    for (const std::uint64_t seed : {5, 5, 6}) {
        made_up_step step(3, 0.03, 0.005);
        tried.push_back(searched(step, step.drawn(), seed).tried);
    }
    CHECK(tried[0] == tried[1]);
    CHECK(tried[0] != tried[2]);
}

TEST_CASE("where no threshold matters, noise changes none") {
    const auto knobs = hvd::detail::knobs_of(everything, "", 0);
    std::mt19937_64 random(1);
    for (int time = 0; time < 50; ++time) {
        tuning_search search(knobs, {.fusion_threshold = 1024}, {1, 220, 2});
        while (!search.is_over()) search.add_sample(1 + 0.01 * double(random() % 1000) / 1000);
        CHECK(search.candidate().fusion_threshold == 1024);
    }
}

namespace {

// A search over one threshold and one choice, which begins with a choice that is not the default.
struct searched_by_hand {
    hvd::engine_tuning start{.prediction = false};
    tuning_search search;

    static std::vector<knob> two_knobs() {
        std::vector<knob> some;
        for (const knob& k : hvd::detail::knobs_of(everything, "", 0))
            if (k.key() == "engine.fusion_threshold" || k.key() == "engine.prediction")
                some.push_back(k);
        return some;
    }
    explicit searched_by_hand(int most_samples = 220)
        : search(two_knobs(), start, {1, most_samples, 2}) {}

    // Gives each of two candidates its samples in their order, until the race is over.
    void race(const std::vector<double>& of_start, const std::vector<double>& of_other) {
        const tuning_search::stage now = search.now_at();
        for (std::size_t n = 0, m = 0; search.now_at() == now;)
            search.add_sample(search.candidate() == start ? of_start.at(n++) : of_other.at(m++));
    }
    void let_all_be_equal_until(tuning_search::stage end) {
        while (search.now_at() != end && !search.is_over()) search.add_sample(1);
    }
};

}  // namespace

TEST_CASE("a race is won by the turns, too, not by the median alone") {
    // The defaults have the lower median, and win one of three turns or two of them.
    for (const bool wins_two : {false, true}) {
        searched_by_hand s;
        REQUIRE(s.search.now_at() == tuning_search::stage::opening);
        s.race({9, 11, wins_two ? 31.0 : 29.0}, {10, 1, 30});
        REQUIRE(s.search.now_at() == tuning_search::stage::heat);
        // The best so far is what the next race is about.
        CHECK(s.search.candidate().prediction == wins_two);
    }
}

TEST_CASE("a duel is won beyond the noise") {
    for (const bool is_noisy : {false, true}) {
        CAPTURE(is_noisy);
        searched_by_hand s;
        s.race({2, 2, 2}, {1, 1, 1});
        s.let_all_be_equal_until(tuning_search::stage::duel);
        REQUIRE(s.search.now_at() == tuning_search::stage::duel);
        const std::vector<double> one(9, 1.0);
        if (is_noisy) s.race(one, {0.5, 0.5, 0.6, 0.7, 0.95, 0.95, 1.3, 1.3, 1.3});
        else s.race(one, std::vector<double>(9, 0.95));
        REQUIRE(s.search.is_over());
        CHECK((s.search.candidate() == s.start) == is_noisy);
    }
}

TEST_CASE("a search passes three times over its thresholds, though each time something is faster") {
    using stage = tuning_search::stage;
    const knob only = searched_by_hand::two_knobs().front();
    tuning_search search({only}, {}, {1, 5000, 2});
    std::int64_t best = only.get({}), favourite = -1;
    std::set<std::int64_t> seen;
    int heats = 0;
    for (stage before = stage::over; !search.is_over();) {
        const stage now = search.now_at();
        const std::int64_t value = only.get(search.candidate());
        if (now == stage::heat && (before != stage::heat || seen.count(value) > 0)) {
            if (favourite >= 0) best = favourite;
            favourite = -1;
            seen.clear();
            ++heats;
        }
        seen.insert(value);
        // Something wins every second race, and nothing the others.
        if (now == stage::heat && heats % 2 == 1 && favourite < 0 && value != best)
            favourite = value;
        before = now;
        search.add_sample(value == favourite && now != stage::duel ? 0.5 : 1);
    }
    CHECK(heats == 6);
}

TEST_CASE("options come from the environment") {
    const variables set({{"HVD_AUTOTUNE", "1"},
                         {"HVD_AUTOTUNE_LOG", "log.csv"},
                         {"HVD_AUTOTUNE_WARMUP_STEPS", "3"},
                         {"HVD_AUTOTUNE_STEPS_PER_SAMPLE", "7"}});
    const auto o = hvd::options_from_environment(hvd::autotune_options{.enabled = false});
    CHECK(o.enabled);
    CHECK(o.log == "log.csv");
    CHECK(o.warmup_steps == 3);
    CHECK(o.steps_per_sample == 7);
    const variables wrong(values{{"HVD_AUTOTUNE_MAX_STEPS", "fast"}});
    CHECK(text_of<hvd::usage_error>([] {
              hvd::options_from_environment<hvd::autotune_options>();
          }).find("HVD_AUTOTUNE_MAX_STEPS is 'fast'") != std::string::npos);
}

}  // namespace search_tests
