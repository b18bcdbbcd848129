// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to data: sources, pipelines and loaders. It needs no backend. Sources in files
// are in data_formats.hpp.
#include "standard.hpp"  // first: an older standard is told at once

#include "data/batch.hpp"
#include "data/into.hpp"
#include "data/loader.hpp"
#include "data/part.hpp"
#include "data/permutation.hpp"
#include "data/source.hpp"
#include "data/stages.hpp"
