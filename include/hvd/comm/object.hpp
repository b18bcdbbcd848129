// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../collective/allgather.hpp"
#include "object_call.hpp"

namespace hvd::inline v0::detail {

// True for an argument, passed on as T&&, that is a constant or a temporary.
template <class T>
constexpr bool is_unchanging =
    !std::is_lvalue_reference_v<T> || std::is_const_v<std::remove_reference_t<T>>;

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
            if (const auto bytes = send_object(object, r, o); self().rank() != r.rank)
                object = read_object<T>(bytes);
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
            return read_object<T>(bytes);
        }
    }

    /// Begins a `broadcast_object`: `object` is the root's when the request is complete.
    ///
    /// **Collective**: as `broadcast_object`, which is the same call for the peers.
    /// **Buffers**: the root's object is serialised before the function returns. The others'
    /// objects stay untouched until the request is complete.
    /// **Threads**: the serializer reads on the thread that completes the call, as a callback of
    /// `request::then` runs, and makes no calls on the communicator.
    /// @throws from `wait()` as `broadcast_object`.
    /// @snippet tests/docs/snippets.cpp broadcast_object_async
    template <class T>
    request broadcast_object_async(T& object, root r = root{0}, const options& given = {})
        requires(!std::is_const_v<T>)
    {
        if constexpr (check_serializable<T>()) {
            const options o = named("broadcast_object", given);
            session& own = access::session_of(self());
            const auto held = access::hold(self(), collective::broadcast);
            const auto call = prepare(own, collective::broadcast, o, [&] {
                progress::of(own);
                return shared<queued_object<T>>::make(object, r, own.rank(), own.size(), o);
            });
            progress::submit(own, call->first, o.timeout);
            progress::submit(own, call, o.timeout);
            return request(call);
        }
        return {};
    }

    // Constants and temporaries can't take the root's object: the call would do nothing.
    template <class T, class... A>
    refused_call broadcast_object(T&&, A&&...)
        requires(is_unchanging<T>)
    {
        static_assert(sizeof(T) == 0,
                      "hvd: broadcast_object changes its argument, and this one is const or a "
                      "temporary: comm.copy_of_root(object) returns the root's");
        return {};
    }

    template <class T, class... A>
    refused_call broadcast_object_async(T&&, A&&...)
        requires(is_unchanging<T>)
    {
        static_assert(sizeof(T) == 0,
                      "hvd: broadcast_object_async changes its argument, and this one is const or "
                      "a temporary");
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

    /// Begins an `allgather_object`, whose result is the vector.
    ///
    /// **Collective**: as `allgather_object`, which is the same call for the peers.
    /// **Buffers**: the object is serialised before the function returns.
    /// **Threads**: as `broadcast_object_async`.
    /// @throws from `wait()` as `allgather_object`.
    /// @snippet tests/docs/snippets.cpp allgather_object_async
    template <class T>
    result<std::vector<T>> allgather_object_async(const T& object, const options& o = {}) {
        if constexpr (check_serializable<T>())
            return begin_collecting(collective::allgather, object, root{},
                                    named("allgather_object", o));
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

    /// Begins a `gather_object`, as `allgather_object_async` begins its call.
    template <class T>
    result<std::vector<T>> gather_object_async(const T& object, root r = root{0},
                                               const options& o = {}) {
        if constexpr (check_serializable<T>())
            return begin_collecting(collective::gather, object, r, named("gather_object", o));
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
        const std::vector<T>& objects, root r = root{0}, const options& given = {}) {
        if constexpr (check_serializable<T>()) {
            const options o = named("scatter_object", given);
            session& own = access::session_of(self());
            auto call = prepare(own, collective::scatter, o, [&] {
                return scatter_objects_call<T>(objects, r, own.rank(), own.size(), o);
            });
            run_call(self(), call, o);
            return call.read();
        }
    }

    /// Begins a `scatter_object`, as `allgather_object_async` begins its call. T has a default
    /// constructor.
    template <class T>
    result<T> scatter_object_async(const std::vector<T>& objects, root r = root{0},
                                   const options& given = {}) {
        static_assert(std::is_default_constructible_v<T>,
                      "hvd: scatter_object_async needs a type with a default constructor; "
                      "scatter_object does not");
        if constexpr (check_serializable<T>() && std::is_default_constructible_v<T>) {
            const options o = named("scatter_object", given);
            session& own = access::session_of(self());
            return start_call_for<T>(self(), collective::scatter, o, [&](T& value) {
                return kept_objects<scatter_objects_call<T>>(value, objects, r, own.rank(),
                                                             own.size(), o);
            });
        } else {
            return {};
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
        options o = named("broadcast_object", given);
        o.confirm = true;  // all ranks have the object, or none
        session& own = access::session_of(self());
        auto call = prepare(own, collective::broadcast, o, [&] {
            return object_size_call<T>(object, r, own.rank(), own.size(), o);
        });
        run_call(self(), call, o);
        prepare(own, collective::broadcast, o, [&] { call.bytes.resize(std::size_t(call.size)); });
        self().broadcast(call.bytes, r, o);
        return std::move(call.bytes);
    }

    template <class T>
    std::vector<T> collect(collective kind, const T& object, root r, const options& o) {
        session& own = access::session_of(self());
        auto call = prepare(own, kind, o, [&] {
            return gather_objects_call<T>(kind, object, r, own.rank(), own.size(), o);
        });
        run_call(self(), call, o);
        return call.read();
    }

    template <class T>
    result<std::vector<T>> begin_collecting(collective kind, const T& object, root r,
                                            const options& o) {
        session& own = access::session_of(self());
        return start_call_for<std::vector<T>>(self(), kind, o, [&](std::vector<T>& value) {
            return kept_objects<gather_objects_call<T>>(value, kind, object, r, own.rank(),
                                                        own.size(), o);
        });
    }
};

}  // namespace hvd::inline v0::detail
