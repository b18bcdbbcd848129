// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <charconv>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../protocol/agreement.hpp"
#include "../../train/checkpoint/atomic_file.hpp"
#include "protocol.hpp"
#include "service_config.hpp"

namespace hvd::inline v0::detail {

template <class... Parts>
[[gnu::cold, noreturn]] void refuse_service(int rank, const Parts&... parts) {
    throw data::service_error(rank, text("hvd: ", parts...));
}

// Reads the members of a config file. Errors name the file, the member and its value.
class service_file {
public:
    static constexpr std::size_t most_bytes = std::size_t(1) << 20;

    explicit service_file(const std::string& path) : path_(path) {}

    bool exists() const { return ::access(path_.c_str(), F_OK) == 0; }

    data::service_config read() const {
        const nlohmann::json file = parsed(contents());
        refuse_arguments(file);
        data::service_config c;
        c.version = number(file, "version", 1, INT32_MAX);
        if (c.version != 1) refuse("version is ", c.version, ", and 1 was expected");
        c.job_id = text_of(file, "job_id");
        c.dispatchers = number(file, "dispatchers", 0, 65536);
        c.workers_per_dispatcher = number(file, "workers_per_dispatcher", 0, INT32_MAX);
        c.dispatcher_side = side(text_of(file, "dispatcher_side"));
        for (const auto& each : list(file, "addresses"))
            c.addresses.push_back(texts(each, "addresses"));
        if (c.addresses.size() > std::size_t(c.dispatchers))
            refuse("it has the addresses of ", c.addresses.size(),
                   " dispatchers, and dispatchers "
                   "is ",
                   c.dispatchers);
        c.worker_addresses = texts(list(file, "worker_addresses"), "worker_addresses");
        c.key = text_of(file, "key");
        if (c.key.size() != secret_digits)
            refuse("key has ", c.key.size(), " characters, and ", secret_digits,
                   " hexadecimal digits were expected");
        secret_from_hex(c.key, path_);
        c.timeout = time_span::of_nanoseconds(std::int64_t(1e9 * positive(file, "timeout")));
        c.shared_memory = flag(file, "shared_memory", true);
        c.encrypted = flag(file, "encrypted", false);
        c.path = path_;
        return c;
    }

    template <class... Parts>
    [[gnu::cold, noreturn]] void refuse(const Parts&... parts) const {
        refuse_service(-1, path_, ": ", parts...);
    }

private:
    std::string contents() const {
        const descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        struct stat status{};
        if (!file || ::fstat(file.number(), &status) != 0)
            refuse("it can't be read: ", strerror(errno));
        if (!S_ISREG(status.st_mode)) refuse("it is no regular file");
        if ((status.st_mode & 077) != 0)
            refuse(
                "other users may read or write it, and it holds a secret: it needs the mode "
                "600");
        if (std::size_t(status.st_size) > most_bytes)
            refuse("it has ", status.st_size, " bytes, and at most ", most_bytes, " were expected");
        std::string all(most_bytes + 1, '\0');
        std::size_t have = 0;
        while (have < all.size()) {
            const ssize_t n = ::read(file.number(), all.data() + have, all.size() - have);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) break;
            have += std::size_t(n);
        }
        all.resize(have);
        return all;
    }
    nlohmann::json parsed(const std::string& all) const {
        nlohmann::json file = nlohmann::json::parse(all, nullptr, false);
        if (!file.is_object()) refuse("it is no JSON object, so no config file of a data service");
        return file;
    }

    // Horovod's arguments of send_to_data_service. Nobody would read them here.
    void refuse_arguments(const nlohmann::json& file) const {
        for (const char* const name : {"processing_mode", "reuse_dataset", "round_robin"})
            if (const auto found = file.find(name); found != file.end())
                refuse(name, " is ", std::string_view(shown(*found)),
                       ", and no member of this file: give data::send_to_data_service a "
                       "data::processing_mode",
                       is_first_come_first_served(file) ? ", here first_come_first_served" : "");
    }
    static bool is_first_come_first_served(const nlohmann::json& file) {
        const auto is = [&](const char* name, const nlohmann::json& value) {
            const auto found = file.find(name);
            return found != file.end() && *found == value;
        };
        return (is("reuse_dataset", true) && !is("round_robin", true)) ||
               is("processing_mode", "fcfs") || is("processing_mode", "first_come_first_served");
    }

    // Lists are not shown: writing them takes the stack for each in another.
    static std::string shown(const nlohmann::json& value) {
        return value.is_structured() ? value.type_name() : value.dump();
    }
    const nlohmann::json& member(const nlohmann::json& file, const char* name) const {
        const auto found = file.find(name);
        if (found == file.end())
            refuse("it has no \"", name, "\", so it is no config file of a data service");
        return *found;
    }
    int number(const nlohmann::json& file, const char* name, int least, int most) const {
        const nlohmann::json& value = member(file, name);
        if (!value.is_number_integer() || value < least || value > most)
            refuse(name, " is ", std::string_view(shown(value)), ", and a number from ", least,
                   " to ", most, " was expected");
        return value.get<int>();
    }
    double positive(const nlohmann::json& file, const char* name) const {
        const nlohmann::json& value = member(file, name);
        if (!value.is_number() || !(value.get<double>() > 0 && value.get<double>() < 1e9))
            refuse(name, " is ", std::string_view(shown(value)),
                   ", and seconds above 0 were expected");
        return value.get<double>();
    }
    bool flag(const nlohmann::json& file, const char* name, bool otherwise) const {
        const auto found = file.find(name);
        if (found == file.end()) return otherwise;
        if (!found->is_boolean())
            refuse(name, " is ", std::string_view(shown(*found)),
                   ", and true or false was expected");
        return found->get<bool>();
    }
    std::string text_of(const nlohmann::json& file, const char* name) const {
        const nlohmann::json& value = member(file, name);
        if (!value.is_string()) refuse(name, " is no text");
        return value.get<std::string>();
    }
    const nlohmann::json& list(const nlohmann::json& file, const char* name) const {
        const nlohmann::json& value = member(file, name);
        if (!value.is_array()) refuse(name, " is no list");
        return value;
    }
    std::vector<std::string> texts(const nlohmann::json& all, const char* name) const {
        if (!all.is_array()) refuse(name, " has something that is no list of addresses");
        std::vector<std::string> result;
        for (const nlohmann::json& each : all) {
            if (!each.is_string()) refuse(name, " has an address that is no text");
            result.push_back(each.get<std::string>());
        }
        return result;
    }
    data::dispatcher_side side(const std::string& name) const {
        if (name == "compute") return data::dispatcher_side::compute;
        if (name == "training") return data::dispatcher_side::training;
        refuse("dispatcher_side is \"", name, "\", and compute or training was expected");
    }

    std::string path_;
};

// Asks the dispatchers of a config whether they are those of its job.
inline bool dispatchers_answer(const data::service_config& c, std::string_view path, message& why) {
    const shared_secret secret = service_secret(c.key, path);
    for (int i = 0; i < c.dispatchers; ++i) {
        if (std::size_t(i) >= c.addresses.size() || c.addresses[std::size_t(i)].empty()) {
            why = text("dispatcher ", i, " of ", c.dispatchers, " has not registered yet");
            return false;
        }
        service_hello mine;
        mine.role = service_role::reader;
        mine.job = job_number(c.job_id);
        mine.dispatcher = std::uint32_t(i);
        service_link link;
        service_dial dial(secret, mine, most_control_bytes);
        if (!dial.to(c.addresses[std::size_t(i)], link)) {
            why = text("dispatcher ", i, " of ", c.dispatchers, " does not answer: ", dial.why());
            return false;
        }
        // It belongs to the trainers, and only a worker shows that the file is of this job.
        if (c.dispatcher_side == data::dispatcher_side::training && dial.theirs().workers == 0) {
            why = text("no worker has come to dispatcher ", i, " of ", c.dispatchers);
            return false;
        }
    }
    return true;
}

inline std::string json_text(std::string_view value) {
    std::string quoted = "\"";
    for (const char c : value) {
        if (c == '"' || c == '\\') quoted += '\\';
        if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
    }
    return quoted + '"';
}
inline std::string json_list(const std::vector<std::string>& values) {
    std::string all;
    for (const std::string& value : values) all += (all.empty() ? "" : ", ") + json_text(value);
    return "[" + all + "]";
}

inline std::string json_of(const data::service_config& c) {
    std::string dispatchers;
    for (const auto& each : c.addresses)
        dispatchers += (dispatchers.empty() ? "" : ", ") + json_list(each);
    char seconds[32];
    const auto end =
        std::to_chars(seconds, seconds + sizeof seconds, double(c.timeout.nanoseconds) / 1e9);
    const bool computes = c.dispatcher_side == data::dispatcher_side::compute;
    return "{\"version\": " + std::to_string(c.version) + ",\n \"job_id\": " + json_text(c.job_id) +
           ",\n \"dispatchers\": " + std::to_string(c.dispatchers) +
           ",\n \"workers_per_dispatcher\": " + std::to_string(c.workers_per_dispatcher) +
           ",\n \"dispatcher_side\": " + (computes ? "\"compute\"" : "\"training\"") +
           ",\n \"addresses\": [" + dispatchers +
           "],\n \"worker_addresses\": " + json_list(c.worker_addresses) +
           ",\n \"key\": " + json_text(c.key) +
           ",\n \"timeout\": " + std::string(seconds, end.ptr) +
           (c.shared_memory ? "" : ",\n \"shared_memory\": false") +
           (c.encrypted ? ",\n \"encrypted\": true}\n" : "}\n");
}

// Changes a config file that several processes change: each waits for the others.
template <class Change>
data::service_config change_config(const std::string& path, Change change) {
    const std::string lock = path + ".lock";
    const descriptor held(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!held || ::flock(held.number(), LOCK_EX) != 0)
        refuse_service(-1, lock, " can't be locked: ", strerror(errno));
    data::service_config config = service_file(path).read();
    change(config);
    config.write(path);
    return config;
}

}  // namespace hvd::inline v0::detail

namespace hvd::inline v0::data {

inline service_config service_config::make(int dispatchers, int workers_per_dispatcher,
                                           data::dispatcher_side side) {
    if (dispatchers < 0 || workers_per_dispatcher < 0)
        hvd::detail::refuse(-1, "a data service of ", dispatchers, " dispatchers with ",
                            workers_per_dispatcher, " workers each");
    service_config made;
    made.dispatchers = dispatchers;
    made.workers_per_dispatcher = workers_per_dispatcher;
    made.dispatcher_side = side;
    made.key = std::string_view(hvd::detail::hex_of(hvd::detail::new_secret()));
    made.job_id = std::string_view(hvd::detail::hex_of(hvd::detail::new_secret())).substr(0, 16);
    return made;
}

inline service_config service_config::read(const std::string& path) {
    return hvd::detail::service_file(path).read();
}

inline service_config service_config::read(const std::string& path, wait_for_file wait) {
    const hvd::detail::time_point until = hvd::detail::now() + wait.limit.nanoseconds;
    for (;;) {
        const hvd::detail::service_file file(path);
        hvd::detail::message why = "the file does not exist";
        if (file.exists()) {
            service_config found = file.read();
            if (hvd::detail::dispatchers_answer(found, path, why)) return found;
        }
        if (hvd::detail::now() >= until)
            file.refuse("no data service was there after ", double(wait.limit.nanoseconds) / 1e9,
                        " seconds: ", why);
        hvd::detail::sleep_for(50 * hvd::detail::tuning::millisecond);
    }
}

inline void service_config::write(const std::string& to) const {
    const std::string all = hvd::detail::json_of(*this);
    hvd::detail::atomic_file file({to}, 0600);
    file.write(std::as_bytes(std::span(all)));
    file.commit();
}

}  // namespace hvd::inline v0::data
