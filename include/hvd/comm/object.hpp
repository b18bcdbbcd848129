// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../collective/allgather.hpp"
#include "../collective/broadcast.hpp"
#include "../collective/scatter.hpp"
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
        if constexpr (check_serializable<T>())
            return collect(collective::allgather, object, root{}, named("allgather_object", o));
        else return {};
    }

    /// Returns every rank's object on the root, in rank order, and nothing on the others.
    ///
    /// **Collective**: all ranks, in the same order of calls, with one type and root.
    /// @throws as `broadcast_object`.
    /// @snippet tests/docs/snippets.cpp gather_object
    template <class T>
    [[nodiscard("hvd: the result of the call is what it returns")]] std::vector<T> gather_object(
        const T& object, root r = root{0}, const options& o = {}) {
        if constexpr (check_serializable<T>())
            return collect(collective::gather, object, r, named("gather_object", o));
        else return {};
    }

    /// Returns object number r of the root's list on rank r. The root gives one for each rank; the
    /// others' lists only set the type.
    ///
    /// **Collective**: all ranks, in the same order of calls, with one type and root.
    /// @throws as `broadcast_object`; hvd::usage_error if the root's list has another length.
    /// @snippet tests/docs/snippets.cpp scatter_object
    template <class T>
    [[nodiscard("hvd: the result of the call is what it returns")]] T scatter_object(
        const std::vector<T>& objects, root r = root{0}, const options& o = {}) {
        if constexpr (check_serializable<T>()) {
            const auto mine = deal(objects, r, named("scatter_object", o));
            std::span<const std::byte> bytes(mine);
            return serializer<T>::read(bytes);
        }
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

    // Allgather and gather: every rank's object, or none where nothing comes.
    template <class T>
    std::vector<T> collect(collective kind, const T& object, root r, const options& o) {
        const bool receives = kind == collective::allgather || self().rank() == r.rank;
        std::vector<std::byte> mine;
        gathered<std::byte> all;
        const std::exception_ptr failure = write(object, mine);
        gather_call<tensor_view<std::byte>, gathered<std::byte>*> gather(
            kind, hvd::view(mine.data(), mine.size()), &all, r, receives, self().size(), o);
        prepare(access::session_of(self()), kind, o,
                [&] { store_object_name(gather.op.entry, object_name<T>()); });
        if (failure) forfeit(gather.op, serializer_threw, failure);
        run_call(self(), gather, o);
        std::vector<T> result;
        for (std::size_t p = 0; p < all.counts.size(); ++p) {
            std::span<const std::byte> bytes = all[p];
            result.push_back(serializer<T>::read(bytes));
        }
        return result;
    }

    // Returns the bytes of this rank's object.
    template <class T>
    std::vector<std::byte> deal(const std::vector<T>& objects, root r, const options& o) {
        const bool sends = self().rank() == r.rank;
        std::vector<std::byte> all, mine;
        std::vector<std::size_t> counts(std::size_t(self().size()));
        std::exception_ptr failure;
        const bool is_one_each = objects.size() == counts.size();
        for (std::size_t p = 0; sends && is_one_each && !failure && p < counts.size(); ++p) {
            const std::size_t before = all.size();
            failure = write<T>(objects[p], all);
            counts[p] = failure ? 0 : all.size() - before;
        }
        if (failure) counts.assign(counts.size(), 0);
        auto call = prepare(access::session_of(self()), collective::scatter, o, [&] {
            return scatter_call<tensor_view<std::byte>, std::vector<std::byte>*>(
                hvd::view(all.data(), all.size()), given_counts(counts), &mine, r, self().rank(),
                self().size(), nullptr, o);
        });
        prepare(access::session_of(self()), collective::scatter, o,
                [&] { store_object_name(call.op.entry, object_name<T>()); });
        if (sends && !is_one_each)
            call.refuse(text("hvd: scatter_object on rank ", r.rank, ": ", objects.size(),
                             " objects for ", self().size(), " ranks"));
        if (failure) forfeit(call.op, serializer_threw, failure);
        run_call(self(), call, o);
        return mine;
    }

    static constexpr const char* serializer_threw = "an object's serializer threw: ";

    // Appends the object. After an exception no bytes are left.
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
