// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <hvd/hvd.hpp>
#include <hvd/train.hpp>

// Each collective in each of its forms, so that a compiler sees what is behind all of them.

namespace every_call {

// An object that hvd has no name of its own for.
struct epoch {
    int number;
    double loss;
};

template <class Comm>
bool reductions(Comm& comm) {
    const std::vector<float> in(1000, float(comm.rank() + 1));
    const float sum = float(comm.size() * (comm.size() + 1) / 2);
    const std::vector<float> expected(in.size(), sum);
    std::vector<float> x = in, out(in.size());
    comm.allreduce(x, hvd::sum, {.name = "x", .prescale = 2, .postscale = 0.5});
    comm.allreduce(in, out, hvd::sum);
    std::vector<float> later = in, strided = in;
    comm.allreduce_async(later, hvd::sum).wait();
    comm.allreduce(hvd::view(strided.data(), hvd::shape(in.size() / 2), hvd::strides(2)), hvd::sum);
    std::vector<int> n(3, comm.rank());
    comm.allreduce(n, hvd::average(hvd::rounding::nearest));
    comm.allreduce(n, [](int a, int b) { return a < b ? b : a; });
    std::vector<hvd::bfloat16> half(5, hvd::bfloat16(1));
    comm.allreduce(half, hvd::average);
    comm.reduce(strided, hvd::max, hvd::root{0});
    comm.reduce_async(strided, hvd::max, hvd::root{0}).wait();
    const auto part = comm.reduce_scatter(in, hvd::sum);
    const auto part_later = comm.reduce_scatter_async(in, hvd::sum).wait();
    double number = 1;
    comm.allreduce(hvd::fuse(x, number), hvd::max);
    comm.allreduce_async(hvd::fuse(x, n), hvd::max).wait();
    return x == expected && out == expected && later == expected && part == part_later &&
           float(half[0]) == 1;
}

template <class Comm>
bool movements(Comm& comm) {
    const auto size = std::size_t(comm.size());
    std::vector<int> x(10, comm.rank()), mine(std::size_t(comm.rank()), comm.rank());
    comm.broadcast(x, hvd::root{comm.size() - 1});
    comm.broadcast_async(x).wait();
    comm.broadcast(hvd::fuse(x, mine = std::vector<int>(3, 1)));
    const auto all = comm.allgather(mine);
    std::vector<int> ranks(size);
    comm.allgather(comm.rank(), hvd::into(ranks));
    const auto gathered = comm.gather(x), scattered_of = comm.gather_async(x).wait();
    const auto lists = comm.allgather(hvd::fuse(x, mine));
    const std::vector<int> rows(6 * size, comm.rank()), counts(size, 6);
    const auto some = comm.alltoall(rows, counts), others = comm.alltoall_async(rows).wait();
    const auto share = comm.scatter(rows), later = comm.scatter_async(rows).wait();
    comm.barrier();
    comm.barrier_async().wait();
    return all.values == std::vector<int>(3 * size, 1) && ranks.back() == comm.size() - 1 &&
           gathered.values == scattered_of.values && some.values == others.values &&
           share == later && share == std::vector<int>(6, 0) &&
           std::get<1>(lists).values == all.values;
}

template <class Comm>
bool objects(Comm& comm) {
    std::string word = comm.rank() == 0 ? "hvd" : "";
    std::vector<std::string> words(std::size_t(comm.rank()), "w");
    epoch now{comm.rank(), 0.5};
    comm.broadcast_object(word);
    comm.broadcast_object(words, hvd::root{comm.size() - 1});
    comm.broadcast_object(now);
    const auto all = comm.allgather_object(comm.rank());
    return word == "hvd" && int(words.size()) == comm.size() - 1 && now.number == 0 &&
           int(all.size()) == comm.size();
}

template <class Comm>
bool plans(Comm& comm) {
    std::vector<float> x(100, float(comm.rank())), y(7, 1);
    auto sum = comm.plan_allreduce(hvd::fuse(x, y), hvd::sum);
    auto coded = comm.plan_allreduce(hvd::fuse(x), hvd::average, {},
                                     hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>));
    auto spread = comm.plan_broadcast(hvd::fuse(x, y));
    sum.run();
    coded.run();
    spread.run_async().wait();
    auto half = comm.split(comm.rank() % 2, comm.rank());
    half.barrier();
    auto first = comm.subset({0});
    hvd::arena arena(comm, std::size_t(1) << 16);
    auto tensor = arena.template tensor<float>(hvd::shape(4, 8));
    comm.broadcast(tensor);
    return y[0] == float(comm.size()) && bool(first) == (comm.rank() == 0);
}

template <class Comm>
bool training(Comm& comm) {
    std::vector<float> weight(8, float(comm.rank())), gradient(8, 1);
    hvd::distributed_optimizer optimizer(comm, hvd::optimizers::adamw<float>(0.5f));
    optimizer.register_parameter("weight", weight, gradient);
    hvd::broadcast_parameters(optimizer);
    optimizer.step();
    return weight[0] < 0;
}

// The text of the mismatch when rank 0 has another object than the others, made by this unit.
template <class Comm, class T>
std::string refused_object(Comm& comm, T object) {
    try {
        comm.broadcast_object(object);
    } catch (const hvd::mismatch_error& e) {
        return e.what();
    }
    return {};
}

template <class Comm>
bool all_of(Comm& comm) {
    return reductions(comm) && movements(comm) && objects(comm) && plans(comm) && training(comm);
}

}  // namespace every_call
