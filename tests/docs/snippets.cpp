// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The examples of the API reference (`@snippet` in the headers) and of docs/, each between two
// lines `//! [name]`. All of them run, on threads and on MPI.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory_resource>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <hvd/autotune.hpp>
#include <hvd/build_info.hpp>
#include <hvd/engine.hpp>
#include <hvd/observe/observers.hpp>
#include <hvd/prometheus.hpp>
#include <hvd/settings.hpp>
#include <hvd/statistics.hpp>
#include <hvd/tcp.hpp>
#include <hvd/timeline.hpp>

#include "hvd_test.hpp"
#include "temporary_directory.hpp"
#include "variables.hpp"

namespace snippets_tests {

using namespace std::chrono_literals;
using communicator = hvd_test::communicator;

namespace {

float sum_of_ranks(const communicator& world) {
    return float(world.size() * (world.size() - 1) / 2);
}

void allreduce(communicator& world) {
    //! [allreduce]
    std::vector<float> gradient(1000, float(world.rank()));
    world.allreduce(gradient, hvd::sum);  // in place: the sum over all ranks, on every rank

    std::vector<float> mean(gradient.size());
    world.allreduce(gradient, hvd::into(mean), hvd::average);  // out of place

    double loss = 0.5;
    world.allreduce(loss, hvd::average, {.name = "loss"});  // a variable is a tensor of one element
    //! [allreduce]
    CHECK(gradient == std::vector<float>(1000, sum_of_ranks(world)));
    CHECK(mean == gradient);
    CHECK(loss == 0.5);
}

void operations(communicator& world) {
    const int rank = world.rank(), size = world.size();
    std::vector<float> x = {float(rank), -float(rank)};
    std::vector<int> n = {rank + 1};
    std::vector<float> largest = {float(rank), 0};
    //! [operations]
    world.allreduce(x, hvd::max);
    world.allreduce(n, hvd::average(hvd::rounding::nearest));  // integers need a rounding
    world.allreduce(x, hvd::sum, {.prescale = 0.5, .postscale = 2.0});

    const float limit = 10;  // any associative callable, captures included
    world.allreduce(largest, [limit](float a, float b) { return std::min(std::max(a, b), limit); });
    //! [operations]
    CHECK(x == std::vector<float>{float((size - 1) * size), 0});
    CHECK(n.front() == (size + 2) / 2);
    CHECK(largest.front() == float(size - 1));
}

void allreduce_with_rank(communicator& world) {
    //! [allreduce_with_rank]
    const double seconds = 1.0 + world.rank();
    const auto slowest = world.allreduce_with_rank(seconds, hvd::max);  // slowest.value, .rank
    //! [allreduce_with_rank]
    CHECK(slowest == hvd::with_rank<double>{double(world.size()), world.size() - 1});
}

void reduce(communicator& world) {
    //! [reduce]
    std::vector<float> counts = {1, float(world.rank())};
    world.reduce(counts, hvd::sum, hvd::root{0});  // rank 0 has the sum, the others keep theirs
    //! [reduce]
    if (world.rank() == 0)
        CHECK(counts == std::vector<float>{float(world.size()), sum_of_ranks(world)});
    else CHECK(counts == std::vector<float>{1, float(world.rank())});
}

void broadcast(communicator& world) {
    //! [broadcast]
    std::vector<float> weights(1000);
    if (world.rank() == 0) std::iota(weights.begin(), weights.end(), 0.0f);
    world.broadcast(weights, hvd::root{0});
    //! [broadcast]
    CHECK(weights.back() == 999);
}

void allgather(communicator& world) {
    //! [allgather]
    std::vector<int> mine(std::size_t(world.rank()), world.rank());  // rank r has r elements
    const auto all = world.allgather(mine);  // all.values, all.counts, all.displacements
    for (std::size_t r = 0; r < all.counts.size(); ++r)
        for (const int element : all[r]) CHECK(element == int(r));  // of rank r

    std::vector<int> ranks(std::size_t(world.size()));
    world.allgather(world.rank(), hvd::into(ranks));  // into memory that is there
    //! [allgather]
    for (std::size_t r = 0; r < ranks.size(); ++r) CHECK(ranks[r] == int(r));
}

void gather(communicator& world) {
    //! [gather]
    const double seconds = 1.0 + world.rank();
    const auto times = world.gather(seconds, hvd::root{0});  // empty on the other ranks
    if (world.rank() == 0)
        CHECK(*std::max_element(times.values.begin(), times.values.end()) >= 1.0);
    //! [gather]
    CHECK(times.values.size() == (world.rank() == 0 ? std::size_t(world.size()) : 0));
}

void scatter(communicator& world) {
    //! [scatter]
    std::vector<int> samples;  // only the root's matters
    if (world.rank() == 0) samples.resize(100);
    std::iota(samples.begin(), samples.end(), 0);
    const std::vector<int> mine = world.scatter(samples);  // 100 / size, some one more
    //! [scatter]
    CHECK(mine.size() == std::size_t(100 / world.size() + (world.rank() < 100 % world.size())));
    if (world.rank() == 0) CHECK(mine.front() == 0);
}

void scan(communicator& world) {
    //! [scan]
    std::vector<float> x(4, 1);
    world.scan(x, hvd::sum);  // in place: rank r has the sum of ranks 0 to r

    std::vector<float> mean(x.size());
    world.scan(x, hvd::into(mean), hvd::average);  // out of place: the mean of r + 1 ranks
    //! [scan]
    CHECK(x == std::vector<float>(4, float(world.rank() + 1)));
    CHECK(mean == std::vector<float>(4, float(world.rank() + 2) / 2));
}

void exscan(communicator& world) {
    const std::size_t samples = 10 + std::size_t(world.rank());
    //! [exscan]
    std::size_t first = 0;                              // 0 on rank 0
    world.exscan(samples, hvd::into(first), hvd::sum);  // the samples of the ranks before
    //! [exscan]
    std::size_t expected = 0;
    for (int r = 0; r < world.rank(); ++r) expected += 10 + std::size_t(r);
    CHECK(first == expected);
}

void reduce_scatter(communicator& world) {
    //! [reduce_scatter]
    const std::vector<float> gradient(10, float(world.rank()));
    const std::vector<float> mine = world.reduce_scatter(gradient, hvd::sum);

    float rows[6][2] = {};  // parts are whole rows: rank r gets its share of the 6
    const auto part = world.reduce_scatter(rows, hvd::sum);

    std::vector<int> counts(std::size_t(world.size()));
    counts.back() = 10;  // the last rank gets all; every rank gives the same counts
    const auto given = world.reduce_scatter(gradient, hvd::sum, counts);
    //! [reduce_scatter]
    CHECK(given.size() == (world.rank() + 1 == world.size() ? 10 : 0));
    const std::size_t size = std::size_t(world.size()), rank = std::size_t(world.rank());
    CHECK(mine == std::vector<float>(10 / size + (rank < 10 % size), sum_of_ranks(world)));
    CHECK(part.size() == 2 * (6 / size + (rank < 6 % size)));
}

void alltoall(communicator& world) {
    //! [alltoall]
    std::vector<std::size_t> counts(std::size_t(world.size()));
    std::iota(counts.begin(), counts.end(), std::size_t(0));  // r elements for rank r, none for 0
    const std::vector<int> outgoing(std::accumulate(counts.begin(), counts.end(), std::size_t(0)),
                                    world.rank());
    const auto incoming = world.alltoall(outgoing, counts);  // from every rank, in rank order

    const std::vector<int> shares(2 * counts.size(), world.rank());
    const auto equal = world.alltoall(shares);  // two elements for each rank
    //! [alltoall]
    CHECK(incoming.counts == std::vector<std::size_t>(counts.size(), std::size_t(world.rank())));
    for (std::size_t r = 0; r < counts.size(); ++r) CHECK(equal.values[2 * r] == int(r));
}

void barrier(communicator& world) {
    //! [barrier]
    world.barrier({.name = "checkpoint written", .timeout = 60s});
    //! [barrier]
}

void broadcast_object(communicator& world) {
    //! [broadcast_object]
    std::vector<std::string> classes;
    if (world.rank() == 0) classes = {"coat", "shirt", "sandal"};
    world.broadcast_object(classes, hvd::root{0});
    //! [broadcast_object]
    CHECK(classes == std::vector<std::string>{"coat", "shirt", "sandal"});
}

void broadcast_object_async(communicator& world) {
    //! [broadcast_object_async]
    std::string settings = world.rank() == 0 ? "rate = 0.1" : "";
    auto pending = world.broadcast_object_async(settings, hvd::root{0});
    std::vector<float> batch(1000, 1);  // prepared meanwhile
    pending.wait();
    //! [broadcast_object_async]
    CHECK(settings == "rate = 0.1");
}

void copy_of_root(communicator& world) {
    const std::vector<std::string> mine{std::to_string(world.rank())};
    //! [copy_of_root]
    const std::vector<std::string> of_root = world.copy_of_root(mine, hvd::root{0});
    //! [copy_of_root]
    CHECK(of_root == std::vector<std::string>{"0"});
}

void gather_object(communicator& world) {
    //! [gather_object]
    const std::string report = "rank " + std::to_string(world.rank());
    for (const std::string& one : world.gather_object(report, hvd::root{0}))  // none elsewhere
        CHECK(one.starts_with("rank "));
    //! [gather_object]
}

void scatter_object(communicator& world) {
    //! [scatter_object]
    std::vector<std::string> files;  // one for each rank, on the root
    for (int r = 0; world.rank() == 0 && r < world.size(); ++r)
        files.push_back("part-" + std::to_string(r));
    const std::string mine = world.scatter_object(files, hvd::root{0});
    //! [scatter_object]
    CHECK(mine == "part-" + std::to_string(world.rank()));
}

void allgather_object(communicator& world) {
    //! [allgather_object]
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    const std::vector<std::string> hosts = world.allgather_object(std::string(name));
    //! [allgather_object]
    CHECK(hosts.size() == std::size_t(world.size()));
    CHECK(hosts[std::size_t(world.rank())] == name);
}

void allgather_object_async(communicator& world) {
    //! [allgather_object_async]
    auto pending = world.allgather_object_async(std::string("ready"));
    const std::vector<std::string> all = pending.wait();
    //! [allgather_object_async]
    CHECK(all == std::vector<std::string>(std::size_t(world.size()), "ready"));
}

void fuse(communicator& world) {
    std::vector<float> weights(12, float(world.rank())), bias(3, float(world.rank()));
    std::vector<double> statistics(2, 1.0);
    //! [fuse]
    world.broadcast(hvd::fuse(weights, bias, statistics), hvd::root{0});
    world.allreduce(hvd::fuse(weights, bias, statistics), hvd::average);  // one message, two types

    std::vector<hvd::tensor_view<float>> list = {hvd::view(weights.data(), hvd::shape(12)),
                                                 hvd::view(bias.data(), bias.size())};
    world.allreduce(hvd::fuse(list), hvd::sum);  // a list made at run time
    //! [fuse]
    CHECK(weights.front() == 0);
    CHECK(statistics.front() == 1);
}

void arena(communicator& world) {
    //! [arena]
    hvd::arena arena{world, std::size_t(1) << 20};    // room for 1 MiB on each rank
    std::pmr::vector<float> gradient(10000, &arena);  // reduced where it lies
    auto weights = arena.tensor<float>(hvd::shape(100, 10));
    world.broadcast(weights, hvd::root{0});
    std::fill(gradient.begin(), gradient.end(), float(world.rank()));
    world.allreduce(gradient, hvd::average);
    //! [arena]
    CHECK(gradient.back() == float(world.size() - 1) / 2);
}

void plan(communicator& world) {
    std::vector<float> weights(12), bias(3);
    const int steps = 3;
    //! [plan]
    auto average = world.plan_allreduce(hvd::fuse(weights, bias), hvd::average);  // agreed on once
    for (int step = 0; step < steps; ++step) {
        std::fill(weights.begin(), weights.end(), float(step + world.rank()));
        average.run();  // allocates nothing
    }
    //! [plan]
    CHECK(weights.front() == doctest::Approx(steps - 1 + (world.size() - 1) / 2.0));
}

void plan_with_codec(communicator& world) {
    std::vector<float> weights(12), bias(3);
    //! [plan_with_codec]
    constexpr auto codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>);
    auto average = world.plan_allreduce(hvd::fuse(weights, bias), hvd::average, {}, codec);
    std::fill(weights.begin(), weights.end(), float(world.rank()));
    average.run();  // 2 bytes an element travel
    //! [plan_with_codec]
    CHECK(weights.front() == doctest::Approx((world.size() - 1) / 2.0).epsilon(0.01));
}

void asynchronous(communicator& world) {
    std::vector<float> first(1000, 1), second(10, 2);
    const auto backward_pass = [] {};
    //! [asynchronous]
    hvd::request pending = world.allreduce_async(first, hvd::sum);  // `first` is hvd's until wait()
    auto rows = world.allgather_async(second);
    backward_pass();
    if (!pending.test()) pending.wait();  // after that `pending` is empty
    const hvd::gathered<float> all = rows.wait();
    //! [asynchronous]
    CHECK(first == std::vector<float>(1000, float(world.size())));
    CHECK(all.values.size() == 10 * std::size_t(world.size()));
}

struct detached {
    struct promise_type {
        detached get_return_object() { return {}; }
        std::suspend_never initial_suspend() { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
};

//! [coroutine]
detached sum_twice(communicator& world, std::vector<float>& x, bool& done) {
    co_await world.allreduce_async(x, hvd::sum);
    co_await world.allreduce_async(x, hvd::sum);
    done = true;
}
//! [coroutine]

void coroutine(communicator& world) {
    std::vector<float> x(4, 1);
    bool done = false;
    //! [run_ready]
    sum_twice(world, x, done);
    while (!done) world.run_ready();  // coroutines go on here, on this thread
    //! [run_ready]
    CHECK(x.front() == float(world.size() * world.size()));
}

void progress(communicator& world) {
    constexpr int layers = 3;
    int computed = 0;
    std::vector<float> gradient(4, 1);
    const auto compute = [&](int) { ++computed; };
    //! [progress]
    hvd::request pending = world.allreduce_async(gradient, hvd::sum);
    for (int layer = 0; layer < layers; ++layer) {
        compute(layer);
        world.progress();  // without a progress thread the call goes on here
    }
    pending.wait();
    //! [progress]
    CHECK(computed == layers);
    CHECK(gradient.back() == float(world.size()));
}

void wait_for(communicator& world) {
    std::vector<float> x(1000, 1);
    int others = 0;
    //! [wait_for]
    hvd::request pending = world.allreduce_async(x, hvd::sum);
    while (!pending.wait_for(10ms)) ++others;  // other work; the call goes on
    //! [wait_for]
    CHECK(others >= 0);
    CHECK(x.front() == float(world.size()));
}

void wait_all(communicator& world) {
    std::vector<std::vector<float>> gradients(3, std::vector<float>(100, 1));
    float loss = 1;
    //! [wait_all]
    std::vector<hvd::request> pending;
    for (auto& gradient : gradients)
        pending.push_back(world.allreduce_async(gradient, hvd::average));
    hvd::request last = world.allreduce_async(loss, hvd::average);

    if (!hvd::test_all(pending)) hvd::wait_all(pending);
    hvd::wait_all(last);  // a list of requests
    //! [wait_all]
    CHECK(gradients.back() == std::vector<float>(100, 1));
    CHECK(loss == 1);
}

void wait_any(communicator& world) {
    std::vector<int> sums;
    //! [wait_any]
    std::vector<int> x = {1, 2};
    std::vector<hvd::request> pending;
    for (int& one : x) pending.push_back(world.allreduce_async(one, hvd::sum));
    for (std::size_t left = pending.size(); left > 0; --left)
        sums.push_back(x[hvd::wait_any(pending)]);
    //! [wait_any]
    CHECK(sums == x);
    CHECK(x.back() == 2 * world.size());
}

void communicators(communicator& world) {
    //! [communicator]
    communicator node = world.local();       // the ranks of this node
    communicator first = world.subset({0});  // empty on all ranks that are not in the list
    communicator half = world.split(world.rank() % 2);  // one communicator for each colour

    if (first) first.barrier();
    int members = 1;
    half.allreduce(members, hvd::sum);
    //! [communicator]
    CHECK(node.size() == world.local_size());
    CHECK(members == half.size());
    CHECK(bool(first) == (world.rank() == 0));
}

void then(communicator& world) {
    std::vector<float> gradient(100, 1);
    std::atomic<bool> is_reduced = false;
    //! [then]
    hvd::request pending = world.allreduce_async(gradient, hvd::sum);
    pending.then([&](std::exception_ptr failure) { is_reduced = !failure; });
    pending.wait();  // the function has run
    //! [then]
    CHECK(is_reduced);
}

void fused_gather(communicator& world) {
    const double loss = 1;
    const std::vector<int> confusion(100, 1);
    //! [fused_gather]
    const auto [losses, tables] = world.gather(hvd::fuse(loss, confusion), hvd::root{0});
    if (world.rank() == 0) CHECK(tables.values.size() == 100 * losses.values.size());
    //! [fused_gather]
}

void fused_scatter(communicator& world) {
    const std::size_t size = std::size_t(world.size());
    //! [fused_scatter]
    std::vector<float> images;
    std::vector<std::uint8_t> labels;  // only the root's matter
    if (world.rank() == 0) images.resize(size * 28 * 28), labels.resize(size);
    const auto pixels = hvd::view(images.data(), hvd::shape(images.size() / 784, 784));
    const auto [my_images, my_labels] = world.scatter(hvd::fuse(pixels, labels), hvd::root{0});
    //! [fused_scatter]
    CHECK(my_images.size() == 784);
    CHECK(my_labels.size() == 1);
}

void fused_alltoall(communicator& world) {
    const std::size_t size = std::size_t(world.size());
    //! [fused_alltoall]
    const std::vector<float> keys(2 * size, float(world.rank()));
    const std::vector<std::int64_t> values(2 * size, world.rank());
    std::vector<float> their_keys(2 * size);
    std::vector<std::int64_t> their_values(2 * size);
    world.alltoall(hvd::fuse(keys, values), hvd::into(hvd::fuse(their_keys, their_values)));
    const auto [same_keys, same_values] = world.alltoall(hvd::fuse(keys, values));
    //! [fused_alltoall]
    CHECK(their_keys.back() == float(size - 1));
    CHECK(same_keys.values == their_keys);
    CHECK(same_values.values == their_values);
}

void send(communicator& world) {
    const int last = world.size() - 1;
    std::vector<float> activations(16);
    //! [send]
    // A pipeline: each rank works on what comes from the rank before it.
    if (world.rank() > 0) world.recv(hvd::into(activations), hvd::peer{world.rank() - 1});
    for (float& a : activations) a += 1;
    if (world.rank() < last) world.send(activations, hvd::peer{world.rank() + 1});
    //! [send]
    CHECK(activations == std::vector<float>(16, float(world.rank() + 1)));
}

void duplicate(communicator& world) {
    //! [duplicate]
    communicator own = world.duplicate();  // of a library: its calls do not mix with its user's
    own.barrier();
    //! [duplicate]
    CHECK(own.size() == world.size());
}

void parent_rank(communicator& world) {
    //! [parent_rank]
    communicator half = world.split(world.rank() % 2);
    const int last = half.parent_rank(half.size() - 1);  // the last member's rank in `world`
    //! [parent_rank]
    CHECK(last % 2 == world.rank() % 2);
    CHECK(last + 2 >= world.size());
}

void abort(communicator& world) {
    communicator data = world.duplicate();
    const bool wrong = world.rank() == 0;
    //! [abort]
    if (wrong) data.abort("the data is not of this run");
    try {
        data.barrier();
    } catch (const hvd::peer_error& e) {  // on all ranks, with the text
        CHECK(e.peers() == std::vector{0});
    }
    CHECK(data.is_given_up());
    //! [abort]
}

void options(communicator& world) {
    std::vector<float> x(4, 1);
    //! [options]
    world.allreduce(x, hvd::sum, {.name = "conv1", .prescale = 0.5, .timeout = 30s});
    //! [options]
    CHECK(x.front() == 0.5f * float(world.size()));
}

void views(communicator& world) {
    //! [views]
    float matrix[4][8] = {};  // a C array is one tensor
    world.allreduce(matrix, hvd::sum);

    std::vector<float> storage(32);
    world.broadcast(hvd::view(storage.data(), hvd::shape(4, 8)));
    const auto column = hvd::view(storage.data(), hvd::shape(4), hvd::strides(8));
    world.allreduce(column, hvd::sum);  // every eighth element; packed on the way
    //! [views]
    CHECK(storage.front() == 0);
}

void observed() {
    //! [observed]
    using watched = hvd::observed<hvd::threads, hvd::statistics>;
    auto alone = hvd::communicator<watched>::self();
    alone.barrier();
    CHECK(alone.observer().calls() == 1);
    //! [observed]
}

// An observer of your own.
//! [own_observer]
struct largest_call {
    void on_begin(const hvd::event& e) { bytes = std::max(bytes, e.bytes); }
    void on_end(const hvd::event&, bool /*succeeded*/) {}
    std::size_t bytes = 0;
};
//! [own_observer]

void several_observers() {
    //! [several_observers]
    using both = hvd::observers<hvd::statistics, largest_call>;
    auto alone = hvd::communicator<hvd::observed<hvd::threads, both>>::self();
    float loss = 1;
    alone.allreduce(loss, hvd::average);
    alone.barrier();
    CHECK(alone.observer().get<largest_call>().bytes == sizeof loss);
    CHECK(alone.observer().get<hvd::statistics>().calls() == 2);
    //! [several_observers]
}

template <class Backend>
void recorded(const hvd::timeline_options& given) {
    using observed_comm = hvd::communicator<hvd::observed<Backend, hvd::timeline>>;
    const auto train = [](observed_comm& world, const hvd::timeline_options& options) {
        //! [timeline]
        // world is an hvd::communicator<hvd::observed<hvd::mpi, hvd::timeline>>.
        hvd::start_timeline(world, options);  // options.file is "run.json": run.0.json, …
        hvd::engine engine{world};            // its tensors are in the file, too
        std::vector<float> gradient(1000, 1);
        engine.allreduce("gradient", gradient, hvd::average).wait();
        float loss = 1;
        world.allreduce(loss, hvd::average, {.name = "loss"});
        const hvd::timeline_summary recorded = hvd::stop_timeline(world);
        //! [timeline]
        CHECK(recorded.dropped == 0);
        CHECK(recorded.bytes > 100);
    };
#if defined(HVD_TEST_BACKEND_MPI)
    auto world = observed_comm::world();
    train(world, given);
#else
    hvd::run_threads<hvd::observed<Backend, hvd::timeline>>(
        2, [&](observed_comm& world) { train(world, given); });
#endif
}

void timeline_from_environment() {
    const hvd_test::variables guard(hvd_test::values{{"HVD_TIMELINE_FILE", ""}});
    using timed = hvd::observed<hvd::threads, hvd::timeline>;
    auto world = hvd::communicator<timed>::self();
    //! [timeline_from_environment]
    // HVD_TIMELINE_FILE=run.json ./train
    hvd::start_timeline(world, hvd::options_from_environment<hvd::timeline_options>());
    //! [timeline_from_environment]
    CHECK(!world.observer().records());
}

void process_wide() {
    //! [default]
    hvd::init();  // starts MPI if nobody has; every rank calls it
    float loss = 1;
    hvd::world().allreduce(loss, hvd::average);
    if (hvd::rank() == 0) CHECK(loss == 1);
    hvd::shutdown();
    //! [default]
    CHECK(!hvd::is_initialized());
}

void named_tensors(communicator& world) {
    std::vector<float> kernel(900, 1), bias(30, 1), rows(std::size_t(world.rank()), 1);
    //! [named_tensors]
    hvd::engine engine{world};

    // Any thread, any order: ranks match tensors by their names.
    auto a = engine.allreduce("conv1/kernel", kernel, hvd::average);
    auto b = engine.allreduce("conv1/bias", bias, hvd::average, {.priority = 1});
    auto all = engine.allgather("rows", rows);
    b.wait();
    a.wait();
    const auto everybodys = all.wait();  // values, counts, displacements
    //! [named_tensors]
    CHECK(everybodys.counts.back() == std::size_t(world.size() - 1));
    CHECK(kernel[0] == 1);
    CHECK(bias[0] == 1);
}

void engine_groups(communicator& world) {
    std::vector<float> w(10, 1), b(3, 1), v(4, 1);
    //! [engine_groups]
    hvd::engine engine{world};
    auto group = engine.allreduce("layer 3", hvd::fuse(w, b), hvd::sum);  // both, or none of them
    auto told = engine.allreduce("v", v, hvd::sum, {.then = [](std::exception_ptr failure) {
                                     if (!failure) std::puts("v is complete");
                                 }});
    group.wait();
    told.wait();
    //! [engine_groups]
    CHECK(w[0] == float(world.size()));
    CHECK(v[0] == float(world.size()));
}

void engine_refuse(communicator& world) {
    std::vector<float> reading(4, 1);
    const bool broken = world.rank() == 1;
    //! [engine_refuse]
    hvd::engine engine{world};
    try {
        if (broken) engine.refuse("reading", "the sensor is broken");  // instead of the tensor
        else engine.allreduce("reading", reading, hvd::average).wait();
    } catch (const hvd::peer_error& e) {
        std::puts(e.what());  // … rank 1 refused it: the sensor is broken
    }
    //! [engine_refuse]
}

void engine_join(communicator& world) {
    //! [engine_join]
    hvd::engine engine{world};
    const int batches = 3 + world.rank();  // ranks have different amounts of data
    for (int batch = 0; batch < batches; ++batch) {
        std::vector<float> gradient(100, 2);
        engine.allreduce("gradient", gradient, hvd::average).wait();
    }
    const int last = engine.join().wait();  // the rank that had the most data
    //! [engine_join]
    CHECK(last == world.size() - 1);
}

void engine_retune(communicator& world) {
    std::vector<float> gradient(100, 2);
    //! [engine_retune]
    hvd::engine engine{world};
    engine.allreduce("gradient", gradient, hvd::average).wait();
    // Between steps, on all ranks.
    hvd::engine_tuning tuned = engine.tuned();
    tuned.fusion_threshold = 64 << 20;
    engine.retune(tuned);
    engine.allreduce("gradient", gradient, hvd::average).wait();
    //! [engine_retune]
    CHECK(engine.tuned().fusion_threshold == 64 << 20);
    CHECK(gradient[99] == 2);
}

void engine_statistics(communicator& world) {
    std::vector<float> gradient(100, 1);
    hvd::engine engine{world};
    //! [engine_statistics]
    for (int step = 0; step < 10; ++step)
        engine.allreduce("gradient", gradient, hvd::average).wait();
    const hvd::engine_statistics s = engine.statistics();  // any thread, at any time
    if (world.rank() == 0) std::fputs(hvd::to_text(s).c_str(), stdout);
    const std::string json = hvd::to_json(s);
    //! [engine_statistics]
    CHECK(s.completed == 10);
    CHECK(json.find("\"tensors_completed\":10,") != json.npos);
}

void prometheus(communicator& world) {
    std::vector<float> x(100, 1);
    hvd::engine gradients{world}, metrics{world};
    gradients.allreduce("x", x, hvd::average).wait();
    const hvd_test::temporary_directory created;
    const std::string folder = (created / "").string();
    //! [prometheus]
    hvd::prometheus_metrics counts;
    counts.add(gradients.statistics(), {{"engine", "gradients"}});
    counts.add(metrics.statistics(), {{"engine", "metrics"}});
    counts.write(folder + "hvd_rank" + std::to_string(world.rank()) + ".prom");
    //! [prometheus]
    CHECK(counts.text().find("engine=\"metrics\"} 0\n") != std::string::npos);
}

void autotune(communicator& world) {
    std::vector<float> gradient(100, 2);
    //! [autotune]
    hvd::engine engine{world};
    hvd::autotune tuner{engine, {.max_steps = 320}};
    for (int step = 0; step < 400; ++step) {
        engine.allreduce("gradient", gradient, hvd::average).wait();
        tuner.step();  // it does nothing once the search is over
    }
    const hvd::engine_tuning best = tuner.result().chosen;  // in force
    //! [autotune]
    CHECK(best == engine.tuned());
    CHECK(gradient[99] == 2);
}

}  // namespace

#define HVD_TEST_SNIPPET(name) \
    TEST_CASE(#name " snippet") { hvd_test::on_ranks(name); }

HVD_TEST_SNIPPET(allreduce)
HVD_TEST_SNIPPET(operations)
HVD_TEST_SNIPPET(reduce)
HVD_TEST_SNIPPET(broadcast)
HVD_TEST_SNIPPET(allgather)
HVD_TEST_SNIPPET(gather)
HVD_TEST_SNIPPET(scatter)
HVD_TEST_SNIPPET(reduce_scatter)
HVD_TEST_SNIPPET(scan)
HVD_TEST_SNIPPET(exscan)
HVD_TEST_SNIPPET(alltoall)
HVD_TEST_SNIPPET(barrier)
HVD_TEST_SNIPPET(broadcast_object)
HVD_TEST_SNIPPET(copy_of_root)
HVD_TEST_SNIPPET(allgather_object)
HVD_TEST_SNIPPET(fuse)
HVD_TEST_SNIPPET(arena)
HVD_TEST_SNIPPET(plan)
HVD_TEST_SNIPPET(plan_with_codec)
HVD_TEST_SNIPPET(asynchronous)
HVD_TEST_SNIPPET(coroutine)
HVD_TEST_SNIPPET(progress)
HVD_TEST_SNIPPET(wait_for)
HVD_TEST_SNIPPET(wait_all)
HVD_TEST_SNIPPET(wait_any)
HVD_TEST_SNIPPET(gather_object)
HVD_TEST_SNIPPET(scatter_object)
HVD_TEST_SNIPPET(broadcast_object_async)
HVD_TEST_SNIPPET(allgather_object_async)
HVD_TEST_SNIPPET(allreduce_with_rank)
HVD_TEST_SNIPPET(communicators)
HVD_TEST_SNIPPET(fused_gather)
HVD_TEST_SNIPPET(fused_scatter)
HVD_TEST_SNIPPET(fused_alltoall)
HVD_TEST_SNIPPET(send)
HVD_TEST_SNIPPET(then)
HVD_TEST_SNIPPET(duplicate)
HVD_TEST_SNIPPET(parent_rank)
HVD_TEST_SNIPPET(abort)
HVD_TEST_SNIPPET(options)
HVD_TEST_SNIPPET(views)
HVD_TEST_SNIPPET(named_tensors)
HVD_TEST_SNIPPET(engine_groups)
HVD_TEST_SNIPPET(engine_refuse)
HVD_TEST_SNIPPET(engine_join)
HVD_TEST_SNIPPET(engine_statistics)
HVD_TEST_SNIPPET(prometheus)
HVD_TEST_SNIPPET(engine_retune)
HVD_TEST_SNIPPET(autotune)

TEST_CASE("unstable_thresholds snippet") {
    const hvd_test::variables guard(
        hvd_test::values{{"HVD_TUNING", "most_by_two=0,streaming_from=1MiB"}});
    //! [unstable_thresholds]
    // HVD_TUNING=most_by_two=0,streaming_from=1MiB ./train
    const auto options = hvd::options_from_environment();
    //! [unstable_thresholds]
    CHECK(options.tuning.unstable.most_by_two == 0);
    CHECK(options.tuning.unstable.streaming_from == 1 << 20);
}

TEST_CASE("default snippet") { process_wide(); }

TEST_CASE("observed snippet") { observed(); }

TEST_CASE("statistics snippet") {
    //! [statistics]
    using watched = hvd::observed<hvd::threads, hvd::statistics>;
    hvd::run_threads<watched>(2, [](hvd::communicator<watched>& world) {
        std::vector<float> small(16, 1), large(1 << 20, 1);
        for (int i = 0; i < 100; ++i) world.allreduce(small, hvd::average);
        world.allreduce(large, hvd::average);
        if (world.rank() != 0) return;
        const hvd::statistics& counts = world.observer();
        std::fputs(hvd::to_text(counts).c_str(), stdout);
        for (const hvd::call_statistics& s : counts.by_path())
            if (s.path == hvd::data_path::in_place) std::printf("%.1f GB/s\n", s.busbw() / 1e9);
        const std::string json = hvd::to_json(counts);
    });
    //! [statistics]
}
TEST_CASE("several observers snippet") { several_observers(); }
TEST_CASE("timeline snippet") {
    const hvd_test::temporary_directory folder;
    recorded<hvd_test::backend>({.file = (folder / "run.json").string()});
}
TEST_CASE("timeline from the environment snippet") { timeline_from_environment(); }

TEST_CASE("run_threads snippet") {
    //! [run_threads]
    hvd::run_threads(4, [](hvd::communicator<hvd::threads>& world) {
        float x = 1;
        world.allreduce(x, hvd::sum);
        CHECK(x == 4);
    });
    //! [run_threads]
}

TEST_CASE("tuning snippets") {
    const hvd_test::variables guard(hvd_test::values{{"HVD_TIMEOUT", "30s"}});
    {
        //! [tuning_options]
        hvd::communicator_options options{.timeout = 30s, .tuning = {.chunk_bytes = 128 << 10}};
        //! [tuning_options]
        CHECK(options.tuning.chunk_bytes == 131072);
    }
    {
        //! [options_from_environment]
        // HVD_TIMEOUT=30s HVD_CHUNK_BYTES=128KiB ./train
        auto options = hvd::options_from_environment();
        options.node_size = 0;  // code that comes later wins
        //! [options_from_environment]
        CHECK(options.timeout.time().nanoseconds == 30'000'000'000);
    }
    //! [configuration]
    const auto written = hvd::configuration::from_environment();
    const auto options = written.apply<hvd::communicator_options>();
    // "timeout = 30s  # environment HVD_TIMEOUT", and so on
    const std::string all = hvd::describe(options, written);
    //! [configuration]
    CHECK(all.starts_with("timeout = 30s  # environment HVD_TIMEOUT\n"));
    hvd_test::on_ranks([](communicator& world) {
        //! [retune]
        hvd::tuning_options tuning = world.tuning();
        tuning.chunk_bytes = 128 << 10;
        world.retune(tuning);
        //! [retune]
        float x = 1;
        world.allreduce(x, hvd::sum);
        CHECK(x == float(world.size()));
    });
}

TEST_CASE("build_info snippet") {
    std::string line;
    //! [build_info]
    const hvd::build_facts built = hvd::build_info();
    line += "hvd ";
    line += built.version;  // "0.1.0", and so on
    line += built.has_mpi ? " with MPI, " : " without MPI, ";
    line += built.compiler;
    //! [build_info]
    CHECK(line.starts_with("hvd " HVD_VERSION_STRING " with"));
    CHECK(line.find(HVD_HAS_MPI != 0 ? " with MPI, " : " without MPI, ") != std::string::npos);
    CHECK((built.compiler.starts_with("clang ") || built.compiler.starts_with("g++ ")));
    CHECK(built.cplusplus == __cplusplus);
    CHECK(!built.kernels.empty());
}

TEST_CASE("message_sink snippet") {
    static std::vector<std::string> log;
    //! [message_sink]
    // Any thread of hvd calls it; a log of your own would lock.
    hvd::set_message_sink([](std::string_view line) { log.emplace_back(line); });
    //! [message_sink]
    hvd::set_message_sink(nullptr);  // standard error again
    CHECK(log.empty());
}

TEST_CASE("dump_on_signal snippet") {
    //! [dump_on_signal]
    hvd::dump_on_signal(SIGQUIT);  // kill -QUIT PID tells the last calls
    //! [dump_on_signal]
    std::signal(SIGQUIT, SIG_DFL);
}

TEST_CASE("thread_group snippet") {
    //! [thread_group]
    hvd::thread_group group{2};
    const auto train = [&group](int rank) {  // called by the threads of an engine
        auto world = group.communicator(rank);
        float x = float(rank);
        world.allreduce(x, hvd::sum);
        CHECK(x == 1);
    };
    std::thread other(train, 1);
    train(0);
    other.join();
    //! [thread_group]
}

TEST_CASE("hand_over snippet") {
    //! [hand_over]
    hvd::run_threads(2, [](hvd::communicator<hvd::threads>& world) {
        float x = 1;
        world.allreduce(x, hvd::sum);  // bound to this thread
        world.hand_over();
        std::thread trainer([&] { world.allreduce(x, hvd::sum); });  // bound to that one
        trainer.join();
        CHECK(x == 4);
    });
    //! [hand_over]
}

TEST_CASE("tcp snippets") {
    setenv("HVD_ALONE", "1", 1);  // a launcher of MPI may have started this program
    {
        //! [tcp]
        auto world = hvd::communicator<hvd::tcp>::world();  // HVD_RANK, HVD_SIZE, …
        std::vector<float> gradient(1000, 1);
        world.allreduce(gradient, hvd::average);
        //! [tcp]
        CHECK(gradient[0] == 1);
    }
    //! [tcp_options]
    hvd::tcp_options own;
    own.rank = 0;
    own.size = 1;
    own.rendezvous = "localhost:7000";  // of rank 0, who serves it
    own.secret_file = "/run/my-job/secret";
    auto world = hvd::communicator<hvd::tcp>::world(own, {.timeout = 30s});
    //! [tcp_options]
    CHECK(world.size() == 1);
}

#if HVD_HAS_MPI

namespace {

//! [mpi_environment]
int trainer(int argc, char** argv) {
    hvd::mpi_environment env{argc, argv};  // first: it ends MPI after all communicators are gone
    auto world = hvd::communicator<hvd::mpi>::world();
    float x = 1;
    world.allreduce(x, hvd::sum);
    return x == float(world.size()) ? 0 : 1;
}
//! [mpi_environment]

void handles() {
    //! [handles]
    hvd::communicator<hvd::mpi> beside(MPI_COMM_WORLD, hvd::borrow);  // works on a duplicate
    MPI_Comm mine = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &mine);
    hvd::communicator<hvd::direct<hvd::mpi>> owner(mine, hvd::adopt);  // frees it in the end
    MPI_Comm handle = owner.native_handle();
    //! [handles]
    CHECK(handle == mine);
    CHECK(beside.size() == owner.size());
}

}  // namespace

#if defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("mpi_environment snippet") { CHECK(trainer(0, nullptr) == 0); }

TEST_CASE("handles snippet") { handles(); }
#endif

#endif

}  // namespace snippets_tests
