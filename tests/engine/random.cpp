// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cstdlib>
#include <map>
#include <optional>

#include "engine_test.hpp"

namespace random_tests {

// Random tensors in a random order on each rank, on process sets, with delays, disagreements and
// ranks that join early. HVD_TEST_SEEDS is the number of draws, and 25 if it is not set.

using namespace hvd_test;

namespace {

struct drawn {
    std::string name;
    int kind;  // the case in submit()
    std::size_t count;
    int root;
    bool disagreement;  // the last rank has another size
};

std::vector<drawn> draw(std::mt19937& random, int tensors, int size, bool repeats) {
    std::vector<drawn> all;
    for (int i = 0; i < tensors; ++i) {
        const std::size_t most = random() % 20 == 0 ? 60000 : 300;
        all.push_back({"t" + std::to_string(i) + (repeats ? "" : "/" + std::to_string(random())),
                       int(random() % 6), 1 + random() % most, int(random() % unsigned(size)),
                       size > 1 && random() % 40 == 0});
    }
    return all;
}

// One tensor under way.
struct under_way {
    std::vector<float> f;
    std::vector<double> d;
    std::vector<std::int32_t> i;
    std::vector<hvd::bfloat16> h;
    hvd::request request;
    std::optional<hvd::result<hvd::gathered<float>>> rows;
};

void submit(engine& e, const drawn& t, under_way& u) {
    const int me = e.rank();
    const bool odd = t.disagreement && me == e.size() - 1 && t.kind != 4;
    const std::size_t n = t.count + (odd ? 1 : 0);
    switch (t.kind) {
        case 0:
            u.f.assign(n, float(me + 1));
            u.request = e.allreduce(t.name, u.f, hvd::sum, {.priority = int(t.count % 3)});
            break;
        case 1:
            u.d.assign(n, me * 2.0);
            u.request = e.allreduce(t.name, u.d, hvd::average);
            break;
        case 2:
            u.i.assign(n, -me);
            u.request = e.allreduce(t.name, u.i, hvd::max);
            break;
        case 3:
            u.h.assign(n, hvd::bfloat16(float(me)));
            u.request = e.allreduce(t.name, u.h, hvd::sum);
            break;
        case 4:
            u.f.assign(t.count % 7 + std::size_t(me), float(me));
            u.rows.emplace(e.allgather(t.name, u.f));
            break;
        default:
            u.f.assign(n, me == t.root ? 7.0f : 0.0f);
            u.request = e.broadcast(t.name, u.f, hvd::root{t.root});
    }
}

bool is_right(engine& e, const drawn& t, under_way& u) {
    const int n = e.size();
    const auto all_are = [](const auto& values, double wanted) {
        for (const auto v : values)
            if (double(float(v)) != wanted) return false;
        return true;
    };
    switch (t.kind) {
        case 0: return all_are(u.f, n * (n + 1) / 2);
        case 1: return all_are(u.d, n - 1);
        case 2: return all_are(u.i, 0);
        case 3: return all_are(u.h, n * (n - 1) / 2);
        case 4: {
            const auto all = u.rows->wait();
            std::size_t at = 0;
            for (int r = 0; r < n; ++r)
                for (std::size_t k = 0; k < t.count % 7 + std::size_t(r); ++k)
                    if (all.values[at++] != float(r)) return false;
            return at == all.values.size();
        }
        default: return all_are(u.f, 7);
    }
}

void run_step(engine& e, const std::vector<drawn>& tensors, std::mt19937& mine) {
    std::vector<std::size_t> order(tensors.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), mine);
    std::vector<under_way> all(tensors.size());
    for (const std::size_t i : order) {
        submit(e, tensors[i], all[i]);
        if (mine() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(mine() % 300));
    }
    std::shuffle(order.begin(), order.end(), mine);
    for (const std::size_t i : order) {
        const bool disagrees = tensors[i].disagreement && tensors[i].kind != 4;
        try {
            all[i].request.wait();
            REQUIRE(is_right(e, tensors[i], all[i]));
            REQUIRE(!disagrees);
        } catch (const hvd::mismatch_error&) {
            REQUIRE(disagrees);
        }
    }
}

unsigned seeds() {
    const char* const wanted = std::getenv("HVD_TEST_SEEDS");
    return wanted == nullptr ? 25 : unsigned(std::atoi(wanted));
}

}  // namespace

TEST_CASE("random tensors in random order have exact results") {
    on_ranks([](auto& comm) {
        for (unsigned seed = 1; seed <= seeds(); ++seed) {
            INFO("seed ", seed);
            std::mt19937 common(seed);
            comm.retune({.unstable = {.fanout = 1 + common() % 8}});
            engine e{comm,
                     {.fusion_threshold = common() % 100000,
                      .cache_capacity = common() % 4 == 0 ? common() % 20 : 1024}};
            auto half = comm.split(comm.rank() % 2);
            engine part{half, {}};
            std::mt19937 mine(seed * 1000 + unsigned(comm.rank()));
            const bool repeats = common() % 2 == 0;
            auto tensors = draw(common, 30, comm.size(), repeats);
            std::mt19937 of_part(seed * 7 + unsigned(comm.rank() % 2));
            for (int step = 0; step < 7; ++step) {
                if (!repeats || common() % 5 == 0)
                    tensors = draw(common, 1 + int(common() % 60), comm.size(), repeats);
                const auto others = draw(of_part, 5, half.size(), false);
                std::thread beside([&] {
                    std::mt19937 order(mine());
                    run_step(part, others, order);
                });
                std::mt19937 order(seed + unsigned(step * 31 + comm.rank()));
                run_step(e, tensors, order);
                beside.join();
            }
            // The ranks join after different numbers of steps.
            const int more = int((seed + unsigned(comm.rank())) % 4);
            for (int s = 0; s < more; ++s) {
                std::vector<float> x(20, 1);
                int active = 0;
                for (int r = 0; r < comm.size(); ++r)
                    if (s < int((seed + unsigned(r)) % 4)) ++active;
                e.allreduce("uneven", x, hvd::sum).wait();
                REQUIRE(x[0] == float(active));
            }
            e.join().wait();
        }
    });
}

}  // namespace random_tests
