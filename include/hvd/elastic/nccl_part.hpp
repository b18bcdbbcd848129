// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstdlib>

#include "../device/nccl/succession.hpp"
#include "part.hpp"

namespace hvd::inline v0::detail {

// The ranks of an epoch, for calls of the host, and their GPUs. While work of the GPUs may be under
// way, the failure detector ends it, since a rank that is lost would be missing in it for ever.
class elastic_gpus : public communicator<tcp> {
public:
    elastic_gpus(communicator<tcp> hosts, communicator<nccl>& gpus,
                 const shared<failure_detector>& detector)
        : communicator<tcp>(std::move(hosts)), gpus_(gpus), detector_(detector) {
        begin_step();
    }
    elastic_gpus(const elastic_gpus&) = delete;
    ~elastic_gpus() {
        if (works_) gpus_.abort();
    }

    communicator<nccl>& gpus() { return gpus_; }

    void begin_step() {
        works_ = true;
        calls_before_ = session().calls();
        if (size() > 1) session().listen_to(detector_);
    }
    // Waits until the work of the GPUs has ended on all ranks, before any of them was given up. Its
    // results may be garbage else, and no rank sees it: the kernel of one that is given up goes on,
    // and its peers take what it sends. A rank that has left never comes here.
    // @throws peer_error
    void end_step(step_question* question) {
        await_work();
        std::uint8_t yes = question != nullptr && question->ask() ? 1 : 0;
        allreduce(view(&yes, 1), max, {.name = "elastic membership"});
        if (question != nullptr) question->settle(yes != 0);
        works_ = false;
    }
    // The same for the work after the last step. Without any the ranks need no agreement: one that
    // returns a step too early would wait for the others, and they for it.
    void end_work() {
        if (session().calls() != calls_before_) return end_step(nullptr);
        await_work();
        works_ = false;
    }

private:
    void await_work() {
        session().await_device("elastic step");
        session().stop_listening("elastic step");
    }
    nccl_session& session() { return *device_access::session_of(gpus_); }

    communicator<nccl>& gpus_;
    shared<failure_detector> detector_;
    bool works_ = false;
    std::uint64_t calls_before_ = 0;  // before this step
};

inline void begin_step(elastic_gpus& ranks) { ranks.begin_step(); }
inline void end_step(elastic_gpus& ranks, step_question* question = nullptr) {
    ranks.end_step(question);
}

template <class F>
void call_with(F& fn, elastic_gpus& ranks) {
    communicator<tcp>& hosts = ranks;
    if constexpr (std::invocable<F&, communicator<nccl>&, communicator<tcp>&>)
        fn(ranks.gpus(), hosts);
    else fn(ranks.gpus());
    ranks.end_work();
}

// Ranks with a GPU each. The host side is that of hvd::tcp, and tells who is lost.
template <>
class elastic_part<nccl> {
public:
    // @throws usage_error for options that can't be, cuda_error without a GPU
    elastic_part(const tcp_options& own, const elastic::bounds& bounds, const nccl_options& gpus)
        : succession_(checked(gpus)), hosts_(own, bounds) {}

    membership& own() { return hosts_.own(); }

    // The function may have made another device current in the last epoch.
    elastic_gpus communicator_of(const elastic_epoch& epoch,
                                 const shared<failure_detector>& detector,
                                 const communicator_options& options) {
        check_cuda(cudaSetDevice(device_), "cudaSetDevice", epoch.rank);
        auto hosts = hosts_.communicator_of(epoch, detector, options);
        succession_.follow(hosts, std::int64_t(epoch.number), options);
        return {std::move(hosts), succession_.last(), detector};
    }

private:
    // A process without a GPU does not take part.
    static const nccl_options& checked(const nccl_options& gpus) {
        const char* const variable = std::getenv("NCCL_COMM_BLOCKING");  // NCCL prefers it
        if (gpus.config.blocking == 1) refuse_blocking("nccl_options has .config.blocking");
        if (variable != nullptr && std::atoi(variable) == 1)
            refuse_blocking("NCCL_COMM_BLOCKING is 1");
        const nccl_configuration of_options(gpus);
        const nccl_library of_enough(-1);
        return gpus;
    }

    static void refuse_blocking(const char* cause) {
        throw usage_error(-1, text("hvd: elastic::run<hvd::nccl>: ", cause,
                                   ": a blocking call of NCCL does not end when a rank is lost"));
    }

    nccl_succession succession_;
    const int device_ = device_of_this_thread(-1);
    elastic_part<tcp> hosts_;
};

}  // namespace hvd::inline v0::detail
