// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../../platform/clock.hpp"
#include "../../platform/thread.hpp"
#include "../batch_plan.hpp"
#include "../part.hpp"
#include "batch_codec.hpp"
#include "protocol.hpp"

namespace hvd::inline v0::detail {

// A batch that was made, and its bytes, which lie in it.
template <class Batch>
struct prepared_batch {
    explicit prepared_batch(data::made_batch<Batch> m) : made(std::move(m)), bytes(encoded(made)) {}
    prepared_batch(const prepared_batch&) = delete;
    prepared_batch& operator=(const prepared_batch&) = delete;

    data::made_batch<Batch> made;
    gathered_bytes bytes;
};

// Trainings with equal ones ask for the same batches.
struct share_of_epoch {
    part mine;
    std::uint32_t share = 0;  // a data::batch_share
};

// Batches of a worker that several trainings ask for, each made once. A batch stays until all
// trainings that have not come so far have taken it. When there is no room, the training that is
// ahead waits for the others, once for `patience`: then the oldest batches go, and who comes for
// one of them later gets it made again.
template <class Batch>
class shared_batches {
    using batch_ptr = std::shared_ptr<const prepared_batch<Batch>>;

    // Places in the order in which a training asks for them.
    using place = std::pair<std::uint64_t, std::uint64_t>;  // epoch, first sample
    static place place_of(const data::batch_request& r) { return {r.epoch, r.first}; }

public:
    shared_batches(std::size_t most_bytes, std::int64_t patience)
        : most_bytes_(most_bytes), patience_(patience) {}

    // The connection of a trainer, from its begin to its end.
    class member {
    public:
        member(shared_batches& of, share_of_epoch mine) : of_(of), mine_(mine) {
            const lock_guard held(of_.mutex_);
            of_.members_.push_back(this);
        }
        member(const member&) = delete;
        member& operator=(const member&) = delete;
        ~member() { of_.leave(this); }

        // That of the trainer. Its requests name it only where the ranks share each batch.
        int rank() const { return mine_.mine.rank; }

    private:
        friend shared_batches;
        // True if it is going to ask for that batch, as far as one can tell.
        bool comes_to(const member& other, const data::batch_request& r) const {
            const share_of_epoch& its = other.mine_;
            if (mine_.share == std::uint32_t(data::batch_share::claims)) return false;
            if (mine_.mine.rank != its.mine.rank || mine_.mine.size != its.mine.size ||
                mine_.share != its.share)
                return false;
            return !has_asked_ || (last_.seed == r.seed && place_of(last_) < place_of(r));
        }

        shared_batches& of_;
        share_of_epoch mine_;
        bool has_asked_ = false;
        data::batch_request last_;
    };

    // A batch, or the reason why there is none. That is no exception, which would be handled by the
    // threads of several trainings at once.
    struct outcome {
        batch_ptr batch;
        std::optional<service_failure> failure;
    };

    // The batch of a request: one that was made for another training, or what `make` returns.
    template <class Make>
    outcome get(member& me, const data::batch_request& request, const Make& make) {
        mutex_.lock();
        me.has_asked_ = true;
        me.last_ = request;
        if (const std::shared_ptr<entry> found = find(request)) {
            wait_for(*found, me);
            mutex_.unlock();
            return found->made;
        }
        const auto mine = std::make_shared<entry>(request, those_behind(me, request));
        if (!mine->awaited_by.empty()) entries_.push_back(mine);
        mutex_.unlock();
        try {
            mine->made.batch = std::make_shared<const prepared_batch<Batch>>(make());
        } catch (...) {
            mine->made.failure = current_failure();
        }
        publish(*mine);
        return mine->made;
    }

private:
    struct entry {
        entry(const data::batch_request& r, std::vector<member*> others)
            : request(r), awaited_by(std::move(others)) {}

        data::batch_request request;
        std::vector<member*> awaited_by;
        outcome made;
        bool is_over = false;  // it was made, or it failed
    };

    std::shared_ptr<entry> find(const data::batch_request& r) const {
        for (const auto& e : entries_)
            if (place_of(e->request) == place_of(r) && e->request.seed == r.seed &&
                e->request.mine.rank == r.mine.rank && e->request.mine.size == r.mine.size)
                return e;
        return nullptr;
    }

    std::vector<member*> those_behind(const member& me, const data::batch_request& r) const {
        std::vector<member*> all;
        if (most_bytes_ == 0) return all;
        for (member* const m : members_)
            if (m != &me && m->comes_to(me, r)) all.push_back(m);
        return all;
    }

    // Waits until a batch that may be in the making is there, or has failed.
    void wait_for(entry& e, member& me) {
        while (!e.is_over) changed_.wait(mutex_);
        is_patient_ = true;
        forget(me, e);
        drop_those_that_nobody_awaits();
    }

    void publish(entry& mine) {
        const lock_guard held(mutex_);
        mine.is_over = true;
        changed_.notify_all();
        if (mine.made.failure || mine.made.batch->bytes.size() > most_bytes_)
            mine.awaited_by.clear();
        drop_those_that_nobody_awaits();
        wait_for_room();
    }

    // It sleeps, since a condition has no limit of time.
    void wait_for_room() {
        const time_point until = now() + patience_;
        while (bytes() > most_bytes_ && is_patient_ && now() < until) {
            mutex_.unlock();
            sleep_for(tuning::millisecond);
            mutex_.lock();
        }
        if (bytes() <= most_bytes_) return;
        is_patient_ = false;
        for (const auto& e : entries_)  // the oldest first
            if (e->is_over && bytes() > most_bytes_) e->awaited_by.clear();
        drop_those_that_nobody_awaits();
    }
    // The bytes of all that are awaited.
    std::size_t bytes() const {
        std::size_t all = 0;
        for (const auto& e : entries_)
            if (e->is_over && !e->awaited_by.empty()) all += e->made.batch->bytes.size();
        return all;
    }

    static void forget(const member& m, entry& e) { std::erase(e.awaited_by, &m); }
    void drop_those_that_nobody_awaits() {
        std::erase_if(entries_, [](const auto& e) { return e->is_over && e->awaited_by.empty(); });
    }

    void leave(member* m) {
        const lock_guard held(mutex_);
        std::erase(members_, m);
        for (const auto& e : entries_) forget(*m, *e);
        drop_those_that_nobody_awaits();
    }

    const std::size_t most_bytes_;
    const std::int64_t patience_;
    mutex mutex_;
    condition changed_;
    std::vector<member*> members_;
    std::vector<std::shared_ptr<entry>> entries_;  // in the order in which they were begun
    bool is_patient_ = true;
};

}  // namespace hvd::inline v0::detail
