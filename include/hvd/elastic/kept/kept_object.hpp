// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../train/wrappers/grouped.hpp"
#include "kept_file.hpp"

namespace hvd::inline v0::detail {

// Writes the copy of an object that an elastic state has, and reads it: to a file, or to the bytes
// that another rank keeps. Copies of types that are not named here need a `serializer`.
template <class Copy>
struct kept_object {
    static_assert(check_serializable<Copy>());
    template <class Writer>
    static void write(Writer& to, const Copy& copy) {
        std::vector<std::byte> bytes;
        serializer<Copy>::write(bytes, copy);
        to.put_number(std::uint64_t(bytes.size()));
        to.put(bytes.data(), bytes.size());
    }
    template <class Reader>
    static void read(Reader& from, Copy& copy) {
        std::vector<std::byte> bytes(from.take_count(1));
        from.take(bytes.data(), bytes.size());
        std::span<const std::byte> rest(bytes);
        copy = serializer<Copy>::read(rest);
        if (!rest.empty()) from.refuse("has an object with ", rest.size(), " bytes too many");
    }
};

template <transportable T>
struct kept_object<std::vector<T>> {
    template <class Writer>
    static void write(Writer& to, const std::vector<T>& copy) {
        to.put_number(std::uint64_t(copy.size()));
        to.put(copy.data(), copy.size() * sizeof(T));
    }
    template <class Reader>
    static void read(Reader& from, std::vector<T>& copy) {
        copy.resize(from.take_size(sizeof(T), copy));
        from.take(copy.data(), copy.size() * sizeof(T));
    }
};

template <transportable T>
struct kept_object<std::vector<std::vector<T>>> {
    using tensors = std::vector<std::vector<T>>;
    template <class Writer>
    static void write(Writer& to, const tensors& copy) {
        to.put_number(std::uint64_t(copy.size()));
        for (const std::vector<T>& t : copy) kept_object<std::vector<T>>::write(to, t);
    }
    template <class Reader>
    static void read(Reader& from, tensors& copy) {
        copy.resize(from.take_size(sizeof(std::uint64_t), copy));
        for (std::vector<T>& t : copy) kept_object<std::vector<T>>::read(from, t);
    }
};

template <class Writer, class O>
void write_kept_optimizer(Writer& to, const O& copy) {
    auto& optimizer = const_cast<O&>(copy);  // for_each_slot is for changes, too
    optimizer.for_each_number([&](const char*, auto& number) { to.put_number(number); });
    optimizer.for_each_slot([&](const char*, auto& slots) {
        to.put_number(std::uint64_t(slots.size()));
        for (auto& slot : slots) {
            to.put_number(std::uint64_t(slot.size()));
            to.put(slot.data(), std::size_t(slot.size()) * sizeof *slot.data());
        }
    });
}
template <class Reader, class O>
void read_kept_optimizer(Reader& from, O& copy) {
    copy.for_each_number([&](const char*, auto& number) { from.take(&number, sizeof number); });
    copy.for_each_slot([&](const char*, auto& slots) {
        slots.resize(from.take_size(sizeof(std::uint64_t), slots));
        for (auto& slot : slots) {
            slot.resize(from.take_size(sizeof *slot.data(), slot));
            from.take(slot.data(), std::size_t(slot.size()) * sizeof *slot.data());
        }
    });
}

template <optimizer_with_state O>
struct kept_object<O> {
    template <class Writer>
    static void write(Writer& to, const O& copy) {
        write_kept_optimizer(to, copy);
    }
    template <class Reader>
    static void read(Reader& from, O& copy) {
        read_kept_optimizer(from, copy);
    }
};

template <optimizer_with_state O>
    requires has_groups<O>
struct kept_object<O> {
    using grouped = O;
    using members = kept_object<std::vector<std::vector<std::size_t>>>;
    template <class Writer>
    static void write(Writer& to, const grouped& copy) {
        members::write(to, copy.members);
        write_kept_optimizer(to, copy);
    }
    template <class Reader>
    static void read(Reader& from, grouped& copy) {
        members::read(from, copy.members);
        copy.more.resize(copy.members.size());
        read_kept_optimizer(from, copy);
    }
};

// An object has its type before it.
template <class Copy>
void write_kept_object(kept_writer& to, const Copy& copy) {
    const message name = object_name<Copy>();
    const std::string_view type = name;
    to.put_number(std::uint64_t(type.size()));
    to.put(type.data(), type.size());
    kept_object<Copy>::write(to, copy);
}
template <class Copy>
void read_kept_object(kept_reader& from, Copy& copy) {
    const std::size_t number = from.next_object();
    std::string type(from.take_count(1), ' ');
    from.take(type.data(), type.size());
    if (const message mine = object_name<Copy>(); type != std::string_view(mine))
        from.refuse("has another state: its object ", number, " is of ", type,
                    ", and that of this program of ", mine);
    kept_object<Copy>::read(from, copy);
}

}  // namespace hvd::inline v0::detail
