// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <hvd/mpi.hpp>

#include "launched.hpp"

namespace {

// The ranks of one launch have a communicator of their own.
class launch final : public hvd_test::launched {
public:
    launch() : launched(of_world(&MPI_Comm_rank), of_world(&MPI_Comm_size)) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    }
    ~launch() override { MPI_Comm_free(&comm_); }

    int agree_on(int status) override {
        int worst = status;
        MPI_Allreduce(&status, &worst, 1, MPI_INT, MPI_MAX, comm_);
        return worst;
    }

private:
    static int of_world(int (*ask)(MPI_Comm, int*)) {
        int number = 0;
        ask(MPI_COMM_WORLD, &number);
        return number;
    }

    void await_all(const std::function<void()>& meanwhile) override {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Ibarrier(comm_, &request);
        for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done;) {
            meanwhile();
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }

    void end_all() override { MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE); }

    MPI_Comm comm_ = MPI_COMM_NULL;
};

using hvd_test::keeps_ranks_together;
DOCTEST_REGISTER_LISTENER("keeps_ranks_together", 1, keeps_ranks_together);

}  // namespace

int hvd_test::launched_ranks() { return current->ranks; }

void hvd_test::an_exception_leaves() { current->excepted = true; }

int main(int argc, char** argv) {
    hvd::mpi_environment environment{argc, argv};
    launch launch;
    return hvd_test::run_launched(launch, argc, argv);
}
