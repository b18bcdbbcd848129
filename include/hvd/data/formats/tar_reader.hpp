// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "input_file.hpp"

namespace hvd::inline v0::detail {

// A file in a tar archive.
struct tar_member {
    std::string name;
    std::uint64_t first = 0;  // byte in the archive
    std::uint64_t size = 0;
};

// Reads the headers of a tar archive one after the other: those of POSIX (ustar, and pax for long
// names and large sizes) and of GNU (L for long names, and sizes in base 256). Archives are not
// compressed.
class tar_reader {
public:
    explicit tar_reader(const input_file& file) : file_(file) {}

    // The next regular file. False at the end of the archive. Folders and links are passed over.
    bool next(tar_member& member) {
        while (read_header()) {
            const char type = header_[type_at];
            const std::uint64_t first = at_ + block;
            switch (type) {
                case 'L': long_name_ = name_in(first, number(size_at, 12)); break;
                case 'x': read_pax(first, number(size_at, 12)); break;
                case 'S': file_.refuse_at(at_, "a sparse file, which is not supported"); break;
                default: break;
            }
            const bool is_extension = type == 'L' || type == 'x' || type == 'g' || type == 'K';
            const bool is_file = type == '0' || type == '\0' || type == '7';
            const std::uint64_t size =
                is_extension || !pax_has_size_ ? number(size_at, 12) : pax_size_;
            if (is_file) member = {long_name_.empty() ? own_name() : long_name_, first, size};
            if (!is_extension) forget_extensions();
            pass_over(type >= '1' && type <= '6' ? 0 : size);  // links and folders have no bytes
            if (is_file) return true;
        }
        return false;
    }

private:
    static constexpr std::uint64_t block = 512;
    static constexpr std::uint64_t most_extension_bytes = std::uint64_t(1) << 20;
    // The fields of a header, by their first byte.
    static constexpr std::size_t size_at = 124, checksum_at = 148, type_at = 156, magic_at = 257,
                                 prefix_at = 345;

    // False at the end, which is a block of zeros.
    bool read_header() {
        if (at_ == file_.size())
            file_.refuse_at(at_,
                            "torn: an archive ends with blocks of zeros, and this one has none");
        if (file_.size() - at_ < block)
            file_.refuse_at(at_, "torn: ", file_.size() - at_, " bytes are no header of tar");
        file_.read(at_, header_, block);
        if (std::string_view(header_, block).find_first_not_of('\0') == std::string_view::npos)
            return false;
        check_sum();
        return true;
    }

    // Bytes count as unsigned. Some old writers took them as signed.
    void check_sum() const {
        std::int64_t plain = 0, of_signed = 0;
        for (std::size_t i = 0; i < block; ++i) {
            const bool is_sum = i >= checksum_at && i < checksum_at + 8;
            plain += is_sum ? ' ' : static_cast<unsigned char>(header_[i]);
            of_signed += is_sum ? ' ' : static_cast<signed char>(header_[i]);
        }
        const auto told = std::int64_t(number(checksum_at, 8));
        if (told != plain && told != of_signed)
            file_.refuse_at(at_, "no header of tar, or a damaged one: its checksum is ", told,
                            ", and ", plain, " was expected");
    }

    // Octal digits, or in base 256 if the first bit is set.
    std::uint64_t number(std::size_t first, std::size_t width) const {
        const auto byte = [&](std::size_t i) {
            return static_cast<unsigned char>(header_[first + i]);
        };
        std::uint64_t value = 0;
        if ((byte(0) & 0x80) != 0) {
            for (std::size_t i = 0; i < width; ++i) {
                if (value >> 56 != 0 || byte(0) != 0x80) refuse_number(first);
                value = value << 8 | (i == 0 ? 0 : byte(i));
            }
            return value;
        }
        std::size_t i = 0;
        while (i < width && byte(i) == ' ') ++i;
        for (; i < width && byte(i) != ' ' && byte(i) != 0; ++i) {
            if (byte(i) < '0' || byte(i) > '7') refuse_number(first);
            value = value << 3 | std::uint64_t(byte(i) - '0');  // 12 digits at most
        }
        return value;
    }
    [[gnu::cold, noreturn]] void refuse_number(std::size_t first) const {
        file_.refuse_at(at_ + first, "no number of a header of tar");
    }

    std::string field(std::size_t first, std::size_t width) const {
        return std::string(header_ + first, ::strnlen(header_ + first, width));
    }

    // The names of POSIX have a prefix. The magic of GNU is another one.
    std::string own_name() const {
        const std::string name = field(0, 100);
        if (std::memcmp(header_ + magic_at, "ustar", 6) != 0) return name;
        const std::string prefix = field(prefix_at, 155);
        return prefix.empty() ? name : prefix + "/" + name;
    }

    std::string extension_in(std::uint64_t first, std::uint64_t size) const {
        if (size > most_extension_bytes)
            file_.refuse_at(at_, "an extended header of ", size, " bytes, more than ",
                            most_extension_bytes);
        require_inside(size);
        std::string content(std::size_t(size), '\0');
        file_.read(first, content.data(), content.size());
        return content;
    }

    std::string name_in(std::uint64_t first, std::uint64_t size) const {
        return extension_in(first, size).c_str();  // up to its NUL
    }

    // Records "LENGTH KEY=VALUE\n", where the length is that of the whole record.
    void read_pax(std::uint64_t first, std::uint64_t size) {
        const std::string content = extension_in(first, size);
        for (std::string_view rest = content; !rest.empty();) {
            const std::uint64_t here = first + (content.size() - rest.size());
            const std::size_t space = rest.find(' ');
            const std::uint64_t length = decimal(rest.substr(0, space), here);
            if (space == rest.npos || length <= space + 1 || length > rest.size() ||
                rest[std::size_t(length) - 1] != '\n')
                file_.refuse_at(here, "no record of an extended header of tar");
            take_record(rest.substr(space + 1, std::size_t(length) - space - 2), here);
            rest.remove_prefix(std::size_t(length));
        }
    }

    void take_record(std::string_view record, std::uint64_t here) {
        const std::size_t equal = record.find('=');
        if (equal == record.npos) file_.refuse_at(here, "no record of an extended header of tar");
        const std::string_view key = record.substr(0, equal), value = record.substr(equal + 1);
        if (key == "path") long_name_ = std::string(value);
        if (key == "size") pax_size_ = decimal(value, here), pax_has_size_ = true;
        if (key.starts_with("GNU.sparse"))
            file_.refuse_at(here, "a sparse file, which is not supported");
    }

    std::uint64_t decimal(std::string_view digits, std::uint64_t here) const {
        std::uint64_t value = 0;
        if (digits.empty() || digits.size() > 18)
            file_.refuse_at(here, "no number of an extended header of tar");
        for (const char c : digits) {
            if (c < '0' || c > '9') file_.refuse_at(here, "no number of an extended header of tar");
            value = 10 * value + std::uint64_t(c - '0');
        }
        return value;
    }

    void require_inside(std::uint64_t size) const {
        const std::uint64_t left = file_.size() - at_ - block;
        if (size > left)
            file_.refuse_at(at_, "torn: a file of ", size, " bytes, of which ", left, " are there");
    }

    // The last file may lack its padding.
    void pass_over(std::uint64_t size) {
        require_inside(size);
        at_ += block + size;
        const std::uint64_t padding = (block - size % block) % block, left = file_.size() - at_;
        at_ += padding < left ? padding : left;
    }

    void forget_extensions() {
        long_name_.clear();
        pax_has_size_ = false;
    }

    const input_file& file_;
    std::uint64_t at_ = 0;  // of the current header
    char header_[block] = {};
    std::string long_name_;  // for the next file
    std::uint64_t pax_size_ = 0;
    bool pax_has_size_ = false;
};

}  // namespace hvd::inline v0::detail
