// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "fingerprint.hpp"
#include "sample_context.hpp"
#include "source.hpp"

namespace hvd::inline v0::data {

/// The part of a pipeline before the batches: a source and the stages of its samples.
///
/// Make one by `data::from`, and add stages by `|`. Copies are cheap and share the source.
/// **Threads**: several threads make samples at once, so each stage's function is called by several
/// threads, through a const reference.
template <class Make>
struct samples {
    using value_type = typename Make::value_type;

    Make make;  ///< the stages, one inside the other
    std::uint64_t size = 0;
    std::uint64_t seed = 0;
    bool is_shuffled = false;
    bool skips_errors = false;
    std::uint64_t most_skipped = 0;
    std::uint64_t fingerprint = hvd::detail::empty_fingerprint;
};

}  // namespace hvd::inline v0::data

namespace hvd::inline v0::detail {

// The stages are function objects, each with those before it inside. Called with a sample_context,
// a stage makes the sample. If `skips`, it is a std::optional, which is empty for a sample that is
// left out. `result` is what the next function is called with. `queues` counts the stages so far
// that have threads of their own.

template <class Source>
struct from_stage {
    using result = decltype(std::declval<const Source&>().read(0));
    using value_type = std::remove_cvref_t<result>;
    static constexpr bool skips = false;
    static constexpr int number = 0;
    static constexpr std::size_t queues = 0;

    decltype(auto) operator()(data::sample_context& c) const {
        c.enter(number, "from");
        return source->read(std::size_t(c.sample()));
    }

    std::shared_ptr<const Source> source;
};

// Calls a user's function with a sample, and with random numbers if it takes them.
template <class F, class Sample>
decltype(auto) call_with_sample(const F& f, Sample&& sample, const data::sample_context& c) {
    if constexpr (std::invocable<const F&, Sample, data::random&>) {
        data::random draws = c.draws();
        return f(std::forward<Sample>(sample), draws);
    } else {
        return f(std::forward<Sample>(sample));
    }
}

template <class F, class Sample>
concept takes_sample =
    std::invocable<const F&, Sample> || std::invocable<const F&, Sample, data::random&>;

template <class Before, class F>
struct map_stage {
    using given = typename Before::result;
    using value_type = std::remove_cvref_t<decltype(call_with_sample(
        std::declval<const F&>(), std::declval<given>(),
        std::declval<const data::sample_context&>()))>;
    using result = value_type;
    static constexpr bool skips = Before::skips;
    static constexpr int number = Before::number + 1;
    static constexpr std::size_t queues = Before::queues;

    auto operator()(data::sample_context& c) const {
        decltype(auto) sample = before(c);
        if constexpr (skips) {
            if (!sample) return std::optional<value_type>();
            c.enter(number, "map");
            return std::optional<value_type>(call_with_sample(f, *std::move(sample), c));
        } else {
            c.enter(number, "map");
            return value_type(call_with_sample(f, static_cast<given&&>(sample), c));
        }
    }

    Before before;
    F f;
};

template <class Before, class Predicate>
struct filter_stage {
    using value_type = typename Before::value_type;
    using result = value_type;
    static constexpr bool skips = true;
    static constexpr int number = Before::number + 1;
    static constexpr std::size_t queues = Before::queues;

    std::optional<value_type> operator()(data::sample_context& c) const {
        std::optional<value_type> sample = before(c);
        if (!sample) return sample;
        c.enter(number, "filter");
        if (!call_with_sample(predicate, std::as_const(*sample), c)) sample.reset();
        return sample;
    }

    Before before;
    Predicate predicate;
};

template <class Before>
struct skip_errors_stage {
    using value_type = typename Before::value_type;
    using result = value_type;
    static constexpr bool skips = true;
    static constexpr int number = Before::number + 1;
    static constexpr std::size_t queues = Before::queues;

    std::optional<value_type> operator()(data::sample_context& c) const {
        try {
            return before(c);
        } catch (...) {
            c.skip(std::current_exception());
            return std::nullopt;
        }
    }

    Before before;
};

// The same settings with another stage, of which the fingerprint has the type.
template <class Before, class Make>
data::samples<Make> with_stage(const data::samples<Before>& before, Make make) {
    data::samples<Make> after{.make = std::move(make),
                              .size = before.size,
                              .seed = before.seed,
                              .is_shuffled = before.is_shuffled,
                              .skips_errors = before.skips_errors,
                              .most_skipped = before.most_skipped,
                              .fingerprint = before.fingerprint};
    mix_type<Make>(after.fingerprint);
    return after;
}

}  // namespace hvd::inline v0::detail

namespace hvd::inline v0::data {

/// Begins a pipeline with a source, or a range of samples.
///
/// **Buffers**: a variable stays where it is, and outlives the pipeline and its loaders. A
/// temporary moves into the pipeline.
/// @snippet tests/data/snippets.cpp pipeline
template <class S>
    requires source<std::remove_cvref_t<S>> || sample_range<std::remove_cvref_t<S>>
auto from(S&& input) {
    auto held = std::make_shared<const decltype(as_source(std::forward<S>(input)))>(
        as_source(std::forward<S>(input)));
    using Make =
        hvd::detail::from_stage<std::remove_const_t<typename decltype(held)::element_type>>;
    samples<Make> pipeline{.make = {std::move(held)}};
    pipeline.size = pipeline.make.source->size();
    hvd::detail::mix_type<Make>(pipeline.fingerprint);
    hvd::detail::mix(pipeline.fingerprint, pipeline.size);
    return pipeline;
}

/// Begins a pipeline with an array, which outlives the pipeline and its loaders.
template <class T, std::size_t N>
auto from(T (&input)[N]) {
    return from(std::span<const T>(input));
}

/// The result of `data::map`.
template <class F>
struct map_step {
    F f;
};

/// Changes each sample, or each batch after `data::batch`.
///
/// `f` takes a sample, or a sample and a `data::random&`, whose numbers depend on (seed, epoch,
/// sample, stage) alone. After `data::batch` it takes a batch.
/// **Threads**: `f` is called by several threads at once.
template <class F>
map_step<F> map(F f) {
    return {std::move(f)};
}

/// The result of `data::filter`.
template <class F>
struct filter_step {
    F f;
};

/// Leaves out the samples for which `predicate` is false. The batches of these get shorter.
///
/// `predicate` takes what the function of `data::map` takes.
template <class F>
filter_step<F> filter(F predicate) {
    return {std::move(predicate)};
}

/// Options of `data::shuffle`.
struct shuffle_options {
    std::uint64_t seed = 0;  ///< of the orders and of `data::random`, the same on all ranks
};

/// Takes the samples in another order in each epoch, chosen by the seed and the epoch. It takes no
/// memory. The random numbers of `data::map` have the same seed.
inline shuffle_options shuffle(shuffle_options options) { return options; }

/// Options of `data::skip_errors`.
struct skip_errors_options {
    std::uint64_t at_most = 100;  ///< samples of an epoch on a rank; one more is a `stage_error`
};

/// Leaves out samples for which a stage before this one throws, and counts them. Without it the
/// first exception stops the loader. A pipeline has one such stage.
inline skip_errors_options skip_errors(skip_errors_options options = {}) { return options; }

/// The result of `data::version`.
struct version_step {
    std::string_view version;
};

/// A version that the user changes with the code of his stages, for the pipeline's fingerprint.
inline version_step version(std::string_view text) { return {text}; }

template <class Make, class F>
auto operator|(samples<Make> before, map_step<F> step) {
    constexpr bool is_right = hvd::detail::takes_sample<F, typename Make::result>;
    static_assert(is_right,
                  "hvd: the function of data::map takes (sample) or (sample, data::random&), and "
                  "is const, since several threads call it");
    if constexpr (is_right) {
        using Stage = hvd::detail::map_stage<Make, F>;
        return hvd::detail::with_stage(before, Stage{before.make, std::move(step.f)});
    }
}

template <class Make, class F>
auto operator|(samples<Make> before, filter_step<F> step) {
    constexpr bool is_right = hvd::detail::takes_sample<F, const typename Make::value_type&>;
    static_assert(is_right,
                  "hvd: the function of data::filter takes (sample) or (sample, data::random&), "
                  "and is const, since several threads call it");
    if constexpr (is_right) {
        using Stage = hvd::detail::filter_stage<Make, F>;
        return hvd::detail::with_stage(before, Stage{before.make, std::move(step.f)});
    }
}

template <class Make>
auto operator|(samples<Make> before, skip_errors_options options) {
    if (before.skips_errors)
        hvd::detail::refuse(-1,
                            "a second data::skip_errors in a pipeline: one was expected, since ",
                            "its limit counts the errors of all stages before it");
    auto after = hvd::detail::with_stage(before, hvd::detail::skip_errors_stage<Make>{before.make});
    after.skips_errors = true;
    after.most_skipped = options.at_most;
    hvd::detail::mix(after.fingerprint, options.at_most);
    return after;
}

template <class Make>
samples<Make> operator|(samples<Make> pipeline, shuffle_options options) {
    pipeline.seed = options.seed;
    pipeline.is_shuffled = true;
    hvd::detail::mix(pipeline.fingerprint, "shuffle");
    return pipeline;
}

template <class Make>
samples<Make> operator|(samples<Make> pipeline, version_step step) {
    hvd::detail::mix(pipeline.fingerprint, step.version);
    return pipeline;
}

}  // namespace hvd::inline v0::data
