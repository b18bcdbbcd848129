// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Makes the mistakes of docs/reference/errors.md on two ranks and prints each rank's error: `errors
// SCENARIO`. It is built for threads and for MPI. pages.py compares the page with the output.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <hvd/hvd.hpp>

using namespace std::chrono_literals;

namespace {

#if HVD_HAS_MPI
using backend = hvd::mpi;
#else
using backend = hvd::threads;
#endif
using communicator = hvd::communicator<backend>;

const char* class_of(const std::exception& e) {
    if (dynamic_cast<const hvd::usage_error*>(&e) != nullptr) return "hvd::usage_error";
    if (dynamic_cast<const hvd::mismatch_error*>(&e) != nullptr) return "hvd::mismatch_error";
    if (dynamic_cast<const hvd::not_finite_error*>(&e) != nullptr) return "hvd::not_finite_error";
    if (dynamic_cast<const hvd::timeout_error*>(&e) != nullptr) return "hvd::timeout_error";
    if (dynamic_cast<const hvd::peer_error*>(&e) != nullptr) return "hvd::peer_error";
#if HVD_HAS_MPI
    if (dynamic_cast<const hvd::mpi_error*>(&e) != nullptr) return "hvd::mpi_error";
#endif
    return "std::exception";
}

// Prints each line by one write, so that lines of several ranks do not mix.
void print(const std::string& text) {
    const std::string line = text + "\n";
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fflush(stdout);
}

// Runs f and prints what it throws.
template <class F>
void report(int rank, F f) {
    std::string outcome = "nothing is thrown";
    try {
        f();
    } catch (const std::exception& e) {
        outcome = std::string(class_of(e)) + ": " + e.what();
    }
    print("rank " + std::to_string(rank) + ": " + outcome);
}

void report(communicator& world, void (*scenario)(communicator&)) {
    report(world.rank(), [&] { scenario(world); });
}

//! [refused call]
void refused_call(communicator& world) {
    std::vector<float> in(8), out(world.rank() == 1 ? 4 : 8);  // rank 1 has too little room
    world.allreduce(in, hvd::into(out), hvd::sum, {.name = "conv1"});
}
//! [refused call]

//! [different counts]
void different_counts(communicator& world) {
    std::vector<float> gradient(std::size_t(100 + world.rank()));
    world.allreduce(gradient, hvd::sum, {.name = "conv1"});
}
//! [different counts]

//! [different calls]
void different_calls(communicator& world) {
    float loss = 0;
    if (world.rank() == 0) world.allreduce(loss, hvd::average, {.name = "loss"});
    else world.broadcast(loss, hvd::root{0}, {.name = "learning rate"});
}
//! [different calls]

//! [callable]
void callable_that_throws(communicator& world) {
    int x = world.rank();
    world.allreduce(x, [](int, int) -> int { throw std::runtime_error("not a number"); });
}
//! [callable]

//! [not finite]
void bad_value(communicator& world) {  // it was made with {.check_finite = true}
    std::vector<float> weights(8, 1), bias(4, 1);
    if (world.rank() == 1) bias[2] = std::log(0.0f);
    world.allreduce(hvd::fuse(weights, bias), hvd::average, {.name = "gradients"});
}
//! [not finite]

void sum(communicator& world) {
    float x = 1;
    world.allreduce(x, hvd::sum);
}

//! [late]
void late_rank(communicator& world) {
    if (world.rank() == 1) usleep(600'000);
    std::vector<float> x(100000, 1);
    world.allreduce(x, hvd::sum, {.timeout = 100ms});
}
//! [late]

//! [waiting]
void rank_that_takes_long(communicator& world) {
    if (world.rank() == 1) sleep(3);  // a batch that comes from far away
    float x = 1;
    world.allreduce(x, hvd::sum, {.name = "conv1"});
}
//! [waiting]

//! [told later]
void different_weights(communicator& world) {
    std::vector<float> weights(world.rank() == 1 ? 3 : 2);
    world.broadcast(weights, hvd::root{0}, {.name = "weights"});
}
//! [told later]

//! [unseen]
void forget_a_request(communicator& world) {
    float x = 1;
    if (world.rank() == 0) auto pending = world.allreduce_async(x, hvd::max, {.name = "forgotten"});
    else auto pending = world.allreduce_async(x, hvd::min, {.name = "forgotten"});
}
//! [unseen]

//! [fork]
void use_in_a_child(communicator& world) {
    if (fork() == 0) {
        report(world, sum);
        _exit(0);
    }
    wait(nullptr);
}
//! [fork]

//! [empty]
void use_of_an_empty_one(communicator& world) {
    communicator first = world.subset({0});
    first.barrier();  // rank 1 is no member
}
//! [empty]

//! [two threads]
void call_on_a_second_thread(communicator& world) {
    std::vector<float> loss(1), gradient(8);
    const auto add = hvd::custom([&](float a, float b) {  // this thread is inside a call
        std::thread second([&] {
            report(world.rank(), [&] { world.allreduce(gradient, hvd::sum, {.name = "conv1"}); });
        });
        second.join();
        return a + b;
    });
    world.allreduce(loss, add);
}
//! [two threads]

void leave_by_an_exception(communicator& world) {
    if (world.rank() == 1) throw std::runtime_error("no space left on device");
    report(world, sum);
}

void run(const std::string& name, communicator& world) {
    const std::pair<const char*, void (*)(communicator&)> scenarios[] = {
        {"refused call", refused_call},
        {"different counts", different_counts},
        {"different calls", different_calls},
        {"callable", callable_that_throws},
        {"not finite", bad_value},
        {"late", late_rank},
        {"waiting", rank_that_takes_long},
        {"unseen", forget_a_request},
        {"told later", different_weights},
        {"empty", use_of_an_empty_one},
        {"two threads", call_on_a_second_thread}};
    if (name == "leaver") return leave_by_an_exception(world);
    if (name == "fork" && world.rank() == 0) use_in_a_child(world);
    for (const auto& [known, scenario] : scenarios)
        if (name == known) report(world, scenario);
    report(world, sum);  // calls that still work afterwards
}

}  // namespace

#if HVD_HAS_MPI

int run_rank(const std::string& name, int argc, char** argv) {
    hvd::mpi_environment env{argc, argv};
    auto world = communicator::world({.check_finite = name == "not finite"});
    if (name == "mpi call") {
        auto direct = hvd::communicator<hvd::direct<hvd::mpi>>::world();
        report(world.rank(), [&] {
            float x = 1;
            direct.broadcast(x, hvd::root{7});  // MPI gets it unchecked
        });
    } else if (name == "names") {
        auto checked = hvd::communicator<hvd::checked<hvd::mpi>>::world();
        report(world.rank(), [&] {
            float x = 1;
            checked.allreduce(x, hvd::sum, {.name = world.rank() == 0 ? "conv1" : "conv2"});
        });
    } else if (name == "uncaught" || name == "caught outside") {
        leave_by_an_exception(world);
    } else {
        run(name, world);
    }
    return 0;
}

int main(int argc, char** argv) {
    const std::string name = argc > 1 ? argv[1] : "";
    if (name != "caught outside") return run_rank(name, argc, argv);
    try {
        return run_rank(name, argc, argv);
    } catch (const std::exception& e) {
        print(std::string("main catches ") + e.what());  // this is not reached: the job is aborted
        return 1;
    }
}

#else

int main(int argc, char** argv) {
    const std::string name = argc > 1 ? argv[1] : "";
    try {
        hvd::run_threads(2, [&](communicator& world) { run(name, world); },
                         {.check_finite = name == "not finite"});
    } catch (const std::exception& e) {
        print(std::string("run_threads throws ") + class_of(e) + ": " + e.what());
    }
}

#endif
