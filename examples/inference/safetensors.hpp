// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace inference {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

/// A file of tensors: the length of a header, the header (JSON), the numbers.
class safetensors {
public:
    /// @throws std::runtime_error for a file that is absent, truncated or of another format.
    explicit safetensors(const std::filesystem::path& path) : path_(path.string()) {
        std::ifstream file(path, std::ios::binary | std::ios::ate);
        if (!file) refuse("cannot be opened");
        const auto size = static_cast<std::uint64_t>(file.tellg());
        std::uint64_t length = 0;
        file.seekg(0);
        file.read(reinterpret_cast<char*>(&length), sizeof length);
        if (size < sizeof length || length > size - sizeof length)
            refuse("torn, or no safetensors file");
        std::string text(length, ' ');
        data_.resize(size - sizeof length - length);
        file.read(text.data(), static_cast<std::streamsize>(text.size()));
        file.read(data_.data(), static_cast<std::streamsize>(data_.size()));
        if (!file) refuse("torn");
        header_ = nlohmann::json::parse(text, nullptr, false);
        if (!header_.is_object()) refuse("no safetensors file: its header is no JSON object");
    }

    /// Returns a text beside the tensors, or an empty one if there is none.
    std::string metadata(const std::string& key) const {
        const auto all = header_.find("__metadata__");
        return all == header_.end() ? "" : all->value(key, "");
    }

    /// Copies a tensor of floats into memory of its size.
    void read(const std::string& name, std::span<float> to) const {
        const auto tensor = header_.find(name);
        if (tensor == header_.end()) refuse("has no tensor \"" + name + '"');
        if (tensor->value("dtype", "") != "F32") refuse("\"" + name + "\" is not of 32-bit floats");
        const auto place = tensor->at("data_offsets").get<std::vector<std::size_t>>();
        if (place.size() != 2 || place[0] > place[1] || place[1] > data_.size() ||
            place[1] - place[0] != to.size_bytes())
            refuse("\"" + name + "\" does not have " + std::to_string(to.size()) + " floats");
        std::memcpy(to.data(), data_.data() + place[0], to.size_bytes());
    }

private:
    [[noreturn]] void refuse(const std::string& why) const {
        throw std::runtime_error(path_ + ": " + why);
    }

    std::string path_;
    nlohmann::json header_;
    std::vector<char> data_;
};

}  // namespace inference
