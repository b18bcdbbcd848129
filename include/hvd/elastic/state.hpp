// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>

#include "kept/keeper.hpp"
#include "kept/kept_object.hpp"
#include "local.hpp"
#include "members/messages.hpp"
#include "peer_copies.hpp"
#include "saved.hpp"

namespace hvd::inline v0 {

namespace elastic {

/// Ends the function that `elastic::run` runs, on all ranks after the same step, because the job
/// changes its size. Let it pass: `elastic::run` goes on from it with another communicator.
class membership_change {};

/// Options of `state::commit`.
struct commit_options {
    /// The samples that this rank has processed in the step, for the launcher's display: 0 or more.
    std::int64_t samples = 0;
};

/// Holds what an elastic job must not lose: objects of the program, and the number of steps done.
///
/// `commit()` copies the objects in memory. When a rank is lost, the others go on from the last
/// commit, and newcomers get the objects of the rank that has done the most steps. Objects that
/// differ between the ranks are `elastic::local`. Horovod: `elastic.State`.
///
/// The objects outlive the state. **Threads**: one.
/// @tparam Ts types with `elastic::saved<T>`
/// @snippet tests/elastic/snippets.cpp run_elastic
template <class... Ts>
class state {
public:
    explicit state(Ts&... objects) : objects_(objects...) { take(copies_[0]); }
    state(const state&) = delete;
    state& operator=(const state&) = delete;

    /// The steps that are done, on this rank and in this job: those that are committed, and those
    /// that have ended since.
    std::int64_t step() const noexcept { return step_ + uncommitted_; }

    /// Sets the number of steps that are done, of a checkpoint say, before `elastic::run`. That of
    /// the first rank counts, as its objects do.
    /// @throws hvd::usage_error for a negative one
    void resume_from(std::int64_t step) {
        refuse_negative("resume_from", step, "steps");
        step_ = step;
        uncommitted_ = 0;
    }

    /// Counts a step that is not committed, for jobs that commit every tenth step, say. If a rank
    /// is lost before the next commit, it is done again. It makes no call.
    /// @snippet tests/elastic/snippets.cpp end_step
    void end_step() noexcept { ++uncommitted_; }

    /// Copies the objects, and counts a step unless `end_step()` has counted some since the last
    /// commit. Call it after the last collective of the step, when the objects have changed. Inside
    /// `elastic::run` the ranks also agree whether newcomers wait. A step of a
    /// `distributed_optimizer` has brought the answer; without such a step since the last commit
    /// they make one small allreduce. Over NCCL it waits for the work of the GPU, and they make it
    /// before they copy. With local objects they send copies of them, and make the allreduce then
    /// in any case.
    ///
    /// hvdrun shows the step, and the sum of the ranks' samples a second if they tell them. Ranks
    /// report to it once a second, and when they have finished.
    ///
    /// **Collective** inside `elastic::run`. @throws membership_change, on all ranks, if the job
    /// changes its size; hvd::peer_error if a rank is lost. The step is committed even so, but not
    /// over NCCL. With local objects it is committed after a peer_error only if all ranks that live
    /// have their copies. After a call that has thrown peer_error, and after a membership_change,
    /// it commits nothing and throws that again, since a function of `elastic::run` lets them pass;
    /// a line says so. hvd::usage_error for negative samples, before anything is held.
    /// @snippet tests/elastic/snippets.cpp samples
    void commit(const commit_options& options = {}) {
        refuse_negative("commit", options.samples, "samples");
        if (begins_) begins_("commit()");
        hold(step_ + std::max(uncommitted_, std::int64_t(1)), running_epoch_);
        samples_ += std::min(options.samples, INT64_MAX - samples_);
        if (changes_ && changes_()) throw membership_change();
    }

    /// Asks whether newcomers wait, as `commit` does, and commits nothing: between the commits of
    /// a job that commits seldom. Horovod: `state.check_host_updates`, which goes on from objects
    /// that are not committed. Here the steps since the last commit are done again.
    ///
    /// **Collective** inside `elastic::run`; it makes the allreduce of `commit`, unless a step has
    /// brought the answer. Outside it does nothing. @throws membership_change, on all ranks, if the
    /// job changes its size, after `restore()`; hvd::peer_error if a rank is lost.
    /// @snippet tests/elastic/snippets.cpp check_host_updates
    void check_host_updates() {
        if (begins_) begins_("check_host_updates()");
        if (!changes_ || !changes_()) return;
        restore();
        throw membership_change();
    }

    /// Puts the objects, and the number of steps, back as they were at the last commit.
    void restore() {
        put_back(copies_[current_], std::index_sequence_for<Ts...>());
        uncommitted_ = 0;
    }

    /// Also writes what is committed into a file of a directory, so that the job goes on from there
    /// when all its processes have died: with a directory of /dev/shm while the host runs, with one
    /// on a disk after that, too. Call it before `elastic::run`, in all processes alike.
    ///
    /// A thread of the first process on each host writes the newest commit to `HOST.hvd_state`,
    /// which is whole at any time. No step waits for it: if it is slower than the steps, it leaves
    /// some out. With `elastic::bounds::seal_states` it is sealed. A full disk is told in
    /// `persisted()` and by a line of hvd, and does not end the job. The destructor waits until the
    /// last commit is written.
    ///
    /// When the job begins, all ranks go on from the most steps that one of them finds in its
    /// directory, if they are more than its `step()`. Newcomers take the state of the others. All
    /// copies of the state are `serializable` then, or of the types that `saved` names.
    /// @throws hvd::checkpoint_error if the directory can't be made or written. `elastic::run`
    /// throws it for a file that is torn or damaged, or has other objects than this state, or
    /// vectors of other sizes. A vector that is empty takes its size from the file.
    /// @snippet tests/elastic/snippets.cpp persist_in
    void persist_in(const std::string& directory, const persist_options& options = {}) {
        static_assert(
            !has_locals,
            "hvd: persist_in: an elastic state with local objects is not kept in files: each "
            "rank would need its own");
        read_kept_ = [this] { read_newest_kept(); };
        keeper_ = std::make_unique<hvd::detail::state_keeper>(
            directory, options, [this](hvd::detail::kept_writer& to, int copy) {
                write_kept(to, copies_[copy], std::index_sequence_for<Ts...>());
            });
    }
    /// Says what `persist_in` has done so far. **Threads**: any.
    persisted_steps persisted() const { return keeper_ ? keeper_->persisted() : persisted_steps(); }

    /// Calls f(rank, size) at the begin of each epoch, when all ranks have the same objects: for
    /// what depends on the number of ranks, such as a learning rate.
    template <class F>
    void on_reset(F f) {
        callbacks_.emplace_back(std::move(f));
    }

private:
    friend class hvd::detail::elastic_access;

    using copies = std::tuple<typename saved<std::remove_const_t<Ts>>::copy...>;
    static constexpr bool has_locals = (hvd::detail::is_elastic_local<Ts> || ...);

    static void refuse_negative(const char* call, std::int64_t number, const char* of_what) {
        if (number < 0)
            throw usage_error(-1, hvd::detail::text("hvd: ", call, " of an elastic state: ", number,
                                                    " ", of_what, ", expected 0 or more"));
    }

    // Copies the objects. The copy of the last commit stays meanwhile, and one that is written.
    void hold(std::int64_t step, std::uint64_t epoch) {
        const int copy = begin_to_hold();
        if constexpr (has_locals)
            if (exchange_) peers_[copy] = exchange_(bytes_of_locals(copies_[copy]));
        hold_copy(copy, {step, epoch});
    }
    int begin_to_hold() {
        const int copy = free_copy();
        stamps_[copy] = {};
        take(copies_[copy]);
        return copy;
    }
    void hold_copy(int copy, const hvd::detail::state_stamp& stamp) {
        stamps_[copy] = stamp;
        current_ = copy;
        step_ = stamp.step;
        uncommitted_ = 0;
        epoch_ = stamp.epoch;
        if constexpr (has_locals) forget_lost();
        if (keeper_) keeper_->commit(current_, step_);
    }
    int free_copy() const {
        const int written = keeper_ ? keeper_->written_copy() : -1;
        for (int copy = 0;; ++copy)
            if (copy != current_ && copy != written) return copy;
    }

    void read_newest_kept() {
        const auto file =
            hvd::detail::newest_kept_file(keeper_->directory(), step_, keeper_->key());
        if (!file) return;
        copies before, kept;
        take(before);
        take(kept);
        read_kept(*file, kept, std::index_sequence_for<Ts...>());
        try {
            put_back(kept, std::index_sequence_for<Ts...>());
        } catch (const usage_error& e) {  // a view of another size
            put_back(before, std::index_sequence_for<Ts...>());
            file->refuse(e.what());
        }
        hold(file->step(), 0);
        was_kept_ = true;
        keeper_->has_read(step_);
    }

    void take(copies& to) { take(to, std::index_sequence_for<Ts...>()); }
    template <std::size_t... I>
    void take(copies& to, std::index_sequence<I...>) {
        (saved<std::remove_const_t<Ts>>::take(std::get<I>(objects_), std::get<I>(to)), ...);
    }
    template <std::size_t... I>
    void put_back(const copies& from, std::index_sequence<I...>) {
        (saved<std::remove_const_t<Ts>>::put_back(std::get<I>(from), std::get<I>(objects_)), ...);
    }
    template <std::size_t... I>
    void write_kept(hvd::detail::kept_writer& to, const copies& from, std::index_sequence<I...>) {
        to.put_number<std::uint64_t>(sizeof...(I));
        (hvd::detail::write_kept_object(to, std::get<I>(from)), ...);
    }
    template <std::size_t... I>
    void read_kept(hvd::detail::kept_reader& from, copies& to, std::index_sequence<I...>) {
        if (const auto count = from.take_number<std::uint64_t>(); count != sizeof...(I))
            from.refuse("has another state: of ", count, " objects, and that of this program has ",
                        sizeof...(I));
        (hvd::detail::read_kept_object(from, std::get<I>(to)), ...);
    }
    template <class Comm, std::size_t... I>
    void synchronize(Comm& comm, root from, std::index_sequence<I...>) {
        (saved<std::remove_const_t<Ts>>::synchronize(comm, std::get<I>(objects_), from), ...);
    }

    bool has_stamp(const hvd::detail::state_stamp& stamp) const {
        return stamp.epoch > 0 && (stamp == stamps_[current_] || stamp == stamps_[free_copy()]);
    }
    // Goes to the commit of a stamp: the last one, or the one before. False if it is none of them.
    bool go_to(const hvd::detail::state_stamp& stamp) {
        if (!has_stamp(stamp)) return false;
        if (stamp == stamps_[current_]) return true;
        const int before = free_copy();
        stamps_[current_] = {};
        hold_copy(before, stamp);
        restore();
        return true;
    }

    // Calls f(local object, its copy) for each.
    template <class F>
    void for_each_local(copies& all, F f) {
        for_each_local(all, f, std::index_sequence_for<Ts...>());
    }
    template <class F, std::size_t... I>
    void for_each_local(copies& all, F& f, std::index_sequence<I...>) {
        const auto call = [&f](auto& object, auto& copy) {
            if constexpr (hvd::detail::is_elastic_local<std::remove_cvref_t<decltype(object)>>)
                f(object, copy);
        };
        (call(std::get<I>(objects_), std::get<I>(all)), ...);
    }
    const std::vector<std::byte>& bytes_of_locals(copies& from) {
        bytes_.clear();
        hvd::detail::peer_writer to(bytes_);
        for_each_local(from, [&to](auto&, const auto& copy) {
            hvd::detail::kept_object<std::remove_cvref_t<decltype(copy)>>::write(to, copy);
        });
        return bytes_;
    }
    void begin_with_first_locals() {
        for_each_local(copies_[current_], [](auto& local, auto&) {
            saved<std::remove_reference_t<decltype(local)>>::put_back(local.first_, local);
        });
    }
    // Takes the shared objects of others. The members of the commit are lost when they die.
    void hold_as_newcomer(const hvd::detail::state_stamp& stamp,
                          const std::vector<std::uint64_t>& members) {
        const int copy = begin_to_hold();
        peers_[copy] = {members, {}, {}, true};
        hold_copy(copy, stamp);
    }
    // Adds a lost rank whose copies are here, or nowhere.
    void add_lost(int rank, std::span<const std::byte> bytes) {
        hvd::detail::peer_reader from(bytes);
        for_each_local(copies_[current_], [&](auto& local, const auto& copy) {
            auto& lost = local.lost_.emplace_back();
            lost.rank = rank;
            lost.object = copy;  // of the same shape
            hvd::detail::kept_object<std::remove_cvref_t<decltype(copy)>>::read(from, lost.object);
        });
    }
    void add_gone(int rank) {
        for_each_local(copies_[current_],
                       [rank](auto& local, auto&) { local.gone_.push_back(rank); });
    }
    void forget_lost() {
        for_each_local(copies_[current_], [](auto& local, auto&) {
            local.lost_.clear();
            local.gone_.clear();
        });
    }

    std::tuple<Ts&...> objects_;
    copies copies_[3];  // the third is for commits while another one is written
    hvd::detail::state_stamp stamps_[3];
    hvd::detail::peer_copies peers_[3];  // beside copies of local objects
    int current_ = 0;
    bool was_kept_ = false;                    // an earlier job has committed it
    std::int64_t step_ = 0, uncommitted_ = 0;  // steps until the last commit, and since
    std::int64_t samples_ = 0;                 // of this rank in all epochs
    std::uint64_t epoch_ = 0, running_epoch_ = 0;
    std::function<void(const char* call)> begins_;  // at the begin of a commit
    std::function<bool()> changes_;                 // at its end
    std::function<hvd::detail::peer_copies(const std::vector<std::byte>&)> exchange_;
    std::vector<std::byte> bytes_;  // of this rank's local objects
    std::vector<std::function<void(int, int)>> callbacks_;
    std::function<void()> read_kept_;
    std::unique_ptr<hvd::detail::state_keeper> keeper_;  // the last member: it reads the others
};

template <class... Ts>
state(Ts&...) -> state<Ts...>;

}  // namespace elastic
}  // namespace hvd::inline v0
