// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "error.hpp"

namespace hvd::inline v0 {

/// A call of the CUDA runtime failed. Where no GPU or driver can be used, the text says so.
class cuda_error : public library_error {
public:
    using library_error::library_error;
};

/// A call of NCCL failed. After every error but ncclInvalidArgument (4) the communicator refuses
/// further calls.
class nccl_error : public library_error {
public:
    using library_error::library_error;
};

}  // namespace hvd::inline v0
