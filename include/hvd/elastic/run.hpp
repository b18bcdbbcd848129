// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../protocol/step_question.hpp"
#include "part.hpp"
#include "state.hpp"

namespace hvd {
inline namespace v0 {

namespace detail {

class elastic_access {
public:
    // Takes the state that an earlier job has kept, if there is one.
    template <class State>
    static void read_kept(State& s) {
        if (s.read_kept_) s.read_kept_();
    }
    // A process that has committed nothing takes whatever the others have.
    template <class State>
    static state_stamp stamp_of(const State& s) {
        return s.epoch_ == 0 && !s.was_kept_ ? state_stamp() : state_stamp{s.step_, s.epoch_};
    }

    // Gives all ranks the state of one of them, and keeps a copy of it.
    template <class Comm, class... Ts>
    static void begin_epoch(elastic::state<Ts...>& s, Comm& comm, const elastic_epoch& epoch) {
        if (s.keeper_) s.keeper_->set_writes(comm.local_rank() == 0);
        if (!epoch.is_equal) {
            s.synchronize(comm, root{epoch.source}, std::index_sequence_for<Ts...>());
            std::int64_t step = s.step_;
            comm.broadcast_object(step, root{epoch.source});
            s.hold(step, epoch.stamp.epoch == 0 ? epoch.number : epoch.stamp.epoch);
        }
        s.running_epoch_ = epoch.number;
        for (const auto& f : s.callbacks_) f(comm.rank(), comm.size());
    }
    template <class State>
    static void set_watch(State& s, std::function<void()> end_step, std::function<bool()> changes) {
        s.end_step_ = std::move(end_step);
        s.changes_ = std::move(changes);
    }
    template <class State>
    static std::int64_t samples_of(const State& s) {
        return s.samples_;
    }
};

// Asks whether newcomers wait.
class membership_question final : public step_question {
public:
    explicit membership_question(shared<epoch_news> news)
        : step_question([](step_question& self) {
              return static_cast<membership_question&>(self).news_->should_join();
          }),
          news_(std::move(news)) {}

private:
    shared<epoch_news> news_;
};

// While a communicator lives, the state waits for its work before each commit. After it the state
// tells the launcher how far it is, and looks for newcomers. Steps of optimizers bring the answer:
// the commit after them waits for no other rank, which may not have begun it. Without an answer a
// call brings it.
template <class State>
class elastic_watch {
public:
    template <class Comm>
    elastic_watch(State& state, Comm& comm, const shared<epoch_news>& news) : state_(state) {
        using answer = step_question::answer;
        const auto question = shared<membership_question>::make(news);
        access::session_of(comm).question = question;
        const auto changes = [&state, &comm, news, question] {
            news->tell_work(state.step(), elastic_access::samples_of(state));
            const answer known = question->take_answer();
            std::uint8_t should_join = known == answer::yes ? 1 : 0;
            if (known == answer::none) {
                should_join = question->ask() ? 1 : 0;
                comm.allreduce(view(&should_join, 1), max, {.name = "elastic membership"});
            }
            if (should_join == 0) begin_step(comm);
            return should_join != 0;
        };
        elastic_access::set_watch(state, [&comm] { end_step(comm); }, changes);
    }
    elastic_watch(const elastic_watch&) = delete;
    ~elastic_watch() { elastic_access::set_watch(state_, {}, {}); }

private:
    State& state_;
};

// The part of this process over a backend whose communicators may take options of their own.
struct no_own_options {};
template <class Backend>
elastic_part<Backend> part_of(const tcp_options& own, const elastic_options& bounds,
                              const no_own_options&) {
    return elastic_part<Backend>(own, bounds);
}
template <class Backend, class Own>
elastic_part<Backend> part_of(const tcp_options& own, const elastic_options& bounds,
                              const Own& options) {
    return elastic_part<Backend>(own, bounds, options);
}
template <class Backend>
struct own_options_of {
    using type = no_own_options;
};
template <class Backend>
    requires has_own_options<Backend>
struct own_options_of<Backend> {
    using type = typename Backend::own_options;
};

}  // namespace detail

/// Options of `run_elastic`. Those that a launcher sets are read from the environment.
/// @snippet tests/elastic/snippets.cpp elastic_options
struct run_elastic_options {
    /// the place of this process at the start
    tcp_options tcp = detail::place_from_environment();
    /// the sizes and the times of the job
    elastic_options bounds = detail::options_from_environment<elastic_options>();
    communicator_options communicator = {};  ///< of each epoch
};

/// Runs fn(communicator) until it returns on all ranks, though ranks and hosts are lost and others
/// come. No committed step is lost while one rank survives.
///
/// Each epoch has a communicator of its own. It ends when a call throws
/// hvd::peer_error, since a rank is lost, or `state.commit()` throws membership_change, since
/// newcomers wait. Then the state is put back to the last commit, the next epoch begins, all ranks
/// get the state of the one that has done the most steps, and fn is called again. It should do the
/// steps from `state.step()` on, and destroy what it has made of the communicator. Over `nccl` it
/// is fn(gpus), or fn(gpus, hosts) with a `communicator<tcp>` of the same ranks, and `own_options`
/// are `nccl_options`.
///
/// **Collective**: all processes that the launcher starts, at any time. Other collectives need a
/// communicator of fn. The process with rank 0 at the start, or the launcher, coordinates. If it
/// dies, another process takes over, if more than half of the last epoch's ranks still live. A
/// process takes part in a job once. A newcomer needs objects that fit those of the others, or it
/// leaves with hvd::mismatch_error.
/// @throws what fn throws, but for the two above; hvd::peer_error if fewer than `bounds.least`
/// processes come in time, if the job has ended before this process could take part, or if ten
/// epochs in a row end without a commit or the loss of a rank; hvd::usage_error for options that
/// can't be, and the second time in a job. Features J1, J4, J7; complaint 13.
/// @tparam Backend of the communicators: an elastic one, such as `tcp`, `encrypted<tcp>`, `nccl`
/// @snippet tests/elastic/snippets.cpp run_elastic
template <class Backend = tcp, class... Ts, class F>
void run_elastic(elastic::state<Ts...>& state, F fn, const run_elastic_options& options = {},
                 const typename detail::own_options_of<Backend>::type& own_options = {}) {
    static_assert(detail::is_elastic<Backend>,
                  "hvd: run_elastic: this backend is not elastic, or its header is missing: see "
                  "docs/elastic.md");
    using access = detail::elastic_access;
    constexpr int most_vain_epochs = 10;
    access::read_kept(state);
    auto part = detail::part_of<Backend>(options.tcp, options.bounds, own_options);
    detail::membership& own = part.own();
    int vain = 0;
    for (bool has_finished = false;;) {
        const detail::state_stamp stamp = access::stamp_of(state);
        const auto epoch = own.join(stamp, has_finished);
        if (epoch.has_ended) return;
        if (std::exchange(has_finished, false)) state.restore();  // others have not
        if (epoch.has_lost) vain = 0;
        const std::int64_t before = state.step();
        const detail::heard_epoch heard(own);
        bool has_begun = false;
        const auto go_back = [&] {
            state.restore();
            vain = state.step() > before ? 0 : vain + 1;
            return vain < most_vain_epochs;
        };
        try {
            auto comm = part.communicator_of(epoch, heard.news(), options.communicator);
            own.record(epoch);
            comm.barrier();
            own.begin_work();
            access::begin_epoch(state, comm, epoch);
            has_begun = true;
            const detail::elastic_watch watch(state, comm, heard.news());
            call_with(fn, comm);
            has_finished = true;
        } catch (const elastic::membership_change&) {
            vain = 0;
        } catch (const peer_error&) {
            if (!go_back()) throw;
        } catch (const mismatch_error&) {
            // A newcomer whose objects do not fit leaves, and the others go on.
            if (has_begun || stamp.epoch == 0 || !go_back()) throw;
        }
    }
}

}  // namespace v0
}  // namespace hvd
