// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "../gradients/registry.hpp"
#include "atomic_file.hpp"

namespace hvd {
inline namespace v0 {

/// A safetensors file whose header has been read and checked. Every tensor lies in the file and has
/// the size of its shape. None overlap or leave gaps, and no name occurs twice. No memory is
/// allocated for a size that the file does not have.
class safetensors_file {
public:
    struct entry {
        dtype type;
        std::vector<std::size_t> shape;
        std::size_t first;  // byte offset in the file
        std::size_t bytes;
    };

    /// @throws hvd::checkpoint_error for a file that is absent, truncated, of another format or
    /// inconsistent.
    explicit safetensors_file(std::string path)
        : path_(std::move(path)), file_(path_, O_RDONLY | O_NONBLOCK) {
        if (file_.get() < 0) refuse(std::strerror(errno));
        const std::size_t size = file_size();
        std::uint64_t length = 0;
        if (size < sizeof length) refuse("not a safetensors file: it has ", size, " bytes");
        read_bytes(0, &length, sizeof length);
        if (length > most_header_bytes)
            refuse("not a safetensors file: its header would have ", length, " bytes");
        if (length > size - sizeof length)
            refuse("torn, or not a safetensors file: it has ", size,
                   " bytes, its header alone would have ", length);
        std::string text(std::size_t(length), ' ');
        read_bytes(sizeof length, text.data(), text.size());
        parse(text, sizeof length + std::size_t(length), size);
    }

    const std::map<std::string, entry>& tensors() const { return tensors_; }
    const checkpoint_metadata& metadata() const { return metadata_; }
    const std::string& path() const { return path_; }

    /// @throws hvd::checkpoint_error unless the file has the tensor with this element type and
    /// shape.
    const entry& require(const named_tensor& t) const {
        const auto found = tensors_.find(t.name);
        if (found == tensors_.end()) refuse("has no tensor \"", t.name, "\"");
        const entry& e = found->second;
        if (e.type != t.type)
            refuse("tensor \"", t.name, "\" is of ", dtype_name(e.type), ", and of ",
                   dtype_name(t.type), " was expected");
        if (e.shape != t.shape)
            refuse("tensor \"", t.name, "\" has shape ", detail::shown(e.shape), ", expected was ",
                   detail::shown(t.shape));
        return e;
    }

    /// Reads it into the memory of `t`.
    void read(const named_tensor& t) const {
        read_bytes(require(t).first, t.data, t.bytes);
        if (t.type == dtype::boolean) make_booleans(t.data, t.bytes);
    }

private:
    // the limit of the format's own reader
    static constexpr std::size_t most_header_bytes = 100'000'000;

    // A bool other than 0 and 1 has undefined behaviour, so all others become 1.
    static void make_booleans(std::byte* first, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) first[i] = std::byte(first[i] != std::byte(0));
    }

    template <class... Parts>
    [[gnu::cold, noreturn]] void refuse(const Parts&... parts) const {
        detail::refuse_file(path_, parts...);
    }

    std::size_t file_size() const {
        struct stat status;
        if (::fstat(file_.get(), &status) != 0) refuse(std::strerror(errno));
        if (!S_ISREG(status.st_mode)) refuse("not a regular file");
        return std::size_t(status.st_size);
    }

    void read_bytes(std::size_t first, void* to, std::size_t n) const {
        auto* at = static_cast<char*>(to);
        while (n > 0) {
            const ssize_t got = ::pread(file_.get(), at, n, off_t(first));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) refuse(std::strerror(errno));
            if (got == 0) refuse("torn: it ends at byte ", first);
            at += got;
            first += std::size_t(got);
            n -= std::size_t(got);
        }
    }

    void parse(const std::string& text, std::size_t data, std::size_t size) {
        const auto header = parsed(text);
        if (!header.is_object()) refuse("not a safetensors file: its header is no JSON object");
        for (const auto& [name, value] : header.items()) {
            if (name == "__metadata__") take_metadata(value);
            else tensors_.emplace(name, entry_of(name, value, data));
        }
        check_places(data, size);
    }

    // The parser itself keeps the last of two equal names without an error.
    nlohmann::json parsed(const std::string& text) const {
        using json = nlohmann::json;
        std::vector<std::set<std::string>> names;  // the names in each open object
        return json::parse(
            text,
            [&](int, json::parse_event_t event, const json& value) {
                if (event == json::parse_event_t::object_start) names.emplace_back();
                else if (event == json::parse_event_t::object_end) names.pop_back();
                else if (event == json::parse_event_t::key &&
                         !names.back().insert(value.get<std::string>()).second)
                    refuse("its header has \"", value.get<std::string>(), "\" twice");
                return true;
            },
            false);
    }

    void take_metadata(const nlohmann::json& value) {
        if (!value.is_object()) refuse("its metadata is no object");
        for (const auto& [key, text] : value.items()) {
            if (!text.is_string()) refuse("its metadata \"", key, "\" is no text");
            metadata_.emplace(key, text.get<std::string>());
        }
    }

    static bool is_numbers(const nlohmann::json& value) {
        return value.is_array() &&
               std::ranges::all_of(value, [](const auto& n) { return n.is_number_unsigned(); });
    }

    entry entry_of(const std::string& name, const nlohmann::json& value, std::size_t data) const {
        if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
            !value.contains("shape") || !is_numbers(value["shape"]) ||
            !value.contains("data_offsets") || !is_numbers(value["data_offsets"]) ||
            value["data_offsets"].size() != 2)
            refuse("tensor \"", name, "\" is not described by dtype, shape and data_offsets");
        const auto type_name = value["dtype"].get<std::string>();
        const auto* const type = detail::find_safetensors_type(std::string_view(type_name));
        if (type == nullptr)
            refuse("tensor \"", name, "\" has the unknown element type ", type_name);
        const auto first = value["data_offsets"][0].get<std::size_t>(),
                   last = value["data_offsets"][1].get<std::size_t>();
        entry e{type->type, value["shape"].get<std::vector<std::size_t>>(), data + first,
                last - first};
        std::size_t bytes = type->bytes;
        for (const std::size_t n : e.shape)
            if (__builtin_mul_overflow(bytes, n, &bytes))
                refuse("tensor \"", name, "\" has the impossible shape ", detail::shown(e.shape));
        if (last < first || e.bytes != bytes || e.first < data)
            refuse("tensor \"", name, "\" of shape ", detail::shown(e.shape), " has ", bytes,
                   " bytes and lies from ", first, " to ", last);
        return e;
    }

    void check_places(std::size_t data, std::size_t size) const {
        std::vector<std::pair<std::size_t, std::size_t>> places;
        for (const auto& [name, e] : tensors_) places.emplace_back(e.first, e.bytes);
        std::ranges::sort(places);
        std::size_t at = data;
        for (const auto& [first, bytes] : places) {
            if (first != at) refuse("its tensors overlap or leave a gap at byte ", at);
            at += bytes;
        }
        if (at != size) refuse("torn: it has ", size, " bytes, its tensors say ", at);
    }

    std::string path_;
    detail::file_descriptor file_;
    std::map<std::string, entry> tensors_;
    checkpoint_metadata metadata_;
};

}  // namespace v0
}  // namespace hvd
