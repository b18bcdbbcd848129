// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <exception>
#include <type_traits>

#include "../platform/clock.hpp"
#include "comparison.hpp"

namespace hvd::inline v0::detail {

// This file is the only place where ranks compare values, refuse a call together, or tell why one
// of them failed. Everything travels in call headers, over a channel. Most of it is cold: it is not
// called at each step, and the compiler takes less time for it.

// A failure of an earlier call, of which this rank is told in the present one. Nobody tells it
// again, so it goes before this rank's own failure of the present call.
struct of_earlier_call {};
template <class Error>
struct late_error final : Error, of_earlier_call {
    using Error::Error;
};

// Called in a handler.
[[gnu::cold]] inline bool is_of_earlier_call() {
    try {
        throw;
    } catch (const of_earlier_call&) {
        return true;
    } catch (...) {
        return false;
    }
}

// A channel carries call headers between the ranks of a communicator: `exchange_headers` shows
// this rank's header to all ranks, and returns the headers of all ranks, by rank. Sessions of
// communicators are channels, and so is `host_ranks`.
template <class C>
concept header_channel = requires(C& channel, const call_header& mine, time_point limit) {
    { channel.rank() } -> std::convertible_to<int>;
    { channel.size() } -> std::convertible_to<int>;
    { channel.exchange_headers(mine, limit) } -> std::same_as<table<call_header>>;
};

// The header of a call of hvd's own, which moves no data. Ranks find each other by the name.
inline call_header agreement_header(std::string_view name) {
    call_header mine;
    mine.kind = collective::agree;
    store(mine.name, name);
    return mine;
}

// Shows this rank's header to all ranks, and throws on every rank what the headers make necessary:
// peer_error if a rank refuses (usage_error on that rank), mismatch_error if headers differ.
template <header_channel C>
table<call_header> agree(C& channel, const call_header& mine, time_point limit) {
    table<call_header> all = channel.exchange_headers(mine, limit);
    check_headers(channel.rank(), all);
    return all;
}

// Runs code that may fail on this rank alone. The header then refuses with the text of the
// exception, which is returned.
template <class F>
std::exception_ptr attempt(call_header& mine, F&& f) {
    try {
        f();
        return nullptr;
    } catch (...) {
        const std::exception_ptr failure = std::current_exception();
        mine.refuse(what_of(failure));
        return failure;
    }
}

// The failure of this rank goes before everything that the exchange with the others throws, but
// for failures of earlier calls.
template <class F>
void exchange_after(const std::exception_ptr& failure, F&& exchange) {
    try {
        exchange();
    } catch (const error&) {
        if (!failure || is_of_earlier_call()) throw;
    }
    if (failure) std::rethrow_exception(failure);
}

// Runs f, which may fail on one rank alone, and gives its result. Where it fails, all ranks throw:
// the rank that failed its own exception, the others peer_error with its text.
template <header_channel C, class F>
[[gnu::cold]] auto run_on_all(C& channel, std::string_view name, time_point limit, F&& f) {
    call_header mine = agreement_header(name);
    const auto tell = [&](const std::exception_ptr& failure) {
        exchange_after(failure, [&] { agree(channel, mine, limit); });
    };
    if constexpr (std::is_void_v<decltype(f())>) {
        tell(attempt(mine, f));
    } else {
        decltype(f()) made{};
        tell(attempt(mine, [&] { made = f(); }));
        return made;
    }
}

// No rank has a longer text for the others.
constexpr std::size_t most_text = std::size_t(64) << 20;

// The text of every rank, by rank. A text that is longer than a header has room for travels in
// several.
template <header_channel C>
[[gnu::cold]] table<message> texts_of_all(C& channel, std::string_view name, std::string_view mine,
                                          time_point limit) {
    table<message> texts(static_cast<std::size_t>(channel.size()));
    call_header piece = agreement_header(name);
    piece.count = mine.size();
    std::size_t longest = mine.size();
    for (std::size_t at = 0; at == 0 || at < longest; at += sizeof piece.text - 1) {
        store(piece.text, at < mine.size() ? mine.substr(at) : std::string_view());
        const table<call_header> all = agree(channel, piece, limit);
        for (std::size_t r = 0; r < all.size(); ++r) {
            if (all[r].count > most_text)
                throw_difference(channel.rank(), slice<const call_header>(all), field::count);
            texts[r] += std::string_view(all[r].text);
            if (all[r].count > longest) longest = std::size_t(all[r].count);
        }
    }
    return texts;
}

// The outcome of code that ran on rank 0 only: every rank knows why it failed, rank 0 also has the
// exception.
struct root_outcome {
    message failure;  // empty if it did not fail
    std::exception_ptr exception;
};

template <header_channel C, class F>
[[gnu::cold]] root_outcome run_on_root(C& channel, std::string_view name, time_point limit, F&& f) {
    root_outcome outcome;
    if (channel.rank() == 0) {
        try {
            f();
        } catch (...) {
            outcome.exception = std::current_exception();
            outcome.failure = what_of(outcome.exception);
            if (outcome.failure.empty()) outcome.failure = "unknown reason";
        }
    }
    outcome.failure = std::move(texts_of_all(channel, name, outcome.failure, limit)[0]);
    return outcome;
}

// Numbers of every rank, those of rank 0 first. A header has room for max_dimensions of them.
template <header_channel C>
[[gnu::cold]] table<std::int64_t> numbers_of_all(C& channel, std::string_view name,
                                                 slice<const std::int64_t> mine, time_point limit) {
    call_header numbers = agreement_header(name);
    numbers.dimensions = std::uint8_t(mine.size());
    for (std::size_t i = 0; i < mine.size(); ++i) numbers.extents[i] = std::uint64_t(mine[i]);
    table<std::int64_t> all;
    exchange_after(attempt(numbers,
                           [&] {
                               all = table<std::int64_t>(mine.size() *
                                                         static_cast<std::size_t>(channel.size()));
                           }),
                   [&] {
                       const table<call_header> headers = agree(channel, numbers, limit);
                       for (const call_header& h : headers)
                           if (h.dimensions != numbers.dimensions)
                               throw_difference(channel.rank(), slice<const call_header>(headers),
                                                field::shape);
                       for (std::size_t i = 0; i < all.size(); ++i)
                           all[i] = std::int64_t(headers[i / mine.size()].extents[i % mine.size()]);
                   });
    return all;
}

// A hash of named values: `values` is a function that calls its argument with each name and value.
template <class Values>
[[gnu::cold]] std::uint64_t content_of_values(Values&& values) {
    hash content;
    values([&](std::string_view name, std::string_view value) { content.add(name).add(value); });
    return content.value();
}

// Agrees on values that all ranks must have alike. `mine` is the header of the agreement, whose
// content is a hash of the values. If these differ, all ranks throw mismatch_error with the name of
// the first value that does, and with the value of each rank. `values` calls its argument with each
// name and value, on all ranks in the same order; it is asked only where there is a difference.
template <header_channel C, class Values>
[[gnu::cold]] table<call_header> agree_on(C& channel, const call_header& mine, time_point limit,
                                          Values&& values) {
    table<call_header> all = agree(channel, mine, limit);
    bool equal = true;
    for (const call_header& h : all) equal = equal && h.content == all[0].content;
    if (equal) [[likely]]
        return all;
    values([&](std::string_view name, std::string_view value) {
        require_equal(channel.rank(), mine.label(), name,
                      texts_of_all(channel, mine.label(), value, limit));
    });
    throw_difference(channel.rank(), slice<const call_header>(all), field::content);
}

// The same after `make`, which completes the header, and makes what the calls that follow need. It
// may fail on this rank alone. Then no rank makes those calls: this one throws its exception, the
// others peer_error with its text.
template <header_channel C, class Make, class Values>
[[gnu::cold]] table<call_header> agree_on(C& channel, call_header& mine, time_point limit,
                                          Make&& make, Values&& values) {
    table<call_header> all;
    const std::exception_ptr failure = attempt(mine, make);
    exchange_after(failure, [&] { all = agree_on(channel, mine, limit, values); });
    return all;
}

// The same with a hash of the values as content.
template <header_channel C, class Values>
[[gnu::cold]] table<call_header> agree_on_values(C& channel, std::string_view name,
                                                 time_point limit, Values&& values) {
    call_header mine = agreement_header(name);
    return agree_on(
        channel, mine, limit, [&] { mine.content = content_of_values(values); }, values);
}

// This rank refuses by itself; its peers know nothing of it. -1 stands for code that knows no rank.
template <class... Parts>
[[gnu::cold, noreturn]] void refuse(int rank, const Parts&... parts) {
    if (rank < 0) throw usage_error(rank, text("hvd: ", parts...));
    throw usage_error(rank, text("hvd: rank ", rank, ": ", parts...));
}

// This rank refuses a call that its peers make. The refusal takes the place of the call, so that
// the order of calls is kept, and the peers throw peer_error with the reason.
template <header_channel C, class... Parts>
[[gnu::cold, noreturn]] void refuse_call(C& channel, const Parts&... parts) {
    message why;
    call_header mine = agreement_header("a refusal");
    const std::exception_ptr no_text = attempt(mine, [&] { why = text("hvd: ", parts...); });
    mine.refuse(why);
    exchange_after(no_text, [&] { channel.post_refusal(mine, never); });
    // a channel that compares no calls has told nobody
    throw usage_error(channel.rank(), text(why, " (rank ", channel.rank(), ")"));
}

}  // namespace hvd::inline v0::detail
