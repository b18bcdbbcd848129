// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <exception>
#include <type_traits>

#include "../core/lean/function_ref.hpp"
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

// A channel of any type: the functions of this file are compiled once for all of them.
class any_channel {
public:
    template <header_channel C>
    any_channel(C& channel)
        : channel_(const_cast<void*>(static_cast<const void*>(&channel))),
          rank_(channel.rank()),
          size_(channel.size()),
          exchange_([](void* self, const call_header& mine, time_point limit) {
              return static_cast<C*>(self)->exchange_headers(mine, limit);
          }) {}

    int rank() const { return rank_; }
    int size() const { return size_; }
    table<call_header> exchange_headers(const call_header& mine, time_point limit) const {
        return exchange_(channel_, mine, limit);
    }

private:
    void* channel_;
    int rank_, size_;
    table<call_header> (*exchange_)(void*, const call_header&, time_point);
};

// Takes names and values one after another, as texts. A function with `values` calls it with each,
// on all ranks in the same order.
using value_sink = function_ref<void(std::string_view name, std::string_view value)>;
using named_values = function_ref<void(value_sink)>;

// The header of a call of hvd's own, which moves no data. Ranks find each other by the name.
inline call_header agreement_header(std::string_view name) {
    call_header mine;
    mine.kind = collective::agree;
    store(mine.name, name);
    return mine;
}

// Shows this rank's header to all ranks, and throws on every rank what the headers make necessary:
// peer_error if a rank refuses (usage_error on that rank), mismatch_error if headers differ.
[[gnu::cold]] inline table<call_header> agree(any_channel channel, const call_header& mine,
                                              time_point limit) {
    table<call_header> all = channel.exchange_headers(mine, limit);
    check_headers(channel.rank(), all);
    return all;
}

// Runs code that may fail on this rank alone. The header then refuses with the text of the
// exception, which is returned.
inline std::exception_ptr attempt(call_header& mine, function_ref<void()> f) {
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
inline void exchange_after(const std::exception_ptr& failure, function_ref<void()> exchange) {
    try {
        exchange();
    } catch (const error&) {
        if (!failure || is_of_earlier_call()) throw;
    }
    if (failure) std::rethrow_exception(failure);
}

// Runs f, which may fail on one rank alone, and gives its result. Where it fails, all ranks throw:
// the rank that failed its own exception, the others peer_error with its text.
[[gnu::cold]] inline void run_for_all(any_channel channel, std::string_view name, time_point limit,
                                      function_ref<void()> f) {
    call_header mine = agreement_header(name);
    exchange_after(attempt(mine, f), [&] { agree(channel, mine, limit); });
}
template <class F>
[[gnu::cold]] auto run_on_all(any_channel channel, std::string_view name, time_point limit, F&& f) {
    if constexpr (std::is_void_v<decltype(f())>) {
        run_for_all(channel, name, limit, f);
    } else {
        decltype(f()) made{};
        run_for_all(channel, name, limit, [&] { made = f(); });
        return made;
    }
}

// No rank has a longer text for the others.
constexpr std::size_t most_text = std::size_t(64) << 20;

// The text of every rank, by rank. A text that is longer than a header has room for travels in
// several.
[[gnu::cold]] inline table<message> texts_of_all(any_channel channel, std::string_view name,
                                                 std::string_view mine, time_point limit) {
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

[[gnu::cold]] inline root_outcome run_on_root(any_channel channel, std::string_view name,
                                              time_point limit, function_ref<void()> f) {
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
[[gnu::cold]] inline table<std::int64_t> numbers_of_all(any_channel channel, std::string_view name,
                                                        slice<const std::int64_t> mine,
                                                        time_point limit) {
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

// A hash of named values.
[[gnu::cold]] inline std::uint64_t content_of_values(named_values values) {
    hash content;
    const auto add = [&](std::string_view name, std::string_view value) {
        content.add(name).add(value);
    };
    values(add);
    return content.value();
}

// Agrees on values that all ranks must have alike. `mine` is the header of the agreement, whose
// content is a hash of the values. If these differ, all ranks throw mismatch_error with the name of
// the first value that does, and with the value of each rank. `values` is asked only where there is
// a difference.
[[gnu::cold]] inline table<call_header> agree_on(any_channel channel, const call_header& mine,
                                                 time_point limit, named_values values) {
    table<call_header> all = agree(channel, mine, limit);
    bool equal = true;
    for (const call_header& h : all) equal = equal && h.content == all[0].content;
    if (equal) [[likely]]
        return all;
    const auto compare = [&](std::string_view name, std::string_view value) {
        require_equal(channel.rank(), mine.label(), name,
                      texts_of_all(channel, mine.label(), value, limit));
    };
    values(compare);
    throw_difference(channel.rank(), slice<const call_header>(all), field::content);
}

// The same after `make`, which completes the header, and makes what the calls that follow need. It
// may fail on this rank alone. Then no rank makes those calls: this one throws its exception, the
// others peer_error with its text.
[[gnu::cold]] inline table<call_header> agree_on(any_channel channel, call_header& mine,
                                                 time_point limit, function_ref<void()> make,
                                                 named_values values) {
    table<call_header> all;
    const std::exception_ptr failure = attempt(mine, make);
    exchange_after(failure, [&] { all = agree_on(channel, mine, limit, values); });
    return all;
}

// The same with a hash of the values as content.
[[gnu::cold]] inline table<call_header> agree_on_values(any_channel channel, std::string_view name,
                                                        time_point limit, named_values values) {
    call_header mine = agreement_header(name);
    return agree_on(
        channel, mine, limit, [&] { mine.content = content_of_values(values); }, values);
}

// This rank refuses by itself; its peers know nothing of it. -1 stands for code that knows no rank.
[[gnu::cold, gnu::noinline, noreturn]] inline void refuse_for(int rank, text_parts parts) {
    const message why = joined(parts);
    if (rank < 0) throw usage_error(rank, text("hvd: ", why));
    throw usage_error(rank, text("hvd: rank ", rank, ": ", why));
}
template <class... Parts>
[[gnu::always_inline, noreturn]] inline void refuse(int rank, const Parts&... parts) {
    refuse_for(rank, {text_part(parts)...});
}

// This rank refuses a call that its peers make. The refusal takes the place of the call, so that
// the order of calls is kept, and the peers throw peer_error with the reason.
template <header_channel C>
[[gnu::cold, gnu::noinline, noreturn]] void refuse_call_for(C& channel, text_parts parts) {
    message why;
    call_header mine = agreement_header("a refusal");
    const std::exception_ptr no_text = attempt(mine, [&] { why = text("hvd: ", joined(parts)); });
    mine.refuse(why);
    exchange_after(no_text, [&] { channel.post_refusal(mine, never); });
    // a channel that compares no calls has told nobody
    throw usage_error(channel.rank(), text(why, " (rank ", channel.rank(), ")"));
}
template <header_channel C, class... Parts>
[[gnu::always_inline, noreturn]] inline void refuse_call(C& channel, const Parts&... parts) {
    refuse_call_for(channel, {text_part(parts)...});
}

}  // namespace hvd::inline v0::detail
