// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "../../protocol/comparison.hpp"
#include "safetensors_file.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// the limit of the format's own reader
constexpr std::size_t most_header_bytes = 100'000'000;

// A bool other than 0 and 1 has undefined behaviour, so all others become 1.
inline void make_booleans(std::byte* first, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) first[i] = std::byte(first[i] != std::byte(0));
}

// The parser itself keeps the last of two equal names without an error.
inline nlohmann::json parsed_header(const std::string& path, const std::string& text) {
    using json = nlohmann::json;
    std::vector<std::set<std::string>> names;  // the names in each open object
    return json::parse(
        text,
        [&](int, json::parse_event_t event, const json& value) {
            if (event == json::parse_event_t::object_start) names.emplace_back();
            else if (event == json::parse_event_t::object_end) names.pop_back();
            else if (event == json::parse_event_t::key &&
                     !names.back().insert(value.get<std::string>()).second)
                refuse_file(path, "its header has \"", value.get<std::string>(), "\" twice");
            return true;
        },
        false);
}

inline checkpoint_metadata metadata_in(const std::string& path, const nlohmann::json& value) {
    if (!value.is_object()) refuse_file(path, "its metadata is no object");
    checkpoint_metadata metadata;
    for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) refuse_file(path, "its metadata \"", key, "\" is no text");
        metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
}

inline bool is_numbers(const nlohmann::json& value) {
    return value.is_array() &&
           std::ranges::all_of(value, [](const auto& n) { return n.is_number_unsigned(); });
}

inline safetensors_file::entry entry_of(const std::string& path, const std::string& name,
                                        const nlohmann::json& value, std::size_t data) {
    if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
        !value.contains("shape") || !is_numbers(value["shape"]) ||
        !value.contains("data_offsets") || !is_numbers(value["data_offsets"]) ||
        value["data_offsets"].size() != 2)
        refuse_file(path, "tensor \"", name,
                    "\" is not described by dtype, shape and data_offsets");
    const auto first = value["data_offsets"][0].get<std::size_t>(),
               last = value["data_offsets"][1].get<std::size_t>();
    safetensors_file::entry e{dtype::user, value["dtype"].get<std::string>(),
                              value["shape"].get<std::vector<std::size_t>>(), data + first,
                              last - first};
    if (last < first || e.first < data)
        refuse_file(path, "tensor \"", name, "\" lies from ", first, " to ", last);
    const auto* const type = find_safetensors_type(std::string_view(e.type_name));
    if (type == nullptr) return e;
    e.type = type->type;
    std::size_t bytes = type->bytes;
    for (const std::size_t n : e.shape)
        if (__builtin_mul_overflow(bytes, n, &bytes))
            refuse_file(path, "tensor \"", name, "\" has the impossible shape ",
                        print_list(e.shape));
    if (e.bytes != bytes)
        refuse_file(path, "tensor \"", name, "\" of shape ", print_list(e.shape), " has ", bytes,
                    " bytes and lies from ", first, " to ", last);
    return e;
}

}  // namespace detail

template <class... Parts>
[[gnu::cold, noreturn]] void safetensors_file::refuse(const Parts&... parts) const {
    detail::refuse_file(path_, parts...);
}

HVD_INLINE void safetensors_file::open() {
    detail::require_no_nul(path_.c_str(), "the path", path_);
    file_ = detail::file_descriptor(path_, O_RDONLY | O_NONBLOCK);
    if (file_.get() < 0) refuse(std::strerror(errno));
    const std::size_t size = file_size();
    std::uint64_t length = 0;
    if (size < sizeof length) refuse("not a safetensors file: it has ", size, " bytes");
    read_bytes(0, &length, sizeof length);
    if (length > detail::most_header_bytes)
        refuse("not a safetensors file: its header would have ", length, " bytes");
    if (length > size - sizeof length)
        refuse("torn, or not a safetensors file: it has ", size,
               " bytes, its header alone would have ", length);
    std::string text(std::size_t(length), ' ');
    read_bytes(sizeof length, text.data(), text.size());
    parse(text, sizeof length + std::size_t(length), size);
}

HVD_INLINE const safetensors_file::entry& safetensors_file::require(const named_tensor& t) const {
    const auto found = tensors_.find(t.name);
    if (found == tensors_.end()) refuse("has no tensor \"", t.name, "\"");
    const entry& e = found->second;
    if (e.type != t.type || e.type == dtype::user)
        refuse("tensor \"", t.name, "\" is of ",
               e.type == dtype::user ? e.type_name : std::string(dtype_name(e.type)), ", and of ",
               dtype_name(t.type), " was expected");
    if (e.shape != t.shape)
        refuse("tensor \"", t.name, "\" has shape ", detail::print_list(e.shape), ", expected was ",
               detail::print_list(t.shape));
    return e;
}

HVD_INLINE void safetensors_file::read(const named_tensor& t) const {
    read_bytes(require(t).first, t.data, t.bytes);
    if (t.type == dtype::boolean) detail::make_booleans(t.data, t.bytes);
}

HVD_INLINE std::size_t safetensors_file::file_size() const {
    struct stat status;
    if (::fstat(file_.get(), &status) != 0) refuse(std::strerror(errno));
    if (!S_ISREG(status.st_mode)) refuse("not a regular file");
    return std::size_t(status.st_size);
}

HVD_INLINE void safetensors_file::read_bytes(std::size_t first, void* to, std::size_t n) const {
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

HVD_INLINE void safetensors_file::parse(const std::string& text, std::size_t data,
                                        std::size_t size) {
    const auto header = detail::parsed_header(path_, text);
    if (!header.is_object()) refuse("not a safetensors file: its header is no JSON object");
    for (const auto& [name, value] : header.items()) {
        detail::require_no_nul(path_, "the name of a tensor", name);
        if (name == "__metadata__") metadata_ = detail::metadata_in(path_, value);
        else tensors_.emplace(name, detail::entry_of(path_, name, value, data));
    }
    check_places(data, size);
}

HVD_INLINE void safetensors_file::check_places(std::size_t data, std::size_t size) const {
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

}  // namespace v0
}  // namespace hvd
