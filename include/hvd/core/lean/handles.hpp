// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <type_traits>
#include <utility>

namespace hvd {
inline namespace v0 {
namespace detail {

// <memory> costs every user of hvd 0.1 s of compilation, and each kind of pointer more; this is
// what is needed of it.

// Owns one object.
template <class T>
class owner {
public:
    owner() = default;
    explicit owner(T* object) noexcept : object_(object) {}
    template <class U>
        requires std::is_convertible_v<U*, T*>
    owner(owner<U>&& other) noexcept : object_(other.release()) {}
    owner(owner&& other) noexcept : object_(other.release()) {}
    owner& operator=(owner&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~owner() { delete object_; }

    template <class... A>
    static owner make(A&&... arguments) {
        return owner(new T(std::forward<A>(arguments)...));
    }

    T* get() const noexcept { return object_; }
    T* release() noexcept { return std::exchange(object_, nullptr); }
    T& operator*() const noexcept { return *object_; }
    T* operator->() const noexcept { return object_; }
    explicit operator bool() const noexcept { return object_ != nullptr; }

private:
    T* object_ = nullptr;
};

// What lives as long as a handle to it. No virtual destructor: a compiler that sees a virtual call
// optimises every function that it might reach, which took a fifth of the time of a small program.
class counted {
public:
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;

    void retain() noexcept { __atomic_add_fetch(&handles_, 1, __ATOMIC_RELAXED); }
    void release() noexcept {
        if (__atomic_sub_fetch(&handles_, 1, __ATOMIC_ACQ_REL) == 0) destroy_(this);
    }

protected:
    counted() = default;
    ~counted() = default;

private:
    template <class T>
    friend class shared;

    int handles_ = 1;
    void (*destroy_)(counted*) = nullptr;  // as what it was made
};

// One of several handles to a T, which is counted.
template <class T>
class shared {
public:
    shared() = default;
    // A further handle to an object that has one.
    explicit shared(T* object) noexcept : object_(object) {
        if (object_ != nullptr) object_->retain();
    }
    shared(const shared& other) noexcept : shared(other.object_) {}
    template <class U>
        requires std::is_convertible_v<U*, T*>
    shared(const shared<U>& other) noexcept : shared(other.get()) {}
    shared(shared&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    // Not by value: clang 16 destroys no argument that is `{}`, in a template.
    shared& operator=(shared&& other) noexcept {
        shared taken(std::move(other));
        std::swap(object_, taken.object_);
        return *this;
    }
    shared& operator=(const shared& other) noexcept { return *this = shared(other); }
    ~shared() {
        if (object_ != nullptr) object_->release();
    }

    template <class... A>
    static shared make(A&&... arguments) {
        shared made;
        made.object_ = new T(std::forward<A>(arguments)...);
        made.object_->counted::destroy_ = [](counted* object) { delete static_cast<T*>(object); };
        return made;
    }

    T* get() const noexcept { return object_; }
    T& operator*() const noexcept { return *object_; }
    T* operator->() const noexcept { return object_; }
    explicit operator bool() const noexcept { return object_ != nullptr; }

private:
    T* object_ = nullptr;
};

// A class that knows nothing of handles, counted.
template <class T>
struct counted_value final : counted {
    T value;

    template <class... A>
    explicit counted_value(A&&... arguments) : value(std::forward<A>(arguments)...) {}
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
