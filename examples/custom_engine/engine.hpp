// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <barrier>
#include <cstddef>
#include <functional>
#include <memory_resource>
#include <new>
#include <thread>
#include <utility>
#include <vector>

// The parts that an engine has before it uses hvd: its own memory, tensors and threads.
namespace custom_engine {

/// One slab for everything that lives as long as the model. Freed memory comes back with the slab.
class slab final : public std::pmr::memory_resource {
public:
    explicit slab(std::size_t bytes) : slab_(bytes) {}
    std::size_t used() const { return used_; }

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        const std::size_t first = (used_ + alignment - 1) / alignment * alignment;
        if (first > slab_.size() || bytes > slab_.size() - first) throw std::bad_alloc();
        used_ = first + bytes;
        return slab_.data() + first;
    }
    void do_deallocate(void*, std::size_t, std::size_t) override {}
    bool do_is_equal(const memory_resource& other) const noexcept override {
        return this == &other;
    }

    std::vector<std::byte> slab_;
    std::size_t used_ = 0;
};

/// Rows of floats in memory that others own.
struct tensor {
    float* data = nullptr;
    std::size_t rows = 0;
    std::size_t columns = 0;

    std::size_t size() const { return rows * columns; }
    float& at(std::size_t row, std::size_t column = 0) const {
        return data[row * columns + column];
    }
};

/// A fixed number of threads that run the same task together, each with its number.
class crew {
public:
    explicit crew(int count) : begin_(count + 1), end_(count + 1) {
        for (int number = 0; number < count; ++number)
            threads_.emplace_back([this, number] { work(number); });
    }
    crew(const crew&) = delete;
    ~crew() {
        task_ = nullptr;
        begin_.arrive_and_wait();
    }

    int size() const { return static_cast<int>(threads_.size()); }

    /// Returns when all have run it.
    void run(std::function<void(int)> task) {
        task_ = std::move(task);
        begin_.arrive_and_wait();
        end_.arrive_and_wait();
    }

private:
    void work(int number) {
        while (true) {
            begin_.arrive_and_wait();
            if (!task_) return;
            task_(number);
            end_.arrive_and_wait();
        }
    }

    std::barrier<> begin_;
    std::barrier<> end_;
    std::function<void(int)> task_;
    std::vector<std::jthread> threads_;  // the last member, so that it is destroyed first
};

}  // namespace custom_engine
