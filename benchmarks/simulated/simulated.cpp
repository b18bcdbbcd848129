// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A training step of many GPUs on a simulated machine: hvd's collectives over simulated time. The
// computation is time that passes; the host drives hvd meanwhile, as it may while a GPU computes.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <hvd/hvd.hpp>
#include <nlohmann/json.hpp>

#include "../support/gradients.hpp"
#include "endpoint.hpp"

namespace {

using simulated::communicator;
using simulated::endpoint;
using simulated::group;

// Images per second of one GPU at a batch of 64: those of benchmarks/scaling.cpp.
const std::map<std::string, double> device_rates{
    {"resnet101", 119.4}, {"inception_v3_aux", 134.4}, {"vgg16", 130.9}};

struct options {
    std::string model = "resnet101", how = "overlapped", json;
    std::size_t bucket = std::size_t(25) << 20, bytes = 0;
    double gigabits = 25, rate = 0, loss = 0, slow_rank = 1, least_share = 0;
    bool bf16 = false, flat = false, check = false;
    int steps = 2;
    simulated::platform machine;
};

// The tensors of a model in the order of the backward pass, and when each is ready.
struct model {
    std::vector<std::size_t> counts;
    std::vector<double> ready;  // a part of the whole step

    // Forward is a third. Each convolution takes the same share of the rest, a matrix 1/20 of that.
    explicit model(const std::string& name) {
        const auto shapes = nlohmann::json::parse(bench::gradient_tensors).at(name);
        double sum = 0;
        for (std::size_t i = shapes.size(); i-- > 0;) {
            std::size_t count = 1;
            for (const auto& n : shapes[i]) count *= n.get<std::size_t>();
            counts.push_back(count);
            sum += shapes[i].size() == 4 ? 1 : shapes[i].size() == 2 ? 0.05 : 0;
            ready.push_back(sum);
        }
        for (double& r : ready) r = (1 + 2 * r / sum) / 3;
    }
};

// A part of the gradients that is averaged at once.
struct bucket {
    std::size_t elements = 0;
    double ready = 0;
};

std::vector<bucket> buckets_of(const model& m, const options& o, std::size_t element_bytes) {
    const std::size_t most = o.how == "plain" ? 0 : o.how == "fused" ? SIZE_MAX : o.bucket;
    std::vector<bucket> result;
    const double end = o.how == "overlapped" ? 0 : 1;
    for (std::size_t i = 0; i < m.counts.size(); ++i) {
        const double ready = std::max(end, m.ready[i]);
        std::size_t left = m.counts[i];
        for (; o.how == "overlapped" && left * element_bytes > most; left -= most / element_bytes)
            result.push_back({most / element_bytes, ready});  // a long tensor is cut
        if (result.empty() || (result.back().elements + left) * element_bytes > most)
            result.emplace_back();
        result.back().elements += left;
        result.back().ready = ready;
    }
    return result;
}

// The shortest step that a cable allows, whatever the algorithm: what is ready from some moment on
// crosses after it.
double shortest_step(const model& m, const options& o, double step, std::size_t element_bytes) {
    const double nodes = o.machine.nodes();
    double left = 0, shortest = step;
    for (std::size_t i = m.counts.size(); i-- > 0;) {
        left += double(m.counts[i] * element_bytes);
        const double crosses = 2 * (nodes - 1) / nodes * left / o.machine.cable;
        shortest = std::max(shortest, m.ready[i] * step + crosses);
    }
    return shortest;
}

// The communicators of the ranks. Those of a node are there twice, since the first and the last
// step of different buckets come in any order.
class connections {
public:
    connections(simulated::machine& m, bool flat) : machine_(m) {
        const int n = m.what.ranks, each = m.what.per_node;
        std::vector<int> all;
        for (int r = 0; r < n; ++r) all.push_back(r);
        if (flat) {
            flat_ = std::make_shared<group>(m, all);
            return;
        }
        for (int first = 0; first < n; first += each) {
            const std::vector<int> near(all.begin() + first, all.begin() + first + each);
            first_.push_back(std::make_shared<group>(m, near));
            last_.push_back(std::make_shared<group>(m, near));
        }
        for (int local = 0; local < each; ++local) {
            std::vector<int> same;
            for (int r = local; r < n; r += each) same.push_back(r);
            cross_.push_back(std::make_shared<group>(m, same));
        }
    }

    struct of_rank {
        std::optional<communicator> flat, first, cross, last;
    };
    of_rank make(int rank) const {
        const hvd::communicator_options o = made_options();
        const auto make_one = [&](const std::shared_ptr<group>& g, int r) {
            return communicator(std::make_unique<endpoint>(g, r), o);
        };
        of_rank mine;
        if (flat_) {
            mine.flat = make_one(flat_, rank);
            return mine;
        }
        const int each = machine_.what.per_node, node = rank / each, local = rank % each;
        mine.first = make_one(first_[std::size_t(node)], local);
        mine.last = make_one(last_[std::size_t(node)], local);
        mine.cross = make_one(cross_[std::size_t(local)], node);
        return mine;
    }

private:
    // Thresholds in counted bytes. No data goes with headers there, which are not counted so.
    hvd::communicator_options made_options() const {
        hvd::communicator_options o;
        if (const std::size_t counted = machine_.what.counted; counted > 1) {
            o.tuning.chunk_bytes /= counted;
            o.tuning.unstable.exchange_chunk_bytes /= counted;
            o.tuning.unstable.most_carried = o.tuning.unstable.least_carried = 0;
        }
        return o;
    }

    simulated::machine& machine_;
    std::shared_ptr<group> flat_;
    std::vector<std::shared_ptr<group>> first_, last_, cross_;
};

// Counted data has no content, so that all ranks share one memory for it.
template <class T>
T* shared_memory(std::size_t elements) {
    static std::vector<T> memory;
    if (memory.capacity() == 0) memory.reserve(std::size_t(1) << 25);
    if (memory.size() < elements) memory.resize(elements, T(1));  // it stays where it is
    return memory.data();
}

// The average of a bucket over all ranks. In a hierarchy the ranks of a node reduce a slice each,
// average it with those of the other nodes, and gather.
template <class T>
class average {
public:
    average(connections::of_rank& by, T* memory, std::size_t elements, bool shares)
        : by_(by), whole_(memory, elements) {
        if (!by.first) return;
        const auto size = std::size_t(by.first->size()), rank = std::size_t(by.first->rank());
        const std::size_t mine = elements / size + (rank < elements % size ? 1 : 0);
        if (!shares) own_.resize(mine);
        part_ = {shares ? memory + elements : own_.data(), mine};
    }

    void begin() {
        done_ = false;
        stage_ = 0;
        under_way_ = by_.flat
                         ? by_.flat->allreduce_async(whole(), hvd::sum)
                         : by_.first->reduce_scatter_async(whole(), hvd::sum, hvd::into(part()));
    }

    // Goes on as far as it can without waiting.
    bool done() {
        while (!done_ && under_way_.test()) {
            under_way_.wait();
            if (by_.flat || ++stage_ == 3) done_ = true;
            else if (stage_ == 1) under_way_ = by_.cross->allreduce_async(part(), hvd::sum);
            else under_way_ = by_.last->allgather_async(part(), hvd::into(whole()));
        }
        return done_;
    }

private:
    auto whole() { return hvd::view(whole_.data(), whole_.size()); }
    auto part() { return hvd::view(part_.data(), part_.size()); }

    connections::of_rank& by_;
    std::span<T> whole_;
    std::vector<T> own_;
    std::span<T> part_;
    hvd::request under_way_;
    int stage_ = 0;
    bool done_ = true;
};

template <class T>
class trainer {
public:
    trainer(connections::of_rank& by, simulated::rank_state& state, std::vector<bucket> buckets,
            std::size_t counted)
        : by_(by), state_(state), buckets_(std::move(buckets)) {
        std::size_t most = 1;
        for (bucket& b : buckets_) {
            b.elements = std::max<std::size_t>(1, b.elements / counted);
            most = std::max(most, b.elements);
        }
        const bool shares = counted > 1;
        if (!shares) memory_.resize(most, T(1));
        T* const memory = shares ? shared_memory<T>(2 * most) : memory_.data();  // for all
        averages_.reserve(buckets_.size());
        for (const bucket& b : buckets_) averages_.emplace_back(by, memory, b.elements, shares);
    }

    std::vector<T>& memory() { return memory_; }

    void step(double time) {
        const double begin = simulated::now();
        for (std::size_t i = 0; i < buckets_.size(); ++i) {
            compute_until(begin + buckets_[i].ready * time);
            averages_[i].begin();
            ++begun_;
        }
        compute_until(begin + time);
        while (!drive()) state_.wait_until(simulated::forever);
        begun_ = complete_ = 0;
    }

private:
    void compute_until(double end) {
        while (simulated::now() < end) {
            drive();
            state_.wait_until(end);
        }
    }

    // Goes on as far as it can: the end of one call may begin another. True if all that has begun
    // is complete.
    bool drive() {
        for (std::uint64_t before = state_.begun + 1; before != state_.begun; drive_once())
            before = state_.begun;
        return complete_ == begun_;
    }

    void drive_once() {
        for (auto* comm : {&by_.flat, &by_.first, &by_.cross, &by_.last})
            if (*comm) (*comm)->progress();
        for (std::size_t i = complete_; i < begun_; ++i) averages_[i].done();
        while (complete_ < begun_ && averages_[complete_].done()) ++complete_;
    }

    connections::of_rank& by_;
    simulated::rank_state& state_;
    std::vector<bucket> buckets_;
    std::vector<T> memory_;
    std::vector<average<T>> averages_;
    std::size_t begun_ = 0, complete_ = 0;
};

// A step with the algorithm of the published system on this machine, without hvd: a ring of all
// GPUs, in which each average takes 2 (n - 1) rounds. Gradients that came during an average are
// those of the next one, up to a bucket, and a tensor is never cut. The first rank that ends an
// average says for all what the next one has.
class ring {
public:
    ring(simulated::machine& m, const model& gradients, const options& o, std::size_t element_bytes)
        : machine_(m),
          gradients_(gradients),
          most_(double(o.bucket) / double(element_bytes)),
          element_bytes_(double(element_bytes)),
          inbox_(m.states.size()) {}

    void step(int rank, double time) {
        for (std::size_t i = 0, next = 0; next < gradients_.counts.size(); ++i) {
            compute_until(rank, gradients_.ready[next] * time);
            if (i == averages_.size()) averages_.push_back(choose(next, time));
            next = averages_[i].end;
            const double bytes = averages_[i].elements * element_bytes_ / size();
            for (int round = 0; round < 2 * (int(size()) - 1); ++round) pass_on(rank, bytes);
        }
        compute_until(rank, time);
    }

private:
    struct part {
        std::size_t end;
        double elements;
    };

    double size() const { return double(machine_.what.ranks); }
    simulated::rank_state& state(int rank) { return machine_.states[std::size_t(rank)]; }

    part choose(std::size_t next, double time) const {
        part chosen{next + 1, double(gradients_.counts[next])};
        while (chosen.end < gradients_.counts.size() &&
               gradients_.ready[chosen.end] * time <= simulated::now() &&
               chosen.elements + double(gradients_.counts[chosen.end]) <= most_)
            chosen.elements += double(gradients_.counts[chosen.end++]);
        return chosen;
    }

    void compute_until(int rank, double end) {
        while (simulated::now() < end) state(rank).wait_until(end);
    }

    void pass_on(int rank, double bytes) {
        const int right = (rank + 1) % machine_.what.ranks;
        inbox_[std::size_t(right)].push_back(machine_.transfer(rank, right, bytes));
        state(right).wake();
        auto& mine = inbox_[std::size_t(rank)];
        while (mine.empty()) state(rank).wait_until(simulated::forever);
        const double comes = mine.front();
        mine.pop_front();
        compute_until(rank, comes);
    }

    simulated::machine& machine_;
    const model& gradients_;
    const double most_, element_bytes_;
    std::vector<part> averages_;
    std::vector<simulated::queue<double>> inbox_;  // when messages come
};

template <class T>
nlohmann::json train_in_ring(const model& m, const options& o, double alone, double step) {
    simulated::machine machine(o.machine);
    ring all(machine, m, o, sizeof(T));
    double time = 0;
    simulated::run(machine, [&](int rank) {
        all.step(rank, step);
        time = std::max(time, simulated::now());
    });
    return {{"model", o.model},
            {"ranks", o.machine.ranks},
            {"how", o.how},
            {"gigabits", o.gigabits},
            {"seconds", time},
            {"efficiency", alone / time},
            {"limit", alone / shortest_step(m, o, alone, sizeof(T))},
            {"messages", machine.states[0].messages},
            {"loss", o.loss}};
}

// Sums of a few sizes; returns the number of wrong elements.
std::size_t check(options o) {
    o.machine.counted = 1;
    simulated::machine machine(o.machine);
    const connections all(machine, o.flat);
    const int n = o.machine.ranks;
    std::size_t wrong = 0;
    simulated::run(machine, [&](int rank) {
        auto mine = all.make(rank);
        for (const std::size_t count : {std::size_t(1), std::size_t(1000), std::size_t(300'000)}) {
            trainer<float> one(mine, machine.states[std::size_t(rank)], {{count, 1}}, 1);
            for (std::size_t i = 0; i < count; ++i) one.memory()[i] = float(i % 7) + float(rank);
            one.step(1e-3);
            for (std::size_t i = 0; i < count; ++i)
                wrong += one.memory()[i] != float(n) * float(i % 7) + float(n * (n - 1) / 2);
        }
        if (simulated::now() < 3e-3) ++wrong;  // the computation alone takes so long
    });
    return wrong;
}

template <class T>
nlohmann::json train(const options& o) {
    const model m(o.model);
    const double alone = 64 / (o.rate > 0 ? o.rate : device_rates.at(o.model));
    const double step = alone * (1 + o.loss);
    if (o.how == "ring") return train_in_ring<T>(m, o, alone, step);
    simulated::machine machine(o.machine);
    const connections all(machine, o.flat);
    std::vector<bucket> buckets = buckets_of(m, o, sizeof(T));
    if (o.bytes > 0) buckets = {{o.bytes / sizeof(T), 1}};
    double time = 0;
    std::uint64_t messages = 0, bytes = 0;
    simulated::run(machine, [&](int rank) {
        auto mine = all.make(rank);
        simulated::rank_state& state = machine.states[std::size_t(rank)];
        trainer<T> t(mine, state, buckets, o.machine.counted);
        const double own = o.bytes > 0 ? 0 : step * (rank == o.machine.ranks - 1 ? o.slow_rank : 1);
        for (int i = 0; i < o.steps; ++i) {
            const double begin = simulated::now();
            const std::uint64_t before = state.messages, bytes_before = state.bytes;
            t.step(own);
            if (rank != 0) continue;
            time = simulated::now() - begin;
            messages = state.messages - before;
            bytes = state.bytes - bytes_before;
        }
    });
    std::size_t peers = 0;
    for (const auto& s : machine.states) peers = std::max(peers, s.peers.size());
    const double shortest = shortest_step(m, o, alone, sizeof(T));
    return {{"model", o.bytes > 0 ? fmt::format("{} B", o.bytes) : o.model},
            {"ranks", o.machine.ranks},
            {"gigabits", o.gigabits},
            {"how", o.how},
            {"bf16", o.bf16},
            {"hierarchical", !o.flat},
            {"seconds", time},
            {"efficiency", alone / time},
            {"limit", alone / shortest},
            {"messages", messages},
            {"bytes", bytes},
            {"peers", peers},
            {"slow_rank", o.slow_rank},
            {"slow_cable", o.machine.slow_cable},
            {"loss", o.loss}};
}

void add_options(CLI::App& app, options& o) {
    app.add_option("--model", o.model)->check(CLI::IsMember(device_rates));
    app.add_option("--ranks", o.machine.ranks, "GPUs, a multiple of --per-node");
    app.add_option("--per-node", o.machine.per_node)->check(CLI::PositiveNumber);
    app.add_option("--gigabits", o.gigabits, "of each node's cable")->check(CLI::PositiveNumber);
    app.add_option("--how", o.how,
                   "calls after the backward pass, one call, or during it; "
                   "or a ring of all GPUs during it, without hvd")
        ->check(CLI::IsMember({"plain", "fused", "overlapped", "ring"}));
    app.add_option("--bucket", o.bucket, "bytes that are averaged at once during the backward pass")
        ->transform(CLI::AsSizeValue(false));
    app.add_option("--bytes", o.bytes, "one allreduce of so many bytes, and no model")
        ->transform(CLI::AsSizeValue(false));
    app.add_flag("--bf16", o.bf16, "gradients of two bytes an element");
    app.add_flag("--flat", o.flat, "one communicator of all ranks, and none for the nodes");
    app.add_option("--counted", o.machine.counted, "each byte of data stands for so many")
        ->check(CLI::PositiveNumber);
    app.add_option("--rate", o.rate, "images a second of one GPU (0: the model's)");
    app.add_option("--loss", o.loss, "what a step of several GPUs takes longer but for hvd");
    app.add_option("--latency", o.machine.latency, "seconds of a cable");
    app.add_option("--lane-latency", o.machine.lane_latency, "seconds inside a node");
    app.add_option("--lane", o.machine.lane, "bytes a second from a GPU to others of its node");
    app.add_option("--overhead", o.machine.overhead, "seconds of the processor for each message");
    app.add_option("--slow-rank", o.slow_rank, "the last rank computes so many times longer");
    app.add_option("--slow-cable", o.machine.slow_cable, "the first node has so much of a cable");
    app.add_option("--steps", o.steps, "the last one is told")->check(CLI::PositiveNumber);
    app.add_option("--least-share", o.least_share, "fails below this share of what a cable allows");
    app.add_option("--json", o.json, "a file for the result");
    app.add_flag("--check", o.check, "compares sums, and measures nothing");
}

}  // namespace

int main(int argc, char** argv) {
    options o;
    CLI::App app("A training step of many GPUs over simulated time.", "simulated");
    add_options(app, o);
    CLI11_PARSE(app, argc, argv);
    if (o.machine.ranks % o.machine.per_node != 0) {
        std::cerr << "simulated: --ranks is a multiple of --per-node\n";
        return 2;
    }
    o.machine.cable = o.gigabits * 1e9 / 8;
    if (o.check) {
        const std::size_t wrong = check(o);
        fmt::print("{} ranks, {} wrong\n", o.machine.ranks, wrong);
        return wrong > 0 ? 1 : 0;
    }
    if (o.bytes == 0) o.machine.copies = o.machine.counted == 1;
    const auto result = o.bf16 ? train<hvd::bfloat16>(o) : train<float>(o);
    fmt::print("{}\n", result.dump());
    if (!o.json.empty()) std::ofstream(o.json) << result.dump(1) << '\n';
    if (o.least_share == 0) return 0;
    return result["efficiency"] < o.least_share * result["limit"].get<double>() ? 1 : 0;
}
