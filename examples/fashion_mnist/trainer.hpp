// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <hvd/checkpoint.hpp>
#include <hvd/hvd.hpp>
#include <hvd/train.hpp>

#include "augmentation.hpp"
#include "dataset.hpp"
#include "loss.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "stored_parameters.hpp"
#include "training.hpp"

namespace fashion_mnist {

/// The result of one epoch over all ranks together.
struct epoch_result {
    score training;
    double seconds = 0;

    double rate() const { return training.samples / seconds; }
};

/// A rank's images of a step.
template <class Scalar>
struct batch {
    std::vector<sample_index> samples;
    matrix<Scalar> input;
    std::vector<std::uint8_t> labels;
};

inline hvd::gradient_codec codec_named(const std::string& name) {
    if (name == "float16") return hvd::codec::cast<hvd::float16>;
    if (name == "bfloat16") return hvd::codec::cast<hvd::bfloat16>;
    return hvd::codec::none;
}

/// One rank of a data-parallel training. Every rank has the whole model and a part of each batch.
///
/// The number of ranks only changes which rank computes a sample. The same global batch gives the
/// same parameters, up to rounding. With parameters of `Stored`, 16 bits, the loss is scaled.
template <class Scalar, class Communicator, class Stored = Scalar>
class trainer {
    static constexpr bool mixed = !std::is_same_v<Scalar, Stored>;

public:
    /// **Collective**: every rank goes on from `kept`, with the parameters of rank 0.
    trainer(Communicator& comm, const options& options, training<Scalar, Stored>& kept)
        : comm_(comm),
          kept_(kept),
          optimizer_(comm, kept.optimizer,
                     {.codec = hvd::codec::error_feedback(codec_named(options.codec)),
                      .skip_nonfinite = mixed}),
          parameters_(kept.network.parameters(), optimizer_),
          batch_{options.batch_of(comm.size())},
          scaled_ranks_(options.scaled_ranks(comm.size())),
          rate_(hvd::scale_rate(options.rate, {.ranks = scaled_ranks_})),
          clip_(options.clip > 0 ? options.clip : HUGE_VAL),
          decay_{
              0.1,
              {.start_epoch = options.decay_after > 0 ? double(options.decay_after) : HUGE_VAL}} {
        hvd::broadcast_parameters(optimizer_);
        parameters_.give_values();
    }
    trainer(const trainer&) = delete;
    trainer& operator=(const trainer&) = delete;

    /// **Collective**: rank 0 reads the file, and all ranks go on from there.
    void resume(const std::filesystem::path& path) {
        kept_.progress = hvd::load_checkpoint(path.string(), optimizer_);
        parameters_.give_values();
    }

    /// **Collective**: rank 0 writes the file, in the format of safetensors.
    void save(const std::filesystem::path& path) {
        hvd::save_checkpoint(path.string(), optimizer_, kept_.progress,
                             {{"model", kept_.network.name()}});
    }

    /// The optimizer's state goes to where the training is kept. The rest of it is there.
    void keep_optimizer() { kept_.optimizer = optimizer_.optimizer(); }

    /// **Collective**: trains on each image once, and calls `on_step(images, own)` after each
    /// step: the images of the epoch so far, and those of this rank in the step. An epoch that was
    /// begun before goes on.
    template <class OnStep>
    epoch_result train_epoch(const dataset& data, OnStep on_step) {
        hvd::sharded_sampler sampler(
            data.size(), comm_, {.seed = kept_.progress.seed, .uneven = hvd::uneven_samples::keep});
        sampler.begin_epoch({.epoch = kept_.progress.epoch, .done = kept_.progress.samples_done});
        optimizer_.begin_epoch(kept_.progress.epoch);
        comm_.barrier();
        const stopwatch watch;
        score mine;
        hvd::background_loader batches(loader_of(data, sampler));
        for (std::size_t step = 0; auto batch = batches.next(); ++step) {
            begin_step(sampler.epoch_after(step + 1, batch_));
            mine += train_step(*batch, sampler.weight(step, batch_));
            kept_.progress.samples_done = sampler.done_after(step + 1, batch_);
            on_step(kept_.progress.samples_done, batch->samples.size());
        }
        return end_of_epoch(mine, watch.seconds());
    }

    /// **Collective**: the same on the batches of a loader.
    template <class Pipeline, class OnStep>
    epoch_result train_epoch(const loaded_images<Pipeline>& from, OnStep on_step) {
        auto& batches = from.loader;
        batches.resume(kept_.progress);
        batches.begin_epoch(kept_.progress.epoch);
        optimizer_.begin_epoch(kept_.progress.epoch);
        comm_.barrier();
        const stopwatch watch;
        score mine;
        while (const auto rows = batches.next()) {
            batch<Scalar> images = unpacked(*rows);
            const auto all = batches.samples_of_all();
            const std::size_t done = kept_.progress.samples_done + all;
            begin_step(double(kept_.progress.epoch) + double(done) / double(from.size));
            mine += train_step(images, double(comm_.size()) / double(all));
            kept_.progress.samples_done = done;
            on_step(done, images.samples.size());
        }
        return end_of_epoch(mine, watch.seconds());
    }

    /// **Collective**: every rank gets the score of the whole set.
    score evaluate(const dataset& data) {
        const hvd::sharded_sampler sampler(data.size(), comm_,
                                           {.shuffle = false, .uneven = hvd::uneven_samples::keep});
        score mine;
        batch<Scalar> batch;
        for (std::size_t step = 0; step < sampler.steps(evaluated_at_once); ++step) {
            data.gather(sampler.batch(step, evaluated_at_once), batch.input, batch.labels);
            mine += softmax_cross_entropy(kept_.network.forward(batch.input, {}), batch.labels,
                                          Scalar(1));
        }
        return of_all_ranks(mine);
    }

    int epochs_done() const { return static_cast<int>(kept_.progress.epoch); }
    const model<Scalar>& trained() const { return kept_.network; }

private:
    static constexpr int evaluated_at_once = 100;

    // Gathers the images of the next steps in a thread of its own, while the model computes.
    auto loader_of(const dataset& data, const hvd::sharded_sampler& sampler) const {
        return [&data, &sampler, size = batch_,
                step = std::size_t(0)]() mutable -> std::optional<batch<Scalar>> {
            if (step == sampler.steps(size)) return std::nullopt;
            batch<Scalar> next{sampler.batch(step++, size), {}, {}};
            data.gather(next.samples, next.input, next.labels);
            return next;
        };
    }

    static batch<Scalar> unpacked(const hvd::data::rows<std::uint8_t>& rows) {
        batch<Scalar> images;
        images.input.resize(image_size, static_cast<Eigen::Index>(rows.size()));
        for (std::size_t i = 0; i < rows.size(); ++i) {
            images.samples.push_back(image_row::number_of(rows[i]));
            images.labels.push_back(rows[i][image_row::label]);
            normalise(rows[i], images.input, i);
        }
        return images;
    }

    // Warm-up in the first epoch, and a lower rate in late ones.
    void begin_step(double epoch) {
        set_rate(rate_ * hvd::warmup_factor(epoch, {.ranks = scaled_ranks_, .epochs = 1}) *
                 decay_.factor_at(double(kept_.progress.epoch)));
    }
    epoch_result end_of_epoch(const score& mine, double seconds) {
        ++kept_.progress.epoch;
        kept_.progress.samples_done = 0;
        return {of_all_ranks(mine), seconds};
    }

    // Gradients travel while the backward pass computes those of earlier layers.
    score train_step(batch<Scalar>& batch, double weight) {
        auto& output = kept_.network.forward(
            batch.input, {true, kept_.progress.seed, kept_.progress.epoch, batch.samples});
        const double scale = mixed ? kept_.progress.scale.value : 1;
        const score mine =
            softmax_cross_entropy(output, batch.labels, static_cast<Scalar>(weight * scale));
        kept_.network.backward(batch.input, output, [&](const parameter<Scalar>& p) {
            parameters_.take_gradient(p);
            optimizer_.gradient_ready(p.number);
        });
        auto gradients = optimizer_.synchronize();
        if (mixed) kept_.progress.scale.unscale(gradients);
        if (clip_ < HUGE_VAL) hvd::clip_by_norm(gradients, clip_);
        const bool stepped = optimizer_.apply(std::move(gradients));
        if (mixed) kept_.progress.scale.update(stepped);
        parameters_.give_values();
        return mine;
    }

    void set_rate(double rate) { optimizer_.optimizer().rate = static_cast<Scalar>(rate); }

    score of_all_ranks(const score& mine) {
        std::vector<hvd::metric> means = {{"loss", mine.samples > 0 ? mine.mean_loss() : 0},
                                          {"accuracy", mine.samples > 0 ? mine.accuracy() : 0}};
        hvd::average_metrics(comm_, means, mine.samples);
        double samples = mine.samples;
        comm_.allreduce(samples, hvd::sum);
        return {means[0].mean * samples, means[1].mean * samples, samples};
    }

    Communicator& comm_;
    training<Scalar, Stored>& kept_;
    hvd::distributed_optimizer<Communicator, sgd_of<Scalar, Stored>> optimizer_;
    stored_parameters<Scalar, Stored> parameters_;
    hvd::global_batch batch_;
    int scaled_ranks_;
    double rate_;  // after the warm-up
    double clip_;
    hvd::rate_schedule<double> decay_;
};

}  // namespace fashion_mnist
