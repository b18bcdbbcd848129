// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The memory that the ranks of a communicator share.

#include "nccl_clique.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <type_traits>

namespace emulated_nccl {

namespace {

// Memory that nobody touches costs nothing.
constexpr std::size_t part_bytes = std::size_t(256) << 20;
constexpr std::uint64_t area_bytes = part_bytes * most_ranks, file_bytes = area_bytes << 14;
constexpr std::size_t payload_begin = (sizeof(rank_part) + 4095) / 4096 * 4096;

// Every payload has a place of its own, also an empty one.
constexpr std::size_t room_of(std::size_t bytes) { return (bytes / 64 + 1) * 64; }

static_assert(std::is_trivially_copyable_v<call>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct written_id {
    pid_t process;
    int file;
    std::uint64_t key;
};
static_assert(sizeof(written_id) <= sizeof(ncclUniqueId));

// The files that this process has made, by key, which others may still open.
std::mutex mutex;
std::map<std::uint64_t, std::shared_ptr<shared_file>> made_here;

std::uint64_t random_key() {
    std::random_device random;
    return (std::uint64_t(random()) << 32 | random()) | 1;
}

int new_file() {
    const int file = memfd_create("hvd-emulated-nccl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, off_t(file_bytes)) != 0)
        emulation::die("no shared memory for the ranks of a communicator");
    return file;
}

}  // namespace

shared_file::shared_file(int file, std::uint64_t key)
    : file_(file), key_(key), header_(reinterpret_cast<header*>(map(0, sizeof(header)))) {}

shared_file::~shared_file() {
    munmap(header_, sizeof(header));
    close(file_);
}

std::shared_ptr<shared_file> shared_file::make() {
    const std::uint64_t key = random_key();
    const auto made = std::make_shared<shared_file>(new_file(), key);
    made->header_->key = key;
    const std::lock_guard lock(mutex);
    return made_here[key] = made;
}

std::shared_ptr<shared_file> shared_file::named(const ncclUniqueId& id) {
    written_id of;
    std::memcpy(&of, id.internal, sizeof of);
    {
        const std::lock_guard lock(mutex);
        const auto found = made_here.find(of.key);
        if (found != made_here.end()) return found->second;
    }
    const std::string path =
        "/proc/" + std::to_string(of.process) + "/fd/" + std::to_string(of.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat about;
    if (file >= 0 && fstat(file, &about) == 0 && std::uint64_t(about.st_size) == file_bytes) {
        auto opened = std::make_shared<shared_file>(file, of.key);
        if (opened->header_->key == of.key) return opened;
    } else if (file >= 0) {
        close(file);
    }
    return std::make_shared<shared_file>(new_file(), of.key);
}

void shared_file::forget_all() {
    const std::lock_guard lock(mutex);
    made_here.clear();
}

void shared_file::is_known_to_all() {
    const std::lock_guard lock(mutex);
    made_here.erase(key_);
}

ncclUniqueId shared_file::id() const {
    const written_id mine{getpid(), file_, key_};
    ncclUniqueId id{};
    std::memcpy(id.internal, &mine, sizeof mine);
    return id;
}

std::byte* shared_file::map(std::uint64_t at, std::size_t bytes) const {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, off_t(at));
    if (memory == MAP_FAILED) emulation::die("the memory of a communicator can't be mapped");
    return static_cast<std::byte*>(memory);
}

clique::clique(std::shared_ptr<shared_file> from, std::uint64_t area, int n, int own_rank)
    : size(n), rank(own_rank), file(std::move(from)) {
    if (size > most_ranks || (area + 2) * area_bytes > file_bytes)
        emulation::die("a communicator has more than " + std::to_string(most_ranks) +
                       " ranks, or too many descend from one");
    memory_ = file->map((area + 1) * area_bytes, std::size_t(size) * part_bytes);
    own().process = getpid();
}

clique::~clique() { munmap(memory_, std::size_t(size) * part_bytes); }

std::byte* clique::begin_of(int of) const { return memory_ + std::size_t(of) * part_bytes; }

bool clique::is_complete() const {
    for (int r = 0; r < size; ++r)
        if (part(r).process == 0) return false;
    return true;
}

bool clique::has_dead_rank() const {
    for (int r = 0; r < size; ++r)
        if (part(r).is_dead) return true;
    return false;
}

bool clique::is_within_this_process() const {
    const pid_t here = getpid();
    for (int r = 0; r < size; ++r)
        if (part(r).process != here) return false;
    return true;
}

// ---- places for what the rank brings ----

bool clique::is_read_by_all(const posted_call& posted) const {
    const std::uint32_t readers = posted.readers;
    for (int r = 0; r < size; ++r)
        if ((readers >> r & 1) == 0 && !part(r).is_gone) return false;
    return true;
}

bool clique::is_over(const lease& l) const {
    if (l.to >= 0) return part(l.to).taken[rank] > l.number;
    const posted_call& posted = call_of(rank, l.number);
    return posted.number != l.number + 1 || is_read_by_all(posted);
}

// Returns the first place with so much room, or 0.
std::size_t clique::room_for(std::size_t bytes) const {
    std::size_t begin = payload_begin;
    for (const lease& l : leases_) {
        if (l.begin - begin >= room_of(bytes)) return begin;
        begin = l.end;
    }
    return part_bytes - begin >= room_of(bytes) ? begin : 0;
}

bool clique::has_room(std::size_t bytes) {
    if (room_of(bytes) > part_bytes - payload_begin)
        emulation::die("a call moves more than 250 MiB");
    std::erase_if(leases_, [this](const lease& l) { return is_over(l); });
    return room_for(bytes) != 0;
}

std::size_t clique::take_room(std::size_t bytes, int to, std::uint64_t number) {
    const std::size_t begin = room_for(bytes);
    const lease mine{begin, begin + room_of(bytes), to, number};
    leases_.insert(std::find_if(leases_.begin(), leases_.end(),
                                [begin](const lease& l) { return l.begin >= begin; }),
                   mine);
    return begin;
}

// ---- collectives ----

bool clique::has_room_for_call(std::uint64_t number, std::size_t bytes) {
    const posted_call& before = call_of(rank, number);
    return (before.number == 0 || is_read_by_all(before)) && has_room(bytes);
}

void clique::post(std::uint64_t number, const call& what, bool is_given_up) {
    posted_call& mine = call_of(rank, number);
    const std::size_t bytes = is_given_up ? 0 : emulation::bytes_brought(what, rank, size);
    mine.payload = take_room(bytes, -1, number);
    if (bytes > 0)
        std::memcpy(payload(rank, mine.payload), emulation::seen_by_device(what.in, bytes), bytes);
    mine.what = what;
    mine.given_up = is_given_up;
    mine.reduced = false;
    mine.readers = 0;
    mine.number = number + 1;
}

bool clique::have_come_to(std::uint64_t number) const {
    for (int r = 0; r < size; ++r)
        if (call_of(r, number).number != number + 1) return false;
    return true;
}

bool clique::has_been_given_up(std::uint64_t number) const {
    for (int r = 0; r < size; ++r)
        if (call_of(r, number).given_up) return true;
    return false;
}

bool clique::have_reduced(std::uint64_t number) const {
    for (int r = 0; r < size; ++r)
        if (!call_of(r, number).reduced) return false;
    return true;
}

emulation::collective clique::seen(std::uint64_t number) const {
    emulation::collective result{call_of(rank, number).what, rank, {}, {}};
    for (int r = 0; r < size; ++r) {
        const posted_call& posted = call_of(r, number);
        result.brought.push_back(payload(r, posted.payload));
        result.scalars.push_back(posted.what.scalar);
    }
    return result;
}

bool clique::input_is_as_posted(std::uint64_t number) const {
    const posted_call& mine = call_of(rank, number);
    const std::size_t bytes = emulation::bytes_brought(mine.what, rank, size);
    return bytes == 0 || std::memcmp(payload(rank, mine.payload),
                                     emulation::seen_by_device(mine.what.in, bytes), bytes) == 0;
}

void clique::leave_call(std::uint64_t number) {
    for (int r = 0; r < size; ++r) call_of(r, number).readers |= std::uint32_t(1) << rank;
}

void clique::leave() {
    for (const lease& l : leases_)
        if (l.to < 0 && call_of(rank, l.number).number == l.number + 1 && !have_come_to(l.number))
            call_of(rank, l.number).given_up = true;
    own().is_gone = true;
}

// ---- messages ----

bool clique::has_room_for_message(int to, std::size_t bytes) {
    return own().sent[to] - part(to).taken[rank] < rank_part::most_messages && has_room(bytes);
}

void clique::send(int to, const std::byte* data, std::size_t bytes) {
    const std::uint64_t number = own().sent[to];
    const std::size_t at = take_room(bytes, to, number);
    if (bytes > 0) std::memcpy(payload(rank, at), data, bytes);
    own().messages[to][number % rank_part::most_messages] = {at, bytes};
    own().sent[to] = number + 1;
}

bool clique::has_message(int from) const { return part(from).sent[rank] > own().taken[from]; }

std::span<const std::byte> clique::message(int from) const {
    const posted_message& m =
        part(from).messages[rank][own().taken[from] % rank_part::most_messages];
    return {payload(from, m.payload), m.bytes};
}

void clique::take_message(int from) { ++own().taken[from]; }

// ---- meetings ----

void clique::arrive(std::uint64_t meeting, int flavour, int color, int key, std::uint64_t area) {
    posted_arrival& mine = own().arrivals[meeting % rank_part::most_arrivals];
    mine.number = 0;
    mine.flavour = flavour;
    mine.color = color;
    mine.key = key;
    mine.area = area;
    mine.number = meeting + 1;
}

void clique::leave_meeting(std::uint64_t meeting) {
    own().arrivals[meeting % rank_part::most_arrivals].number = 0;
}

std::vector<clique::came> clique::arrivals(std::uint64_t meeting, int flavour) const {
    std::vector<came> all;
    for (int r = 0; r < size; ++r) {
        const posted_arrival& a = part(r).arrivals[meeting % rank_part::most_arrivals];
        if (a.number == meeting + 1 && a.flavour == flavour)
            all.push_back({a.color, a.key, r, a.area});
    }
    return all;
}

// ---- growths ----

std::uint64_t clique::growths_made() const {
    std::uint64_t made = 0;
    for (int r = 0; r < size; ++r) made = std::max(made, part(r).growth_made.load());
    return made;
}

bool clique::last_growth_is_complete() const {
    const std::uint64_t made = growths_made();
    for (int r = 0; r < size; ++r)
        if (part(r).growths_taken < made) return false;
    return true;
}

void clique::make_growth(const ncclUniqueId& id) {
    own().growth_id = id;
    own().growth_made = growths_made() + 1;
}

const ncclUniqueId* clique::next_growth() const {
    const std::uint64_t next = own().growths_taken + 1;
    for (int r = 0; r < size; ++r)
        if (part(r).growth_made == next) return &part(r).growth_id;
    return nullptr;
}

}  // namespace emulated_nccl
