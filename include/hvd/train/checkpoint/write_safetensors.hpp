// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>

#include "../../core/compiled.hpp"
#include "safetensors.hpp"

namespace hvd::inline v0 {

/// Writes tensors in the safetensors format, which other tools read without hvd. The write is
/// atomic: a process that dies meanwhile, or a full disk, leaves the old file as it was. Several
/// processes may write one path: each writes a file of its own, and the last to finish replaces the
/// others'. The next writer removes the files that killed ones have left beside the path.
///
/// Each tensor lies at a multiple of its element's size, so the file can be mapped into memory:
/// tensors of the largest elements come first. The machine is little-endian.
/// @throws hvd::checkpoint_error with path and reason. It is also thrown for names and metadata
/// that are not UTF-8, names with a NUL, and if the path is not a regular file. The old file
/// remains then.
HVD_API void write_safetensors(const std::string& path, std::span<const named_tensor> tensors,
                               const checkpoint_metadata& metadata = {});

}  // namespace hvd::inline v0

#ifndef HVD_COMPILED
#include "write_safetensors_inline.hpp"
#endif
