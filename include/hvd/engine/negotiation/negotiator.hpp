// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include "decision_words.hpp"
#include "negotiating_rank.hpp"
#include "questions.hpp"

namespace hvd::inline v0::detail {

// One rank's part in the negotiation of an engine: a state machine without threads, clock and
// network. Ranks form a tree with rank 0 as root. A rank tells its parent of a tensor when all
// ranks below it have submitted it; the root decides, and decisions go down the tree. So each rank
// exchanges messages with its parent and its children only, however many ranks there are.
//
// A tensor is known by its name and signature at first, and by a number that the root gives it
// afterwards. When steps repeat, the root predicts them, and the negotiation rests until the ranks
// restart it. A restart begins a new generation: words of an older one are void.
class negotiator : public negotiating_rank {
public:
    negotiator(int rank, int size, const negotiation_options& options)
        : negotiating_rank(rank, size, options), learner_(options.repeats_before_prediction) {}

    // ---- calls of this rank ---------------------------------------------------------------------

    // A tensor that is submitted already is the same one once more.
    void submit(std::string_view name, const signature& mine) {
        if (over_ || predicting_ || resets_) return;
        const std::string key(name);
        announced_tensor& t = tensor_of(key);
        if (t.mine) return;
        t.mine = true;
        ++t.contributors;
        if (const std::uint32_t number = numbers_.number_of(key, mine); number != 0) {
            work_.cache_hits += !is_retune(mine);
            t.number = number;
            t.own_is_numbered = true;
        } else {
            work_.cache_misses += !is_retune(mine);
            t.add_group(mine, rank_set(rank_, rank_));
        }
        look_at(key, t);
    }

    void join() {
        if (over_ || predicting_ || resets_ || joined_) return;
        joined_ = true;
        if (rank_ == 0) note_join(0);
        else up().begin(engine_word::joins).add(rank_);
        look_at_all();
    }

    // This rank is done, and stays until all ranks are.
    void bye() {
        if (over_ || bye_) return;
        bye_ = true;
        look_at_byes();
    }

    // This rank leaves without the others; other ranks may be the reason.
    void leave(std::string_view reason, const rank_set& culprits = {}) {
        end(end_of(rank_, reason, culprits), -1);
    }

    // A neighbour is gone without a word.
    void lose(int neighbour, std::string_view reason) {
        const message why =
            text("rank ", rank_, " has lost its connection to rank ", neighbour, ": ", reason);
        end(end_of(rank_, why, rank_set(neighbour, neighbour)), neighbour);
    }

    // The ranks have left a prediction, after some units of it.
    void restart(std::uint64_t units) {
        next_generation();
        learner_.left_prediction(units);
        replay();
    }

    // The ranks that have not submitted a tensor are a decision on all ranks.
    void ask_missing(std::string_view name) {
        if (over_) return;
        if (rank_ == 0) open_question(++last_question_, name);
        else up_always().begin(engine_word::asks).add(name);
    }
    // Ranks that have not answered a question in time are named as silent: see questions::look.
    time_point look_at_questions(time_point time, std::int64_t patience) {
        const time_point next = questions_.look(time, patience);
        close_questions();
        return next;
    }

    // ---- messages and decisions -----------------------------------------------------------------

    // @throws usage_error for a message that no rank writes.
    void receive(int from, std::span<const std::byte> bytes) {
        ++work_.messages_received;
        message_reader reader(bytes);
        if (reader.generation() != outbox::always && reader.generation() > generation_) {
            stash_.push_back({from, {bytes.begin(), bytes.end()}});
            return;
        }
        const bool is_old = reader.generation() < generation_;
        child_rank* const below = child_of(from);
        if (below == nullptr && from != parent_) reader.refuse("its sender is no neighbour");
        while (!reader.at_end()) {
            const std::size_t begin = reader.position();
            const engine_word w = reader.next_word();
            ++work_.words;
            if (below != nullptr) take_from_child(*below, w, reader, is_old);
            else take_from_parent(w, reader, is_old, bytes.subspan(begin));
        }
    }

    // The root decides on everything that is ready.
    bool has_ready() const { return !ready_.empty(); }
    void decide() {
        if (over_ || predicting_ || ready_.empty()) return;
        std::vector<ready_tensor> agreed;
        for (const std::string& name : std::exchange(ready_, {}))
            if (const auto t = settle(name)) agreed.push_back(*t);
        for (const auto& unit : units_of(agreed, numbers_.all(), options_)) run(unit);
        predict_after(agreed);
        if (options_.cache_capacity == 0) numbers_.clear();
        else if (numbers_.size() > options_.cache_capacity && !predicting_) reset();
    }

    bool next_decision(decision& d) {
        if (decisions_.empty()) return false;
        d = std::move(decisions_.front());
        decisions_.pop_front();
        if (d.kind == decision::what::reset) resets_ = false;
        return true;
    }

private:
    // ---- from the children ----------------------------------------------------------------------

    void take_from_child(child_rank& c, engine_word w, message_reader& in, bool is_old) {
        const bool counts = !is_old && !predicting_ && !over_;
        switch (w) {
            case engine_word::ready: return on_ready_message(c, in, counts);
            case engine_word::announce: return on_announcement(c, in, counts);
            case engine_word::joins: return on_join(c, in, counts);
            case engine_word::bye: c.bye = true; return look_at_byes();
            case engine_word::asks: return ask_missing(in.text());
            case engine_word::answer: {
                const std::uint64_t id = in.number();
                const rank_set missing = in.ranks(size_), silent = in.ranks(size_);
                questions_.note_answer(id, c.rank, missing, silent);
                return close_questions();
            }
            case engine_word::ended: return end(read_end(in, size_), c.rank);
            default: in.refuse("a child does not say this word");
        }
    }

    void on_ready_message(child_rank& c, message_reader& in, bool counts) {
        const ready_tensor said = read_ready(in, size_);
        if (!counts) return;
        const std::string name = known_tensor(in, numbers_, said.number).name;
        announced_tensor& t = tensor_of(name);
        if (!marks(name, t, c, numbers_.at(said.number).signature)) return;
        t.contributors += said.contributors;
        if (!t.number) t.number = said.number;
        t.by_number.push_back(index_of(c));
        look_at(name, t);
    }

    void on_announcement(child_rank& c, message_reader& in, bool counts) {
        const std::string name(in.text());
        std::vector<signature_group> groups;
        for (std::size_t n = in.count(); n > 0; --n) {
            groups.push_back({in.signature(size_), in.ranks(size_)});  // read in this order
            if (groups.back().ranks.empty()) in.refuse("nobody has this tensor");
        }
        if (groups.empty()) in.refuse("nobody has this tensor");
        if (!counts) return;
        announced_tensor& t = tensor_of(name);
        if (!marks(name, t, c, groups.front().signature)) return;
        for (const signature_group& g : groups) {
            t.contributors += g.ranks.size();
            t.add_group(g.signature, g.ranks);
        }
        look_at(name, t);
    }

    void on_join(child_rank& c, message_reader& in, bool counts) {
        const int who = in.rank(size_);
        if (!counts) return;
        c.joined.add(who);
        if (rank_ == 0) note_join(who);
        else up().begin(engine_word::joins).add(who);
        look_at_all();
    }

    // ---- tensors --------------------------------------------------------------------------------

    announced_tensor& tensor_of(const std::string& name) {
        announced_tensor& t = tensors_[name];
        if (t.children.size() != children_.size()) t.children.resize(children_.size());
        return t;
    }
    // Takes note that a child has said something of a tensor. False if it has before.
    bool marks(const std::string& name, announced_tensor& t, const child_rank& c,
               const signature& s) const {
        if (t.children[index_of(c)]) return false;
        tell_ready(name, s, c.rank);
        return t.children[index_of(c)] = true;
    }

    void look_at(const std::string& name, announced_tensor& t) {
        if (t.passed_on) return;
        if (!t.is_complete(joined_, children_)) return end_if_in_vain(name, t);
        t.passed_on = true;
        if (rank_ == 0) ready_.push_back(name);
        else pass_on(name, t);
    }
    void look_at_all() {
        for (auto& [name, t] : tensors_) look_at(name, t);
    }

    // Ranks that are done submit nothing more. A tensor that waits for them never becomes ready.
    void end_if_in_vain(const std::string& name, const announced_tensor& t) {
        rank_set done;
        if (bye_ && !t.mine) done.add(rank_);
        for (const child_rank& c : children_)
            if (c.bye && !t.children[index_of(c)]) done.add(c.below);
        if (done.empty()) return;
        end(end_of(rank_, in_vain(done, name), done), -1);
    }

    void pass_on(const std::string& name, announced_tensor& t) {
        if (t.groups.empty() && numbers_.has(*t.number)) {
            up().begin(engine_word::ready).add(*t.number).add(t.contributors);
            return;
        }
        if (t.was_said_by_number()) t.expand(numbers_.of(name), rank_, children_);
        message_writer& out = up().begin(engine_word::announce).add(std::string_view(name));
        out.add(std::uint64_t(t.groups.size()));
        for (const signature_group& g : t.groups) out.add(g.signature).add(g.ranks);
    }

    // ---- the root's decisions -------------------------------------------------------------------

    std::optional<ready_tensor> settle(const std::string& name) {
        announced_tensor t = std::move(tensors_.extract(name).mapped());
        if (!t.groups.empty() && t.was_said_by_number())
            t.expand(numbers_.of(name), rank_, children_);
        if (auto objection = objection_to(name, t.groups)) return refuse(std::move(*objection));
        const std::uint32_t number =
            t.groups.empty() ? *t.number : number_for(name, t.groups.front().signature);
        const message why =
            refusal_after_join(numbers_.at(number).signature, all_joined_, t.contributors, size_);
        if (!why.empty()) return refuse(refusal_of(name, {}, why));
        return ready_tensor{number, t.contributors};
    }

    std::uint32_t number_for(const std::string& name, const signature& s) {
        if (const std::uint32_t known = numbers_.number_of(name, s); known != 0) return known;
        const std::uint32_t number = ++last_number_;
        numbers_.define(number, name, s);
        for (const child_rank& c : children_)
            down(c).begin(engine_word::define).add(number).add(std::string_view(name)).add(s);
        return number;
    }

    void run(const std::vector<ready_tensor>& unit) {
        for (const child_rank& c : children_) write_unit(down(c).begin(engine_word::run), unit);
        decision d;
        d.kind = decision::what::run;
        d.units.push_back(unit_of(unit, numbers_));
        decisions_.push_back(std::move(d));
    }

    void predict_after(const std::vector<ready_tensor>& agreed) {
        if (options_.cache_capacity == 0) return;
        if (!all_joined_.empty()) return learner_.forget();
        // The prediction begins with the next step: nothing of it may have run.
        bool ends_step = false;
        for (const ready_tensor& t : agreed)
            ends_step = is_retune(numbers_.at(t.number).signature) ? learner_.begin_anew()
                                                                   : learner_.note(t);
        if (ends_step && options_.predict)
            predict(units_of(learner_.step(), numbers_.all(), options_));
    }

    void predict(const std::vector<std::vector<ready_tensor>>& units) {
        decision d;
        d.kind = decision::what::predict;
        for (const auto& unit : units) d.units.push_back(unit_of(unit, numbers_));
        decisions_.push_back(std::move(d));
        for (const child_rank& c : children_) {
            message_writer& out = down(c).begin(engine_word::predict);
            out.add(std::uint64_t(units.size()));
            for (const auto& unit : units) write_unit(out, unit);
        }
        predicting_ = true;
        rest();
    }

    std::optional<ready_tensor> refuse(decision d) {
        learner_.forget();
        for (const child_rank& c : children_) write_refusal(down(c), d);
        decisions_.push_back(std::move(d));
        return {};
    }

    void reset() {
        for (const child_rank& c : children_) down(c).begin(engine_word::reset);
        take_reset();
    }
    void take_reset() {
        next_generation();
        numbers_.clear();
        learner_.forget();
        tell(decision::what::reset);
        resets_ = true;
        replay();
    }

    void note_join(int who) {
        all_joined_.add(who);
        learner_.forget();
        if (all_joined_.size() < size_) return;
        for (const child_rank& c : children_) down(c).begin(engine_word::joined).add(who);
        take_joined(who);
    }
    void take_joined(int last) {
        forget_joins();
        tell(decision::what::joined, last);
    }

    // ---- from the parent ------------------------------------------------------------------------

    // `bytes` begin with the word. It is passed on as it came.
    void take_from_parent(engine_word w, message_reader& in, bool is_old,
                          std::span<const std::byte> bytes) {
        const std::size_t begin = in.position() - 1;
        const auto pass_down = [&](std::uint32_t generation) {
            for (const child_rank& c : children_)
                outbox_.to(c.rank, generation).append(bytes.first(in.position() - begin));
        };
        switch (w) {
            case engine_word::question: {
                const std::uint64_t id = in.number();
                return open_question(id, in.text());
            }
            case engine_word::missing:
                decisions_.push_back(read_report(in, size_));
                return pass_down(outbox::always);
            case engine_word::ended: return end(read_end(in, size_), parent_);
            case engine_word::reset:
                if (is_old) return;
                pass_down(generation_);
                return take_reset();
            default: break;
        }
        if (take_decision(w, in, is_old)) pass_down(generation_);
    }

    // False if it is of an older generation.
    bool take_decision(engine_word w, message_reader& in, bool is_old) {
        decision d;
        if (w == engine_word::define) {
            const auto number = std::uint32_t(in.number(UINT32_MAX));
            const std::string name(in.text());
            const signature s = in.signature(size_);
            if (!is_old) numbers_.define(number, name, s);
            return !is_old;
        }
        if (w == engine_word::joined) {
            const int last = in.rank(size_);
            if (!is_old) take_joined(last);
            return !is_old;
        }
        if (w == engine_word::refuse) {
            d = read_refusal(in, size_);
        } else if (w == engine_word::run || w == engine_word::predict) {
            d = read_units(w, in, numbers_, size_, is_old);
        } else {
            in.refuse("a parent does not say this word");
        }
        if (!is_old) settle_below(std::move(d));
        return !is_old;
    }

    // The root has decided on tensors that this rank knows of.
    void settle_below(decision d) {
        tensors_.erase(d.name);
        if (d.kind == decision::what::run)
            for (const agreed_tensor& t : d.units.front()) {
                tensors_.erase(t.name);
                if (options_.cache_capacity == 0) numbers_.forget(t.name);
            }
        if (d.kind == decision::what::predict) {
            predicting_ = true;
            rest();
        }
        decisions_.push_back(std::move(d));
    }

    // ---- questions ------------------------------------------------------------------------------

    void open_question(std::uint64_t id, std::string_view name) {
        const auto found = tensors_.find(std::string(name));
        rank_set missing;
        if ((found == tensors_.end() || !found->second.mine) && !joined_) missing.add(rank_);
        questions_.open(id, name, missing, children_);
        for (const child_rank& c : children_)
            down_always(c).begin(engine_word::question).add(id).add(name);
        close_questions();
    }
    void close_questions() {
        for (questions::answer a; questions_.next(a);) {
            if (rank_ != 0) {
                up_always().begin(engine_word::answer).add(a.id).add(a.missing).add(a.silent);
                continue;
            }
            const decision report = report_of(a.name, a.text(), a.ranks());
            for (const child_rank& c : children_) write_report(down_always(c), report);
            decisions_.push_back(report);
        }
    }

    // ---- the end --------------------------------------------------------------------------------

    void look_at_byes() {
        bool all = bye_ && !over_;
        for (const child_rank& c : children_) all = all && c.bye;
        look_at_all();
        if (!all || std::exchange(said_bye_, true)) return;
        if (rank_ == 0) end(end_of(-1, "", {}), -1);
        else up_always().begin(engine_word::bye);
    }
    // The first end counts. It floods the tree.
    void end(const decision& d, int from) {
        if (std::exchange(over_, true)) return;
        if (rank_ != 0 && from != parent_) write_end(up_always(), d);
        for (const child_rank& c : children_)
            if (c.rank != from) write_end(down_always(c), d);
        decisions_.push_back(d);
    }

    // ---- generations ----------------------------------------------------------------------------

    // Nothing is negotiated until the next generation.
    void rest() {
        tensors_.clear();
        ready_.clear();
    }
    void forget_joins() {
        joined_ = false;
        all_joined_.clear();
        for (child_rank& c : children_) c.joined.clear();
    }
    void next_generation() {
        outbox_.close();
        ++generation_;
        predicting_ = false;
        forget_joins();
        rest();
    }
    void replay() {
        for (auto& [from, bytes] : std::exchange(stash_, {})) receive(from, bytes);
    }

    bool resets_ = false;  // this rank has yet to submit everything once more
    bool predicting_ = false, joined_ = false, over_ = false, bye_ = false, said_bye_ = false;
    std::unordered_map<std::string, announced_tensor> tensors_;
    tensor_numbers numbers_;
    questions questions_;
    std::vector<std::pair<int, std::vector<std::byte>>> stash_;  // messages of later generations
    // the root's
    std::vector<std::string> ready_;  // names, in the order in which they became ready
    rank_set all_joined_;
    step_learner learner_;
    std::uint32_t last_number_ = 0, last_question_ = 0;
};

}  // namespace hvd::inline v0::detail
