// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Checkpoints of an optimizer on an engine.

#include <hvd/checkpoint.hpp>
#include <hvd/train_engine.hpp>

#include "model.hpp"
#include "shared_folder.hpp"

namespace engine_checkpoint_tests {

using communicator = hvd_test::communicator;
using engine = hvd::engine<hvd_test::backend>;
using hvd_test::regression;
namespace optimizers = hvd::optimizers;

namespace {

template <class Calls>
struct run {
    regression model;
    std::vector<double> own = {0}, down = {0};
    hvd::distributed_optimizer<Calls, optimizers::adam<double>> optimizer;

    explicit run(Calls& calls)
        : optimizer(calls, optimizers::adam<double>{.rate = 0.02},
                    {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)}) {
        model.register_with(optimizer);
        optimizer.register_local("own", own, down);
    }
    void steps(int first, int last) {
        const int rank = optimizer.comm().rank();
        for (int step = first; step < last; ++step) {
            optimizer.zero_gradients();
            model.backward(step, 0, regression::batch, rank, optimizer.comm().size());
            down[0] = rank;
            optimizer.step();
        }
    }
};

}  // namespace

TEST_CASE("a run on an engine goes on from its checkpoint, also on a communicator") {
    hvd_test::on_ranks([](communicator& comm) {
        const hvd_test::shared_folder folder(comm);
        engine e{comm};
        run<engine> whole(e), before(e), after(e);
        run<communicator> ordered(comm);
        whole.steps(0, 6);
        before.steps(0, 3);
        const hvd::training_progress progress{.step = 3, .epoch = 1};
        hvd::save_checkpoint(folder / "c", before.optimizer, progress);
        CHECK(hvd::load_checkpoint(folder / "c", after.optimizer) == progress);
        after.steps(3, 6);
        CHECK(hvd_test::distance(after.model.all(), whole.model.all()) < 1e-6);
        CHECK(after.own == whole.own);
        CHECK(hvd::load_checkpoint(folder / "c", ordered.optimizer) == progress);
        CHECK(ordered.model.all() == before.model.all());
        CHECK(ordered.own == before.own);
        hvd::save_model(folder / "m", after.optimizer);
        hvd::load_model(folder / "m", before.optimizer);
        CHECK(before.model.all() == after.model.all());
        CHECK_THROWS_AS(hvd::load_checkpoint(folder / "none", after.optimizer),
                        hvd::checkpoint_error);
        comm.barrier();
    });
}

}  // namespace engine_checkpoint_tests
