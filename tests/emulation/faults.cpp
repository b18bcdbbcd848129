// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>

#include "emulation.hpp"

namespace {

std::mutex mutex;
// Looking one up by a literal makes no string.
template <class Value>
using by_name = std::map<std::string, Value, std::less<>>;
by_name<int> counts, answers;
by_name<std::map<int, int>> faults;                       // the code for the call with this number
constexpr int killing = std::numeric_limits<int>::min();  // in the place of a code
std::atomic<std::size_t> objects{0};
std::atomic<int> copy_milliseconds{0}, state_milliseconds{0}, corruption{0};
// the version of NCCL that brought a function
const by_name<int> versions = {{"ncclCommWindowRegister", 22703},
                               {"ncclCommWindowDeregister", 22703},
                               {"ncclCommShrink", 22703},
                               {"ncclAlltoAll", 22803},
                               {"ncclGather", 22803},
                               {"ncclScatter", 22803},
                               {"ncclCommRevoke", 22807},
                               {"ncclCommGetUniqueId", 22902},
                               {"ncclCommGrow", 22902}};

// State of the calling thread, for which CUDA needs no context.
bool belongs_to_thread(std::string_view function) {
    return function == "cudaGetDevice" || function == "cudaSetDevice" ||
           function == "cudaThreadExchangeStreamCaptureMode";
}

// Calls that ask about devices, or about the driver.
bool asks(std::string_view function) {
    return function == "cudaGetDeviceCount" || function == "cudaGetDeviceProperties" ||
           function == "cudaDeviceGetAttribute" || function == "cudaGetDriverEntryPointByVersion";
}

void sleep_milliseconds(int time) {
    if (time > 0) std::this_thread::sleep_for(std::chrono::milliseconds(time));
}

int version() {
    const auto told = answers.find("ncclGetVersion");
    return told == answers.end() ? NCCL_VERSION_CODE : told->second;
}

}  // namespace

int emulation::nccl_version() {
    const std::lock_guard lock(mutex);
    return version();
}

void emulation::corrupt(int code) { corruption = code; }
bool emulation::is_corrupted() { return corruption != 0; }
void emulation::slow_down(int milliseconds) { copy_milliseconds = milliseconds; }
void emulation::slow_states(int milliseconds) { state_milliseconds = milliseconds; }
void emulation::wait_as_slow_copies_do() { sleep_milliseconds(copy_milliseconds); }
void emulation::wait_as_slow_states_do() { sleep_milliseconds(state_milliseconds); }

void emulation::fail(const std::string& function, int k, int code) {
    const std::lock_guard lock(mutex);
    faults[function][counts[function] + k] = code;
}

void emulation::kill_process(const std::string& function, int k) { fail(function, k, killing); }

int emulation::faulted(const char* function) {
    const bool is_cuda = !std::string_view(function).starts_with("nccl");
    if (is_cuda && !belongs_to_thread(function)) {
        pass_context();
        if (!asks(function)) use_context();
    }
    const std::lock_guard lock(mutex);
    const auto since = versions.find(function);
    if (since != versions.end() && version() < since->second)
        die(std::string(function) + " is not in this version of NCCL");
    auto count = counts.find(function);
    if (count == counts.end()) count = counts.emplace(function, 0).first;
    const int call = ++count->second;
    if (is_cuda && corruption != 0) return last_error() = corruption;
    const auto of_function = faults.find(function);
    if (of_function == faults.end()) return 0;
    const auto fault = of_function->second.find(call);
    if (fault == of_function->second.end()) return 0;
    if (fault->second == killing) std::raise(SIGKILL);
    if (is_cuda) last_error() = fault->second;
    return fault->second;
}

void emulation::answer(const std::string& question, int value) {
    const std::lock_guard lock(mutex);
    answers[question] = value;
}

int emulation::answer_of(const std::string& question) {
    const std::lock_guard lock(mutex);
    const auto told = answers.find(question);
    return told == answers.end() ? 1 : told->second;
}

int emulation::calls_of(const std::string& function) {
    const std::lock_guard lock(mutex);
    return counts[function];
}

namespace emulation {

void forget_disagreements();

void reset() {
    forget_disagreements();
    forget_contexts();
    const std::lock_guard lock(mutex);
    counts.clear();
    faults.clear();
    answers.clear();
    copy_milliseconds = state_milliseconds = corruption = 0;
}

}  // namespace emulation

std::size_t emulation::live_objects() { return objects; }
void emulation::count_object(int change) { objects += std::size_t(change); }

void emulation::die(const std::string& why) {
    std::fprintf(stderr, "emulation: %s\n", why.c_str());
    std::abort();
}

unsigned emulation::random_number() {
    static const unsigned seed = [] {
        const char* const wanted = std::getenv("HVD_EMULATION_SEED");
        return wanted != nullptr ? unsigned(std::atoi(wanted)) : std::random_device{}();
    }();
    static std::atomic<unsigned> threads{0};
    thread_local std::minstd_rand engine(seed + 1 + threads++);
    return unsigned(engine());
}
