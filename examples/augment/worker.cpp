// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Makes batches for train.cpp: hvdrun -np 3 hvd-compute compute.json -- augment_worker
#include <hvd/data_service.hpp>

#include "pipeline.hpp"

int main() { return hvd::data::serve(augment::pipeline()); }
