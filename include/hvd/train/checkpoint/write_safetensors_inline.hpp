// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "atomic_file.hpp"
#include "write_safetensors.hpp"

namespace hvd::inline v0 {

namespace detail {

// JSON must be UTF-8. Its writer throws errors of its own, so they are caught here.
inline void require_utf8(const std::string& path, std::string_view what, const std::string& text) {
    using json = nlohmann::json;
    try {
        static_cast<void>(json(text).dump());
    } catch (const json::type_error&) {
        const auto shown = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
        refuse_file(path, what, " is no UTF-8: ", shown);
    }
}

inline void require_name(const std::string& path, std::string_view what, const std::string& name) {
    require_utf8(path, what, name);
    require_no_nul(path, what, name);
}

// The tensors in the order of the file: those of the largest elements first. The data begins at a
// multiple of 8 bytes and has no gaps, so each lies at a multiple of its element's size.
inline std::vector<const named_tensor*> in_order(const std::string& path,
                                                 std::span<const named_tensor> tensors) {
    std::vector<const named_tensor*> order;
    for (const named_tensor& t : tensors) {
        if (find_safetensors_type(t.type) == nullptr)
            refuse_file(path, "the format has no element type for \"", t.name, "\"");
        order.push_back(&t);
    }
    std::ranges::stable_sort(order, std::greater<>(), [](const named_tensor* t) {
        return find_safetensors_type(t->type)->bytes;
    });
    return order;
}

}  // namespace detail

HVD_INLINE void write_safetensors(const std::string& path, std::span<const named_tensor> tensors,
                                  const checkpoint_metadata& metadata) {
    nlohmann::ordered_json header;
    for (const auto& [key, text] : metadata) {
        detail::require_name(path, "a key of the metadata", key);
        detail::require_utf8(path, key, text);
    }
    if (!metadata.empty()) header["__metadata__"] = metadata;
    const auto order = detail::in_order(path, tensors);
    std::size_t at = 0;
    for (const named_tensor* t : order) {
        detail::require_name(path, "the name of a tensor", t->name);
        if (t->name == "__metadata__" || header.contains(t->name))
            detail::refuse_file(path, "two tensors are named \"", t->name, "\"");
        header[t->name] = {{"dtype", detail::find_safetensors_type(t->type)->name},
                           {"shape", t->shape},
                           {"data_offsets", {at, at + t->bytes}}};
        at += t->bytes;
    }
    std::string text = header.is_null() ? "{}" : header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const std::uint64_t length = text.size();

    detail::atomic_file file(path);
    file.write(std::as_bytes(std::span(&length, 1)));
    file.write(std::as_bytes(std::span(text)));
    for (const named_tensor* t : order) file.write({t->data, t->bytes});
    file.commit();
}

}  // namespace hvd::inline v0
