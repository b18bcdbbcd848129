// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <charconv>
#include <cmath>

#include "contents.hpp"

namespace hvd::inline v0::detail {

HVD_INLINE bool is_reserved(std::string_view key) {
    return key.starts_with("hvd.") || key.starts_with("optimizer.") || key.starts_with("progress.");
}

HVD_INLINE std::string slot_name(const char* slot, const std::string& parameter) {
    return "optimizer." + std::string(slot) + "." + parameter;
}

template <class N>
std::string to_digits(N number) {
    char digits[40];
    return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

template <class N>
bool from_digits(std::string_view text, N& number) {
    const auto end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, number);
    return stopped == end && error == std::errc();
}

HVD_INLINE std::string digits_of(std::int64_t number) { return to_digits(number); }
HVD_INLINE std::string digits_of(std::uint64_t number) { return to_digits(number); }
HVD_INLINE std::string digits_of(float number) { return to_digits(number); }
HVD_INLINE std::string digits_of(double number) { return to_digits(number); }
HVD_INLINE std::string digits_of(long double number) { return to_digits(number); }

HVD_INLINE bool read_digits(std::string_view text, std::int64_t& number) {
    return from_digits(text, number);
}
HVD_INLINE bool read_digits(std::string_view text, std::uint64_t& number) {
    return from_digits(text, number);
}
HVD_INLINE bool read_digits(std::string_view text, float& number) {
    return from_digits(text, number);
}
HVD_INLINE bool read_digits(std::string_view text, double& number) {
    return from_digits(text, number);
}
HVD_INLINE bool read_digits(std::string_view text, long double& number) {
    return from_digits(text, number);
}

HVD_INLINE const std::string& metadata_of(const safetensors_file& file, const std::string& key) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end())
        refuse_file(file.path(), "has no \"", key, "\" in its metadata");
    return found->second;
}

HVD_INLINE void refuse_number(const safetensors_file& file, const std::string& key) {
    refuse_file(file.path(), "has \"", metadata_of(file, key), "\" as \"", key,
                "\", which is no number for it");
}

HVD_INLINE bool has_one_count(const safetensors_file& file, const std::string& key) {
    const auto next = file.tensors().lower_bound(key + ".");
    return file.metadata().contains(key) &&
           (next == file.tensors().end() || !next->first.starts_with(key + "."));
}

HVD_INLINE void require_count(const safetensors_file& file, const std::string& key, double count) {
    constexpr double most = 9007199254740992;  // a double counts no further
    if (!(count >= 0 && count <= most) || count != std::floor(count))
        refuse_file(file.path(), "has ", count, " as \"", key, "\", which is no number of steps");
}

HVD_INLINE void check_nothing_else(const safetensors_file& file,
                                   const std::set<std::string>& tensors,
                                   const std::set<std::string>& keys) {
    const auto mark = file.metadata().find(slots_key);
    const bool by_name = mark != file.metadata().end() && mark->second == slots_by_name;
    for (const auto& [name, entry] : file.tensors()) {
        if (!by_name && name.starts_with("optimizer."))
            refuse_file(file.path(), "has the tensor \"", name, "\" without saying in \"",
                        slots_key,
                        "\" that slots go by their parameters' names: an older hvd numbered them");
        if (!tensors.contains(name))
            refuse_file(file.path(), "has the tensor \"", name,
                        "\", which this model and optimizer have not");
    }
    for (const auto& [key, text] : file.metadata())
        if (is_reserved(key) && key != slots_key && key != ranks_key && !keys.contains(key))
            refuse_file(file.path(), "has \"", key, "\", which this optimizer has not");
}

}  // namespace hvd::inline v0::detail
