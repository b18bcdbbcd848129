// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "service.hpp"

#include <cstdio>

#include <unistd.h>

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

void service::print_progress() {
    if (!options_.progress || !dispatcher_ || now() - printed_ < second) return;
    const double seconds = double(now() - printed_) / double(second);
    const std::uint64_t batches = dispatcher_->batches();
    std::fprintf(stderr,
                 "hvd-compute: dispatcher %d: %zu of %d workers, %zu trainers, %llu batches, "
                 "%.1f a second\n",
                 options_.dispatcher(), dispatcher_->workers(), options_.workers_per_dispatcher(),
                 dispatcher_->trainers(), static_cast<unsigned long long>(batches),
                 printed_ == 0 ? 0.0 : double(batches - batches_) / seconds);
    printed_ = now();
    batches_ = batches;
}

}  // namespace hvd_compute
