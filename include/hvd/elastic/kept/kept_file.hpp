// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <optional>

#include "../../comm/serializer.hpp"
#include "../../train/checkpoint/atomic_file.hpp"
#include "../../train/optimizer/compare.hpp"
#include "../../transport/tcp/job_secret.hpp"
#include "job_lock.hpp"
#include "kept_directory.hpp"

namespace hvd::inline v0::detail {

// The state of an elastic job in a file: a head, the objects, and a checksum of all bytes before
// it. A name in its place is complete, since the file was renamed to it. A job whose secret stays
// seals its files: the HMAC of all bytes follows. Nobody else can make such a file.
using kept_key = std::optional<shared_secret>;

struct kept_head {
    static constexpr std::uint64_t current = 0x3176'7473'6c65'6468;  // "hdelstv1"
    static constexpr std::uint64_t sealed = 0x3173'7473'6c65'6468;   // "hdelsts1"
    static constexpr std::string_view suffix = ".hvd_state";

    explicit kept_head(std::int64_t s = 0, bool is_sealed = false)
        : mark(is_sealed ? sealed : current), step(s), check(check_of(s)) {}
    static std::uint64_t check_of(std::int64_t step) {
        return hash().add(std::uint64_t(step)).value();
    }

    bool is_sealed() const { return mark == sealed; }
    bool is_valid() const { return (mark == current || mark == sealed) && check == check_of(step); }
    // The size of what follows the objects.
    std::size_t end_bytes() const {
        return sizeof(std::uint64_t) + (is_sealed() ? sizeof(digest256) : 0);
    }

    std::uint64_t mark;
    std::int64_t step;
    std::uint64_t check;  // of the step
};

// The bytes of a file so far. Writers and readers add the same chunks.
class kept_checksum {
public:
    static constexpr std::size_t chunk_bytes = 256 * 1024;
    explicit kept_checksum(const kept_key& key) {
        if (key) seal_.emplace(*key);
    }
    void add(std::span<const std::byte> chunk) {
        all_.add(checksum(chunk.data(), chunk.size()));
        if (seal_) seal_->add(chunk);
    }
    std::uint64_t value() const { return all_.value(); }
    // It covers the bytes and their checksum. Nothing is added after it.
    digest256 seal() {
        const std::uint64_t sum = value();
        return seal_->add(std::as_bytes(std::span(&sum, 1))).finish();
    }

private:
    hash all_;
    std::optional<keyed_sha256> seal_;
};

class kept_writer {
public:
    kept_writer(const file_place& place, std::int64_t step, const kept_key& key = {})
        : file_(place, 0644), is_sealed_(key.has_value()), sum_(key) {
        put_number(kept_head(step, is_sealed_));
    }
    void put(const void* data, std::size_t n) {
        for (const auto* from = static_cast<const std::byte*>(data); n > 0;) {
            const std::size_t part = std::min(n, kept_checksum::chunk_bytes - chunk_.size());
            chunk_.insert(chunk_.end(), from, from + part);
            from += part;
            n -= part;
            if (chunk_.size() == kept_checksum::chunk_bytes) write_chunk();
        }
    }
    template <class N>
    void put_number(const N& number) {
        put(&number, sizeof number);
    }
    void commit() {
        write_chunk();
        const std::uint64_t sum = sum_.value();
        file_.write(std::as_bytes(std::span(&sum, 1)));
        if (is_sealed_) file_.write(sum_.seal());
        file_.commit();
    }

private:
    void write_chunk() {
        if (chunk_.empty()) return;
        sum_.add(chunk_);
        file_.write(chunk_);
        chunk_.clear();
    }

    atomic_file file_;
    const bool is_sealed_;
    kept_checksum sum_;
    std::vector<std::byte> chunk_;
};

// @throws checkpoint_error for a file that is not whole, here and in `take`.
class kept_reader {
public:
    explicit kept_reader(const file_place& place)
        : path_(place.path), file_(place.folder, place.name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW) {
        require_own(path_, file_);
        struct stat status;
        if (file_.get() < 0 || ::fstat(file_.get(), &status) != 0) refuse(std::strerror(errno));
        constexpr std::size_t least = sizeof(kept_head) + sizeof(std::uint64_t);
        end_ = std::size_t(status.st_size);
        if (!S_ISREG(status.st_mode)) refuse("is no regular file");
        if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
            refuse("can be written by other users: it needs a mode such as 600");
        if (end_ < least) refuse("is no state of an elastic job, or torn: it has ", end_, " bytes");
        read_bytes(0, static_cast<void*>(&head_), sizeof head_);
        if (!head_.is_valid())
            refuse("is no state of an elastic job, damaged, or of another version of hvd");
        at_ = sizeof head_;
        if (end_ < at_ + head_.end_bytes()) refuse("is torn: it has ", end_, " bytes");
        end_ -= head_.end_bytes();
    }

    const std::string& path() const { return path_; }
    std::int64_t step() const { return head_.step; }
    std::size_t left() const { return end_ - at_; }

    // The file is whole, and of a job with this key, or of one without.
    void require_checksum(const kept_key& key) const {
        if (head_.is_sealed() && !key)
            refuse(
                "is sealed with a secret, and this job has none that stays: start it by hvdrun "
                "with the same --secret-file, or remove the file to go on without it");
        if (!head_.is_sealed() && key)
            refuse(
                "has no seal of this job's secret: it is of a job without --secret-file, or "
                "somebody else's. Remove it to go on without it");
        std::vector<std::byte> chunk(kept_checksum::chunk_bytes);
        kept_checksum sum(key);
        for (std::size_t at = 0; at < end_; at += chunk.size()) {
            const std::size_t n = std::min(chunk.size(), end_ - at);
            read_bytes(at, chunk.data(), n);
            sum.add({chunk.data(), n});
        }
        std::uint64_t written = 0;
        read_bytes(end_, &written, sizeof written);
        if (sum.value() != written)
            refuse("is torn or damaged: its checksum is wrong. Remove it to go on without it");
        if (key) require_seal(sum.seal());
    }

    void take(void* to, std::size_t n) {
        if (n > left()) refuse("ends early: ", n, " bytes expected, ", left(), " left");
        read_bytes(at_, to, n);
        at_ += n;
    }
    template <class N>
    N take_number() {
        N number{};
        take(&number, sizeof number);
        return number;
    }
    // The number of things that follow, each of which has at least so many bytes.
    std::size_t take_count(std::size_t bytes_of_one) {
        const auto count = take_number<std::uint64_t>();
        if (count > left() / bytes_of_one)
            refuse("ends early: ", count, " times ", bytes_of_one, " bytes expected, ", left(),
                   " left");
        return std::size_t(count);
    }

    // An object that is empty gets its size later. Another size is that of another program.
    template <class Container>
    std::size_t take_size(std::size_t bytes_of_one, const Container& mine) {
        const std::size_t count = take_count(bytes_of_one);
        if (const auto size = std::size_t(mine.size()); size != 0 && size != count)
            refuse("has another state: its object ", object_, " has ", count,
                   " elements in a place where that of this program has ", size);
        return count;
    }
    // Counts the objects, from 1 on.
    std::size_t next_object() { return ++object_; }

    template <class... Parts>
    [[gnu::cold, noreturn]] void refuse(const Parts&... parts) const {
        refuse_file(path_, parts...);
    }

private:
    void require_seal(const digest256& expected) const {
        digest256 seal;
        read_bytes(end_ + sizeof(std::uint64_t), seal.data(), seal.size());
        if (!equal_digests(seal, expected))
            refuse("is sealed with another secret than this job's. Remove it to go on without it");
    }
    void read_bytes(std::size_t first, void* to, std::size_t n) const {
        for (auto* at = static_cast<std::byte*>(to); n > 0;) {
            const ssize_t got = ::pread(file_.get(), at, n, off_t(first));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) refuse("cannot be read: ", std::strerror(errno));
            if (got == 0) refuse("torn: it ends at byte ", first);
            at += got;
            first += std::size_t(got);
            n -= std::size_t(got);
        }
    }

    std::string path_;
    file_descriptor file_;
    kept_head head_;
    std::size_t at_ = 0, end_ = 0;  // of the objects
    std::size_t object_ = 0;
};

// Opens the file of the most steps in a directory, of this host or another one, if one has more
// than `step`.
inline std::unique_ptr<kept_reader> newest_kept_file(const kept_directory& directory,
                                                     std::int64_t step, const kept_key& key) {
    std::unique_ptr<kept_reader> newest;
    for (const std::string& name : directory.names_with(kept_head::suffix)) {
        auto file = std::make_unique<kept_reader>(directory.place_of(name));
        if (file->step() > (newest ? newest->step() : step)) newest = std::move(file);
    }
    if (newest) newest->require_checksum(key);
    return newest;
}

}  // namespace hvd::inline v0::detail
