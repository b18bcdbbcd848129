// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace data_tests {

// Writes a tar archive, right or wrong.
class tar_archive {
public:
    struct options {
        std::string prefix = {};
        std::optional<std::uint64_t> told_size = {};
        bool in_base_256 = false;
    };

    tar_archive& file(const std::string& name, const std::string& content) {
        return file(name, content, {});
    }
    tar_archive& file(const std::string& name, const std::string& content, const options& o) {
        header(name, '0', o.told_size.value_or(content.size()), o);
        return add(content);
    }
    tar_archive& folder(const std::string& name) { return header(name + "/", '5', 0, {}); }
    tar_archive& link(const std::string& name, std::uint64_t size) {
        return header(name, '2', size, {});
    }
    tar_archive& gnu_name(const std::string& name) { return extended('L', name + '\0'); }
    tar_archive& pax(const std::vector<std::pair<std::string, std::string>>& records,
                     char type = 'x') {
        std::string all;
        for (const auto& [key, value] : records) {
            const std::string rest = " " + key + "=" + value + "\n";
            std::size_t length = rest.size();
            while (std::to_string(length).size() + rest.size() != length) ++length;
            all += std::to_string(length) + rest;
        }
        return extended(type, all);
    }
    tar_archive& extended(char type, const std::string& content) {
        header("extension", type, content.size(), {});
        return add(content);
    }

    const std::string& bytes() const { return bytes_; }
    std::string ended() const { return bytes_ + std::string(1024, '\0'); }

private:
    tar_archive& add(const std::string& content) {
        bytes_ += content;
        bytes_.append((512 - content.size() % 512) % 512, '\0');
        return *this;
    }

    tar_archive& header(const std::string& name, char type, std::uint64_t size, const options& o) {
        char block[512] = {};
        std::memcpy(block, name.data(), name.size() < 100 ? name.size() : 100);
        std::memcpy(block + 100, "0000644", 7);
        if (o.in_base_256) {
            block[124] = char(0x80);
            for (int i = 0; i < 8; ++i) block[135 - i] = char(size >> (8 * i));
        } else {
            std::snprintf(block + 124, 12, "%011llo", static_cast<unsigned long long>(size));
        }
        block[156] = type;
        std::memcpy(block + 257, "ustar\00000", 8);
        std::memcpy(block + 345, o.prefix.data(), o.prefix.size());
        std::memset(block + 148, ' ', 8);
        unsigned sum = 0;
        for (const char byte : block) sum += static_cast<unsigned char>(byte);
        std::snprintf(block + 148, 8, "%06o", sum);
        bytes_.append(block, sizeof block);
        return *this;
    }

    std::string bytes_;
};

}  // namespace data_tests
