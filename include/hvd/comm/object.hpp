// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../collective/allgather.hpp"
#include "../collective/broadcast.hpp"
#include "serializer.hpp"

namespace hvd {
inline namespace v0 {

namespace detail {

/// The members of a communicator that move C++ objects.
template <class Comm, class B>
class object_calls {
public:
    /// Copies the root's `object` to `object` on every rank, and returns it. Any size is allowed.
    ///
    /// **Collective**: all ranks, in the same order of calls, with one type and root.
    /// @throws as `broadcast`, hvd::mismatch_error also if the types of objects differ, and the
    /// exceptions of the serializer. Feature B19.
    /// @snippet tests/docs/snippets.cpp broadcast_object
    template <class T>
    T& broadcast_object(T& object, root r = root{0}, const options& o = {})
        requires(!std::is_const_v<T>)
    {
        if constexpr (check_serializable<T>()) {
            if (const auto bytes = send_object(object, r, o); self().rank() != r.rank) {
                std::span<const std::byte> rest(bytes);
                object = serializer<T>::read(rest);
            }
        }
        return object;
    }

    /// Returns the root's `object`. On the others `object` only sets the type.
    template <class T>
    T broadcast_object(const T& object, root r = root{0}, const options& o = {}) {
        if constexpr (check_serializable<T>()) {
            const auto bytes = send_object(object, r, o);
            if (self().rank() == r.rank) return object;
            std::span<const std::byte> rest(bytes);
            return serializer<T>::read(rest);
        }
    }

    /// Returns every rank's object, in rank order.
    ///
    /// **Collective**: all ranks, in the same order of calls, with one type.
    /// @throws as `broadcast_object`. Feature B19.
    /// @snippet tests/docs/snippets.cpp allgather_object
    template <class T>
    std::vector<T> allgather_object(const T& object, const options& o = {}) {
        std::vector<T> result;
        if constexpr (check_serializable<T>()) {
            const gathered<std::byte> all = gather_object(object, o);
            for (int p = 0; p < self().size(); ++p) {
                const std::size_t i = std::size_t(p);
                std::span<const std::byte> bytes(all.values.data() + all.displacements[i],
                                                 all.counts[i]);
                result.push_back(serializer<T>::read(bytes));
            }
        }
        return result;
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }

    template <class T>
    static std::vector<std::byte> written(const T& object) {
        std::vector<std::byte> buffer;
        serializer<T>::write(buffer, object);
        return buffer;
    }

    template <class T>
    std::vector<std::byte> send_object(const T& object, root r, const options& o) {
        std::vector<std::byte> bytes;
        std::exception_ptr failure;
        std::uint64_t size = 0;
        const auto view = hvd::view(&size, 1);
        broadcast_call<tensor_view<std::uint64_t>, tensor_view<std::uint64_t>> call(
            view, view, r, self().rank(), self().size(), o);
        store_object_name(call.op.entry, object_name<T>());
        if (self().rank() == r.rank) failure = write_or_refuse(object, bytes, call);
        size = bytes.size();
        try {
            run_call(self(), call, o);
        } catch (const usage_error&) {
            if (failure) std::rethrow_exception(failure);  // the peers have its text
            throw;
        }
        try {
            bytes.resize(std::size_t(size));
        } catch (...) {
            refuse_object(size, o);
            throw;
        }
        self().broadcast(bytes, r, o);
        return bytes;
    }

    // Refuses the broadcast that the peers make.
    void refuse_object(std::uint64_t size, const options& o) {
        call refused;
        refused.describe(collective::broadcast, o.name);
        refused.refuse(text("hvd: ", refused.op.entry.label(), ": no memory for an object of ",
                            size, " bytes"));
        try {
            run_call(self(), refused, o);
        } catch (const error&) {  // this rank throws its own reason
        }
    }

    template <class T>
    gathered<std::byte> gather_object(const T& object, const options& o) {
        std::vector<std::byte> mine;
        gathered<std::byte> all;
        call announcement;
        const std::exception_ptr failure = write_or_refuse(object, mine, announcement);
        gather_call<tensor_view<std::byte>, gathered<std::byte>*> gather(
            collective::allgather, hvd::view(mine.data(), mine.size()), &all, root{}, true,
            self().size(), o);
        store_object_name(gather.op.entry, object_name<T>());
        if (failure) gather.refuse(announcement.op.entry.text);
        try {
            run_call(self(), gather, o);
        } catch (const usage_error&) {
            if (failure) std::rethrow_exception(failure);
            throw;
        }
        return all;
    }

    template <class T>
    static std::exception_ptr write_or_refuse(const T& object, std::vector<std::byte>& bytes,
                                              call& announcement) {
        try {
            bytes = written(object);
        } catch (...) {
            const std::exception_ptr failure = std::current_exception();
            announcement.refuse(text("hvd: an object's serializer threw: ", what_of(failure)));
            return failure;
        }
        return nullptr;
    }
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
