// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/settings/elastic_options.hpp"
#include "../../transport/tcp/dial.hpp"
#include "coordinator_server.hpp"
#include "epoch.hpp"
#include "take_part_once.hpp"

namespace hvd::inline v0::detail {

// The place of this process in an elastic job: its connection to the coordinator, and a coordinator
// of its own, which sleeps until the others come to it because the acting one is gone.
class membership {
public:
    // @throws usage_error for options that say too little or contradict each other
    membership(const tcp_options& own, const elastic::bounds& bounds)
        : membership(own, bounds, resolved(checked(own, bounds)), is_of_one_host(own)) {}

    // The first coordinator listens at `first`. It may choose a port if it is this process.
    membership(const tcp_options& own, const elastic::bounds& bounds, const listening_place& first,
               bool is_of_one_host)
        : own_(checked(own, bounds)),
          bounds_(bounds),
          static_{is_alone(own) ? new_secret() : secret_of(own), why_static_is_refused},
          secret_(membership_secret(static_.secret)),
          id_(new_id()),
          first_place_(first),
          is_of_one_host_(is_of_one_host),
          server_(rules(), secret_, serves_first() ? first.port : std::uint16_t(0), nullptr,
                  own.rank, addresses_of_server()) {
        if (!is_alone(own)) take_part_once(own_, secret_);
    }

    // Where the coordinator of this process listens.
    listening_place coordinator_place() const {
        return known_place_of(own_, server_.port(), is_of_one_host_);
    }

    // Comes to the coordinator, and waits for the next epoch.
    // @throws peer_error if too few processes come in time, or no coordinator can be reached
    elastic_epoch join(state_stamp stamp, bool has_finished) {
        const time_point limit = limit_of(bounds_.timeout);
        joins_since_ = now();
        advice_ = {};
        if (has_finished && told_work_at_ > 0) send_work();
        listening_socket listener(-1, 0, addresses_for_ranks(own_, is_of_one_host_));
        launcher_answered_at_ = has_finished ? never : now();
        for (bool is_brief = false;;) {
            was_sent_on_ = false;
            if (link_ && brings_only_announcements()) {
                say(listener, stamp, has_finished, is_brief);
                elastic_epoch made;
                if (await_answer(listener, made, limit)) return made;
            }
            if (has_lost_only_coordinator()) give_up_without_coordinator();
            if (link_ && link_serves_epoch_) saw_end_ = !link_->is_open() && !link_->is_silent();
            link_.reset();
            if (is_cut_off()) give_up_alone();
            if (finds_no_job()) give_up_as_newcomer();
            if (now() > limit) give_up();
            is_brief = was_sent_on_ && !is_brief && reach_another(limit);
            if (!is_brief) reach_first(limit);
        }
    }

    // Notes that this process is connected to all others of the epoch. It may work in it when all
    // have noted it.
    void record(const elastic_epoch& epoch) {
        recorded_ = {epoch.number, served_by_, {}};
        for (const elastic_member& m : table_) recorded_.members.push_back(m.id);
    }
    // Notes the first epoch of this process before it is connected. Connections take a while, and
    // without a note of any epoch nobody goes on if the first coordinator is lost meanwhile.
    void record_first(const elastic_epoch& epoch) {
        if (recorded_.number == 0) record(epoch);
    }
    // Notes that all have noted it.
    void begin_work() { worked_ = recorded_; }

    // True if all have done their steps, and know it.
    bool has_ended() const { return has_ended_; }

    // True if the epoch ends for another member, as far as the coordinator knows, or it is gone.
    bool epoch_ends() { return !link_ || !brings_only_announcements() || epoch_ends_; }
    // True if others wait to take part, too, so that all should join again.
    bool should_join() { return epoch_ends() || others_wait_; }

    // Tells a launcher that coordinates how far this process is, once a second and at the end.
    void tell_work(std::int64_t step, std::int64_t samples) {
        work_.step = step;
        work_.samples = samples;
        if (served_by_ == 0 && now() >= told_work_at_ + work_told_every) send_work();
    }

private:
    struct address_and_port {
        host_address address;
        std::uint16_t port;
        message print() const { return address.print(port); }
    };
    static constexpr std::size_t most_former = 64, most_looked_at = 16;
    static constexpr std::int64_t work_told_every = tuning::second;

    static const tcp_options& checked(const tcp_options& own, const elastic::bounds& bounds) {
        if (bounds.min_size < 1 || (bounds.max_size != 0 && bounds.max_size < bounds.min_size) ||
            std::size_t(bounds.max_size) > most_members)
            throw usage_error(-1, text("hvd: an elastic job of at least ", bounds.min_size,
                                       " and at most ", bounds.max_size,
                                       " ranks: it takes 1 or more, and at most ", most_members));
        if (is_alone(own)) return own;
        if (own.rendezvous.empty() || own.size < 1)
            throw usage_error(-1,
                              "hvd: HVD_RENDEZVOUS or HVD_SIZE is missing: a launcher sets "
                              "them for an elastic job (see docs/elastic.md)");
        if (own.size < bounds.min_size || (bounds.max_size != 0 && own.size > bounds.max_size))
            throw usage_error(
                -1, text("hvd: an elastic job begins with HVD_SIZE=", own.size,
                         " ranks, and has at least ", bounds.min_size,
                         text(bounds.max_size == 0 ? message()
                                                   : text(" and at most ", bounds.max_size))));
        return own;
    }
    // The name of a host that dies later may not be known any more.
    static listening_place resolved(const tcp_options& own) {
        listening_place place;
        if (is_alone(own)) return place;
        const host_and_port at = read_host_and_port(own.rendezvous, "HVD_RENDEZVOUS");
        place.port = at.port;
        for (const host_address& a : resolve(at.host.c_str(), "HVD_RENDEZVOUS")) place.add(a);
        return place;
    }
    static std::uint64_t new_id() {
        std::uint64_t id = 0;
        while (id == 0) fill_random(-1, reinterpret_cast<std::byte*>(&id), sizeof id);
        return id;
    }
    bool serves_first() const {
        return is_alone(own_) || (own_.rank == 0 && !own_.rendezvous_served);
    }
    std::vector<host_address> addresses_of_server() const {
        if (!serves_first()) return addresses_for_ranks(own_, is_of_one_host_);
        return addresses_for_meeting(own_, is_of_one_host_,
                                     {first_place_.address, first_place_.addresses});
    }
    coordinator_rules rules() const {
        coordinator_rules r = coordinator_rules_of(own_, bounds_);
        r.self = id_;
        r.acts = serves_first();
        return r;
    }

    // ---- the connection -------------------------------------------------------------------------

    // True if the coordinator is dead, and this process has never heard of another one.
    bool has_lost_only_coordinator() const {
        return link_ && !link_->is_open() && !link_->is_silent() && candidates_.empty();
    }

    // True if this process was started to join a job that runs, and nobody has answered while one
    // would have begun. A launcher that serves the job ends its processes itself.
    bool finds_no_job() const {
        return own_.rank >= own_.size && !own_.rendezvous_served && !has_been_linked_ &&
               own_.start_timeout.is_time() &&
               now() - joins_since_ > own_.start_timeout.time().nanoseconds;
    }

    // All processes go to the first candidate that they reach, so that they meet. If they are sent
    // on, they try the others one after another, each for a short time, and go back.
    void reach_first(time_point limit) {
        for (first_ = 0; first_ <= candidates_.size() && now() <= limit; ++first_)
            if (reach(first_, limit)) return;
        ++round_;
        sleep_for(20 * tuning::millisecond);
    }
    bool reach_another(time_point limit) {
        for (std::size_t i = 0; i < candidates_.size(); ++i) {
            const std::size_t candidate = ++next_ % (1 + candidates_.size());
            if (candidate != first_ && reach(candidate, limit)) return true;
        }
        return false;
    }

    // Candidate 0 is at the address that the launcher gave.
    bool reach(std::size_t candidate, time_point limit) {
        if (candidate > 0 && is_gone(candidates_[candidate - 1])) return false;
        dial to_it(secret_, 0, rendezvous_rank, own_.rank, &static_);
        const std::vector<address_and_port> all = addresses_of(candidate);
        std::size_t foreign = 0;
        for (const address_and_port& at : all) {
            descriptor socket = to_it.to(at.address, at.port, now() + patience_in_round(round_),
                                         now() + patience_with_host);
            if (socket) {
                round_ = 0;
                has_been_linked_ = true;
                linked_to_ = at;
                link_ = std::make_unique<framed_socket>(rendezvous_rank, std::move(socket),
                                                        coordinator_message::most_bytes());
                tune_membership(*link_);
                link_serves_epoch_ = false;
                link_reaches_launcher_ = candidate == 0 && own_.rendezvous_served;
                return true;
            }
            why_ = text(to_it.why());
            // Another job may have taken the port of a coordinator that is dead.
            if (to_it.is_foreign()) ++foreign;
            if (foreign == all.size() && candidate == 0 && table_.empty())
                throw usage_error(
                    -1, text("hvd: the coordinator at ", own_.rendezvous, " is refused: ", why_));
            if (now() > limit) break;
        }
        return false;
    }

    std::vector<address_and_port> addresses_of(std::size_t candidate) const {
        std::vector<address_and_port> all;
        if (candidate == 0 && serves_first()) return {{host_address::loopback(), server_.port()}};
        const listening_place& place =
            candidate == 0 ? first_place_ : candidates_[candidate - 1].coordinator;
        if (place.host == own_host()) all.push_back({host_address::loopback(), place.port});
        for (std::size_t i = 0; i < place.addresses && i < listening_place::most_addresses; ++i)
            for (const host_address& way : ways_to(place.address[i]))
                all.push_back({way, place.port});
        return all;
    }
    // A member's coordinator listens until the member dies or leaves the job. A connection that
    // this host refuses to itself proves it. Between hosts a firewall may refuse.
    bool is_gone(const elastic_member& m) {
        if (std::ranges::find(gone_, m.id) != gone_.end()) return true;
        if (network_ == 0 || m.network != network_ || m.id == id_) return false;
        const time_point until = now() + 20 * tuning::millisecond;
        if (!is_refused(host_address::loopback(), m.coordinator.port, until)) return false;
        gone_.push_back(m.id);
        return true;
    }
    // Looks at some of the members, each time at others. True if one is gone.
    bool look_around() {
        const std::size_t before = gone_.size(), n = candidates_.size();
        for (std::size_t i = 0; i < std::min(n, most_looked_at); ++i)
            is_gone(candidates_[++looked_at_ % n]);
        return gone_.size() > before;
    }
    void tell_of_gone() {
        const member_head head{.what = member_head::finds_gone};
        std::vector<std::byte> bytes(wire_bytes(head).begin(), wire_bytes(head).end());
        for (const std::uint64_t id : gone_)
            bytes.insert(bytes.end(), wire_bytes(id).begin(), wire_bytes(id).end());
        link_->queue(bytes);
    }
    std::uint64_t own_host() const {
        return own_.host_id.empty() ? host_identity() : hash().add(own_.host_id).value();
    }

    // Takes what the coordinator has said of itself. False if it is gone, or has left this process
    // out.
    bool brings_only_announcements() {
        link_->fill();
        for (std::span<const std::byte> bytes; link_->next(bytes);) {
            coordinator_message head;
            if (!read_head(bytes, head) || !is_announcement(head)) {
                link_serves_epoch_ = false;  // it lives
                return false;
            }
            others_wait_ = others_wait_ || head.what == coordinator_message::others_wait;
            epoch_ends_ = epoch_ends_ || head.what == coordinator_message::epoch_ends;
        }
        return link_->is_open();
    }

    static bool is_announcement(const coordinator_message& head) {
        return head.what == coordinator_message::others_wait ||
               head.what == coordinator_message::still_waits ||
               head.what == coordinator_message::epoch_ends;
    }
    static bool read_head(std::span<const std::byte>& bytes, coordinator_message& head) {
        if (bytes.size() < sizeof head) return false;
        std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof head);
        bytes = bytes.subspan(sizeof head);
        return true;
    }

    // A launcher that is stopped reads nothing, and gets no more then.
    void send_work() {
        if (!link_ || served_by_ != 0) return;
        told_work_at_ = now();
        if (!link_->wants_to_write()) link_->queue(wire_bytes(work_));
        link_->flush();
    }

    // ---- joining --------------------------------------------------------------------------------

    void say(const listening_socket& listener, state_stamp stamp, bool has_finished,
             bool is_brief) {
        join_message said;
        said.finished = has_finished ? 1 : 0;
        said.saw_end = saw_end_ ? 1 : 0;
        said.is_brief = is_brief ? 1 : 0;
        said.self.id = id_;
        said.self.started_as = own_.rank;
        said.self.place = place_of(own_, listener.port(), is_of_one_host_);
        add_addresses(said.self.place, link_->number());
        said.self.coordinator = said.self.place;
        said.self.coordinator.port = server_.port();
        said.self.network = network_;
        said.stamp = stamp;
        said.ended = served_by_;
        said.worked = head_of(worked_);
        said.recorded = head_of(recorded_);
        std::vector<std::byte> bytes(wire_bytes(said).begin(), wire_bytes(said).end());
        for (const told_epoch* epoch : {&worked_, &recorded_})
            for (const std::uint64_t id : epoch->members)
                bytes.insert(bytes.end(), wire_bytes(id).begin(), wire_bytes(id).end());
        link_->queue(bytes);
        if (!gone_.empty()) tell_of_gone();
        others_wait_ = epoch_ends_ = false;
    }

    // False if another coordinator has to be asked.
    bool await_answer(listening_socket& listener, elastic_epoch& made, time_point limit) {
        // The coordinator knows at the limit how many are missing.
        const time_point last = limit == never ? never : limit + 2 * tuning::second;
        time_point last_message_at = now();
        for (std::span<const std::byte> bytes;;) {
            link_->flush();
            link_->fill();
            while (link_->next(bytes)) {
                last_message_at = now();
                if (link_reaches_launcher_ && launcher_answered_at_ != never)
                    launcher_answered_at_ = last_message_at;
                coordinator_message head;
                if (!read_head(bytes, head)) return false;
                if (head.what == coordinator_message::still_waits && look_around()) tell_of_gone();
                if (is_announcement(head)) continue;
                link_serves_epoch_ = false;  // it lives
                switch (head.what) {
                    case coordinator_message::epoch_begins:
                        return take_epoch(head, bytes, listener, made);
                    case coordinator_message::job_has_ended:
                        made.has_ended = has_ended_ = true;
                        if (table_.empty()) give_up_late();
                        return true;
                    case coordinator_message::try_another:
                        take_advice(head, bytes);
                        was_sent_on_ = true;
                        return false;
                    default: take_advice(head, bytes); give_up();
                }
            }
            if (!link_->is_open()) {
                why_ = link_->reason();
                return false;
            }
            if (now() > last_message_at + 4 * reassured_every) return leave();
            if (!link_reaches_launcher_ && is_cut_off()) give_up_alone();
            if (now() > last) give_up();
            pollfd p{link_->number(), short(link_->wants_to_write() ? POLLIN | POLLOUT : POLLIN),
                     0};
            ::poll(&p, 1, 100);
        }
    }
    // The launcher counts this process as failed then, and may have another one in its place. Who
    // has finished waits for the others.
    bool is_cut_off() const {
        return own_.rendezvous_served && bounds_.launcher_timeout.is_time() &&
               now() - launcher_answered_at_ > bounds_.launcher_timeout.time().nanoseconds;
    }
    // The coordinator is stopped. When it goes on it hears that this process is not dead.
    bool leave() {
        join_message said;
        said.leaves = 1;
        said.self.id = id_;
        link_->queue(wire_bytes(said));
        link_->flush();
        why_ = "the coordinator says nothing";
        was_sent_on_ = true;
        return false;
    }

    // Takes the members that follow the head of a message, and what comes then.
    static bool take_table(const coordinator_message& head, std::span<const std::byte>& bytes,
                           std::vector<elastic_member>& table) {
        if (head.size > most_members || bytes.size() < head.size * sizeof(elastic_member))
            return false;
        table.resize(head.size);
        const std::size_t size = head.size * sizeof(elastic_member);
        if (size > 0) std::memcpy(static_cast<void*>(table.data()), bytes.data(), size);
        bytes = bytes.subspan(size);
        return true;
    }

    // Those of a newer epoch are asked first, and then some of those that were known before. Two
    // coordinators may have begun epochs of one number, of which one at most works.
    void ask_next(std::vector<elastic_member> members, std::uint64_t epoch) {
        if (epoch < known_epoch_ || members.empty()) return;
        if (epoch > known_epoch_) std::swap(candidates_, members);
        known_epoch_ = epoch;
        const std::size_t most = candidates_.size() + most_former;
        for (const elastic_member& m : members)
            if (candidates_.size() < most &&
                std::ranges::none_of(candidates_, [&](const auto& c) { return c.id == m.id; }))
                candidates_.push_back(m);
    }

    // Another process coordinates, perhaps one of those that are named.
    void take_advice(const coordinator_message& head, std::span<const std::byte> bytes) {
        std::vector<elastic_member> others;
        if (take_table(head, bytes, others)) ask_next(others, head.epoch);
        const std::size_t n = std::min(bytes.size(), coordinator_message::most_reason);
        advice_ = text(std::string_view(reinterpret_cast<const char*>(bytes.data()), n));
    }

    bool take_epoch(const coordinator_message& head, std::span<const std::byte> bytes,
                    listening_socket& listener, elastic_epoch& made) {
        std::vector<elastic_member> table;
        if (!take_table(head, bytes, table) || !bytes.empty() || head.rank >= head.size ||
            head.source >= head.size || table[head.rank].id != id_) {
            why_ = "its table is none";
            return false;
        }
        made.has_lost = !std::ranges::all_of(table_, [&](const elastic_member& former) {
            return std::ranges::any_of(table, [&](const auto& m) { return m.id == former.id; });
        });
        table_ = std::move(table);
        ask_next(table_, head.epoch);
        served_by_ = head.served_by;
        link_serves_epoch_ = true;
        saw_end_ = false;
        gone_.clear();
        server_.follow(head.epoch, head.stamp, table_);
        std::vector<listening_place> places;
        for (const elastic_member& m : table_) places.push_back(m.place);
        made.rank = int(head.rank);
        made.size = int(head.size);
        made.source = int(head.source);
        made.is_equal = head.equal != 0;
        made.stamp = head.stamp;
        made.number = head.epoch;
        made.job_number = head.job;
        const shared_secret of_all = derived_secret(secret_, 0x6b65657065720000);
        std::memcpy(&made.whole_job, of_all.data(), sizeof made.whole_job);
        made.members = table_;
        made.job = shared<tcp_job>::make(made.rank, head.job, secret_, std::move(listener),
                                         std::move(places));
        return true;
    }

    [[noreturn]] static void give_up_late() {
        throw peer_error(-1, "hvd: the elastic job has ended before this process could take part",
                         {});
    }
    [[noreturn]] void give_up_without_coordinator() const {
        give_up(text(own_.rendezvous_served ? "the launcher" : "rank 0", " at ", linked_to_.print(),
                     ", which coordinates, has died before this process could take part"));
    }
    [[noreturn]] void give_up_as_newcomer() const {
        give_up(text("no coordinator has let this newcomer in for ",
                     own_.start_timeout.time().nanoseconds / tuning::millisecond,
                     " ms (HVD_START_TIMEOUT): ", why_,
                     "; the job is over, has not begun, or has lost the process there"));
    }
    [[noreturn]] void give_up_alone() const {
        give_up(
            text("the launcher at ", own_.rendezvous, " has not answered for ",
                 bounds_.launcher_timeout.time().nanoseconds / tuning::millisecond,
                 " ms (HVD_ELASTIC_LAUNCHER_TIMEOUT), and too few others go on with this process"));
    }
    [[noreturn]] void give_up() const {
        give_up(text(advice_.empty() ? why_ : advice_, "; waited ",
                     (now() - joins_since_) / tuning::second, " s, and HVD_ELASTIC_TIMEOUT is ",
                     bounds_.timeout.time().nanoseconds / tuning::second, " s"));
    }
    [[noreturn]] void give_up(const message& why) const {
        throw peer_error(-1,
                         text("hvd: the elastic job does not come together (after epoch ",
                              recorded_.number, "): ", why),
                         {});
    }

    const tcp_options own_;
    const elastic::bounds bounds_;
    const another_kind static_;  // with the secret of the job
    const shared_secret secret_;
    const std::uint64_t id_;
    const listening_place first_place_;
    const bool is_of_one_host_;
    std::unique_ptr<framed_socket> link_;
    address_and_port linked_to_{};
    bool has_been_linked_ = false;    // to any coordinator
    bool link_serves_epoch_ = false;  // the coordinator of the last epoch is at its other end
    bool link_reaches_launcher_ = false;
    time_point launcher_answered_at_ = never;  // `never`: it is not awaited
    bool saw_end_ = false;                     // and has closed it
    bool has_ended_ = false;
    bool others_wait_ = false, epoch_ends_ = false, was_sent_on_ = false;
    std::uint64_t served_by_ = 0;  // the coordinator of the last epoch
    time_point told_work_at_ = 0;
    work_message work_;
    std::vector<elastic_member> table_;  // its members, by rank
    std::size_t first_ = 0, next_ = 0;   // candidates: who is asked first, and who was asked last
    std::size_t round_ = 0;              // of all candidates, since the last connection
    std::uint64_t known_epoch_ = 0;
    std::vector<elastic_member> candidates_;  // members of the newest known epoch, and former ones
    const std::uint64_t network_ = network_identity();
    std::size_t looked_at_ = 0;        // the candidate
    std::vector<std::uint64_t> gone_;  // of the candidates, for certain
    told_epoch recorded_, worked_;     // it, or earlier ones
    time_point joins_since_ = 0;
    message why_, advice_;  // of no connection, and the last refusal of a coordinator
    coordinator_server server_;
};

}  // namespace hvd::inline v0::detail
