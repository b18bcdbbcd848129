// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <memory>

#include "../engine.hpp"
#include "knob.hpp"

namespace hvd::inline v0::detail {

// The thing that an autotune works on: its thresholds, and its ranks, which exchange a few numbers
// between steps.
class tuned_target {
public:
    virtual ~tuned_target() = default;

    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual tuned_calls calls() const = 0;
    virtual engine_tuning tuned() const = 0;
    virtual void retune(const engine_tuning& to) = 0;
    // Each number becomes the greatest one of all ranks.
    virtual void take_greatest(std::vector<double>& numbers) = 0;
    // The numbers of all ranks, those of rank 0 first.
    virtual std::vector<std::int64_t> numbers_of_all(const std::vector<std::int64_t>& mine) = 0;
};

inline constexpr const char* name_of_autotune = "hvd::autotune";

template <class Backend>
class tuned_engine final : public tuned_target {
public:
    explicit tuned_engine(engine<Backend>& engine) : engine_(engine) {}

    int rank() const override { return engine_.rank(); }
    int size() const override { return engine_.size(); }
    tuned_calls calls() const override {
        return {.of_engine = true, .cross_nodes = engine_.local_size() < size()};
    }
    engine_tuning tuned() const override { return engine_.tuned(); }
    void retune(const engine_tuning& to) override { engine_.retune(to); }
    void take_greatest(std::vector<double>& numbers) override {
        engine_.allreduce(name_of_autotune, numbers, max).wait();
    }
    std::vector<std::int64_t> numbers_of_all(const std::vector<std::int64_t>& mine) override {
        return engine_.allgather(name_of_autotune, mine).wait().values;
    }

private:
    engine<Backend>& engine_;
};

template <class Backend>
class tuned_communicator final : public tuned_target {
public:
    explicit tuned_communicator(communicator<Backend>& comm) : comm_(comm) {}

    int rank() const override { return comm_.rank(); }
    int size() const override { return comm_.size(); }
    tuned_calls calls() const override { return {.cross_nodes = comm_.local_size() < size()}; }
    engine_tuning tuned() const override { return {.tuning = comm_.tuning()}; }
    void retune(const engine_tuning& to) override { comm_.retune(to.tuning); }
    void take_greatest(std::vector<double>& numbers) override {
        comm_.allreduce(numbers, max, {.name = name_of_autotune});
    }
    std::vector<std::int64_t> numbers_of_all(const std::vector<std::int64_t>& mine) override {
        return comm_.allgather(mine, {.name = name_of_autotune}).values;
    }

private:
    communicator<Backend>& comm_;
};

}  // namespace hvd::inline v0::detail
