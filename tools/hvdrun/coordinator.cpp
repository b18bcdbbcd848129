// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <hvd/elastic/members/coordinator_server.hpp>
#include <hvd/transport/tcp/tcp_job.hpp>

#include "failure.hpp"
#include "listening_addresses.hpp"
#include "meeting_place.hpp"

namespace hvdrun {
namespace {

hvd::detail::coordinator_rules rules_of(const options& o, int ranks) {
    auto bounds = hvd::detail::launched_options<hvd::elastic::bounds>();
    bounds.min_size = o.min_np;
    bounds.max_size = o.max_np;
    bounds.timeout = hvd::time_span::of_nanoseconds(std::int64_t(o.elastic_timeout * 1e9));
    return hvd::detail::coordinator_rules_of({.size = ranks}, bounds);
}

// The acting coordinator. It serves from the begin: a process that comes early waits for others.
class coordinator final : public meeting_place, hvd::detail::coordinator_listener {
public:
    coordinator(const options& o, int ranks, const std::string& digits, int told,
                const std::vector<std::string>& at)
        : meeting_place(told),
          server_(rules_of(o, ranks),
                  hvd::detail::membership_secret(
                      hvd::detail::secret_from_hex(digits, "the job's secret")),
                  0, this, -1, listening_addresses(at)) {}

    int port() const override { return server_.port(); }
    void serve() override {}
    void has_died(int slot) override { server_.has_died(slot); }
    void expect(int living) override { server_.expect(std::size_t(living)); }

private:
    void begin_epoch(std::uint64_t epoch, std::int64_t step,
                     const std::vector<hvd::detail::elastic_member>& members) override {
        job_event said{.what = job_event::kind::epoch_begins, .epoch = int(epoch), .step = step};
        for (const auto& m : members) said.members.push_back({int(m.started_as), m.id});
        tell(std::move(said));
    }
    void work(std::int64_t started_as, std::int64_t step, std::int64_t samples) override {
        tell({.what = job_event::kind::works,
              .step = step,
              .slot = int(started_as),
              .samples = samples});
    }
    void lose(std::int64_t started_as) override {
        tell({.what = job_event::kind::is_lost, .slot = int(started_as)});
    }
    void end_job() override { tell({.what = job_event::kind::job_ends}); }

    hvd::detail::coordinator_server server_;
};

}  // namespace

std::unique_ptr<meeting_place> make_coordinator(const options& o, int ranks,
                                                const std::string& secret_digits, int told,
                                                const std::vector<std::string>& at) {
    const signals_blocked blocked;
    try {
        return std::make_unique<coordinator>(o, ranks, secret_digits, told, at);
    } catch (const hvd::error& error) {
        throw failure(1, error.what());
    }
}

}  // namespace hvdrun
