// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// This header is precompiled for the files of torch_mnist. Each file still includes the headers
// that it uses.
#include "../with_hvd.hpp"
