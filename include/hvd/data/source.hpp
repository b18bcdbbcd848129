// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../protocol/agreement.hpp"

namespace hvd::inline v0 {

/// Samples of a source, changed by stages, in batches of which each rank gets its part.
namespace data {

/// Numbered samples: what a user implements for a format of his own.
///
/// `size()` is the number of samples, and `read(i)` returns sample `i`.
/// **Threads**: several threads call `read` at once. Different ranks read the same samples.
/// @snippet tests/data/snippets.cpp source
template <class S>
concept source = requires(const S& s, std::size_t i) {
    { s.size() } -> std::convertible_to<std::size_t>;
    s.read(i);
} && !std::is_void_v<decltype(std::declval<const S&>().read(std::size_t(0)))>;

/// A vector, span or array of samples.
template <class R>
concept sample_range = !source<R> && requires(const R& r, std::size_t i) {
    { r.size() } -> std::convertible_to<std::size_t>;
    r[i];
};

/// The samples of a range that it holds.
template <sample_range Range>
class range_source {
public:
    explicit range_source(Range range) : range_(std::move(range)) {}

    std::size_t size() const { return range_.size(); }
    decltype(auto) read(std::size_t i) const {
        if constexpr (std::is_lvalue_reference_v<decltype(range_[i])>)
            return std::as_const(range_[i]);  // a span would let a stage change it
        else return range_[i];
    }

private:
    Range range_;
};

/// The samples of a source or of a range that somebody else holds.
template <class S>
class source_reference {
public:
    explicit source_reference(const S& of) : of_(&of) {}

    std::size_t size() const { return of_->size(); }
    decltype(auto) read(std::size_t i) const {
        if constexpr (source<S>) return of_->read(i);
        else return std::as_const(*of_)[i];
    }

private:
    const S* of_;
};

/// Makes a source of what has samples. A variable stays where it is, and outlives the source; a
/// temporary moves into it, and a span is copied.
template <class S>
    requires source<std::remove_cvref_t<S>> || sample_range<std::remove_cvref_t<S>>
auto as_source(S&& samples) {
    using plain = std::remove_cvref_t<S>;
    constexpr bool is_variable = std::is_lvalue_reference_v<S>;
    if constexpr (sample_range<plain> && (!is_variable || std::is_trivially_copyable_v<plain>))
        return range_source<plain>(std::forward<S>(samples));
    else if constexpr (is_variable) return source_reference<plain>(samples);
    else return plain(std::move(samples));
}

/// The same for an array, which stays where it is.
template <class T, std::size_t N>
auto as_source(T (&samples)[N]) {
    return range_source(std::span<const T>(samples));
}

/// Sources of one length together: sample `i` is a tuple of the samples `i` of all.
template <source... Sources>
class zipped {
public:
    explicit zipped(Sources... sources) : sources_(std::move(sources)...) {
        std::apply([this](const auto&... all) { (require_as_many(all.size()), ...); }, sources_);
    }

    std::size_t size() const { return std::get<0>(sources_).size(); }
    auto read(std::size_t i) const {
        return std::apply(
            [i](const auto&... all) {
                return std::tuple<std::remove_cvref_t<decltype(all.read(i))>...>(all.read(i)...);
            },
            sources_);
    }

private:
    void require_as_many(std::size_t samples) const {
        if (samples != size())
            hvd::detail::refuse(-1, "sources of ", size(), " and of ", samples,
                                " samples can't be zipped");
    }

    std::tuple<Sources...> sources_;
};

/// Images with their labels, for example: `data::from(data::zip(images, labels))`.
/// @throws hvd::usage_error for sources of different lengths.
template <class... Samples>
auto zip(Samples&&... samples) {
    return zipped<decltype(as_source(std::forward<Samples>(samples)))...>(
        as_source(std::forward<Samples>(samples))...);
}

/// Sources of one type, one after the other: the files of a data set, for example.
template <source Source>
class chained {
public:
    explicit chained(std::vector<Source> sources) : sources_(std::move(sources)) {
        ends_.reserve(sources_.size());
        for (const Source& one : sources_) ends_.push_back(size() + one.size());
    }

    std::size_t size() const { return ends_.empty() ? 0 : ends_.back(); }
    decltype(auto) read(std::size_t i) const {
        std::size_t first = 0, last = sources_.size();  // the source of i is among these
        while (last - first > 1) {
            const std::size_t middle = first + (last - first) / 2;
            (ends_[middle - 1] <= i ? first : last) = middle;
        }
        return sources_[first].read(first == 0 ? i : i - ends_[first - 1]);
    }

private:
    std::vector<Source> sources_;
    std::vector<std::size_t> ends_;  // the number of samples up to the end of each
};

/// Makes one source of several.
template <source Source>
auto chain(std::vector<Source> sources) {
    return chained<Source>(std::move(sources));
}

}  // namespace data
}  // namespace hvd::inline v0
