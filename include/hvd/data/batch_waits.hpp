// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "../observe/observer.hpp"
#include "../platform/clock.hpp"
#include "part.hpp"
#include "stage_pool.hpp"

namespace hvd::inline v0::detail {

// Tells an observer of the times in which a trainer waits for its next batch, as of calls.
class batch_waits {
public:
    batch_waits() = default;
    // The observer is one of its own, as that of another communicator.
    template <observes_splits Observer>
    batch_waits(Observer& parent, part mine)
        : told_(std::make_unique<told<Observer>>()), mine_(mine) {
        static_cast<told<Observer>&>(*told_).observer.on_split(parent);
    }

    // Takes a batch: calls `take`, and tells when that began and ended.
    template <class Take>
    auto around(const Take& take) {
        if (!told_) return take();
        told_->began(about());
        try {
            auto taken = take();
            told_->ended(about(), true);
            return taken;
        } catch (...) {
            told_->ended(about(), false);
            throw;
        }
    }

    // True if numbers of stages are to be told. Between two such times lies a tenth of a second.
    bool wants_stages(bool is_end) const {
        return told_ && (is_end || now() - counted_ > 100 * tuning::millisecond);
    }
    // Tells the queues and the work of stages, the latter since it was told last.
    void tell(const std::vector<data::stage_statistics>& stages) {
        counted_ = now();
        before_.resize(stages.size());
        for (std::size_t i = 0; i < stages.size(); ++i) {
            const data::stage_statistics &s = stages[i], &b = before_[i];
            const auto rate = [](double time, double of) {
                return of > 0 ? std::int64_t(time / of + 0.5) : 0;
            };
            const double seconds = s.seconds - b.seconds, all = s.thread_seconds - b.thread_seconds;
            const std::int64_t values[] = {std::int64_t(s.ready), std::int64_t(s.making),
                                           rate(double(s.made - b.made), seconds),
                                           rate(100 * (s.busy - b.busy), all),
                                           rate(100 * (s.without_room - b.without_room), all)};
            event e = about();
            const message name = text("stage ", s.stage, " (map)");
            e.name = name;
            told_->counts(e, "ready,making,samples per second,busy %,without room %", values);
        }
        before_ = stages;
    }

private:
    struct any_told {
        any_told() = default;
        any_told(const any_told&) = delete;
        any_told& operator=(const any_told&) = delete;
        virtual ~any_told() = default;
        virtual void began(const event& e) = 0;
        virtual void ended(const event& e, bool succeeded) = 0;
        virtual void counts(const event& e, std::string_view names, const std::int64_t* values) = 0;
    };
    template <class Observer>
    struct told : any_told {
        void began(const event& e) override { observer.on_begin(e); }
        void ended(const event& e, bool succeeded) override { observer.on_end(e, succeeded); }
        void counts([[maybe_unused]] const event& e, [[maybe_unused]] std::string_view names,
                    [[maybe_unused]] const std::int64_t* values) override {
            if constexpr (observes_counts<Observer>) observer.on_counts(e, names, values);
        }
        Observer observer;
    };

    event about() const {
        return {"next batch", "waits for a batch", dtype::byte, 0, mine_.rank, mine_.size, now()};
    }

    std::unique_ptr<any_told> told_;
    part mine_;
    time_point counted_ = 0;
    std::vector<data::stage_statistics> before_;
};

}  // namespace hvd::inline v0::detail
