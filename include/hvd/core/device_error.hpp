// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <source_location>

#include "error.hpp"

namespace hvd::inline v0 {

/// A call of a device library failed: `cuda_error` and `nccl_error` say which.
class device_error : public error {
public:
    device_error(int rank, const char* api, int code, std::string_view text,
                 std::source_location where)
        : error(rank, detail::text("hvd: ", api, " failed on rank ", rank, " with code ", code,
                                   ": ", text, " (", where.file_name(), ":", where.line(), ")")),
          api_(api),
          code_(code),
          where_(where) {}

    /// The function that failed: "cudaMemcpyAsync".
    const char* api() const noexcept { return api_; }
    /// The code that the function returned.
    int code() const noexcept { return code_; }
    /// The place where hvd called it.
    const std::source_location& where() const noexcept { return where_; }

private:
    const char* api_;
    int code_;
    std::source_location where_;
};

/// A call of the CUDA runtime failed. Where no GPU or driver can be used, the text says so.
class cuda_error : public device_error {
public:
    using device_error::device_error;
};

/// A call of NCCL failed. After every error but ncclInvalidArgument (4) the communicator refuses
/// further calls.
class nccl_error : public device_error {
public:
    using device_error::device_error;
};

}  // namespace hvd::inline v0
