// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <string_view>

#include "../core/lean/table.hpp"
#include "../kernel/reduce.hpp"
#include "../protocol/call_header.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A piece of memory that goes to one peer, or comes from it.
struct block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
};

// How a rank's part of a reduction is computed: `count` elements from every rank's block for it.
struct reduction {
    reduce_function function;
    const void* op;
    std::size_t element_bytes;
    std::size_t count;
    std::byte* out;
    double prescale;
    double postscale;
};

enum class verdict { expired, hopeless };

struct operation;

// What a reduction throws is kept, and nothing is reduced after it.
template <class F>
void keep_failure(std::exception_ptr& failure, F reduce) {
    if (failure) return;
    try {
        reduce();
    } catch (...) {
        failure = std::current_exception();
    }
}

// What every collective is made of. A step is begun by enter, enter_call, exchange, combine or
// reduce_to_all, and goes on in rounds: once ready(), next() takes what has come and begins the
// next round, until it says that there is none. Who drives it decides how to wait in between.
//
// Virtual, so that each collective is compiled once, whatever moves the bytes: a call costs far
// less than the synchronisation it stands for.
class transport {
public:
    transport(int rank, int size)
        : headers(std::size_t(size)), rank_(rank), size_(size), inputs_(std::size_t(size)) {}
    virtual ~transport() = default;
    transport(const transport&) = delete;
    transport& operator=(const transport&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }

    // Every rank shows its header; once done, `headers` has them all.
    virtual void enter(const call_header& mine) = 0;
    // The same at the beginning of a call, of which it may do what it can do at once.
    virtual void enter_call(const operation&, const call_header& mine) { enter(mine); }
    // send[p] goes to rank p and fills its receive[me]; sizes agree, own blocks are the caller's.
    // The arrays stay until the step is done.
    virtual void exchange(const block* send, const block* receive) = 0;
    // Reduces every rank's send[me], in rank order.
    virtual void combine(const block* send, const reduction& job) = 0;

    // Whether a reduction to all ranks, of tensors that need not be packed, has a shorter way than
    // the two steps above: the same on all ranks.
    virtual bool reduces_to_all(const operation&) const { return false; }
    virtual void reduce_to_all(operation&) {}
    // Whether it then takes the tensors of a list from where they lie.
    virtual bool takes_lists() const { return false; }

    virtual bool ready() = 0;
    virtual bool next() = 0;
    // Whether waiting is in vain: some rank that is waited for is gone.
    virtual bool hopeless() { return false; }
    // Whether a waiting rank may keep its processor: not where the others need it.
    virtual bool may_spin() const = 0;
    // Gives up by throwing, with the ranks that are waited for; the transport is not used
    // afterwards. Goes on if they have come meanwhile.
    virtual void fail(verdict reason) = 0;
    // Tells the peers that this rank is gone, with the reason; those that do the same are waited
    // for.
    virtual void leave(std::string_view, [[maybe_unused]] std::int64_t patience) noexcept {}

    // What user code threw while others waited: kept until the protocol has run to its end.
    std::exception_ptr take_failure() { return std::exchange(failure_, nullptr); }

    // An exception of anything but the operation itself, where the peers go on: the ranks are no
    // longer in step.
    template <class F>
    auto guarded(F f) {
        try {
            return f();
        } catch (...) {
            lost = true;
            cancel();
            throw;
        }
    }

    table<const call_header*> headers;  // of the last enter(), by rank
    bool lost = false;                  // a peer or the endpoint is: nothing more can be agreed on

protected:
    template <class F>
    void guard(F reduce) {
        keep_failure(failure_, reduce);
    }

    // Gives up what is under way.
    virtual void cancel() noexcept {}

    void reduce_range(const reduction& job, std::size_t first, std::size_t n) {
        if (n == 0) return;
        guard([&] {
            job.function({job.op, inputs_.data(), size_, size_, job.out + first * job.element_bytes,
                          n, job.prescale, job.postscale});
        });
    }

    int rank_, size_;
    table<const std::byte*> inputs_;
    std::exception_ptr failure_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
