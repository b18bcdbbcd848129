// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A worker of tests/data/service_processes.py.

//! [serve]
#include <hvd/data_service.hpp>

#include "service_pipeline.hpp"  // the trainer includes it as well

int main() { return hvd::data::serve(service_pipeline()); }
//! [serve]
