// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Elastic jobs of processes with GPUs. A process is killed by SIGKILL, and the others go on; a job
// of one process begins again from its files.

#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include <hvd/elastic_nccl.hpp>

#include "../elastic/elastic_job.hpp"
#include "contributions.hpp"
#include "gpu_forked.hpp"
#include "tensor.hpp"

namespace on_a_gpu {

namespace {

using namespace std::chrono_literals;
using device_test::expected, device_test::tensor;
using gpus_type = hvd::communicator<hvd::nccl>;

constexpr std::int64_t steps = 12, fatal = 5;

// Rank 0 adds the weights to its part, so that the sum of all ranks is the next weights.
struct summing_trainer {
    tensor<float> weights{0, 0, 0}, sum{0, 0, 0};
    cudaStream_t stream = nullptr;

    summing_trainer() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
    summing_trainer(const summing_trainer&) = delete;
    ~summing_trainer() { cudaStreamDestroy(stream); }

    void step(gpus_type& gpus, std::int64_t number) {
        std::vector<float> mine = device_test::contributions_of(gpus.rank(), gpus.size(), number),
                           before(3, 0);
        if (gpus.rank() == 0)
            cudaMemcpyAsync(before.data(), weights.data(), 12, cudaMemcpyDeviceToHost, stream);
        cudaStreamSynchronize(stream);
        for (std::size_t i = 0; i < 3; ++i) mine[i] += before[i];
        cudaMemcpyAsync(sum.data(), mine.data(), 12, cudaMemcpyHostToDevice, stream);
        cudaStreamSynchronize(stream);
        gpus.allreduce_async(sum.view(), hvd::sum, {.stream = stream}).wait(stream);
        cudaMemcpyAsync(weights.data(), sum.data(), 12, cudaMemcpyDeviceToDevice, stream);
    }
};

enum class moment : std::uint8_t { before_a_call, in_a_call, before_a_commit, while_joining };

// Trains to the end, unless this process is the victim of the moment. Returns the exit status.
int train(const hvd::elastic::options& o, moment when, bool is_victim, const char* files = nullptr,
          std::int64_t least_at_start = 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing is left of a test that is ended
    if (is_victim && when == moment::while_joining)
        std::thread([] {
            std::this_thread::sleep_for(30ms);
            raise(SIGKILL);
        }).detach();
    summing_trainer t;
    auto weights = t.weights.view();
    hvd::elastic::state state(weights);
    if (files != nullptr) state.persist_in(files);
    bool is_right = true, is_first = true;
    const auto at = [&](moment m) { return m == when && state.step() == fatal && is_first; };
    hvd::elastic::run<hvd::nccl>(
        state,
        [&](gpus_type& gpus) {
            is_right = is_right && state.step() >= least_at_start;
            while (state.step() < steps) {
                while (files != nullptr && state.step() > 0 && is_victim &&
                       state.persisted().step < state.step() && state.persisted().error.empty())
                    std::this_thread::sleep_for(1ms);  // until the last commit is in the file
                if (is_victim && when == moment::while_joining) pause();  // it is killed here
                if (is_victim && at(moment::before_a_call)) raise(SIGKILL);
                // The victim waits in its call for the others then.
                if (!is_victim && at(moment::in_a_call)) std::this_thread::sleep_for(100ms);
                t.step(gpus, state.step());
                if (is_victim && at(moment::in_a_call)) raise(SIGKILL);
                cudaStreamSynchronize(t.stream);
                if (is_victim && at(moment::before_a_commit)) raise(SIGKILL);
                if (state.step() == fatal) is_first = false;
                state.commit();
            }
        },
        o);
    is_right = is_right && t.weights.values() == expected(steps);
    if (!is_right) std::fprintf(stderr, "wrong on rank %d: the weights at the end\n", o.tcp.rank);
    return is_right ? 0 : 1;
}

int guarded(const hvd::elastic::options& o, const std::function<int()>& f) {
    try {
        return f();
    } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", o.tcp.rank, e.what());
        return 1;
    }
}

// One of several processes is killed.
bool right_without(int ranks, int victim, moment when) {
    gpus_of_this_machine();
    const hvd_test::elastic_job job(ranks, false, {.timeout = 60s});
    std::vector<pid_t> children;
    for (int r = 0; r < ranks; ++r)
        children.push_back(device_test::in_a_process([&] {
            take_a_gpu(r, ranks);
            hvd::elastic::options o = job.options(r);
            o.tcp.start_timeout = 10s;
            return guarded(o, [&] { return train(o, when, r == victim); });
        }));
    bool right = true;
    for (int r = 0; r < ranks; ++r)
        right &=
            device_test::status_of(children[std::size_t(r)]) == (r == victim ? 128 + SIGKILL : 0);
    return right;
}

// A job of one process is killed, and another one goes on from its files.
bool right_alone(moment when) {
    gpus_of_this_machine();
    std::string folder = (std::filesystem::temp_directory_path() / "hvd_gpu_XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) return false;
    const auto play = [&](bool is_victim) {
        const hvd_test::elastic_job job(1, false, {.timeout = 60s});
        return device_test::status_of(device_test::in_a_process([&] {
            take_a_gpu(0, 1);
            const hvd::elastic::options o = job.options(0);
            return guarded(o, [&] {
                return train(o, when, is_victim, folder.c_str(),
                             is_victim || when == moment::while_joining ? 0 : fatal);
            });
        }));
    };
    const bool right = play(true) == 128 + SIGKILL && play(false) == 0;
    std::filesystem::remove_all(folder);
    return right;
}

}  // namespace

bool elastic() {
    constexpr std::pair<const char*, moment> moments[] = {
        {"elastic, killed before a call", moment::before_a_call},
        {"elastic, killed in a call", moment::in_a_call},
        {"elastic, killed before a commit", moment::before_a_commit},
        {"elastic, killed while NCCL joins the ranks", moment::while_joining}};
    bool all = true;
    for (const auto& [what, when] : moments) {
        all &= say(what, 1, right_alone(when));
        for (int ranks = 2; ranks <= 4; ++ranks) {
            bool right = right_without(ranks, ranks - 1, when);
            // Rank 0 coordinates. The others have heard of the job once it has begun.
            if (when != moment::while_joining) right &= right_without(ranks, 0, when);
            all &= say(what, ranks, right);
        }
    }
    return all;
}

}  // namespace on_a_gpu
