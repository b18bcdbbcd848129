// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Checks of device tensors between processes, over MPI and over TCP. The tensors are in memory that
// both sides see, so that an MPI may be given them.

#include <doctest/doctest.h>

#include <vector>

#include <hvd/cuda.hpp>
#include "tensor.hpp"

namespace device_test {

// Every collective with small tensors, and with one of several chunks.
template <class Gpus>
void check_everything(Gpus& gpus) {
    const int n = gpus.size(), r = gpus.rank(), last = n - 1;
    const std::size_t ranks = std::size_t(n), count = (std::size_t(5) << 20) / 4 + 3;
    const tensor<float> x(std::vector<float>(count, float(r + 1)), true),
        y(std::vector<float>(count, float(r)), true);
    gpus.allreduce(x.view(), hvd::average);
    CHECK(x.values() == std::vector<float>(count, float(n + 1) / 2));
    gpus.broadcast(y.view(), hvd::root{last});
    CHECK(y.values() == std::vector<float>(count, float(last)));

    const tensor<short> mine({short(r), short(10 * r)}, true),
        all(std::vector<short>(2 * ranks, -1), true), back({-1, -1}, true);
    gpus.allgather(mine.view(), hvd::into(all.view()));
    for (int p = 0; p < n; ++p) CHECK(all.values()[std::size_t(2 * p + 1)] == 10 * p);
    gpus.scatter(all.view(), hvd::into(back.view()), hvd::root{last});
    CHECK(back.values() == mine.values());
    gpus.gather(mine.view(), hvd::into(all.view()), hvd::root{last});
    CHECK(all.values()[2 * ranks - 2] == last);

    gpus.barrier();
    gpus.plan_allreduce(hvd::fuse(y.view(), x.view()), hvd::sum).run();
    CHECK(y.values()[7] == float(last * n));
}

// Parts of different sizes.
template <class Gpus>
void check_uneven(Gpus& gpus) {
    const int n = gpus.size(), r = gpus.rank(), last = n - 1;
    std::vector<std::size_t> counts, received(static_cast<std::size_t>(n), std::size_t(r));
    std::vector<int> expected, out, in;
    for (int p = 0; p < n; ++p) {
        counts.push_back(std::size_t(p));
        expected.insert(expected.end(), std::size_t(p), 10 * p);
        out.insert(out.end(), std::size_t(p), 100 * r + p);
        in.insert(in.end(), std::size_t(r), 100 * p + r);
    }
    const std::vector<int> own(std::size_t(r), 10 * r);
    const tensor<int> mine(own, true), all(std::vector<int>(expected.size(), -1), true),
        back(std::vector<int>(own.size(), -1), true);
    gpus.allgather(mine.view(), hvd::into(all.view()), {.counts = counts});
    CHECK(all.values() == expected);
    gpus.scatter(all.view(), hvd::into(back.view()), hvd::root{last}, {.counts = counts});
    CHECK(back.values() == own);
    const tensor<int> rooted(std::vector<int>(expected.size(), -1), true);
    gpus.gather(mine.view(), hvd::into(rooted.view()), hvd::root{last}, {.counts = counts});
    if (r == last) CHECK(rooted.values() == expected);
    const tensor<int> send(out, true), receive(std::vector<int>(in.size(), -1), true);
    gpus.alltoall(send.view(), hvd::into(receive.view()),
                  {.counts = counts, .receive_counts = received});
    CHECK(receive.values() == in);
}

}  // namespace device_test
