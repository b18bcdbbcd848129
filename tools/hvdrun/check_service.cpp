// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "check_service.hpp"

#include <cstdio>

#include "failure.hpp"

#if HVDRUN_HAS_JSON

#include <hvd/data/service/members.hpp>

#include "check.hpp"

namespace hvdrun {
namespace {

namespace data = hvd::data;
namespace hvdd = hvd::detail;

// Talks to processes of one service.
class inquiry {
public:
    explicit inquiry(data::service_config config)
        : config_(std::move(config)), secret_(hvdd::service_secret(config_.key, config_.path)) {}

    bool finish() {
        for (int i = 0; i < config_.dispatchers; ++i) ask_dispatcher(i);
        for (const std::string& address : config_.worker_addresses)
            add("worker", reach({address}, hvdd::service_role::reader, 0));
        print_table(rows_);
        return are_good_;
    }

private:
    struct answer {
        std::string where, why;  // the address that answers, or the reason why none does
        hvdd::service_link link;
    };

    answer reach(const std::vector<std::string>& addresses, hvdd::service_role role,
                 int dispatcher) {
        hvdd::service_hello mine;
        mine.role = role;
        mine.job = hvdd::job_number(config_.job_id);
        mine.dispatcher = std::uint32_t(dispatcher);
        answer got;
        got.why = "it has not registered";
        for (const std::string& address : addresses) {
            hvdd::service_dial dial(secret_, mine, hvdd::most_control_bytes);
            if (dial.to({&address, 1}, got.link)) {
                got.where = address;
                break;
            }
            got.why = std::string_view(dial.why());
        }
        return got;
    }

    void ask_dispatcher(int number) {
        const std::string name = "dispatcher " + std::to_string(number);
        const std::size_t at = std::size_t(number);
        answer got = reach(
            at < config_.addresses.size() ? config_.addresses[at] : std::vector<std::string>(),
            hvdd::service_role::trainer, number);
        add(name, got);
        if (got.where.empty()) return;
        const std::vector<hvdd::worker_place> workers = listed(got.link);
        for (const hvdd::worker_place& each : workers)
            add("worker of " + name, reach(each.addresses, hvdd::service_role::reader, number));
        const int expected = config_.workers_per_dispatcher;
        if (int(workers.size()) >= expected) return;
        are_good_ = false;
        rows_.push_back(
            {"workers of " + name,
             std::to_string(workers.size()) + " of " + std::to_string(expected) + " have come",
             ""});
    }

    static std::vector<hvdd::worker_place> listed(hvdd::service_link& link) {
        const auto until = hvdd::now() + 5 * hvdd::tuning::second;
        std::vector<hvdd::worker_place> workers;
        if (!link.send(hvdd::service_frame::ask_list, 0, {}, until) || !link.wait(until) ||
            link.head().kind != hvdd::service_frame::list)
            return workers;
        std::span<const std::byte> bytes = link.contents();
        while (!bytes.empty()) workers.push_back(hvdd::read_place(bytes));
        return workers;
    }

    void add(const std::string& name, const answer& got) {
        are_good_ = are_good_ && !got.where.empty();
        rows_.push_back({name, got.where.empty() ? "not reached: " + got.why : "yes", got.where});
    }

    data::service_config config_;
    hvd::detail::shared_secret secret_;
    std::vector<row> rows_ = {{"data service", "reached", "address"}};
    bool are_good_ = true;
};

}  // namespace

bool check_data_service(const std::string& config_file) {
    try {
        return inquiry(data::service_config::read(config_file)).finish();
    } catch (const hvd::error& error) {
        std::puts(error.what());
        return false;
    }
}

}  // namespace hvdrun

#else

namespace hvdrun {

bool check_data_service(const std::string&) {
    throw usage_failure(
        "--data-service: hvdrun was built without nlohmann-json, which reads the file");
}

}  // namespace hvdrun

#endif
