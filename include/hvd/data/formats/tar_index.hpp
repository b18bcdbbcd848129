// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../comm/serializer.hpp"
#include "../fingerprint.hpp"
#include "input_file.hpp"

namespace hvd::inline v0::detail {

// The samples of a tar archive, and the files of each.
struct tar_index {
    std::vector<std::string> keys;      // of the samples
    std::vector<std::uint64_t> begins;  // the first file of each
    std::vector<std::string> extensions;
    std::vector<std::uint64_t> at, sizes;  // bytes of the files in the archive

    std::size_t end_of(std::size_t sample) const {
        return sample + 1 < begins.size() ? std::size_t(begins[sample + 1]) : at.size();
    }

    bool is_of_archive(std::uint64_t bytes) const {
        if (begins.size() != keys.size() || extensions.size() != at.size() ||
            sizes.size() != at.size() || (begins.empty() ? !at.empty() : begins[0] != 0))
            return false;
        for (std::size_t s = 0; s < begins.size(); ++s)
            if (begins[s] >= at.size() || begins[s] >= end_of(s)) return false;
        for (std::size_t p = 0; p < at.size(); ++p)
            if (at[p] > bytes || sizes[p] > bytes - at[p]) return false;
        return true;
    }
};

// The index of an archive in a file beside it, which is made once. It counts if the archive has
// the size and the time of its last change that it had then. Where it can't be written, each
// process reads the headers of the archive.
class tar_index_file {
public:
    explicit tar_index_file(const input_file& archive)
        : archive_(archive), path_(archive.path() + ".hvd-index") {}

    // False if there is none of this archive as it is now.
    bool read(tar_index& index) const try {
        const input_file file(path_);
        head found;
        // Each name in it is in the archive, too.
        if (file.size() < sizeof found || file.size() > sizeof found + archive_.size())
            return false;
        std::vector<std::byte> rest(std::size_t(file.size()) - sizeof found);
        file.read(0, &found, sizeof found);
        file.read(sizeof found, rest.data(), rest.size());
        const head wanted = head_of(rest);
        if (std::memcmp(&found, &wanted, sizeof found) != 0) return false;
        tar_index kept;
        read_all(rest, kept);
        if (!kept.is_of_archive(archive_.size())) return false;
        index = std::move(kept);
        return true;
    } catch (const error&) {
        return false;
    }

    void write(const tar_index& index) const {
        if (!is_settled()) return;
        std::vector<std::byte> rest;
        write_all(rest, index);
        const head first = head_of(rest);
        std::string name = path_ + ".XXXXXX";
        const int file = ::mkostemp(name.data(), O_CLOEXEC);
        if (file < 0) return;
        const bool is_whole = put_all(file, plain(first)) && put_all(file, rest) &&
                              ::fchmod(file, archive_.rights()) == 0;
        if (::close(file) != 0 || !is_whole || std::rename(name.c_str(), path_.c_str()) != 0)
            ::unlink(name.c_str());
    }

private:
    struct head {
        char magic[8];
        std::uint64_t archive_bytes;
        std::int64_t changed;
        std::uint64_t fingerprint;  // of what follows
    };

    static std::span<const std::byte> plain(const head& h) {
        return std::as_bytes(std::span(&h, 1));
    }

    head head_of(std::span<const std::byte> rest) const {
        head h{{'h', 'v', 'd', 't', 'a', 'r', '1', '\n'}, archive_.size(), archive_.changed(), 0};
        h.fingerprint = empty_fingerprint;
        mix(h.fingerprint,
            std::string_view(reinterpret_cast<const char*>(rest.data()), rest.size()));
        return h;
    }

    // An archive that was changed a moment ago may change again without another time.
    bool is_settled() const {
        constexpr std::int64_t rest = 2'000'000'000;
        timespec now{};
        ::clock_gettime(CLOCK_REALTIME, &now);
        return std::int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec - archive_.changed() > rest;
    }

    static void write_all(std::vector<std::byte>& to, const tar_index& index) {
        serializer<std::vector<std::string>>::write(to, index.keys);
        serializer<std::vector<std::string>>::write(to, index.extensions);
        for (const auto* numbers : {&index.begins, &index.at, &index.sizes})
            serializer<std::vector<std::uint64_t>>::write(to, *numbers);
    }
    static void read_all(std::span<const std::byte> from, tar_index& index) {
        index.keys = serializer<std::vector<std::string>>::read(from);
        index.extensions = serializer<std::vector<std::string>>::read(from);
        for (auto* numbers : {&index.begins, &index.at, &index.sizes})
            *numbers = serializer<std::vector<std::uint64_t>>::read(from);
    }

    static bool put_all(int file, std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const ssize_t n = ::write(file, bytes.data(), bytes.size());
            if (n < 0 && errno != EINTR) return false;
            if (n > 0) bytes = bytes.subspan(std::size_t(n));
        }
        return true;
    }

    const input_file& archive_;
    std::string path_;
};

}  // namespace hvd::inline v0::detail
