// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Every collective of communicator<nccl>, on the emulation; ranks are threads that begin with hvd::threads.

#include <doctest/doctest.h>

#include <chrono>
#include <vector>

#include <emulation.hpp>
#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>

namespace {

using namespace std::chrono_literals;

template <class T>
class tensor {
public:
    tensor(std::initializer_list<T> values) : tensor(std::vector<T>(values)) {}
    explicit tensor(const std::vector<T>& values) : count_(values.size()) {
        cudaMalloc(reinterpret_cast<void**>(&data_), count_ * sizeof(T));
        cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
    }
    tensor(const tensor&) = delete;
    ~tensor() { cudaFree(data_); }

    auto view() const { return hvd::device_view(data_, count_); }
    std::vector<T> values() const {
        std::vector<T> result(count_);
        cudaMemcpy(result.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
        return result;
    }

private:
    T* data_ = nullptr;
    std::size_t count_;
};

template <class F>
void on_gpus(F f, int least = 1, const hvd::communicator_options& options = {.deadline = 10s}) {
    for (int ranks = least; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks, [&](hvd::communicator<hvd::threads>& world) {
            hvd::communicator<hvd::nccl> gpus(world, options);
            f(gpus);
        });
        CHECK(emulation::live_objects() == 0);
        CHECK(emulation::disagreements().empty());
        emulation::reset();
    }
}

}  // namespace

TEST_CASE("a sum, a mean and scales") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank(), sum = n * (n - 1) / 2;
        const tensor<int> i{r, 2 * r};
        gpus.allreduce(i.view(), hvd::sum);
        CHECK(i.values() == std::vector<int>{sum, 2 * sum});
        const tensor<double> x{double(n * r)}, y{0.0};
        gpus.allreduce(x.view(), y.view(), hvd::average, {.prescale = 2});
        CHECK(y.values()[0] == doctest::Approx(2.0 * sum));
        const tensor<hvd::bfloat16> h{hvd::bfloat16(float(r + 1))};
        gpus.allreduce(h.view(), hvd::max);
        CHECK(float(h.values()[0]) == float(n));
        gpus.allreduce(h.view(), hvd::sum, {.postscale = 0.5});
        CHECK(float(h.values()[0]) == float(n * n) / 2);
    });
}

TEST_CASE("everything that moves") {
    on_gpus([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank();
        const tensor<float> b{float(r)};
        gpus.broadcast(b.view(), hvd::root{n - 1});
        CHECK(b.values()[0] == float(n - 1));

        const tensor<short> mine{short(r), short(10 * r)};  // no type of NCCL's: moved as bytes
        const tensor<short> all(std::vector<short>(std::size_t(2 * n)));
        gpus.allgather(mine.view(), hvd::into(all.view()));
        for (int p = 0; p < n; ++p) CHECK(all.values()[std::size_t(2 * p + 1)] == 10 * p);

        std::vector<int> parts;
        for (int p = 0; p < n; ++p) parts.push_back(10 * r + p);
        const tensor<int> out(parts), in(std::vector<int>(parts.size())), part{0};
        gpus.alltoall(out.view(), hvd::into(in.view()));
        for (int p = 0; p < n; ++p) CHECK(in.values()[std::size_t(p)] == 10 * p + r);
        gpus.scatter(out.view(), hvd::into(part.view()), hvd::root{0});
        CHECK(part.values()[0] == r);
        gpus.gather(part.view(), hvd::into(in.view()), hvd::root{n - 1});
        if (r == n - 1)
            for (int p = 0; p < n; ++p) CHECK(in.values()[std::size_t(p)] == p);
    });
}

TEST_CASE("parts of different sizes") {
    on_gpus([](auto& gpus) {
        std::vector<std::size_t> counts;
        std::size_t total = 0;
        for (int p = 0; p < gpus.size(); total += std::size_t(p++)) counts.push_back(std::size_t(p));
        const std::size_t own = counts[std::size_t(gpus.rank())];
        const tensor<int> mine(std::vector<int>(own, gpus.rank())), all(std::vector<int>(total, -1));
        gpus.allgather(mine.view(), hvd::into(all.view()), {.counts = counts});
        std::vector<int> expected;
        for (int p = 0; p < gpus.size(); ++p) expected.insert(expected.end(), std::size_t(p), p);
        CHECK(all.values() == expected);
        gpus.reduce_scatter(all.view(), hvd::sum, hvd::into(mine.view()), {.counts = counts});
        CHECK(mine.values() == std::vector<int>(own, gpus.rank() * gpus.size()));
    });
}

TEST_CASE("a stream of the user's, and one that waits for a request") {
    on_gpus([](auto& gpus) {
        cudaStream_t stream{};
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        const tensor<int> x{1}, y{0};
        auto pending = gpus.allreduce_async(x.view(), hvd::sum);
        pending.wait(stream);
        gpus.allreduce(x.view(), y.view(), hvd::sum, {.stream = stream});
        CHECK(y.values()[0] == gpus.size() * gpus.size());
        cudaStreamDestroy(stream);
        CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum, {.stream = cudaStreamPerThread}), hvd::usage_error);
    });
}

TEST_CASE("a rank that is alone does not call NCCL's communicator") {
    hvd::run_threads(1, [](hvd::communicator<hvd::threads>& world) {
        hvd::communicator<hvd::nccl> gpus(world);
        const tensor<int> x{7}, y{0};
        gpus.allreduce(x.view(), y.view(), hvd::sum);
        CHECK(y.values()[0] == 7);
        CHECK(emulation::calls_of("ncclCommInitRankConfig") == 0);
    });
}

TEST_CASE("split by colour") {
    on_gpus([](auto& gpus) {
        auto half = gpus.split(gpus.rank() % 2, -gpus.rank());
        const tensor<int> x{1};
        half.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[0] == half.size());
        CHECK(half.size() == (gpus.size() + 1 - gpus.rank() % 2) / 2);
        auto none = gpus.split(-1);
        CHECK(!none);
    });
}

TEST_CASE("a rank that dies: the others are told, and shrink") {
    on_gpus([](auto& gpus) {
        const int last = gpus.size() - 1;
        const tensor<int> x{1}, y{1};
        gpus.allreduce(tensor<int>{0}.view(), hvd::sum);  // all are there
        if (gpus.rank() == last) {
            emulation::kill(gpus.native_handle());
            gpus.abort();
            return;
        }
        CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum), hvd::peer_error);
        CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum), hvd::peer_error);
        auto rest = gpus.shrink(std::vector<int>{last});
        CHECK(rest.size() == last);
        rest.allreduce(y.view(), hvd::sum);
        CHECK(y.values()[0] == last);
    }, 2);
}

TEST_CASE("a rank that never comes: the others' deadline") {
    on_gpus([](auto& gpus) {
        const tensor<int> x{1};
        if (gpus.rank() != 0) CHECK_THROWS_AS(gpus.allreduce(x.view(), hvd::sum, {.deadline = 50ms}), hvd::peer_error);
    }, 2, {.deadline = 10s, .destructor_deadline = 1s});
}

TEST_CASE("every call that can fail, failing") {
    for (const char* function : {"ncclAllReduce", "ncclGroupEnd", "ncclCommGetAsyncError", "cudaEventCreateWithFlags", "cudaEventRecord",
                                 "cudaEventQuery", "ncclCommInitRankConfig", "ncclGetUniqueId", "ncclGetVersion", "cudaStreamCreateWithFlags"}) {
        INFO(function);
        emulation::reset();
        emulation::fail(function, 1, 3);  // an internal error of NCCL; not initialised, of CUDA
        int failed = 0;
        hvd::run_threads(3, [&](hvd::communicator<hvd::threads>& world) {
            const tensor<int> x{1};
            try {
                hvd::communicator<hvd::nccl> gpus(world, {.deadline = 300ms, .destructor_deadline = 100ms});
                gpus.allreduce(x.view(), hvd::sum);
            } catch (const hvd::device_error& e) {
                CHECK(std::string(e.api()) == function);
                __atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
            } catch (const hvd::peer_error&) {
            }
        });
        CHECK(failed == 1);
        CHECK(emulation::live_objects() == 0);
    }
    emulation::reset();
}

TEST_CASE("arguments that do not fit are refused before anything is called") {
    on_gpus([](auto& gpus) {
        const tensor<int> two{1, 2}, one{1};
        CHECK_THROWS_AS(gpus.allreduce(two.view(), one.view(), hvd::sum), hvd::usage_error);
        CHECK_THROWS_AS(gpus.broadcast(one.view(), hvd::root{gpus.size()}), hvd::usage_error);
        CHECK_THROWS_AS(gpus.allreduce(one.view(), hvd::sum, {.prescale = 0.5}), hvd::usage_error);
        gpus.allreduce(one.view(), hvd::sum);
        CHECK(one.values()[0] == gpus.size());
    });
}
