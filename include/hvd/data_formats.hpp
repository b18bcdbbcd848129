// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to sources of samples in files: IDX, tokens, lines of text, folders and tar archives.
// That of safetensors is hvd/interop/safetensors.hpp.
#include "data.hpp"

#include "data/formats/folder.hpp"
#include "data/formats/idx.hpp"
#include "data/formats/tar.hpp"
#include "data/formats/text_lines.hpp"
#include "data/formats/tokens.hpp"
