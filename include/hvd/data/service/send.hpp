// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <utility>

#include "../batch.hpp"
#include "../loader.hpp"
#include "client.hpp"
#include "read_into.hpp"
#include "service_config.hpp"
#include "service_statistics.hpp"

namespace hvd::inline v0::data {

/// The batches of an epoch that each trainer gets from a data service. The contents of a batch are
/// the same with each of them, whichever workers there are. So is the order, but for the last one.
enum class processing_mode : std::uint8_t {
    distributed_epoch,  ///< Each rank gets its part of each batch.
    /// Rank r of S gets batch r, r + S, r + 2S and so on, each as a whole. A step has a batch for
    /// each rank.
    round_robin,
    /// Each rank gets all batches of the epoch as a whole, in an order of its own. Rank 0 has the
    /// order of a trainer that is alone.
    parallel_epochs,
    /// Each rank gets the next batch that no rank has, as a whole, so that a fast one gets more.
    /// All ranks together get each batch once. The order depends on their speed, and ranks have
    /// different numbers of steps.
    first_come_first_served,
};

}  // namespace hvd::inline v0::data

namespace hvd::inline v0::detail {

inline data::batch_plan shared_plan(data::batch_plan plan, part mine, data::processing_mode mode) {
    using data::batch_share, data::processing_mode;
    if (mode == processing_mode::parallel_epochs) plan.share = batch_share::whole;
    if (mode == processing_mode::first_come_first_served) plan.share = batch_share::claims;
    if (mode != processing_mode::round_robin) return plan;
    plan.share = batch_share::turns;
    plan.batch_size *= std::uint64_t(mine.size);
    return plan;
}

}  // namespace hvd::inline v0::detail

namespace hvd::inline v0::data {

/// A pipeline whose batches the workers of a data service make: see `data::send_to_data_service`.
template <batch_pipeline Before>
class remote_batches {
public:
    using batch_type = typename Before::batch_type;

    remote_batches(const Before& before, const service_config& config, part mine,
                   processing_mode mode = processing_mode::distributed_epoch,
                   std::shared_ptr<hvd::detail::training_claims> claims = nullptr)
        : plan_(hvd::detail::shared_plan(before.plan(), mine, mode)),
          mine_(mine),
          client_(std::make_shared<hvd::detail::service_client>(config, mine, plan_,
                                                                std::move(claims))) {}

    const batch_plan& plan() const { return plan_; }
    batch_plan& plan() { return plan_; }
    /// The rank for which it was made.
    part mine() const { return mine_; }

    /// The work of the service for this trainer in this epoch. Copies of this pipeline have the
    /// same, those inside loaders too.
    /// **Threads**: any thread calls it.
    /// @snippet tests/data/service_snippets.cpp statistics
    service_statistics statistics() const { return client_->statistics(); }
    /// The same of all epochs.
    service_statistics totals() const { return client_->totals(); }
    /// The counts of all epochs as a text file for Prometheus: `hvd_data_…`, with the label `rank`.
    std::string prometheus() const { return hvd::detail::metrics_of(totals(), mine_.rank).text(); }
    /// Writes this file at once, as `hvd::prometheus_metrics::write` does: a reader finds the old
    /// one or the new one, whole.
    /// @throws hvd::usage_error naming the file and the system's reason
    /// @snippet tests/data/service_snippets.cpp prometheus
    void write_prometheus(const std::string& file) const {
        hvd::detail::metrics_of(totals(), mine_.rank).write(file, mine_.rank);
    }

    /// Asks for the next batches. A loader calls it.
    std::shared_ptr<hvd::detail::claimed_steps> begin(const batch_request& first,
                                                      std::uint64_t steps) const {
        run_ = client_->begin(first, plan_, steps);
        if (plan_.share != batch_share::claims) return nullptr;
        return std::make_shared<hvd::detail::service_claims>(client_, run_);
    }

    /// Waits for a batch that was asked for.
    /// @throws hvd::data::stage_error for an exception of a stage in a worker.
    /// @throws hvd::data::service_error if no worker is there, or one refuses.
    made_batch<batch_type> make(const batch_request& request) const {
        hvd::detail::service_answer answer = answer_to(request);
        auto batch = hvd::detail::decoded_batch<batch_type>(answer.bytes());
        client_->give_back(std::move(answer));
        return batch;
    }

    /// The same in memory of the user, for `data::into`, which gets the errors of its memory.
    template <class Guard>
    auto make_in(const batch_request& request, std::pmr::memory_resource* memory,
                 const Guard& guard) const {
        hvd::detail::service_answer answer = answer_to(request);
        const auto read = [memory](std::span<const std::byte>& bytes) {
            return hvd::detail::codec_into<batch_type>::read(bytes, memory);
        };
        auto batch = guard([&] { return hvd::detail::decoded_by(read, answer.bytes()); });
        client_->give_back(std::move(answer));
        return batch;
    }

private:
    hvd::detail::service_answer answer_to(const batch_request& request) const {
        hvd::detail::service_answer answer = client_->take(run_, request);
        if (!answer.is_failure) return answer;
        const auto failure = hvd::detail::decoded_failure(answer.bytes());
        if (failure.stage < 0) throw service_error(mine_.rank, failure.what);
        throw stage_error(request.mine.rank, failure.what, failure.stage, failure.sample,
                          std::make_exception_ptr(error(request.mine.rank, failure.what)));
    }

    batch_plan plan_;
    part mine_;
    std::shared_ptr<hvd::detail::service_client> client_;
    mutable std::uint64_t run_ = 0;  // of this copy, which one loader has
};

}  // namespace hvd::inline v0::data

namespace hvd::inline v0::detail {

struct service_step {
    data::service_config config;
    part mine;
    data::processing_mode mode;
    std::shared_ptr<training_claims> claims = nullptr;  // of first_come_first_served
};

[[noreturn, gnu::cold]] inline void refuse_claims_of_numbers(part mine) {
    refuse(mine.rank, "first_come_first_served for rank ", mine.rank, " of ", mine.size,
           " without a communicator: give data::send_to_data_service the communicator, by which "
           "rank 0 tells where it hands out the batches");
}

}  // namespace hvd::inline v0::detail

namespace hvd::inline v0::data {

/// Lets the workers of a data service make the batches of the pipeline before it. The stages behind
/// it run in the trainer.
///
/// The batches are those of the pipeline without the service, in the same order, bit for bit,
/// whichever workers come, go or die. `data::prefetch` says how many are asked for ahead. The
/// result goes into a `data::loader`, which knows its rank by it. With several dispatchers, rank r
/// uses dispatcher r % N.
/// @throws hvd::usage_error for a rank that does not exist.
/// @snippet tests/data/service_snippets.cpp trainer
inline hvd::detail::service_step send_to_data_service(
    service_config config, int rank, int size,
    processing_mode mode = processing_mode::distributed_epoch) {
    hvd::detail::service_step step{std::move(config), hvd::detail::checked(part{rank, size}), mode};
    if (mode != processing_mode::first_come_first_served) return step;
    if (size > 1) hvd::detail::refuse_claims_of_numbers(step.mine);
    step.claims = std::make_shared<hvd::detail::training_claims>(step.config, step.mine);
    return step;
}
/// The same for the rank of a communicator. **Collective** with
/// `processing_mode::first_come_first_served`: rank 0 hands out the batches, and tells the others
/// where. Its loader lives until they have ended the epoch.
template <class Communicator>
    requires has_ranks<std::remove_cvref_t<Communicator>>
hvd::detail::service_step send_to_data_service(
    service_config config, Communicator&& world,
    processing_mode mode = processing_mode::distributed_epoch) {
    hvd::detail::service_step step{std::move(config),
                                   hvd::detail::checked(part{world.rank(), world.size()}), mode};
    if (mode == processing_mode::first_come_first_served)
        step.claims = hvd::detail::claims_of(step.config, world);
    return step;
}

template <batch_pipeline Before>
remote_batches<Before> operator|(const Before& before, const hvd::detail::service_step& step) {
    static_assert(!hvd::detail::is_placed<Before>,
                  "hvd: data::into before data::send_to_data_service: batches would lie in memory "
                  "of the workers. It stands behind it");
    static_assert(
        hvd::detail::is_placed<Before> || hvd::detail::has_batch_codec<typename Before::batch_type>,
        "hvd: no hvd::serializer for the batches that a data service sends; specialise "
        "it, or make batches of data::default_collate or data::concatenate");
    return remote_batches<Before>(before, step.config, step.mine, step.mode, step.claims);
}

}  // namespace hvd::inline v0::data
