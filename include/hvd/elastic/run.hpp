// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>

#include "part.hpp"
#include "state.hpp"

namespace hvd::inline v0 {

namespace detail {

class elastic_access {
public:
    // Takes the state that an earlier job has kept, if there is one.
    template <class State>
    static void read_kept(State& s) {
        if (s.read_kept_) s.read_kept_();
    }
    // The files of a state are sealed, if the job wishes it, and else not.
    template <class State>
    static void seal(State& s, const tcp_options& own, const elastic::bounds& bounds) {
        if (!s.keeper_) return;
        kept_key key;
        if (bounds.seal_states) key = derived_secret(secret_of(own), 0x73746174657300);
        s.keeper_->set_key(key);
    }
    // Takes the objects as the program has made them meanwhile.
    template <class State>
    static void begin(State& s) {
        read_kept(s);
        s.take(s.copies_[s.current_]);
        s.for_each_local(s.copies_[s.current_],
                         [](auto& local, const auto& copy) { local.first_ = copy; });
    }
    // A process that has committed nothing takes whatever the others have.
    template <class State>
    static state_stamp stamp_of(const State& s) {
        return s.epoch_ == 0 && !s.was_kept_ ? state_stamp() : state_stamp{s.step_, s.epoch_};
    }

    // Gives all ranks the state of one of them, and keeps a copy of it.
    template <class Comm, class... Ts>
    static void begin_epoch(elastic::state<Ts...>& s, Comm& comm, const elastic_epoch& epoch) {
        if (s.keeper_) s.keeper_->set_writes(comm.local_rank() == 0, epoch.whole_job);
        if constexpr (elastic::state<Ts...>::has_locals) begin_with_locals(s, comm, epoch);
        else if (!epoch.is_equal) {
            const std::int64_t step = synchronize(s, comm, epoch);
            s.hold(step, epoch.stamp.epoch == 0 ? epoch.number : epoch.stamp.epoch);
        }
        s.running_epoch_ = epoch.number;
        for (const auto& f : s.callbacks_) f(comm.rank(), comm.size());
    }
    template <class State>
    static void set_watch(State& s, std::function<void(const char*)> begins,
                          std::function<bool()> changes) {
        s.begins_ = std::move(begins);
        s.changes_ = std::move(changes);
    }
    template <class State>
    static std::int64_t committed_by(const State& s) {
        return s.step_;
    }
    template <class State>
    static std::int64_t samples_of(const State& s) {
        return s.samples_;
    }
    template <class State>
    static constexpr bool has_locals(const State&) {
        return State::has_locals;
    }
    // Local objects are sent while a communicator lives.
    template <class State, class Comm>
    static void set_exchange(State& s, Comm& comm, const elastic_epoch& epoch) {
        if constexpr (State::has_locals)
            s.exchange_ = [&comm, ids = ids_of(epoch)](const std::vector<std::byte>& own) {
                return exchange_copies(comm, ids, own);
            };
    }
    template <class State>
    static void end_exchange(State& s) {
        s.exchange_ = {};
    }

private:
    template <class Comm, class... Ts>
    static std::int64_t synchronize(elastic::state<Ts...>& s, Comm& comm,
                                    const elastic_epoch& epoch) {
        const root source{epoch.source};
        s.synchronize(comm, source, std::index_sequence_for<Ts...>());
        end_step(comm);
        begin_step(comm);
        std::int64_t step = s.step_;
        return comm.broadcast_object(step, source);
    }

    // All go on from the newest commit of which they have all copies, those of lost ranks included.
    // A rank enters a commit when all of its epoch have done the one before: see elastic_watch. So
    // it is the last one of the source or the one before, which those who are ahead still have. Who
    // was left out of an epoch since then may have neither, and is a newcomer.
    template <class State, class Comm>
    static void begin_with_locals(State& s, Comm& comm, const elastic_epoch& epoch) {
        const root source{epoch.source};
        const int last = s.current_, before = s.free_copy();
        std::array<state_stamp, 2> stamps{s.stamps_[last], s.stamps_[before]};
        std::vector members{s.peers_[last].members, s.peers_[before].members};
        std::vector staying{s.peers_[last].staying, s.peers_[before].staying};
        comm.broadcast_object(stamps, source);
        comm.broadcast_object(members, source);
        comm.broadcast_object(staying, source);
        const std::uint64_t own = epoch.members[std::size_t(epoch.rank)].id;
        std::uint8_t is_behind = has_id(staying[0], own) && !s.has_stamp(stamps[0]) ? 1 : 0;
        comm.allreduce(view(&is_behind, 1), max, {.name = "elastic local objects"});

        const state_stamp common = stamps[is_behind];
        const bool has_come = s.go_to(common);
        if (!has_come) s.begin_with_first_locals();
        if (!epoch.is_equal) {
            const std::int64_t step = synchronize(s, comm, epoch);
            if (common.epoch == 0) s.hold(step, epoch.number);
            else if (!has_come) s.hold_as_newcomer(common, members[is_behind]);
        }
        const std::vector<std::uint64_t> living = ids_of(epoch);
        if (common.epoch > 0) s.peers_[s.current_].staying = common_ids(staying[is_behind], living);
        find_lost(s, comm, own);
    }

    static std::vector<std::uint64_t> ids_of(const elastic_epoch& epoch) {
        std::vector<std::uint64_t> ids;
        for (const elastic_member& m : epoch.members) ids.push_back(m.id);
        return ids;
    }
    static bool has_id(const std::vector<std::uint64_t>& members, std::uint64_t id) {
        return std::ranges::find(members, id) != members.end();
    }

    static std::vector<std::uint64_t> common_ids(std::vector<std::uint64_t> some,
                                                 const std::vector<std::uint64_t>& others) {
        std::erase_if(some, [&](std::uint64_t id) { return !has_id(others, id); });
        return some;
    }

    // The objects of a rank are lost as well if it lives and has begun anew.
    template <class State, class Comm>
    static void find_lost(State& s, Comm& comm, std::uint64_t own) {
        enum : std::uint8_t { nowhere, copied, there };
        const peer_copies& peers = s.peers_[s.current_];
        std::vector<std::uint8_t> found;
        for (std::size_t rank = 0; rank < peers.members.size(); ++rank) {
            const bool is_there = peers.members[rank] == own && !peers.began_anew;
            found.push_back(is_there ? there : peers.has_copy_of(rank) ? copied : nowhere);
        }
        comm.allreduce(found, max, {.name = "elastic local objects"});
        s.forget_lost();
        for (std::size_t rank = 0; rank < found.size(); ++rank) {
            if (found[rank] == nowhere) s.add_gone(int(rank));
            if (found[rank] == copied && peers.has_copy_of(rank))
                s.add_lost(int(rank), peers.copy_of(rank));
        }
    }
};

// Asks whether newcomers wait.
class membership_question final : public step_question {
public:
    explicit membership_question(shared<epoch_monitor> monitor)
        : step_question([](step_question& self) {
              return static_cast<membership_question&>(self).monitor_->should_join();
          }),
          monitor_(std::move(monitor)) {}

private:
    shared<epoch_monitor> monitor_;
};

// Two exceptions have to leave the function of elastic::run: a peer_error of any call, and the
// change that a commit has thrown. A function that catches them would commit steps that have
// failed, or would seem to be done.
class elastic_end {
public:
    explicit elastic_end(const call_driver& calls) : calls_(calls) {}

    // Called when the function of elastic::run has gone on after all.
    void throw_what_was_caught(const char* where) {
        const bool is_broken = calls_.is_broken();
        if (!is_broken && !changes_) return;
        const message what =
            text("hvd: rank ", calls_.rank(), ": the function of elastic::run has caught ",
                 is_broken ? "hvd::peer_error" : "hvd::elastic::membership_change",
                 " and gone on to ", where, ": let it pass, since elastic::run goes on from it");
        if (!std::exchange(told_, true)) write_line(what);
        if (is_broken) throw peer_error(calls_.rank(), what, {});
        throw elastic::membership_change();
    }
    void note_change() { changes_ = true; }

private:
    const call_driver& calls_;
    bool changes_ = false, told_ = false;
};

// While a communicator lives, the state waits for its work before each commit, and sends local
// objects by it. After it the state tells the launcher how far it is, and looks for newcomers.
// Steps of optimizers bring the answer: the commit after them waits for no other rank, which may
// not have begun it. An agreement before the commit brings it, too. Without an answer a call does.
template <class State>
class elastic_watch {
public:
    template <class Comm>
    elastic_watch(State& state, Comm& comm, const elastic_epoch& epoch,
                  const shared<epoch_monitor>& monitor)
        : state_(state), end_(static_cast<const call_driver&>(access::session_of(comm))) {
        using answer = step_question::answer;
        const auto question = shared<membership_question>::make(monitor);
        elastic_access::set_exchange(state, comm, epoch);
        // With local objects the call is needed: nobody enters a commit before all have done the
        // exchange of the last one.
        if (!elastic_access::has_locals(state)) access::session_of(comm).question = question;
        const auto changes = [this, &state, &comm, monitor, question] {
            monitor->tell_work(state.step(), elastic_access::samples_of(state));
            const answer known = question->take_answer();
            std::uint8_t should_join = known == answer::yes ? 1 : 0;
            if (known == answer::none || elastic_access::has_locals(state)) {
                if (question->ask()) should_join = 1;
                comm.allreduce(view(&should_join, 1), max, {.name = "elastic membership"});
            }
            if (should_join == 0) begin_step(comm);
            else end_.note_change();
            return should_join != 0;
        };
        const auto begins = [this, &comm, question](const char* call) {
            end_.throw_what_was_caught(call);
            end_step(comm, question.get());
        };
        elastic_access::set_watch(state, begins, changes);
    }
    elastic_watch(const elastic_watch&) = delete;
    ~elastic_watch() {
        elastic_access::set_watch(state_, {}, {});
        elastic_access::end_exchange(state_);
    }

    // The function has returned.
    void check_return() { end_.throw_what_was_caught("its end"); }

private:
    State& state_;
    elastic_end end_;
};

// The part of this process over a backend whose communicators may take options of their own.
struct no_own_options {};
template <class Backend>
elastic_part<Backend> part_of(const tcp_options& own, const elastic::bounds& bounds,
                              const no_own_options&) {
    return elastic_part<Backend>(own, bounds);
}
template <class Backend, class Own>
elastic_part<Backend> part_of(const tcp_options& own, const elastic::bounds& bounds,
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

namespace detail {

[[noreturn]] inline void give_up_in_vain(int epochs, std::int64_t step, const peer_error& last) {
    throw peer_error(
        last.rank(),
        text("hvd: ", epochs,
             " epochs in a row have ended without a commit and without the loss of a "
             "rank, after step ",
             step, ". Do all ranks return after the same step? The last error: ", last.what()),
        last.peers());
}

// The others have gone on after this step, again and again, and have given up.
[[noreturn]] inline void give_up_as_the_others(int started_as, int epochs, std::int64_t step) {
    throw peer_error(
        started_as,
        text("hvd: the function of elastic::run has returned after step ", step,
             " in the process with HVD_RANK=", started_as, ", in ", epochs,
             " epochs in a row. The others went on each time, and have given up. Do all ranks "
             "return after the same step?"),
        {});
}

}  // namespace detail

/// Jobs that lose and win ranks: `run`, and the `state` that outlives them.
namespace elastic {

/// Options of `elastic::run`. Those that a launcher sets are read from the environment.
/// @snippet tests/elastic/snippets.cpp elastic_options
struct options {
    /// the place of this process at the start
    tcp_options tcp = hvd::detail::place_from_environment();
    /// the sizes and the times of the job
    elastic::bounds bounds = hvd::detail::launched_options<elastic::bounds>();
    communicator_options communicator = {};  ///< of each epoch
};

/// Runs fn(communicator) until it returns on all ranks, though ranks and hosts are lost and others
/// come. No step is lost that one of the living ranks has committed: with local objects, none whose
/// commit() has returned on a rank. A step that only lost ranks have committed is done again.
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
/// dies, another process takes over, if more than half of the last epoch's ranks still live, or
/// half of them do and all others are known to be gone: see docs/elastic.md. A process takes part
/// in a job once. A newcomer needs objects that fit those of the others, or it leaves with
/// hvd::mismatch_error.
/// @throws what fn throws, but for the two above; hvd::peer_error if fewer than `bounds.min_size`
/// processes come in time, if the job has ended before this process could take part, or if ten
/// epochs in a row end without a commit or the loss of a rank; hvd::usage_error for options that
/// can't be, for a job of one where a launcher has started several, and the second time in a job.
/// Horovod: `elastic.run`.
/// @tparam Backend of the communicators: an elastic one, such as `tcp`, `encrypted<tcp>`, `nccl`
/// @snippet tests/elastic/snippets.cpp run_elastic
template <class Backend = tcp, class... Ts, class F>
void run(state<Ts...>& state, F fn, const options& options = {},
         const typename hvd::detail::own_options_of<Backend>::type& own_options = {}) {
    static_assert(hvd::detail::is_elastic<Backend>,
                  "hvd: elastic::run: this backend is not elastic, or its header is missing: see "
                  "docs/elastic.md");
    using access = hvd::detail::elastic_access;
    constexpr int most_vain_epochs = 10;
    access::seal(state, options.tcp, options.bounds);
    access::begin(state);
    auto part = hvd::detail::part_of<Backend>(options.tcp, options.bounds, own_options);
    hvd::detail::membership& own = part.own();
    int vain = 0;
    for (bool has_finished = false;;) {
        const hvd::detail::state_stamp stamp = access::stamp_of(state);
        const auto epoch = own.join(stamp, has_finished);
        if (epoch.has_ended) {
            if (vain < most_vain_epochs) return;
            hvd::detail::give_up_as_the_others(options.tcp.rank, most_vain_epochs, state.step());
        }
        if (std::exchange(has_finished, false)) state.restore();  // others have not
        if (epoch.has_lost) vain = 0;
        const std::int64_t before = access::committed_by(state);
        const hvd::detail::monitored_epoch monitored(own);
        bool has_begun = false;
        const auto count = [&] { vain = access::committed_by(state) > before ? 0 : vain + 1; };
        const auto go_back = [&] {
            state.restore();
            count();
            return vain < most_vain_epochs;
        };
        try {
            own.record_first(epoch);
            auto comm = part.communicator_of(epoch, monitored.monitor(), options.communicator);
            own.record(epoch);
            comm.barrier();
            own.begin_work();
            hvd::detail::elastic_watch watch(state, comm, epoch, monitored.monitor());
            access::begin_epoch(state, comm, epoch);
            has_begun = true;
            call_with(fn, comm);
            watch.check_return();
            has_finished = true;
            count();  // if others have not finished, they come back
        } catch (const membership_change&) {
            vain = 0;
        } catch (const peer_error& e) {
            if (!go_back()) hvd::detail::give_up_in_vain(most_vain_epochs, state.step(), e);
        } catch (const mismatch_error&) {
            // A newcomer whose objects do not fit leaves, and the others go on.
            if (has_begun || stamp.epoch == 0 || !go_back()) throw;
        }
    }
}

}  // namespace elastic
}  // namespace hvd::inline v0
