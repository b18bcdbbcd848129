// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "../../protocol/comparison.hpp"
#include "safetensors_file.hpp"

namespace hvd::inline v0 {
namespace detail {

// the limit of the format's own reader
constexpr std::size_t most_header_bytes = 100'000'000;

// A bool other than 0 and 1 has undefined behaviour, so all others become 1.
inline void make_booleans(std::byte* first, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) first[i] = std::byte(first[i] != std::byte(0));
}

inline bool is_numbers(const nlohmann::json& value) {
    return value.is_array() &&
           std::ranges::all_of(value, [](const auto& n) { return n.is_number_unsigned(); });
}

// The bits of an element; 0 if the format has no such type.
inline std::size_t bits_of_type(std::string_view name) {
    if (const auto* const type = find_safetensors_type(name)) return 8 * type->bytes;
    for (const auto& foreign : foreign_safetensors_types)
        if (foreign.name == name) return foreign.bits;
    return 0;
}

// A tensor is described by an object, or by an array of the three fields.
inline nlohmann::json field_of(const nlohmann::json& value, const char* name, std::size_t number) {
    if (value.is_object() && value.contains(name)) return value[name];
    if (value.is_array() && value.size() == 3) return value[number];
    return {};
}

// A tensor as the header describes it.
struct tensor_description {
    std::string type;
    std::vector<std::size_t> shape;
    std::size_t first, last;
};

inline tensor_description description_of(const std::string& path, const std::string& name,
                                         const nlohmann::json& value) {
    const auto type = field_of(value, "dtype", 0), shape = field_of(value, "shape", 1),
               place = field_of(value, "data_offsets", 2);
    if (!type.is_string() || !is_numbers(shape) || !is_numbers(place) || place.size() != 2)
        refuse_file(path, "tensor \"", name,
                    "\" is not described by dtype, shape and data_offsets");
    tensor_description said{type.get<std::string>(), shape.get<std::vector<std::size_t>>(),
                            place[0].get<std::size_t>(), place[1].get<std::size_t>()};
    if (bits_of_type(said.type) == 0)
        refuse_file(path, "tensor \"", name, "\" is of the unknown type ", said.type);
    return said;
}

// Reads a header as the format's own reader does. The last of two equal names holds, but each value
// must be one that the format knows. Fields of its structures must not come twice.
class header_reader {
public:
    explicit header_reader(const std::string& path) : path_(path) {}

    // The parser takes a byte order mark, and a NUL for the end.
    nlohmann::json parsed(const std::string& text) {
        if (text.find('\0') != text.npos || text.starts_with("\xef\xbb\xbf"))
            refuse_file(path_, "not a safetensors file: its header is no JSON object");
        return json::parse(
            text,
            [this](int depth, event what, const json& value) {
                look(depth, what, value);
                return true;
            },
            false);
    }

private:
    using json = nlohmann::json;
    using event = json::parse_event_t;
    static constexpr int most_depth = 127;

    void look(int depth, event what, const json& value) {
        if (what == event::key) return look_at_key(depth, value.get<std::string>());
        if (what == event::object_start || what == event::array_start) {
            if (depth >= most_depth) refuse_file(path_, "its header is nested too deeply");
            if (depth == 1) fields_.clear();
        } else if (!has_names_) {
            return;  // the header is no object, as is told later
        } else if (name_ == metadata) {
            if (depth == 2 && !value.is_string())
                refuse_file(path_, "its metadata has a value that is no text");
        } else if (depth == 1) {
            description_of(path_, name_, value);
        }
    }
    void look_at_key(int depth, const std::string& key) {
        if (depth == 1) {
            name_ = key;
            has_names_ = true;
        }
        const bool is_field = depth == 2 && name_ != metadata &&
                              (key == "dtype" || key == "shape" || key == "data_offsets");
        if ((depth == 1 && key == metadata) || is_field)
            if (!(is_field ? fields_ : whole_).insert(key).second)
                refuse_file(path_, "its header has \"", key, "\" twice");
    }

    static constexpr std::string_view metadata = "__metadata__";
    const std::string& path_;
    std::string name_;  // of the tensor
    bool has_names_ = false;
    std::set<std::string> fields_, whole_;
};

inline checkpoint_metadata metadata_in(const std::string& path, const nlohmann::json& value) {
    if (value.is_null()) return {};
    if (!value.is_object()) refuse_file(path, "its metadata is no object");
    checkpoint_metadata metadata;
    for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) refuse_file(path, "its metadata \"", key, "\" is no text");
        metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
}

inline void check_bytes(const std::string& path, const std::string& name,
                        const safetensors_file::entry& e, std::size_t bits) {
    std::size_t all = 1;
    for (const std::size_t n : e.shape)
        if (__builtin_mul_overflow(all, n, &all)) all = bits = 0;
    if (bits == 0 || __builtin_mul_overflow(all, bits, &all))
        refuse_file(path, "tensor \"", name, "\" has the impossible shape ", print_list(e.shape));
    if (all % 8 != 0 || e.bytes != all / 8)
        refuse_file(path, "tensor \"", name, "\" of shape ", print_list(e.shape), " has ", all / 8,
                    " bytes and lies in ", e.bytes);
}

inline safetensors_file::entry entry_of(const std::string& path, const std::string& name,
                                        const nlohmann::json& value, std::size_t data) {
    const auto [type, shape, first, last] = description_of(path, name, value);
    safetensors_file::entry e{dtype::user, type, shape, data + first, last - first};
    if (last < first || e.first < data)
        refuse_file(path, "tensor \"", name, "\" lies from ", first, " to ", last);
    check_bytes(path, name, e, bits_of_type(e.type_name));
    if (const auto* const known = find_safetensors_type(std::string_view(e.type_name)))
        e.type = known->type;
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
    const bool is_scalar = e.shape.empty() && t.shape == std::vector<std::size_t>{1};
    if (e.shape != t.shape && !is_scalar)
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
    const auto header = detail::header_reader(path_).parsed(text);
    if (!header.is_object()) refuse("not a safetensors file: its header is no JSON object");
    for (const auto& [name, value] : header.items()) {
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

}  // namespace hvd::inline v0
