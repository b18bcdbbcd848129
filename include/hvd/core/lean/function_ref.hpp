// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <type_traits>
#include <utility>

#include "../../standard.hpp"

namespace hvd::inline v0::detail {

template <class Signature>
class function_ref;

// A function that somebody else has, as an argument. It replaces a template parameter where the
// function is called once in a while: code that takes it is compiled once, not for each lambda.
template <class R, class... A>
class function_ref<R(A...)> {
public:
    template <class F>
        requires(!std::is_same_v<std::remove_cvref_t<F>, function_ref> &&
                 std::is_invocable_v<F&, A...>)
    function_ref(F&& f) noexcept
        : object_(const_cast<void*>(static_cast<const void*>(&f))),
          call_([](void* object, A... arguments) -> R {
              auto& function = *static_cast<std::remove_reference_t<F>*>(object);
              if constexpr (std::is_void_v<R>) static_cast<void>(function(arguments...));
              else return function(arguments...);
          }) {}

    R operator()(A... arguments) const { return call_(object_, arguments...); }

private:
    void* object_;
    R (*call_)(void*, A...);
};

}  // namespace hvd::inline v0::detail
