// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "service.hpp"

#include <algorithm>
#include <cstdio>

#include <unistd.h>

#include <hvd/data/stage_metrics.hpp>
#include <hvd/observe/trace_recorder.hpp>

#include "worker_process.hpp"

namespace hvd_compute {
namespace {

namespace data = hvd::data;
using hvd::detail::now;
using hvd::detail::tuning::millisecond;
using hvd::detail::tuning::second;

constexpr std::int64_t rest = 50 * millisecond;

// The dispatchers of the compute side that this rank needs: the first one shows that the file is
// that of this job, and all of them must be there before workers start.
bool is_ready(data::service_config config, int dispatchers, std::string_view path,
              hvd::detail::message& why) {
    if (config.dispatcher_side == data::dispatcher_side::training) return true;
    if (config.dispatchers < dispatchers) {
        why = hvd::detail::text("it is of ", config.dispatchers, " dispatchers");
        return false;
    }
    config.dispatchers = dispatchers;
    return hvd::detail::dispatchers_answer(config, path, why);
}

// The work of the stages with threads since `before`.
std::string stages_text(const service::counts& seen, const service::counts& before) {
    std::string all;
    for (const data::stage_statistics& s : seen.stages) {
        data::stage_statistics since;  // of a stage that was not there
        for (const data::stage_statistics& b : before.stages)
            if (b.stage == s.stage) since = b;
        const double time = s.thread_seconds - since.thread_seconds;
        const auto percent = [time](double part) { return time > 0 ? 100 * part / time : 0.0; };
        char text[160];
        std::snprintf(text, sizeof text,
                      "; stage %d: %zu threads busy in %.0f %%, without room in %.0f %%, %zu ready",
                      s.stage, s.threads, percent(s.busy - since.busy),
                      percent(s.without_room - since.without_room), s.ready);
        all += text;
    }
    return all;
}

}  // namespace

service::service(const options& o) : options_(o) {
    if (o.rank == 0) {
        write_file();
        return;
    }
    wait_for_file();
    if (!o.serves_dispatcher() || is_asked_to_end()) return;
    dispatcher_ = std::make_unique<data::service_dispatcher>(config_, o.dispatcher());
    dispatcher_->register_in(o.config);
}

service::~service() {
    if (dispatcher_ && !options_.metrics.empty()) ::unlink(metrics_file().c_str());
    if (options_.rank != 0) return;
    try {
        if (data::service_config::read(options_.config).job_id != config_.job_id) return;
    } catch (const hvd::error&) {
        return;
    }
    ::unlink(options_.config.c_str());
    ::unlink((options_.config + ".lock").c_str());
}

void service::write_file() {
    config_ =
        data::service_config::make(options_.dispatchers, options_.workers_per_dispatcher(),
                                   options_.on_training_side ? data::dispatcher_side::training
                                                             : data::dispatcher_side::compute);
    config_.timeout =
        hvd::time_span::of_nanoseconds(std::int64_t(options_.timeout * double(second)));
    config_.shared_memory = options_.shares_memory;
    config_.encrypted = options_.encrypts;
    if (options_.serves_dispatcher()) {
        dispatcher_ = std::make_unique<data::service_dispatcher>(config_, 0);
        config_.addresses = {dispatcher_->addresses()};
    }
    config_.write(options_.config);
}

void service::wait_for_file() {
    const std::int64_t until = now() + std::int64_t(options_.timeout * double(second));
    hvd::detail::message why = "it does not exist";
    while (!is_asked_to_end()) {
        const hvd::detail::service_file file(options_.config);
        if (file.exists()) {
            config_ = file.read();
            if (is_ready(config_, 1, options_.config, why)) return;
        }
        if (now() >= until)
            file.refuse("rank 0 of the data service has not written it after ", options_.timeout,
                        " seconds: ", why);
        hvd::detail::sleep_for(rest);
    }
}

bool service::has_another_file() {
    if (!options_.on_training_side || options_.rank == 0) return false;
    try {
        const data::service_config found = data::service_config::read(options_.config);
        if (found.job_id == config_.job_id) return false;
        config_ = found;
        return true;
    } catch (const hvd::error&) {
        return false;
    }
}

void service::tell() {
    if (!dispatcher_ || now() - told_ < second) return;
    const counts seen{dispatcher_->workers(), dispatcher_->trainers(), dispatcher_->batches(),
                      dispatcher_->making_seconds(), dispatcher_->stages()};
    if (options_.progress)
        print_progress(told_ == 0 ? 0 : double(now() - told_) / double(second), seen);
    if (!options_.metrics.empty()) write_metrics(seen);
    told_ = now();
    before_ = seen;
}

void service::print_progress(double seconds, const counts& seen) {
    // a worker has a thread for each trainer
    const double threads = double(seen.workers * std::max<std::size_t>(seen.trainers, 1));
    const double most = seconds * threads;
    const double waited = most > 0 ? std::max(0.0, 1 - (seen.making - before_.making) / most) : 0;
    std::fprintf(stderr,
                 "hvd-compute: dispatcher %d: %zu of %d workers, %zu trainers, %llu batches, "
                 "%.1f a second; workers wait for trainers in %.0f %% of the time%s\n",
                 options_.dispatcher(), seen.workers, options_.workers_per_dispatcher(),
                 seen.trainers, static_cast<unsigned long long>(seen.batches),
                 seconds > 0 ? double(seen.batches - before_.batches) / seconds : 0.0, 100 * waited,
                 stages_text(seen, before_).c_str());
}

std::string service::metrics_file() const {
    if (options_.dispatchers == 1) return options_.metrics;
    return hvd::detail::file_of_rank(options_.metrics, options_.dispatcher());
}

void service::write_metrics(const counts& seen) {
    hvd::detail::prometheus_group all("hvd_data_service_", "dispatcher", options_.dispatcher());
    all.counter("batches", "Batches that the workers made.", seen.batches)
        .counter("making_seconds", "Time of the workers' threads in which they made batches.",
                 seen.making)
        .gauge("workers", "Workers that are there.", seen.workers)
        .gauge("workers_expected", "Workers with which the service is complete.",
               options_.workers_per_dispatcher())
        .gauge("trainers", "Trainers that are connected.", seen.trainers);
    hvd::detail::add_metrics(all, seen.stages);
    try {
        all.write(metrics_file(), -1);
    } catch (const hvd::error& error) {
        if (told_ == 0) throw;  // later the service is worth more than its counts
        std::fprintf(stderr, "hvd-compute: %s\n", error.what());
    }
}

}  // namespace hvd_compute
