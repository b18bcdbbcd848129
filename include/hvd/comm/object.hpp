// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../collective/allgather.hpp"
#include "../collective/broadcast.hpp"
#include "serializer.hpp"

namespace hvd::inline v0::detail {

/// The members of a communicator that move C++ objects.
template <class Comm, class B>
class object_calls {
public:
    /// Copies the root's `object` to `object` on every rank, and returns it. Any size is allowed.
    ///
    /// **Collective**: all ranks, in the same order of calls, with one type and root.
    /// @throws as `broadcast`, hvd::mismatch_error also if the types of objects differ, and the
    /// exceptions of the serializer.
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

    /// Returns the root's `object`. On the others `object` only sets the type, and stays as it is.
    ///
    /// **Collective** and errors as `broadcast_object`, which is the same call for the peers.
    /// @snippet tests/docs/snippets.cpp copy_of_root
    template <class T>
    [[nodiscard(
        "hvd: copy_of_root() returns the root's object and leaves its argument as it is; "
        "broadcast_object() changes it")]] T
    copy_of_root(const T& object, root r = root{0}, const options& o = {}) {
        if constexpr (check_serializable<T>()) {
            const auto bytes = send_object(object, r, o);
            if (self().rank() == r.rank) return object;
            std::span<const std::byte> rest(bytes);
            return serializer<T>::read(rest);
        }
    }

    // Constants and temporaries can't take the root's object: the call would do nothing.
    template <class T, class... A>
    refused_call broadcast_object(const T&, A&&...) {
        static_assert(sizeof(T) == 0,
                      "hvd: broadcast_object changes its argument, and this one is const or a "
                      "temporary: comm.copy_of_root(object) returns the root's");
        return {};
    }

    /// Returns every rank's object, in rank order.
    ///
    /// **Collective**: all ranks, in the same order of calls, with one type.
    /// @throws as `broadcast_object`.
    /// @snippet tests/docs/snippets.cpp allgather_object
    template <class T>
    [[nodiscard("hvd: the result of the call is what it returns")]] std::vector<T> allgather_object(
        const T& object, const options& o = {}) {
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

    // The calls that move an object have the name of the user's call, unless that has one.
    static options named(const char* call, options o) {
        if (o.name.empty()) o.name = call;
        return o;
    }

    template <class T>
    std::vector<std::byte> send_object(const T& object, root r, const options& given) {
        const options o = named("broadcast_object", given);
        std::vector<std::byte> bytes;
        std::uint64_t size = 0;
        const auto view = hvd::view(&size, 1);
        broadcast_call<tensor_view<std::uint64_t>, tensor_view<std::uint64_t>> call(
            view, view, r, self().rank(), self().size(), o);
        prepare(access::session_of(self()), collective::broadcast, o,
                [&] { store_object_name(call.op.entry, object_name<T>()); });
        if (self().rank() == r.rank)
            if (const std::exception_ptr failure = write(object, bytes))
                forfeit(call.op, serializer_threw, failure);
        size = bytes.size();
        run_call(self(), call, o);
        prepare(access::session_of(self()), collective::broadcast, o,
                [&] { bytes.resize(std::size_t(size)); });
        self().broadcast(bytes, r, o);
        return bytes;
    }

    template <class T>
    gathered<std::byte> gather_object(const T& object, const options& given) {
        const options o = named("allgather_object", given);
        std::vector<std::byte> mine;
        gathered<std::byte> all;
        const std::exception_ptr failure = write(object, mine);
        gather_call<tensor_view<std::byte>, gathered<std::byte>*> gather(
            collective::allgather, hvd::view(mine.data(), mine.size()), &all, root{}, true,
            self().size(), o);
        prepare(access::session_of(self()), collective::allgather, o,
                [&] { store_object_name(gather.op.entry, object_name<T>()); });
        if (failure) forfeit(gather.op, serializer_threw, failure);
        run_call(self(), gather, o);
        return all;
    }

    static constexpr const char* serializer_threw = "an object's serializer threw: ";

    template <class T>
    static std::exception_ptr write(const T& object, std::vector<std::byte>& bytes) {
        try {
            serializer<T>::write(bytes, object);
            return nullptr;
        } catch (...) {
            bytes.clear();
            return std::current_exception();
        }
    }
};

}  // namespace hvd::inline v0::detail
