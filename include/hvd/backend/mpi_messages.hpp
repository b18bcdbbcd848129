// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <new>
#include <span>
#include <vector>

#include "../core/lean/table.hpp"
#include "../core/lean/text.hpp"
#include "../core/tuning.hpp"
#include "../platform/mpi_api.hpp"
#include "../platform/shared_memory.hpp"
#include "../protocol/failure_notice.hpp"

namespace hvd::inline v0::detail {

// The messages of one rank on an MPI communicator of hvd's own. It owns the communicator.
//
// MPI can't take a message back: a receive that has found its message goes on, and so does a send,
// however late the other rank is. So MPI gets no memory of the caller, which is free again once a
// call has given up. Data passes through buffers of this object, and without a copy only in memory
// that it provides. The object lives until MPI has done with them: see mpi_leftovers.hpp.
class mpi_messages {
public:
    static constexpr int tags = 2;  // that a communicator needs

    MPI_Comm comm;
    // A communicator that ends with this one: see mpi_endpoint.
    MPI_Comm across = MPI_COMM_NULL;

    explicit mpi_messages(MPI_Comm own) : comm(own) {}
    mpi_messages(const mpi_messages&) = delete;
    mpi_messages& operator=(const mpi_messages&) = delete;

    // Call it before there are messages. The accounts of messages are allocated here, since a rank
    // without memory can't tell it in the middle of a call, and must be able to send a notice.
    void set_up(int rank, int size) {
        rank_ = rank;
        const std::size_t ranks = std::size_t(size),
                          most = 2 * ranks * std::size_t(tuning::messages_under_way);
        numbers_ = table<int>(ranks);
        for (int r = 0; r < size; ++r) numbers_[std::size_t(r)] = r;
        sends_ = table<lane>(ranks);
        receives_ = table<lane>(ranks);
        for (table<lane>* lanes : {&sends_, &receives_})
            for (lane& l : *lanes) l.blocks.reserve(tuning::messages_under_way);
        requests_.reserve(most);
        under_way_.reserve(most);
        completed_.reserve(most);
        resumed_.reserve(most);
        buffers_.reserve(most);
        free_buffers_.reserve(most);
        notices_.reserve(2 * ranks);
        notice_memory_.reserve(2);
        add_notice_memory();
    }

    // The ranks are some of those of the communicator, which is not freed at the end. Others of it
    // may be dead, so that MPI's errors tell of lost ranks.
    void set_up_among(MPI_Comm all, int rank, std::span<const int> ranks, int first_tag) {
        set_up(rank, int(ranks.size()));
        for (std::size_t r = 0; r < ranks.size(); ++r) numbers_[r] = ranks[r];
        comm = all;
        data_tag_ = first_tag;
        is_part_ = true;
    }

    void send(int peer, const std::byte* data, std::size_t bytes) {
        begin(sends_[std::size_t(peer)], peer, false, const_cast<std::byte*>(data), bytes);
    }
    void receive(int peer, std::byte* data, std::size_t bytes) {
        begin(receives_[std::size_t(peer)], peer, true, data, bytes);
    }

    // The blocks that were to be sent to a peer, and received from it, since the beginning.
    std::uint64_t sends_begun(int peer) const { return sends_[std::size_t(peer)].begun; }
    std::uint64_t receives_begun(int peer) const { return receives_[std::size_t(peer)].begun; }

    // Makes progress; true when all data has come or gone.
    bool poll() {
        if (requests_.empty()) return true;
        int n = 0;
        check(MPI_Testsome(int(requests_.size()), requests_.data(), &n, completed_.data(),
                           MPI_STATUSES_IGNORE),
              "MPI_Testsome");
        if (n == MPI_UNDEFINED) n = 0;
        for (int i = 0; i < n; ++i) finish(under_way_[std::size_t(completed_[std::size_t(i)])]);
        if (n > 0) remove_finished();
        return requests_.empty();
    }

    bool pending(int peer) const {
        if (waits(sends_[std::size_t(peer)]) || waits(receives_[std::size_t(peer)])) return true;
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            int done = 0;
            if (under_way_[i].peer != peer) continue;
            MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
            if (done == 0) return true;
        }
        return false;
    }

    // Afterwards no memory of the caller is read or written. Messages under way stay so, in this
    // object's memory.
    void cancel() noexcept {
        given_up_ = true;
        for (message& m : under_way_) m.destination = nullptr;
        for (table<lane>* lanes : {&sends_, &receives_})
            for (lane& l : *lanes) {
                l.blocks.clear();
                l.first = 0;
            }
    }

    // Returns memory that messages use without a copy, in the place of `old`, which no message
    // uses. @throws std::bad_alloc
    std::byte* provide(std::byte* old, std::size_t bytes) {
        for (region& r : provided_) {
            if (r.data() != old) continue;
            r = region(bytes);
            return r.data();
        }
        provided_.push_back(region(bytes));
        return provided_.back().data();
    }

    // The notice is small enough for MPI to take it over at once. If MPI does not, it keeps the
    // copy. It returns false if no notice can be sent any more.
    [[gnu::cold]] bool send_notice(int peer, const failure_notice& notice) noexcept try {
        if (!mpi_is_running()) return false;
        speaks_ = true;
        std::byte* const copy = room_for_notice();
        std::memcpy(copy, &notice, sizeof notice);
        notices_.reserve(notices_.size() + 1);
        MPI_Request request = MPI_REQUEST_NULL;
        if (MPI_Isend(copy, sizeof notice, MPI_BYTE, numbers_[std::size_t(peer)], notice_tag(),
                      comm, &request) == MPI_SUCCESS)
            notices_.push_back(request);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }

    bool receive_notice(failure_notice& notice) {
        int there = 0;
        MPI_Status status;
        check(MPI_Iprobe(MPI_ANY_SOURCE, notice_tag(), comm, &there, &status), "MPI_Iprobe");
        if (there == 0) return false;
        check(MPI_Recv(&notice, sizeof notice, MPI_BYTE, status.MPI_SOURCE, notice_tag(), comm,
                       MPI_STATUS_IGNORE),
              "MPI_Recv");
        if (!is_notice(notice, int(numbers_.size())) ||
            numbers_[std::size_t(notice.sender)] != status.MPI_SOURCE)
            return receive_notice(notice);  // no rank sends it
        if (notice.what == word::departs) ++departed_;
        return true;
    }

    // True once MPI uses neither memory nor communicators any more: all messages and notices of
    // this rank are sent, and all peers have departed, so that nothing comes any more. A
    // communicator that was given up is kept, since other ranks may still send to it, and late
    // messages must not reach the next one.
    [[gnu::cold]] bool is_over() noexcept try {
        int sent = 1;
        if (!notices_.empty())
            MPI_Testall(int(notices_.size()), notices_.data(), &sent, MPI_STATUSES_IGNORE);
        failure_notice notice;
        while (speaks_ && receive_notice(notice)) {
        }
        return poll() && sent != 0 && !given_up_ &&
               (!speaks_ || departed_ + 1 == int(sends_.size()));
    } catch (...) {
        return false;
    }

    // Frees the communicators. MPI does it without the other ranks: ranks do so at different times,
    // and not in the same order.
    void free() noexcept {
        if (across != MPI_COMM_NULL) MPI_Comm_free(&across);
        if (comm != MPI_COMM_NULL && !is_part_) MPI_Comm_free(&comm);
    }

    // Leaves messages under way to MPI, which is about to end, and their memory to the system.
    [[gnu::cold]] void abandon() noexcept {
        for (region& r : provided_) r.leave();
        for (region& r : buffers_) r.leave();
        for (region& r : notice_memory_) r.leave();
    }

private:
    // Memory that its owner may leave behind.
    class region {
    public:
        explicit region(std::size_t bytes)
            : memory_(shared_memory::of_this_process(bytes)), bytes_(bytes) {
            if (!memory_) throw std::bad_alloc();
        }
        std::byte* data() const { return static_cast<std::byte*>(memory_.data()); }
        bool contains(const std::byte* p) const { return p >= data() && p < data() + bytes_; }
        std::size_t bytes() const { return bytes_; }
        void leave() noexcept { memory_.leave(); }

    private:
        shared_memory memory_;
        std::size_t bytes_;
    };

    struct block {
        std::byte* data;
        std::size_t bytes;
    };

    // The data to or from one peer, in its order.
    struct lane {
        std::vector<block> blocks;  // that wait for their turn, from `first` on
        std::size_t first = 0;
        int under_way = 0;
        std::uint64_t begun = 0;  // blocks
    };

    struct message {
        int peer;
        bool receives, finished;
        int buffer;  // -1: in provided memory
        int bytes;
        std::byte* destination;  // for data that comes through a buffer
    };

    static bool waits(const lane& l) { return l.first < l.blocks.size(); }

    // Data is sent in pieces. Open MPI's TCP sends messages of more than 64 KiB with its header in
    // a way that leaves the wire empty half of the time.
    [[gnu::noinline]] void begin(lane& l, int peer, bool receives, std::byte* data,
                                 std::size_t bytes) {
        l.blocks.push_back({data, bytes});
        ++l.begun;
        go_on(l, peer, receives);
    }

    // A few messages of each lane are under way at a time, so that their buffers stay in the
    // caches.
    void go_on(lane& l, int peer, bool receives) {
        while (waits(l) && l.under_way < tuning::messages_under_way) {
            block& next = l.blocks[l.first];
            const std::size_t n =
                next.bytes < tuning::mpi_message_bytes ? next.bytes : tuning::mpi_message_bytes;
            post(l, peer, receives, next.data, n);
            next.data += n;
            next.bytes -= n;
            if (next.bytes == 0) ++l.first;
        }
        if (waits(l)) return;
        l.blocks.clear();
        l.first = 0;
    }

    void post(lane& l, int peer, bool receives, std::byte* data, std::size_t n) {
        message m{peer, receives, false, -1, int(n), nullptr};
        if (!is_provided(data)) {
            m.buffer = take_buffer();
            std::byte* const buffer = buffers_[std::size_t(m.buffer)].data();
            if (receives) m.destination = data;
            else std::memcpy(buffer, data, n);
            data = buffer;
        }
        requests_.push_back(MPI_REQUEST_NULL);
        under_way_.push_back(m);
        completed_.resize(requests_.size());
        ++l.under_way;
        const int number = numbers_[std::size_t(peer)];
        if (receives)
            check(MPI_Irecv(data, int(n), MPI_BYTE, number, data_tag_, comm, &requests_.back()),
                  "MPI_Irecv");
        else
            check(MPI_Isend(data, int(n), MPI_BYTE, number, data_tag_, comm, &requests_.back()),
                  "MPI_Isend");
    }

    void check(int code, const char* api) const {
        if (code == MPI_SUCCESS) [[likely]]
            return;
        if (is_part_)
            throw peer_error(
                rank_, text("hvd: rank ", rank_, ": ", api, " fails, since a rank is lost"), {});
        check_mpi(code, api, rank_);
    }

    int notice_tag() const { return data_tag_ + 1; }

    void finish(message& m) {
        m.finished = true;
        if (m.buffer >= 0) {
            if (m.destination != nullptr)
                std::memcpy(m.destination, buffers_[std::size_t(m.buffer)].data(),
                            std::size_t(m.bytes));
            free_buffers_.push_back(m.buffer);
        }
        --(m.receives ? receives_ : sends_)[std::size_t(m.peer)].under_way;
    }

    // Removes what is finished, and lets the next messages begin.
    void remove_finished() {
        const std::size_t before = under_way_.size();
        std::size_t kept = 0;
        for (std::size_t i = 0; i < before; ++i) {
            if (under_way_[i].finished) {
                resumed_.push_back(under_way_[i]);
                continue;
            }
            under_way_[kept] = under_way_[i];
            requests_[kept++] = requests_[i];
        }
        under_way_.resize(kept);
        requests_.resize(kept);
        for (const message& m : resumed_)
            go_on((m.receives ? receives_ : sends_)[std::size_t(m.peer)], m.peer, m.receives);
        resumed_.clear();
    }

    bool is_provided(const std::byte* data) const {
        for (const region& r : provided_)
            if (r.contains(data)) return true;
        return false;
    }

    int take_buffer() {
        if (free_buffers_.empty()) {
            buffers_.push_back(region(tuning::mpi_message_bytes));
            free_buffers_.reserve(buffers_.size());
            return int(buffers_.size()) - 1;
        }
        const int buffer = free_buffers_.back();
        free_buffers_.pop_back();
        return buffer;
    }

    // For a notice to each rank.
    [[gnu::cold]] void add_notice_memory() {
        notice_memory_.push_back(region(sends_.size() * sizeof(failure_notice)));
        notice_bytes_ = 0;
    }
    [[gnu::cold]] std::byte* room_for_notice() {
        if (notice_bytes_ + sizeof(failure_notice) > notice_memory_.back().bytes())
            add_notice_memory();
        std::byte* const room = notice_memory_.back().data() + notice_bytes_;
        notice_bytes_ += sizeof(failure_notice);
        return room;
    }

    int rank_ = -1;
    table<int> numbers_;  // in the communicator, by peer
    int data_tag_ = 0;    // and the next is that of notices
    bool is_part_ = false;
    table<lane> sends_, receives_;  // by peer
    std::vector<MPI_Request> requests_;
    std::vector<message> under_way_;  // by request
    std::vector<int> completed_;      // room for MPI_Testsome
    std::vector<message> resumed_;
    std::vector<region> provided_, buffers_, notice_memory_;
    std::vector<int> free_buffers_;
    std::vector<MPI_Request> notices_;
    std::size_t notice_bytes_ = 0;
    bool given_up_ = false;
    bool speaks_ = false;  // this rank has sent a notice, so its peers do
    int departed_ = 0;     // peers
};

}  // namespace hvd::inline v0::detail
