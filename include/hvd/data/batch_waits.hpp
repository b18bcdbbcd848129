// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>

#include "../observe/observer.hpp"
#include "../platform/clock.hpp"
#include "part.hpp"

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

private:
    struct any_told {
        any_told() = default;
        any_told(const any_told&) = delete;
        any_told& operator=(const any_told&) = delete;
        virtual ~any_told() = default;
        virtual void began(const event& e) = 0;
        virtual void ended(const event& e, bool succeeded) = 0;
    };
    template <class Observer>
    struct told : any_told {
        void began(const event& e) override { observer.on_begin(e); }
        void ended(const event& e, bool succeeded) override { observer.on_end(e, succeeded); }
        Observer observer;
    };

    event about() const {
        return {"next batch", "waits for a batch", dtype::byte, 0, mine_.rank, mine_.size, now()};
    }

    std::unique_ptr<any_told> told_;
    part mine_;
};

}  // namespace hvd::inline v0::detail
