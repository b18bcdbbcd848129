// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <map>
#include <mutex>

#include <hvd/observe/observers.hpp>

#include "engine_test.hpp"

namespace observed_tensors_tests {

// The optional functions of observers: phases of calls, and the tensors of an engine.

using namespace hvd_test;

namespace {

// Keeps what it is told, also what its communicator's children are told.
class remembering {
public:
    void on_begin(const hvd::event& e) { add("begin", e); }
    void on_phase(const hvd::event& e, hvd::phase p) {
        add(p == hvd::phase::pack ? "pack" : p == hvd::phase::unpack ? "unpack" : "communicate", e);
    }
    void on_end(const hvd::event& e, bool succeeded) { add(succeeded ? "end" : "failed", e); }
    void on_split(remembering& parent) { lines_ = parent.lines_; }
    void on_submitted(const hvd::event& e) { add("submitted", e); }
    void on_rank_ready(const hvd::event& e, int rank) {
        add("rank" + std::to_string(rank) + " ready", e);
    }
    void on_ready(const hvd::event& e) { add("ready", e); }
    void on_complete(const hvd::event& e, bool succeeded) {
        add(succeeded ? "complete" : "incomplete", e);
    }

    struct line {
        std::string what, collective, name;
        std::size_t bytes;
        std::int64_t time, made;
    };
    std::vector<line> all() const {
        const std::lock_guard lock(lines_->mutex);
        return lines_->all;
    }
    std::vector<std::string> of(std::string_view name) const {
        std::vector<std::string> whats;
        for (const line& l : all())
            if (l.name == name) whats.push_back(l.what);
        return whats;
    }

private:
    void add(std::string what, const hvd::event& e) {
        const std::lock_guard lock(lines_->mutex);
        lines_->all.push_back({std::move(what), std::string(e.collective), std::string(e.name),
                               e.bytes, e.time, e.made});
    }

    struct kept {
        std::mutex mutex;
        std::vector<line> all;
    };
    std::shared_ptr<kept> lines_ = std::make_shared<kept>();
};

struct counting {
    void on_begin(const hvd::event&) { ++begun; }
    void on_end(const hvd::event&, bool) { ++ended; }
    int begun = 0, ended = 0;
};

struct refusing {
    void on_begin(const hvd::event&) { throw std::runtime_error("not now"); }
    void on_end(const hvd::event&, bool) {}
};

static_assert(hvd::observer<hvd::observers<remembering, counting>>);
static_assert(hvd::detail::observes_phases<hvd::observers<counting, remembering>>);
static_assert(!hvd::detail::observes_phases<hvd::observers<counting, refusing>>);
static_assert(hvd::detail::moments_of<counting>() == 0b111);

using words = std::vector<std::string>;

}  // namespace

TEST_CASE("an observer is told the phases of calls that pack, and when a queued call was made") {
    on_ranks_of<hvd::observed<backend, remembering>>([](auto& comm) {
        std::vector<float> a(10, 1), strided(20, 1);
        const auto half = hvd::view(strided.data(), hvd::shape(10), hvd::strides(2));
        comm.allreduce(a, hvd::sum, {.name = "plain"});
        comm.allreduce(half, hvd::sum, {.name = "strided"});
        comm.allreduce_async(a, hvd::sum, {.name = "queued"}).wait();
        CHECK(comm.observer().of("plain") == words{"begin", "end"});
        const words seen = comm.observer().of("strided");
        REQUIRE(seen.size() >= 5);
        CHECK(std::count(seen.begin(), seen.end(), "pack") == 1);
        CHECK(std::count(seen.begin(), seen.end(), "unpack") == 1);
        CHECK(seen[seen.size() - 2] == "unpack");
        std::int64_t before = 0;
        for (const auto& l : comm.observer().all()) {
            CHECK(l.time >= before);
            before = l.time;
            CHECK((l.made != 0) == (l.name == "queued"));
            CHECK(l.made <= l.time);
        }
    });
}

TEST_CASE("an observer is told of an engine's tensors, each in its order") {
    on_ranks_of<hvd::observed<backend, remembering>>([](auto& comm) {
        constexpr int steps = 8;  // some are negotiated, some are predicted
        {
            hvd::engine e{comm};
            for (int step = 0; step < steps; ++step) {
                std::vector<float> a(10, 1), b(20, 1);
                auto x = e.allreduce(comm.rank() % 2 == 0 ? "a" : "b", comm.rank() % 2 == 0 ? a : b,
                                     hvd::sum);
                auto y = e.allreduce(comm.rank() % 2 == 0 ? "b" : "a", comm.rank() % 2 == 0 ? b : a,
                                     hvd::sum);
                x.wait();
                y.wait();
            }
        }
        for (const char* name : {"a", "b"}) {
            words own, ranks;
            for (const std::string& w : comm.observer().of(name))
                (w.find("rank") == 0 ? ranks : own).push_back(w);
            // A prediction that a rank declines is told as ready once more.
            own.erase(std::unique(own.begin(), own.end()), own.end());
            REQUIRE(own.size() == 3 * steps);
            for (int step = 0; step < steps; ++step) {
                CHECK(own[3 * std::size_t(step)] == "submitted");
                CHECK(own[3 * std::size_t(step) + 1] == "ready");
                CHECK(own[3 * std::size_t(step) + 2] == "complete");
            }
            // Up to eight ranks report to rank 0.
            for (int r = 1; comm.rank() == 0 && r < comm.size(); ++r)
                CHECK(std::count(ranks.begin(), ranks.end(),
                                 "rank" + std::to_string(r) + " ready") >= 1);
            if (comm.rank() != 0) CHECK(ranks.empty());
        }
        for (const auto& l : comm.observer().all())
            if (l.name == "b" && l.what == "submitted") CHECK(l.bytes == 80);
    });
}

TEST_CASE("an observer is told that ranks refused a tensor") {
    on_ranks_of<hvd::observed<backend, remembering>>([](auto& comm) {
        if (comm.size() == 1) return;
        hvd::engine e{comm};
        std::vector<float> x(comm.rank() == 0 ? 3 : 4);
        CHECK_THROWS_AS(e.allreduce("odd", x, hvd::sum).wait(), hvd::mismatch_error);
        words own = comm.observer().of("odd");
        own.erase(std::remove_if(own.begin(), own.end(),
                                 [](const std::string& w) { return w.find("rank") == 0; }),
                  own.end());
        CHECK(own == words{"submitted", "incomplete"});
    });
}

TEST_CASE("several observers get every event, even if one of them throws") {
    on_ranks_of<hvd::observed<backend, hvd::observers<refusing, counting, remembering>>>(
        [](auto& comm) {
            float x = 1;
            CHECK_THROWS(comm.allreduce(x, hvd::sum));
            auto& seen = comm.observer();
            CHECK(seen.template get<counting>().begun == 1);
            CHECK(seen.template get<counting>().ended == 1);
            CHECK(seen.template get<remembering>().of("") == words{"begin", "failed"});
        });
}

}  // namespace observed_tensors_tests
