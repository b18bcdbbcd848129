// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace fashion_mnist {

/// Options of the command line.
struct options {
    std::string model = "mlp";
    int epochs = 12;
    std::size_t batch = 64;        // of one rank
    std::size_t global_batch = 0;  // of all ranks together; 0: batch × ranks
    double rate = 0.005;
    double momentum = 0.9;
    int decay_after = 0;         // number of epochs after which the rate is a tenth; 0: never
    double clip = 0;             // largest norm of all gradients together; 0: any
    std::string codec = "none";  // the type in which gradients travel
    bool float16 = false;        // parameters of 16 bits with masters in float
    bool fixed_rate = false;     // do not multiply the rate by the number of ranks
    std::uint64_t seed = 1;
    std::filesystem::path data = "/usr/share/datasets/fashion-mnist";
    std::size_t limit = 0;               // number of training images; 0: all
    bool augment = false;                // images are moved and mirrored at random
    std::filesystem::path data_service;  // the config file of workers that do it
    bool serves = false;                 // this process is such a worker
    int threads = 0;             // number of ranks as threads of this process; 0: the MPI world
    bool elastic = false;        // ranks are processes of hvdrun, which come and go
    std::filesystem::path keep;  // the directory for the state of an elastic job
    std::filesystem::path checkpoint;
    std::filesystem::path resume;
    bool progress = false;
    bool log = false;
    bool scaling = false;

    std::size_t batch_of(int ranks) const {
        return global_batch ? global_batch : batch * static_cast<std::size_t>(ranks);
    }

    /// The number of ranks for which the rate is scaled.
    int scaled_ranks(int ranks) const { return fixed_rate || global_batch ? 1 : ranks; }
};

}  // namespace fashion_mnist
