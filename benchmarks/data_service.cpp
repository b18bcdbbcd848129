// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures one worker process and one trainer of a data service: batches a second over loopback and
// by shared memory, and without a service. Then the time in which an epoch of a large file begins,
// and the private memory that it takes. benchmarks/data_service.py puts PyTorch beside it.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <hvd/data_formats.hpp>
#include <hvd/data_service.hpp>
#if BENCH_WITH_OPENSSL
#include <hvd/interop/openssl_data_service.hpp>
#endif

namespace {

namespace data = hvd::data;
using clock_type = std::chrono::steady_clock;

struct options {
    std::size_t bytes = std::size_t(1) << 20;
    double seconds = 1;
    int rounds = 5;
    std::size_t ahead = 8, threads = 1;
    std::uint64_t samples = 100'000'000;
    std::string json;
};

double seconds_since(clock_type::time_point begin) {
    return std::chrono::duration<double>(clock_type::now() - begin).count();
}

struct numbers {
    std::size_t size() const { return std::size_t(1) << 30; }
    std::uint32_t read(std::size_t i) const { return std::uint32_t(i); }
};

// A batch is a copy of a pattern with its number at both ends. So making it costs one copy.
auto batches_of(std::size_t bytes) {
    std::vector<std::uint32_t> pattern(bytes / sizeof(std::uint32_t));
    for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = std::uint32_t(i * 2654435761u);
    return data::from(numbers()) | data::map([pattern](std::uint32_t i) {
               std::vector<std::uint32_t> sample = pattern;
               sample.front() = sample.back() = i;
               return sample;
           }) |
           data::batch(1, [](std::vector<std::vector<std::uint32_t>> one) {
               return std::move(one.front());
           });
}

// A process that serves batches until this object is destroyed.
class worker_process {
public:
    worker_process(std::size_t bytes, data::service_config& config) {
        int ends[2];
        if (::pipe(ends) != 0 || (child_ = ::fork()) < 0)
            throw std::runtime_error("no process for the worker");
        if (child_ == 0) serve(bytes, config, ends[1]);
        std::uint16_t port = 0;
        ::close(ends[1]);
        const bool has_come = ::read(ends[0], &port, sizeof port) == sizeof port;
        ::close(ends[0]);
        if (!has_come) throw std::runtime_error("the worker did not start");
        config.worker_addresses = {"127.0.0.1:" + std::to_string(port)};
    }
    worker_process(const worker_process&) = delete;
    worker_process& operator=(const worker_process&) = delete;
    ~worker_process() {
        ::kill(child_, SIGKILL);
        ::waitpid(child_, nullptr, 0);
    }

private:
    [[noreturn]] static void serve(std::size_t bytes, const data::service_config& config, int to) {
        data::service_worker worker(batches_of(bytes), config);
        const std::uint16_t port = worker.port();
        if (::write(to, &port, sizeof port) == sizeof port) worker.wait();
        ::_exit(1);
    }

    pid_t child_ = -1;
};

struct rate {
    double best = 0, median = 0;  // bytes a second
    std::uint64_t wrong = 0;
};

// Takes batches for some seconds, several times.
template <class Pipeline>
rate rate_of(const options& o, const Pipeline& pipeline) {
    data::loader loader(pipeline | data::prefetch(o.ahead), hvd::part{}, {.threads = o.threads});
    loader.begin_epoch(0);
    std::uint32_t next = 0;
    rate found;
    std::vector<double> rates;
    const auto take = [&] {
        const auto batch = loader.next();
        found.wrong += batch->front() != next || batch->back() != next ? 1u : 0u;
        ++next;
        return double(batch->size() * sizeof(std::uint32_t));
    };
    for (std::size_t i = 0; i < 2 * o.ahead + 2; ++i) take();  // connects, and learns the size
    for (int round = 0; round < o.rounds; ++round) {
        const auto begin = clock_type::now();
        double bytes = 0;
        while (seconds_since(begin) < o.seconds) bytes += take();
        rates.push_back(bytes / seconds_since(begin));
    }
    std::sort(rates.begin(), rates.end());
    found.best = rates.back();
    found.median = rates[rates.size() / 2];
    return found;
}

rate rate_of_service(const options& o, bool shares_memory, bool is_encrypted = false) {
    auto config = data::service_config::make(0, 0);
    config.shared_memory = shares_memory;
    config.encrypted = is_encrypted;
    const worker_process worker(o.bytes, config);
    return rate_of(o, batches_of(o.bytes) | data::send_to_data_service(config, 0, 1));
}

// The private memory of this process, without mapped files.
std::size_t private_bytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("RssAnon:")) return 1024 * std::stoull(line.substr(8));
    return 0;
}

// A file of so many windows of one token, without blocks on the disk.
class large_file {
public:
    explicit large_file(std::uint64_t samples) {
        if (::mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("no folder in /tmp");
        std::ofstream(path()).put('\0');
        std::filesystem::resize_file(path(), 2 * (samples + 1));
    }
    large_file(const large_file&) = delete;
    large_file& operator=(const large_file&) = delete;
    ~large_file() { std::filesystem::remove_all(folder_.data()); }
    std::string path() const { return std::string(folder_.data()) + "/tokens.bin"; }

private:
    std::array<char, 24> folder_{"/tmp/hvd-bench-XXXXXX"};
};

struct start {
    double first = 0, later = 0;  // seconds to the first batch: with the file opened, of an epoch
    std::size_t bytes = 0;        // private, in addition
};

start start_of(const options& o) {
    const large_file file(o.samples);
    const std::size_t before = private_bytes();
    const auto begin = clock_type::now();
    const data::token_file<std::uint16_t> tokens(file.path(), {.length = 1, .has_header = false});
    data::loader loader(data::from(tokens) | data::shuffle({.seed = 1}) | data::batch(256),
                        hvd::part{});
    loader.begin_epoch(0);
    if (!loader.next()) throw std::runtime_error("the file has no batch");
    start found{seconds_since(begin), 0, 0};
    std::vector<double> times;
    for (std::uint64_t epoch = 1; epoch <= 9; ++epoch) {
        const auto again = clock_type::now();
        loader.begin_epoch(epoch);
        (void)loader.next();
        times.push_back(seconds_since(again));
    }
    std::sort(times.begin(), times.end());
    found.later = times[times.size() / 2];
    const std::size_t after = private_bytes();
    found.bytes = after > before ? after - before : 0;
    return found;
}

nlohmann::json row_of(const char* name, const rate& r) {
    fmt::print("{:<24} {:>8.2f} GB/s, median {:.2f}\n", name, r.best / 1e9, r.median / 1e9);
    return {{"name", name}, {"best", r.best}, {"median", r.median}, {"wrong", r.wrong}};
}

int measure(const options& o) {
    nlohmann::json rows;
    fmt::print("batches of {} bytes, {} ahead, {} rounds of {} s\n", o.bytes, o.ahead, o.rounds,
               o.seconds);
    rows.push_back(row_of("without a service", rate_of(o, batches_of(o.bytes))));
    rows.push_back(row_of("loopback", rate_of_service(o, false)));
#if BENCH_WITH_OPENSSL
    rows.push_back(row_of("loopback, TLS", rate_of_service(o, false, true)));
#endif
    rows.push_back(row_of("shared memory", rate_of_service(o, true)));
    const start s = start_of(o);
    fmt::print(
        "{} samples: first batch {:.2f} ms after the file is opened, {:.2f} ms in a later "
        "epoch, {:.2f} MB of private memory\n",
        o.samples, 1e3 * s.first, 1e3 * s.later, double(s.bytes) / 1e6);
    rows.push_back({{"name", "start of an epoch"},
                    {"samples", o.samples},
                    {"first", s.first},
                    {"later", s.later},
                    {"private_bytes", s.bytes}});
    if (!o.json.empty()) std::ofstream(o.json) << nlohmann::json{{"rows", rows}}.dump(1) << "\n";
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"One worker and one trainer of a data service, and the start of an epoch"};
    options o;
    app.add_option("--bytes", o.bytes, "of a batch")->check(CLI::Range(8, 1 << 30));
    app.add_option("--seconds", o.seconds, "of a round")->capture_default_str();
    app.add_option("--rounds", o.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    app.add_option("--ahead", o.ahead, "batches asked for ahead")->check(CLI::Range(1, 1000));
    app.add_option("--threads", o.threads, "of the trainer's loader")->check(CLI::Range(1, 64));
    app.add_option("--samples", o.samples, "of the large file")->capture_default_str();
    app.add_option("--json", o.json, "a file for the figures");
    CLI11_PARSE(app, argc, argv);
    try {
        return measure(o);
    } catch (const std::exception& e) {
        fmt::print(stderr, "{}\n", e.what());
        return 1;
    }
}
