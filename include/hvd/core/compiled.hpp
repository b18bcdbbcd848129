// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"

// hvd has two forms. Header-only, the headers hold everything. In the compiled form, which the
// package hvd-compiled chooses with HVD_COMPILED, the same headers only declare what is no template
// of the user's types, and libhvd holds the rest. The forms differ in nothing else, so units of
// both may be linked together.
//
// Functions are declared in x.hpp and defined in x_inline.hpp, each with HVD_INLINE. The end of
// x.hpp is
//
//     #ifndef HVD_COMPILED
//     #include "x_inline.hpp"
//     #endif
//
// Constructors and destructors are never HVD_INLINE: clang emits one of their two variants alone.
// They call a function that is.
//
// Templates stay where they are; x_library.hpp lists the instantiations that libhvd holds, each
// with HVD_INSTANTIATE, and library.hpp has the lists that go with each door. They only save time:
// all others are compiled where they are used. Bodies in a class are compiled by every user in
// either form, so those of long templates stand outside it.
//
// The files of src/ are libhvd. They are compiled with HVD_BUILDS_LIBRARY, which emits all of that.
#if defined(HVD_BUILDS_LIBRARY)
#define HVD_INLINE [[gnu::used]] inline
#define HVD_INSTANTIATE template
#else
#define HVD_INLINE inline
#define HVD_INSTANTIATE extern template
#endif

// Names that libhvd holds are found by programs that are compiled with -fvisibility=hidden, too.
#if defined(HVD_COMPILED)
#define HVD_API \
    __attribute__((visibility("default")))  // clang takes no [[…]] in an explicit instantiation
#else
#define HVD_API
#endif
