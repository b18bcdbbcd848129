// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The linker has taken the kernels of nvcc out of a static library, and they are registered.
#include <hvd/kernel/cuda/registry.hpp>

int main() {
    const auto& k = hvd::detail::kernels;
    return k.tiles != nullptr && k.update != nullptr ? 0 : 1;
}
