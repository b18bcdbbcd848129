// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Tests of the emulated streams and captures, on which the tests of the device path rely.

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>

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

}  // namespace emulated_streams_tests
