// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A rank of tcp.py. It allreduces tensors of two sizes, says so after some calls, and then says who
// is gone.
#include <cstdio>
#include <string>
#include <vector>

#include <hvd/tcp.hpp>

namespace {

void check_sum(hvd::communicator<hvd::tcp>& comm, std::size_t elements) {
    const float sum = float(comm.size() * (comm.size() + 1) / 2);
    std::vector<float> x(elements, float(comm.rank() + 1));
    comm.allreduce(x, hvd::sum);
    for (const float one : x)
        if (one != sum) throw std::runtime_error("a wrong sum");
}

}  // namespace

int main() {
    auto comm = hvd::communicator<hvd::tcp>::world();
    try {
        for (int i = 0;; ++i) {
            check_sum(comm, 10);
            check_sum(comm, 100'000);
            if (i != 20) continue;
            std::printf("rank %d works, %d of %d on its host\n", comm.rank(), comm.local_rank(),
                        comm.local_size());
            std::fflush(stdout);
        }
    } catch (const hvd::peer_error& e) {
        std::string ranks;
        for (const int peer : e.peers()) ranks += " " + std::to_string(peer);
        std::printf("rank %d lost%s: %s\n", comm.rank(), ranks.c_str(), e.what());
        return 0;
    } catch (const std::exception& e) {
        std::printf("rank %d got an error of another kind: %s\n", comm.rank(), e.what());
    }
    return 1;
}
