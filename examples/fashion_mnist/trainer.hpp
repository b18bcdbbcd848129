// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <hvd/hvd.hpp>
#include <hvd/train.hpp>
#include <hvd/train/checkpoint.hpp>

#include "dataset.hpp"
#include "loss.hpp"
#include "models.hpp"
#include "options.hpp"
#include "progress.hpp"

namespace fashion_mnist {

/// The result of one epoch over all ranks together.
struct epoch_result {
    score training;
    double seconds = 0;

    double rate() const { return training.samples / seconds; }
};

/// One rank of a data-parallel training. Every rank has the whole model and a part of each batch.
///
/// The number of ranks only changes which rank computes a sample. The same global batch gives the
/// same parameters, up to rounding.
template <class Scalar, class Communicator>
class trainer {
public:
    /// **Collective**: every rank begins with the parameters of rank 0.
    trainer(Communicator& comm, const options& options)
        : comm_(comm),
          model_(make_model<Scalar>(options.model, options.seed)),
          optimizer_(comm, {.factor = static_cast<Scalar>(options.momentum)}),
          batch_(options.batch_of(comm.size())),
          rate_(options.rate),
          rate_factor_(options.rate_factor(comm.size())),
          decay_{0.1, options.decay_after > 0 ? double(options.decay_after) : HUGE_VAL},
          progress_{.seed = options.seed} {
        for (parameter<Scalar>* p : model_.parameters())
            optimizer_.register_parameter(p->name, as_rows(p->value), as_rows(p->gradient));
        hvd::broadcast_parameters(optimizer_);
    }
    trainer(const trainer&) = delete;
    trainer& operator=(const trainer&) = delete;

    /// **Collective**: rank 0 reads the file, and all ranks go on from there.
    void resume(const std::filesystem::path& path) {
        progress_ = hvd::load_checkpoint(path.string(), optimizer_);
    }

    /// **Collective**: rank 0 writes the file, in the format of safetensors.
    void save(const std::filesystem::path& path) {
        hvd::save_checkpoint(path.string(), optimizer_, progress_, {{"model", model_.name()}});
    }

    /// **Collective**: trains on each image once, and calls `on_step(images)` after each step.
    template <class OnStep>
    epoch_result train_epoch(const dataset& data, OnStep on_step) {
        const auto order = shuffled(data.size(), progress_.seed, progress_.epoch);
        optimizer_.begin_epoch(progress_.epoch);
        comm_.barrier();
        const stopwatch watch;
        score mine;
        for (std::size_t first = 0; first < order.size(); first += batch_) {
            const std::size_t count = std::min(batch_, order.size() - first);
            const double done =
                static_cast<double>(first + count) / static_cast<double>(data.size());
            mine += train_step(data, std::span(order).subspan(first, count), rate_at(done));
            on_step(first + count);
        }
        const double seconds = watch.seconds();
        ++progress_.epoch;
        return {total(mine), seconds};
    }

    /// **Collective**: every rank gets the score of the whole set.
    score evaluate(const dataset& data) {
        constexpr std::size_t at_once = 100;
        std::vector<sample_index> all(data.size());
        std::iota(all.begin(), all.end(), sample_index(0));
        score mine;
        auto samples = shard(std::span<const sample_index>(all), comm_.rank(), comm_.size());
        while (!samples.empty()) {
            const auto some = samples.first(std::min(at_once, samples.size()));
            data.gather(some, input_, labels_);
            mine += softmax_cross_entropy(model_.forward(input_, {}), labels_, Scalar(1));
            samples = samples.subspan(some.size());
        }
        return total(mine);
    }

    int epochs_done() const { return static_cast<int>(progress_.epoch); }
    const model<Scalar>& trained() const { return model_; }

private:
    score train_step(const dataset& data, std::span<const sample_index> batch, double rate) {
        const auto samples = shard(batch, comm_.rank(), comm_.size());
        data.gather(samples, input_, labels_);
        auto& output = model_.forward(input_, {true, progress_.seed, progress_.epoch, samples});
        // The average over ranks of size/batch · (sum over a rank's samples) is the mean over the
        // batch, however many samples each rank has.
        const auto scale = Scalar(comm_.size()) / static_cast<Scalar>(batch.size());
        const score mine = softmax_cross_entropy(output, labels_, scale);
        model_.backward(input_, output);
        optimizer_.optimizer().rate = static_cast<Scalar>(rate);
        optimizer_.step();
        return mine;
    }

    // The rate rises gradually in the first epoch to the one that is multiplied by the number of
    // ranks. Late epochs may have a lower one.
    double rate_at(double part_of_epoch) const {
        const double warm = progress_.epoch == 0 ? part_of_epoch : 1;
        return rate_ * (1 + (rate_factor_ - 1) * warm) * decay_.factor_at(double(progress_.epoch));
    }

    // A file's tensors are row-major. A column-major matrix is its transpose in row-major order:
    // inputs × outputs.
    static auto as_rows(matrix<Scalar>& m) {
        return hvd::view(m.data(), hvd::shape(m.cols(), m.rows()));
    }

    score total(const score& mine) {
        std::array sums{mine.loss, mine.correct, mine.samples};
        comm_.allreduce(sums, hvd::sum);
        return {sums[0], sums[1], sums[2]};
    }

    Communicator& comm_;
    model<Scalar> model_;
    hvd::distributed_optimizer<Communicator, hvd::optimizers::momentum<Scalar>> optimizer_;
    std::size_t batch_;
    double rate_;
    double rate_factor_;
    hvd::rate_schedule<double> decay_;
    hvd::training_progress progress_;
    matrix<Scalar> input_;
    std::vector<std::uint8_t> labels_;
};

}  // namespace fashion_mnist
