// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/compiled.hpp"
#include "cast.hpp"

// The casts that libhvd holds: those of the codecs.
namespace hvd::inline v0::detail {

HVD_INSTANTIATE HVD_API void cast_elements_at<float, float16>(simd_level, const cast_args&);
HVD_INSTANTIATE HVD_API void cast_elements_at<float16, float>(simd_level, const cast_args&);
HVD_INSTANTIATE HVD_API void cast_elements_at<float, bfloat16>(simd_level, const cast_args&);
HVD_INSTANTIATE HVD_API void cast_elements_at<bfloat16, float>(simd_level, const cast_args&);

}  // namespace hvd::inline v0::detail
