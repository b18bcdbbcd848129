// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// All kernels of hvd. A program that wants them compiles one .cu file that includes this.
#include "feedback.cuh"
#include "pack.cuh"
#include "update.cuh"
