// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../collective/broadcast.hpp"
#include "../collective/gather.hpp"
#include "../collective/scatter.hpp"
#include "serializer.hpp"

namespace hvd::inline v0::detail {

// The calls that move objects. The bytes of a call are in its base, which is made first.

constexpr const char* serializer_threw = "an object's serializer threw: ";

// Appends the object. After an exception no bytes are left.
template <class T>
std::exception_ptr write_object(const T& object, std::vector<std::byte>& bytes) {
    try {
        serializer<T>::write(bytes, object);
        return nullptr;
    } catch (...) {
        bytes.clear();
        return std::current_exception();
    }
}

template <class T>
T read_object(std::span<const std::byte> bytes) {
    return serializer<T>::read(bytes);
}

// ---- allgather and gather -----------------------------------------------------------------------

struct bytes_of_all {
    std::vector<std::byte> mine;
    std::exception_ptr failure;  // of the serializer
    gathered<std::byte> all;

    template <class T>
    explicit bytes_of_all(const T& object) : failure(write_object(object, mine)) {}
};

// Every rank's object, or none where nothing comes. (T is a name in the base.)
template <class Object>
struct gather_objects_call : bytes_of_all,
                             gather_call<tensor_view<std::byte>, gathered<std::byte>*> {
    using value_type = std::vector<Object>;
    using moved = gather_call<tensor_view<std::byte>, gathered<std::byte>*>;

    gather_objects_call(collective kind, const Object& object, root r, int rank, int size,
                        const options& o)
        : bytes_of_all(object),
          moved(kind, hvd::view(mine.data(), mine.size()), &all, r,
                kind == collective::allgather || rank == r.rank, size, o) {
        store_object_name(op.entry, object_name<Object>());
        if (failure) forfeit(op, serializer_threw, failure);
    }

    value_type read() const {
        value_type objects;
        for (std::size_t p = 0; p < all.counts.size(); ++p)
            objects.push_back(read_object<Object>(all[p]));
        return objects;
    }
};

// ---- scatter ------------------------------------------------------------------------------------

struct dealt_bytes {
    std::vector<std::byte> all, mine;
    std::vector<std::size_t> counts;
    std::exception_ptr failure;  // of the serializer

    template <class T>
    dealt_bytes(const std::vector<T>& objects, bool sends, int size) : counts(std::size_t(size)) {
        if (!sends || objects.size() != counts.size()) return;
        for (std::size_t p = 0; !failure && p < counts.size(); ++p) {
            const std::size_t before = all.size();
            failure = write_object<T>(objects[p], all);
            counts[p] = all.size() - before;
        }
        if (failure) counts.assign(counts.size(), 0);
    }
};

// Each rank's object of the root's list.
template <class Object>
struct scatter_objects_call : dealt_bytes,
                              scatter_call<tensor_view<std::byte>, std::vector<std::byte>*> {
    using value_type = Object;
    using moved = scatter_call<tensor_view<std::byte>, std::vector<std::byte>*>;

    scatter_objects_call(const std::vector<Object>& objects, root r, int rank, int size,
                         const options& o)
        : dealt_bytes(objects, rank == r.rank, size),
          moved(hvd::view(all.data(), all.size()), given_counts(dealt_bytes::counts), &mine, r,
                rank, size, nullptr, o) {
        store_object_name(op.entry, object_name<Object>());
        if (rank == r.rank && objects.size() != std::size_t(size))
            refuse(text("hvd: scatter_object on rank ", rank, ": ", objects.size(), " objects for ",
                        size, " ranks"));
        if (failure) forfeit(op, serializer_threw, failure);
    }

    Object read() const { return read_object<Object>(mine); }
};

// An asynchronous call. Its value is read of the bytes on the thread that completes the call.
template <class Call>
struct kept_objects : Call {
    using value_type = typename Call::value_type;
    value_type& value;

    template <class... A>
    explicit kept_objects(value_type& to, A&&... arguments)
        : Call(std::forward<A>(arguments)...), value(to) {
        this->op.pack = [](void*, operation&) {};  // only a call that packs unpacks
        this->op.unpack = [](void* self, operation&) {
            auto& that = static_cast<kept_objects&>(*static_cast<typename Call::moved*>(self));
            that.value = that.read();
        };
    }
};

// ---- broadcast ----------------------------------------------------------------------------------

struct sized_bytes {
    std::vector<std::byte> bytes;
    std::uint64_t size = 0;
    std::exception_ptr failure;  // of the serializer, or of the memory
};

// The first of the two calls: the others learn the size.
template <class T>
struct object_size_call : sized_bytes,
                          broadcast_call<tensor_view<std::uint64_t>, tensor_view<std::uint64_t>> {
    object_size_call(const T& object, root r, int rank, int ranks, const options& o)
        : object_size_call::broadcast_call(hvd::view(&this->size, 1), hvd::view(&this->size, 1), r,
                                           rank, ranks, o) {
        store_object_name(op.entry, object_name<T>());
        if (is_root) failure = write_object(object, bytes);
        if (failure) forfeit(op, serializer_threw, failure);
        size = bytes.size();
    }
};

// The second call, which brings the bytes. It is in the queue behind the first, and takes the size
// from it in its turn. If the first fails, on all ranks then, the second is not made.
template <class T>
struct queued_object : queued {
    shared<queued_call<object_size_call<T>>> first;
    T& object;
    broadcast_call<tensor_view<std::byte>, tensor_view<std::byte>> call;

    queued_object(T& to, root r, int rank, int ranks, const options& o)
        : object(to), call(tensor_view<std::byte>(), tensor_view<std::byte>(), r, rank, ranks, o) {
        const auto make = [&] { return object_size_call<T>(to, r, rank, ranks, o); };
        first = decltype(first)::make(make);
        op = &call.op;
        at_turn = [](queued& self) { static_cast<queued_object&>(self).take_size(); };
        op->self = this;
        op->pack = [](void*, operation&) {};  // only a call that packs unpacks
        op->unpack = [](void* self, operation&) {
            auto& that = *static_cast<queued_object*>(self);
            if (!that.call.is_root) that.object = read_object<T>(that.first->call.bytes);
        };
    }

private:
    void take_size() {
        if (const std::exception_ptr failure = first->take_failure())
            std::rethrow_exception(failure);
        sized_bytes& sent = first->call;
        try {
            sent.bytes.resize(std::size_t(sent.size));
        } catch (...) {
            sent.failure = std::current_exception();
            return forfeit(*op, "it could not begin: ", sent.failure);
        }
        call.describe(hvd::view(sent.bytes.data(), sent.bytes.size()));
        op->in = op->out = sent.bytes.data();
    }
};

}  // namespace hvd::inline v0::detail
