// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>

#include "../../protocol/agreement.hpp"
#include "contents.hpp"

namespace hvd::inline v0::detail {

// Local parameters differ between ranks. Their values and slots travel between their rank and the
// one with the file as bytes: for each tensor a byte that says if it is there, then its data. All
// ranks have registered the same names and shapes, so both sides know what comes next.

inline std::string local_name(int rank, const std::string& name) {
    return "local." + digits_of(std::uint64_t(rank)) + "." + name;
}

template <class Trained>
bool has_local(const Trained& optimizer) {
    bool any = false;
    for_each_with_slots(optimizer, [&](auto&&...) { any = true; }, held_by::one);
    return any;
}

// Calls f(tensor, place) for the values and slots of the local parameters. A tensor that is not
// there has null data. `place(exists)` makes or removes it, and returns its memory.
template <class Trained, class F>
void for_each_local(Trained& optimizer, F f) {
    std::size_t i = 0;
    optimizer.for_each_parameter([&](const std::string& name, auto value, const auto& shape) {
        const std::size_t n = value.size(), at = i++;
        if (!optimizer.is_local(at)) return;
        named_tensor values = named("model." + name, value);
        values.shape = shape;
        f(values, [&](bool) { return values.data; });
        optimizer.optimizer().for_each_slot([&]<class S>(const char* slot, S& slots) {
            using U = typename S::value_type::value_type;
            const std::size_t count = numbers_in(slots, n);
            const bool exists = at < slots.size() && slots[at].size() > 0;
            const auto bytes_of = [&] { return reinterpret_cast<std::byte*>(slots[at].data()); };
            f({slot_name(slot, name),
               dtype_traits<U>::id,
               {count},
               exists ? bytes_of() : nullptr,
               count * sizeof(U)},
              [&](bool wanted) {
                  if (slots.size() <= at) slots.resize(at + 1);
                  slots[at].resize(wanted ? count : 0);
                  return bytes_of();
              });
        });
    });
}

// The local tensors of this rank.
template <class Trained>
std::vector<std::byte> packed_local(const std::string& path, Trained& optimizer) {
    std::vector<named_tensor> checked;
    add_slots(path, optimizer, checked, held_by::one);
    std::vector<std::byte> bytes;
    for_each_local(optimizer, [&](const named_tensor& t, auto) {
        const bool exists = t.data != nullptr || t.bytes == 0;
        bytes.push_back(std::byte(exists));
        if (exists) bytes.insert(bytes.end(), t.data, t.data + t.bytes);
    });
    return bytes;
}

// Appends the tensors that a rank has packed, in its memory.
template <class Trained>
void add_local(Trained& optimizer, int rank, std::byte* packed,
               std::vector<named_tensor>& tensors) {
    for_each_local(optimizer, [&](named_tensor t, auto) {
        if (*packed++ == std::byte(0)) return;
        t.name = local_name(rank, t.name);
        t.data = packed;
        packed += t.bytes;
        tensors.push_back(std::move(t));
    });
}

// Reads a rank's tensors from the file, packed. It adds their names to those that are known.
template <class Trained>
std::vector<std::byte> read_local(const safetensors_file& file, Trained& optimizer, int rank,
                                  std::set<std::string>& known) {
    require_whole_slots(
        file.path(), optimizer,
        [&](const auto&, std::size_t, const std::string& key) {
            return file.tensors().contains(local_name(rank, key));
        },
        [](const auto&, const char*) { return false; }, held_by::one);
    std::vector<std::byte> bytes;
    for_each_local(optimizer, [&](named_tensor t, auto) {
        const bool is_slot = t.name.starts_with("optimizer.");
        t.name = local_name(rank, t.name);
        known.insert(t.name);
        const bool exists = !is_slot || file.tensors().contains(t.name);
        bytes.push_back(std::byte(exists));
        if (!exists) return;
        file.require(t);
        bytes.resize(bytes.size() + t.bytes);
        t.data = bytes.data() + bytes.size() - t.bytes;
        file.read(t);
    });
    return bytes;
}

template <class Trained>
void unpack_local(Trained& optimizer, const std::byte* packed) {
    for_each_local(optimizer, [&](const named_tensor& t, auto place) {
        const bool exists = *packed++ != std::byte(0);
        std::byte* const to = place(exists);
        if (!exists || t.bytes == 0) return;
        std::memcpy(to, packed, t.bytes);
        packed += t.bytes;
    });
}

// Reads the tensors of all ranks, one after the other, and the bytes of each.
template <class Trained>
std::vector<std::byte> read_local_of_all(const safetensors_file& file, Trained& optimizer,
                                         std::vector<std::size_t>& counts,
                                         std::set<std::string>& known) {
    std::vector<std::byte> all;
    const auto ranks = file.metadata().find(ranks_key);
    if (ranks == file.metadata().end()) return all;
    if (ranks->second != digits_of(std::uint64_t(counts.size())))
        refuse_file(file.path(), "has local parameters of ", ranks->second, " ranks, and ",
                    counts.size(), " load it: with .local = false they stay as they are");
    for (std::size_t r = 0; r < counts.size(); ++r) {
        const auto of_rank = read_local(file, optimizer, int(r), known);
        counts[r] = of_rank.size();
        all.insert(all.end(), of_rank.begin(), of_rank.end());
    }
    return all;
}

}  // namespace hvd::inline v0::detail
