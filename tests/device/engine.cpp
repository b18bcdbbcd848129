// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// An engine with tensors of the host and of devices: results, order, streams, ranks that join.

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <thread>

#include "engine_support.hpp"

namespace engine_tests {

using namespace device_test;

namespace {

// ---- random tensors -------------------------------------------------------------------------

constexpr int kinds = 9;

// One tensor of a step, the same on all ranks.
struct drawn {
    std::string name;
    int kind;
    std::size_t count;
    int root, priority;
};

std::vector<drawn> draw(std::mt19937& random, int tensors, int size) {
    std::vector<drawn> all;
    for (int i = 0; i < tensors; ++i)
        all.push_back({"t" + std::to_string(i), int(random() % kinds), 1 + random() % 200,
                       int(random() % unsigned(size)), int(random() % 3)});
    return all;
}

// The elements that a rank gives in an allgather, or to each rank in an alltoall.
std::size_t rows(const drawn& t, int rank) { return (t.count + std::size_t(rank) * 3) % 7; }

// One tensor under way, with the result that a serial reference gives.
class under_way {
public:
    template <class Engine>
    void submit(Engine& e, const drawn& t) {
        const int n = e.size(), r = e.rank();
        const std::size_t count = t.count;
        const hvd::named_device_options o{.priority = t.priority};
        switch (t.kind) {
            case 0:
                give(count, float(r + 1), float(sum_to(n)));
                on_device = e.allreduce(t.name, f->view(), hvd::sum, o);
                break;
            case 1:
                give(count, float(2 * r), float(n - 1));
                on_device = e.allreduce(t.name, f->view(), hvd::average, o);
                break;
            case 2:
                i = std::make_unique<tensor<std::int32_t>>(filled<std::int32_t>(count, -r));
                on_device = e.allreduce(t.name, i->view(), hvd::max, o);
                break;
            case 3:
                give(count, r == t.root ? 7.0f : 0.0f, 7);
                on_device = e.broadcast(t.name, f->view(), hvd::root{t.root}, o);
                break;
            case 4: gather(e, t, o); break;
            case 5: exchange(e, t, o); break;
            case 6: scatter(e, t, o); break;
            case 7:
                give(count, float(r + 1), float(sum_to(n)));
                second = std::make_unique<tensor<float>>(filled(count + 3, float(r)));
                on_device = e.allreduce(t.name, hvd::fuse(f->view(), second->view()), hvd::sum, o);
                break;
            default:
                host.assign(count, float(r + 1));
                on_host = e.allreduce(t.name, host, hvd::sum, {.priority = t.priority});
                wanted.assign(count, float(sum_to(n)));
        }
    }

    bool is_right(const drawn& t, int size) {
        on_device.wait();
        on_host.wait();
        if (t.kind == 2) return i->values() == filled<std::int32_t>(t.count, 0);
        if (t.kind == 7 && second->values() != filled(t.count + 3, float(sum_to(size - 1))))
            return false;
        if (t.kind == 8) return host == wanted;
        const std::vector<float> got = (t.kind >= 4 && t.kind <= 6 ? out : f)->values();
        return std::equal(wanted.begin(), wanted.end(), got.begin());
    }

private:
    void give(std::size_t count, float value, float result) {
        f = std::make_unique<tensor<float>>(filled(count, value));
        wanted.assign(count, result);
    }
    void make_room(std::size_t count) {
        out = std::make_unique<tensor<float>>(filled(count + 1, -1.0f));
    }

    template <class Engine>
    void gather(Engine& e, const drawn& t, const hvd::named_device_options& o) {
        f = std::make_unique<tensor<float>>(filled(rows(t, e.rank()), float(e.rank())));
        wanted.clear();
        for (int r = 0; r < e.size(); ++r) wanted.insert(wanted.end(), rows(t, r), float(r));
        make_room(wanted.size());
        on_device = e.allgather(t.name, f->view(), hvd::into(out->view()), o);
    }

    // Rank r sends rows(r + p) elements to rank p.
    template <class Engine>
    void exchange(Engine& e, const drawn& t, const hvd::named_device_options& o) {
        std::vector<std::size_t> counts;
        std::vector<float> given;
        wanted.clear();
        for (int p = 0; p < e.size(); ++p) {
            counts.push_back(rows(t, e.rank() + p));
            given.insert(given.end(), counts.back(), float(10 * e.rank() + p));
            wanted.insert(wanted.end(), rows(t, e.rank() + p), float(10 * p + e.rank()));
        }
        f = std::make_unique<tensor<float>>(given);
        make_room(wanted.size());
        on_device = e.alltoall(t.name, f->view(), counts, hvd::into(out->view()), o);
    }

    template <class Engine>
    void scatter(Engine& e, const drawn& t, const hvd::named_device_options& o) {
        const std::size_t n = std::size_t(e.size()), r = std::size_t(e.rank());
        give(t.count, float(r + 1), 0);
        const std::size_t mine = t.count / n + (r < t.count % n ? 1 : 0);
        wanted.assign(mine, float(sum_to(e.size())));
        make_room(mine);
        on_device = e.reduce_scatter(t.name, f->view(), hvd::sum,
                                     hvd::into(hvd::device_view(out->data(), mine)), o);
    }

    std::unique_ptr<tensor<float>> f, second, out;
    std::unique_ptr<tensor<std::int32_t>> i;
    std::vector<float> host, wanted;
    hvd::named_device_request on_device;
    hvd::request on_host;
};

void run_step(auto& e, const std::vector<drawn>& tensors, std::mt19937& mine) {
    std::vector<std::size_t> order(tensors.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), mine);
    std::vector<under_way> all(tensors.size());
    for (const std::size_t i : order) all[i].submit(e, tensors[i]);
    std::shuffle(order.begin(), order.end(), mine);
    for (const std::size_t i : order) {
        INFO("kind ", tensors[i].kind, " of ", tensors[i].count);
        REQUIRE(all[i].is_right(tensors[i], e.size()));
    }
}

}  // namespace

TEST_CASE("no thread of an engine makes a device current but that of its communicator") {
    for (int ranks = 1; ranks <= 3; ++ranks)
        hvd::run_threads(ranks, [](world_communicator& world) {
            cudaSetDevice(world.rank() + 1);  // threads begin with device 0
            hvd::communicator<hvd::nccl> gpus(world, {.timeout = 10s});
            hvd::engine e{world, gpus};
            for (int step = 0; step < 3; ++step) {
                const tensor<float> x{1}, y{float(step)};
                auto first = e.allreduce("x", x.view(), hvd::sum);
                auto second = e.allreduce("y", y.view(), hvd::max);
                first.wait();
                second.wait();
                CHECK(x.values()[0] == float(world.size()));
            }
            CHECK(emulation::most_devices_of_a_thread() == 1);
            world.barrier();
        });
    check_clean();
}

TEST_CASE_TEMPLATE("random tensors of host and device in random order have exact results", Devices,
                   every_kind) {
    for (unsigned seed = 1; seed <= 20; ++seed) {
        INFO("seed ", seed);
        std::mt19937 common(seed);
        const hvd::engine_options options{
            .fusion_threshold = common() % 3 * 2000,
            .cache_capacity = common() % 4 == 0 ? common() % 9 : 1024};
        const bool repeats = common() % 4 != 0;
        const unsigned drawn_by = unsigned(common());
        on_engines_of<Devices>(
            1 + int(seed % 4),
            [&](auto& e) {
                std::mt19937 alike(drawn_by), mine(seed * 100 + unsigned(e.rank()));
                auto tensors = draw(alike, 12, e.size());
                for (int step = 0; step < 6; ++step) {
                    if (!repeats) tensors = draw(alike, 1 + int(alike() % 12), e.size());
                    run_step(e, tensors, mine);
                }
            },
            options);
    }
}

TEST_CASE_TEMPLATE("combined policies run each kind of tensor by its backend", Devices,
                   hvd::hierarchical<hvd::nccl, hvd::threads>,
                   hvd::per_operation<hvd::nccl, hvd::staged<hvd::threads>,
                                      hvd::hierarchical<hvd::nccl, hvd::threads>>) {
    on_engines<Devices>([](auto& e) {
        std::mt19937 alike(7), mine(unsigned(e.rank()));
        const auto tensors = draw(alike, 20, e.size());
        for (int step = 0; step < 5; ++step) run_step(e, tensors, mine);
    });
}

TEST_CASE_TEMPLATE("an allreduce from one tensor to another", Devices, every_kind) {
    on_engines<Devices>([](auto& e) {
        const tensor<float> in(filled(50, float(e.rank() + 1))), out(filled(50, 0.0f));
        for (int step = 0; step < 5; ++step)
            e.allreduce("x", in.view(), out.view(), hvd::sum, {.postscale = 2}).wait();
        CHECK(in.values() == filled(50, float(e.rank() + 1)));
        CHECK(out.values() == filled(50, float(2 * sum_to(e.size()))));
    });
}

TEST_CASE_TEMPLATE("the counts of an allgather and an alltoall are those of the ranks", Devices,
                   every_kind) {
    on_engines<Devices>([](auto& e) {
        const std::size_t n = std::size_t(e.size()), r = std::size_t(e.rank());
        const tensor<float> mine(filled(r + 1, float(r))), all(filled(20, 0.0f));
        auto gathered = e.allgather("g", mine.view(), hvd::into(all.view()));
        CHECK(gathered.counts().empty());
        gathered.wait();
        REQUIRE(gathered.counts().size() == n);
        for (std::size_t p = 0; p < n; ++p) CHECK(gathered.counts()[p] == p + 1);
        std::vector<int> counts(n, int(r));
        const tensor<float> sent(filled(n * r, 1.0f));
        auto exchanged = e.alltoall("e", sent.view(), counts, hvd::into(all.view()));
        exchanged.wait();
        REQUIRE(exchanged.counts().size() == n);
        for (std::size_t p = 0; p < n; ++p) CHECK(exchanged.counts()[p] == p);
    });
}

TEST_CASE_TEMPLATE("the tensor with the highest priority goes first", Devices, every_kind) {
    on_engines_of<Devices>(3,
                           [](auto& e) {
                               for (int step = 0; step < 2; ++step) {
                                   const tensor<float> a{1}, b(filled(2000, 2.0f));
                                   const std::string last = "a" + std::to_string(step);
                                   auto low = e.allreduce(last, a.view(), hvd::sum);
                                   auto high =
                                       e.allreduce("b" + last, b.view(), hvd::sum, {.priority = 1});
                                   low.wait();
                                   CHECK(high.test());
                                   high.wait();
                               }
                           },
                           {.fusion_threshold = 0, .cycle_time = std::chrono::milliseconds(200)});
}

TEST_CASE_TEMPLATE("a tensor is read after its stream's work, and a stream waits for the result",
                   Devices, every_kind) {
    on_engines<Devices>([](auto& e) {
        const int n = e.size(), mine = e.rank() + 1;
        const user_stream user;
        for (const hvd::device_stream stream :
             {hvd::device_stream(user.handle), hvd::device_stream(0),
              hvd::device_stream(cudaStreamPerThread)})
            for (int step = 0; step < 5; ++step) {
                const tensor<float> x(filled(40, -1.0f)), y(filled(40, 0.0f));
                cudaStreamSynchronize(nullptr);  // the user's stream does not wait for the copies
                compute(stream.get(), x, 40, [mine](float) { return float(mine); });
                e.allreduce("x", x.view(), hvd::sum, {.stream = stream}).wait(stream);
                compute(stream.get(), y, 40, [from = x.data()](float) {
                    return 1 + *reinterpret_cast<const float*>(
                                   emulation::seen_by_device(from, sizeof(float)));
                });
                cudaStreamSynchronize(stream.get());
                CHECK(y.values() == filled(40, float(1 + sum_to(n))));
            }
        const tensor<float> z(filled(40, -1.0f));
        compute(0, z, 40, [mine](float) { return float(mine); });
        e.allreduce("z", z.view(), hvd::sum).wait();  // after the default streams
        CHECK(z.values() == filled(40, float(sum_to(n))));
    });
}

TEST_CASE_TEMPLATE("threads of a rank submit and wait side by side", Devices, every_kind) {
    on_engines_of<Devices>(3, [](auto& e) {
        const auto process = emulation::process_of_this_thread();
        const auto submit = [&](const char* name) {
            emulation::join_process(process);
            const tensor<float> x(filled(30, 1.0f));
            for (int step = 0; step < 10; ++step) e.allreduce(name, x.view(), hvd::average).wait();
            CHECK(x.values() == filled(30, 1.0f));
        };
        std::thread a([&] { submit("a"); }), b([&] { submit("b"); });
        a.join(), b.join();
    });
}

TEST_CASE_TEMPLATE("ranks that have joined contribute what changes no result", Devices,
                   every_kind) {
    on_engines<Devices>([](auto& e) {
        const int n = e.size(), r = e.rank();
        // Rank r has r + 1 steps, so that in step s the ranks from s on are there.
        for (int s = 0; s <= r; ++s) {
            const int there = n - s;
            const auto now = float(r + 1);
            const tensor<float> sum{now}, mean{now}, least{-now}, most{-now}, all(filled(9, 0.0f));
            const tensor<double> product{2, 3};
            const tensor<std::int32_t> root{r == n - 1 ? 5 : 0};
            auto a = e.allreduce("sum", sum.view(), hvd::sum);
            auto b = e.allreduce("mean", mean.view(), hvd::average);
            auto c = e.allreduce("least", least.view(), hvd::min);
            auto d = e.allreduce("most", most.view(), hvd::max);
            auto p = e.allreduce("product", product.view(), hvd::product);
            auto g = e.allgather("rows", sum.view(), hvd::into(all.view()));
            auto t = e.broadcast("root", root.view(), hvd::root{n - 1});
            a.wait(), b.wait(), c.wait(), d.wait(), p.wait(), g.wait(), t.wait();
            const float total = float(sum_to(n) - sum_to(s));
            CHECK(sum.values()[0] == total);
            CHECK(mean.values()[0] == doctest::Approx(total / float(there)));
            CHECK(least.values()[0] == float(-n));
            CHECK(most.values()[0] == float(-s - 1));
            CHECK(product.values()[1] == doctest::Approx(std::pow(3.0, there)));
            for (int q = 0; q < n; ++q) CHECK(g.counts()[std::size_t(q)] == (q < s ? 0u : 1u));
            CHECK(root.values()[0] == 5);
        }
        CHECK(e.join().wait() == n - 1);
        const tensor<float> again{1};
        e.allreduce("sum", again.view(), hvd::sum).wait();
        CHECK(again.values()[0] == float(n));
    });
}

}  // namespace engine_tests
