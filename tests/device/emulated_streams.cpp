// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Tests of the emulated streams and captures, on which the tests of the device path rely.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <emulation.hpp>

namespace emulated_streams_tests {

namespace {

struct stream {
    cudaStream_t handle{};
    explicit stream(unsigned flags) { cudaStreamCreateWithFlags(&handle, flags); }
    stream(const stream&) = delete;
    ~stream() { cudaStreamDestroy(handle); }
};

// Work that is under way until it is released.
class gate {
public:
    explicit gate(cudaStream_t where) {
        emulation::enqueue(where, [open = open_] {
            while (!*open) std::this_thread::yield();
        });
    }
    ~gate() { release(); }
    void release() { *open_ = true; }

private:
    std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

struct event {
    cudaEvent_t handle{};
    event() { cudaEventCreateWithFlags(&handle, cudaEventDisableTiming); }
    event(const event&) = delete;
    ~event() { cudaEventDestroy(handle); }
};

// True if the stream's work is done without the release of anything. False is no proof.
bool is_done(cudaStream_t where) {
    const event reached;
    cudaEventRecord(reached.handle, where);
    for (int i = 0; i < 300; ++i) {
        if (cudaEventQuery(reached.handle) == cudaSuccess) return true;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return false;
}

// Until the stream's work is done, which may take as long as it likes.
void finish(cudaStream_t where) { CHECK(cudaStreamSynchronize(where) == cudaSuccess); }

cudaError_t end_capture(cudaStream_t where) {
    cudaGraph_t graph{};
    const cudaError_t code = cudaStreamEndCapture(where, &graph);
    CHECK((graph != nullptr) == (code == cudaSuccess));
    if (graph != nullptr) cudaGraphDestroy(graph);
    return code;
}

}  // namespace

TEST_CASE("blocking streams and the legacy stream wait for each other, others do not") {
    const stream blocking(cudaStreamDefault), another(cudaStreamDefault),
        independent(cudaStreamNonBlocking);
    {
        gate under_way(blocking.handle);
        finish(independent.handle);
        finish(another.handle);
        CHECK(!is_done(0));
        CHECK(!is_done(another.handle));  // behind the legacy stream now
        finish(independent.handle);
        under_way.release();
        finish(0);
    }
    {
        gate under_way(0);
        CHECK(!is_done(blocking.handle));
        CHECK(!is_done(cudaStreamPerThread));
        finish(independent.handle);
        under_way.release();
        finish(cudaStreamPerThread);
    }
    gate under_way(cudaStreamPerThread);
    finish(blocking.handle);
    CHECK(!is_done(cudaStreamLegacy));
    under_way.release();
    cudaDeviceSynchronize();
}

TEST_CASE("default streams belong to a thread, devices apart, unless it joins another's process") {
    gate under_way(0);
    std::thread([] { finish(0); }).join();
    std::thread([mine = emulation::process_of_this_thread()] {
        emulation::join_process(mine);
        CHECK(!is_done(0));
    }).join();
    cudaSetDevice(1);
    finish(0);
    cudaSetDevice(0);
    under_way.release();
    finish(0);
}

TEST_CASE("a copy from pageable memory returns before the data is there, and one to it after") {
    int* x = nullptr;
    cudaMalloc(reinterpret_cast<void**>(&x), sizeof *x);
    {
        gate under_way(0);
        auto value = std::make_unique<int>(7);
        cudaMemcpy(x, value.get(), sizeof *x, cudaMemcpyHostToDevice);
        value.reset();
        CHECK(!is_done(0));
        CHECK(*reinterpret_cast<int*>(emulation::seen_by_device(x, sizeof *x)) == -1);
    }
    int back = 0;
    cudaMemcpy(&back, x, sizeof back, cudaMemcpyDeviceToHost);
    CHECK(back == 7);
    cudaFree(x);
}

TEST_CASE("a capture in global mode forbids unsafe calls of all threads that are not relaxed") {
    const stream s(cudaStreamNonBlocking);
    const event e;
    const auto query = [&] { return cudaEventQuery(e.handle); };
    const auto on_another_thread = [](auto f) {
        cudaError_t code = cudaSuccess;
        std::thread([&] { code = f(); }).join();
        return code;
    };
    const auto relaxed = [&] {
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        cudaThreadExchangeStreamCaptureMode(&mode);
        CHECK(mode == cudaStreamCaptureModeGlobal);
        const cudaError_t code = query();
        cudaThreadExchangeStreamCaptureMode(&mode);
        return code;
    };
    const auto captured = [&](cudaStreamCaptureMode mode, auto f) {
        cudaStreamBeginCapture(s.handle, mode);
        const cudaError_t code = f();
        const cudaError_t ended = end_capture(s.handle);
        CHECK(ended == (code == cudaSuccess ? cudaSuccess : cudaErrorStreamCaptureInvalidated));
        return code;
    };
    const cudaError_t forbidden = cudaErrorStreamCaptureUnsupported;
    CHECK(captured(cudaStreamCaptureModeGlobal, query) == forbidden);
    CHECK(captured(cudaStreamCaptureModeGlobal, [&] { return on_another_thread(query); }) ==
          forbidden);
    CHECK(captured(cudaStreamCaptureModeThreadLocal, query) == forbidden);
    CHECK(captured(cudaStreamCaptureModeThreadLocal, [&] { return on_another_thread(query); }) ==
          cudaSuccess);
    CHECK(captured(cudaStreamCaptureModeRelaxed, query) == cudaSuccess);
    CHECK(captured(cudaStreamCaptureModeGlobal, relaxed) == cudaSuccess);
    CHECK(captured(cudaStreamCaptureModeGlobal, [&] { return on_another_thread(relaxed); }) ==
          cudaSuccess);
}

TEST_CASE("the legacy stream has no use while a blocking stream is captured") {
    const stream blocking(cudaStreamDefault);
    const event e;
    CHECK(cudaStreamBeginCapture(0, cudaStreamCaptureModeRelaxed) ==
          cudaErrorStreamCaptureUnsupported);
    cudaStreamBeginCapture(blocking.handle, cudaStreamCaptureModeRelaxed);
    cudaStreamCaptureStatus status{};
    CHECK(cudaStreamIsCapturing(0, &status) == cudaErrorStreamCaptureImplicit);
    CHECK(end_capture(blocking.handle) == cudaSuccess);
    cudaStreamBeginCapture(blocking.handle, cudaStreamCaptureModeRelaxed);
    CHECK(cudaEventRecord(e.handle, 0) == cudaErrorStreamCaptureImplicit);
    CHECK(end_capture(blocking.handle) == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("a captured stream waits for nothing outside, and those that fork from it join again") {
    const stream s(cudaStreamNonBlocking), forked(cudaStreamNonBlocking);
    const event inside, outside;
    cudaEventRecord(outside.handle, s.handle);
    cudaStreamBeginCapture(s.handle, cudaStreamCaptureModeRelaxed);
    CHECK(cudaStreamWaitEvent(s.handle, outside.handle, 0) == cudaErrorStreamCaptureIsolation);
    CHECK(end_capture(s.handle) == cudaErrorStreamCaptureInvalidated);

    for (const bool joins : {false, true}) {
        std::atomic<int> done = 0;
        cudaStreamBeginCapture(s.handle, cudaStreamCaptureModeRelaxed);
        cudaEventRecord(inside.handle, s.handle);
        CHECK(cudaEventQuery(inside.handle) == cudaErrorCapturedEvent);
        CHECK(cudaStreamWaitEvent(forked.handle, inside.handle, 0) == cudaSuccess);
        emulation::enqueue(forked.handle, [&] { ++done; });
        cudaEventRecord(inside.handle, forked.handle);
        if (joins) cudaStreamWaitEvent(s.handle, inside.handle, 0);
        CHECK(emulation::is_capturing(forked.handle));
        cudaGraph_t graph{};
        CHECK(cudaStreamEndCapture(s.handle, &graph) ==
              (joins ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
        CHECK(!emulation::is_capturing(forked.handle));
        if (!joins) continue;
        cudaGraphExec_t launched{};
        cudaGraphInstantiate(&launched, graph, 0);
        CHECK(done == 0);
        cudaGraphLaunch(launched, s.handle);
        cudaGraphLaunch(launched, 0);
        cudaDeviceSynchronize();
        CHECK(done == 2);
        cudaGraphExecDestroy(launched);
        cudaGraphDestroy(graph);
    }
}

// With one queue for all streams, work waits for what was given to any stream before it.
TEST_CASE("streams that share a queue run their work in the order in which it was given") {
    for (const int queues : {0, 1, 2}) {
        emulation::share_queues(queues);
        std::thread([queues] {
            const stream first(cudaStreamNonBlocking), second(cudaStreamNonBlocking),
                third(cudaStreamNonBlocking);
            const event reached;
            gate under_way(first.handle);
            cudaEventRecord(reached.handle, first.handle);
            cudaStreamWaitEvent(third.handle, reached.handle, 0);
            CHECK(is_done(second.handle) == (queues != 1));
            CHECK(!is_done(third.handle));
            under_way.release();
            finish(third.handle);
            finish(second.handle);
        }).join();
    }
    emulation::share_queues(0);
}

TEST_CASE("a call that waits for the device keeps the process's other threads out of CUDA") {
    emulation::lock_contexts(true);
    const stream s(cudaStreamNonBlocking);
    const event e;
    int* x = nullptr;
    cudaMalloc(reinterpret_cast<void**>(&x), sizeof *x);
    std::atomic<bool> frees = false, asked = false, freed = false;
    gate under_way(s.handle);
    const auto mine = emulation::process_of_this_thread();
    std::thread waiting([&] {
        emulation::join_process(mine);
        frees = true;
        cudaFree(x);
        freed = true;
    });
    while (!frees) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::thread asking([&] {
        emulation::join_process(mine);
        cudaEventQuery(e.handle);
        asked = true;
    });
    std::thread([] { cudaEventQuery(event().handle); }).join();  // of another process
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(!asked);
    CHECK(!freed);
    under_way.release();
    waiting.join();
    asking.join();
    CHECK(asked);
    emulation::lock_contexts(false);
}

TEST_CASE("an error stays the thread's last one until it is asked for, and harm stays for good") {
    const event e;
    const stream s(cudaStreamNonBlocking);
    void* memory = nullptr;
    static_cast<void>(cudaGetLastError());
    {
        gate under_way(s.handle);
        cudaEventRecord(e.handle, s.handle);
        CHECK(cudaEventQuery(e.handle) == cudaErrorNotReady);
    }
    CHECK(cudaMemcpyAsync(&memory, &memory, 1, cudaMemcpyDeviceToHost, s.handle) ==
          cudaErrorInvalidValue);
    std::thread([] { CHECK(cudaPeekAtLastError() == cudaSuccess); }).join();
    CHECK(cudaPeekAtLastError() == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaSuccess);
    emulation::corrupt(cudaErrorIllegalAddress);
    for (int i = 0; i < 2; ++i) {
        CHECK(cudaMalloc(&memory, 1) == cudaErrorIllegalAddress);
        CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    }
    emulation::reset();
    CHECK(cudaMalloc(&memory, 1) == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("all threads of all blocks of a launch run once, those of several blocks in turns") {
    const stream s(cudaStreamNonBlocking);
    bool took_turns = false;
    for (int i = 0; i < 20; ++i) {
        std::vector<std::pair<int, unsigned>> ran;
        emulation::launch(s.handle, 7, 3u,
                          [&](int block, unsigned thread) { ran.emplace_back(block, thread); });
        finish(s.handle);
        for (std::size_t k = 1; k < ran.size(); ++k)
            took_turns = took_turns || (ran[k].first != ran[k - 1].first && ran[k].second != 0);
        std::sort(ran.begin(), ran.end());
        CHECK(ran.size() == 21);
        CHECK(std::adjacent_find(ran.begin(), ran.end()) == ran.end());
    }
    CHECK(took_turns);
}

}  // namespace emulated_streams_tests
