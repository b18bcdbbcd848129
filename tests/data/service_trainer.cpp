// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <hvd/data_service.hpp>
#include <hvd/elastic.hpp>
#include <hvd/tcp.hpp>

#include "service_pipeline.hpp"

// A trainer of tests/data/service_processes.py, which prints a line for each batch: by the service
// of a config file, or without one. It is a dispatcher, too, which writes that file if there is
// none, and a rank of a job.
namespace {

namespace data = hvd::data;

// The moments at which batches came, in nanoseconds, go to the file that HVD_TEST_TIMES names.
class moments {
public:
    moments() {
        const char* const path = std::getenv("HVD_TEST_TIMES");
        file_ = path == nullptr ? nullptr : std::fopen(path, "w");
    }
    moments(const moments&) = delete;
    moments& operator=(const moments&) = delete;
    ~moments() {
        if (file_ != nullptr) std::fclose(file_);
    }
    void note() {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        if (file_ != nullptr)
            std::fprintf(file_, "%lld\n",
                         static_cast<long long>(std::chrono::nanoseconds(now).count()));
    }

private:
    std::FILE* file_;
};

// The position behind the last batch, in the file that HVD_TEST_STATE names. A trainer that finds
// one there goes on from it.
class kept_position {
public:
    template <class Loader>
    void resume(Loader& loader) const {
        data::loader_state at;
        if (std::ifstream file(path_, std::ios::binary);
            file.read(reinterpret_cast<char*>(&at), sizeof at))
            loader.resume(at);
    }
    void keep(const data::loader_state& at) const {
        if (path_.empty()) return;
        const std::string whole = path_ + ".new";
        std::ofstream(whole, std::ios::binary).write(reinterpret_cast<const char*>(&at), sizeof at);
        std::filesystem::rename(whole, path_);
    }

private:
    static std::string path_in_environment() {
        const char* const path = std::getenv("HVD_TEST_STATE");
        return path == nullptr ? "" : path;
    }
    std::string path_ = path_in_environment();
};

template <class Loader>
void print_epochs(Loader& loader, std::chrono::milliseconds each = {}) {
    moments came;
    const kept_position kept;
    kept.resume(loader);
    for (std::uint64_t epoch = loader.state().epoch; epoch < 2; ++epoch)
        for (const data::ragged_rows<int>& batch : loader.epoch(epoch)) {
            came.note();
            std::uint64_t content = 0;
            for (const int x : batch.values) content = content * 1000003 + std::uint64_t(x);
            std::printf("%llu %zu %016llx\n", static_cast<unsigned long long>(epoch), batch.size(),
                        static_cast<unsigned long long>(content));
            std::fflush(stdout);
            kept.keep(loader.state());
            std::this_thread::sleep_for(each);
        }
}

// A rank of a job, which takes batches first come, first served.
int train_by_claims(const std::string& path) {
    using namespace std::chrono_literals;
    auto world = hvd::communicator<hvd::tcp>::world();
    const auto config = data::service_config::read(path, data::wait_for_file{30s});
    data::loader loader(
        service_pipeline() |
        data::send_to_data_service(config, world, data::processing_mode::first_come_first_served) |
        data::prefetch(6));
    print_epochs(loader, std::chrono::milliseconds(world.rank()));
    world.barrier();
    return 0;
}

int serve_dispatcher(const std::string& path) {
    if (!std::filesystem::exists(path)) data::service_config::make(1, 3).write(path);
    const data::service_dispatcher dispatcher(data::service_config::read(path));
    dispatcher.register_in(path);
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// The samples that the ranks of a step have, as numbers of each sample.
template <class Communicator>
std::vector<int> samples_of_step(Communicator& world, const data::ragged_rows<int>& batch) {
    std::vector<int> counts(numbered{}.size());
    for (std::size_t i = 0; i < batch.size(); ++i)
        ++counts[std::size_t(batch.values[batch.offsets[i]])];
    world.allreduce(counts, hvd::sum);
    return counts;
}

// The samples of a step without ranks and services.
std::vector<int> samples_at(const data::loader_state& at) {
    std::vector<int> counts(numbered{}.size());
    const data::permutation order(counts.size(), at.seed, at.epoch);
    for (std::uint64_t i = 0; i < 20; ++i) ++counts[std::size_t(order(at.samples_done + i))];
    return counts;
}

// The position and the samples seen are committed together, so that each rank knows at the end
// which samples the committed steps have had.
int train_elastically(const std::string& path) {
    using namespace std::chrono_literals;
    data::loader_state at = data::loader(service_pipeline(), hvd::part{}).state();
    std::vector<int> seen(numbered{}.size());
    bool is_in_order = true;
    hvd::elastic::state state(at, seen, is_in_order);
    hvd::elastic::run(state, [&](auto& world) {
        const auto config = data::service_config::read(path, data::wait_for_file{30s});
        data::loader loader(service_pipeline() | data::send_to_data_service(config, world) |
                            data::prefetch(6));
        loader.resume(at);
        while (at.epoch < 2) {
            for (const data::ragged_rows<int>& batch : loader.epoch(at.epoch)) {
                const std::vector<int> step = samples_of_step(world, batch);
                is_in_order = is_in_order && step == samples_at(at);
                for (std::size_t i = 0; i < seen.size(); ++i) seen[i] += step[i];
                at = loader.state();
                if (at.samples_done == seen.size()) at = {at.seed, at.epoch + 1, 0};
                state.commit();
                if (world.rank() == 0) std::printf("%ld steps\n", long(state.step()));
                std::fflush(stdout);
                std::this_thread::sleep_for(3ms);
            }
        }
    });
    const bool is_complete = seen == std::vector<int>(seen.size(), 2);
    std::printf("%s, %s\n", is_complete ? "each sample twice" : "samples are wrong",
                is_in_order ? "in order" : "not in order");
    return 0;
}

}  // namespace

// service_trainer dispatcher CONFIG, or
// service_trainer elastic CONFIG, or
// service_trainer claims CONFIG, or
// service_trainer RANK SIZE [CONFIG MILLISECONDS]
int main(int argc, char** argv) {
    if (argc != 3 && argc != 5) return 2;
    if (std::string_view(argv[1]) == "dispatcher") return serve_dispatcher(argv[2]);
    const int rank = std::atoi(argv[1]), size = std::atoi(argv[2]);
    try {
        if (std::string_view(argv[1]) == "elastic") return train_elastically(argv[2]);
        if (std::string_view(argv[1]) == "claims") return train_by_claims(argv[2]);
        if (argc == 3) {
            data::loader loader(service_pipeline(), hvd::part{rank, size});
            print_epochs(loader);
            return 0;
        }
        using namespace std::chrono_literals;
        const data::training_dispatcher dispatcher(argv[3], rank);
        const auto config = data::service_config::read(argv[3], data::wait_for_file{30s});
        data::loader loader(service_pipeline() | data::send_to_data_service(config, rank, size) |
                            data::prefetch(6));
        print_epochs(loader, std::chrono::milliseconds(std::atoi(argv[4])));
        return 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
