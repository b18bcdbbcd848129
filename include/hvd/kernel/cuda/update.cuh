// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The update kernel makes one step of an optimizer for any number of tensors in one launch, or
// looks whether their gradients are finite. Its body is a function of a block and a thread, which a
// host compiler takes as well. The launch needs nvcc.

#include "../update_rules.hpp"
#include "elements.cuh"
#include "update.hpp"

namespace hvd::inline v0::detail {

// The elements of one thread, as they lie in memory: two vectors for floats, else one.
struct update_bits {
    vector16 half[2];
};

HVD_KERNEL_HOST_DEVICE inline void load_bits(update_bits& bits, const std::byte* from, dtype id) {
    bits.half[0] = load_vector(from);
    if (id == dtype::float32) bits.half[1] = load_vector(from + 16);
}
HVD_KERNEL_HOST_DEVICE inline void store_bits(const update_bits& bits, std::byte* to, dtype id) {
    reinterpret_cast<vector16*>(to)[0] = bits.half[0];
    if (id == dtype::float32) reinterpret_cast<vector16*>(to)[1] = bits.half[1];
}

// Turns elements of type T into numbers of type A, and back.
template <class T, class A, unsigned N>
HVD_KERNEL_HOST_DEVICE void widen_as(A (&x)[N], const update_bits& bits) {
    T elements[N];
    __builtin_memcpy(elements, &bits, sizeof elements);
    for (unsigned i = 0; i < N; ++i) x[i] = widened(elements[i]);
}
template <class T, class A, unsigned N>
HVD_KERNEL_HOST_DEVICE void narrow_as(const A (&x)[N], update_bits& bits) {
    T elements[N];
    for (unsigned i = 0; i < N; ++i) narrow_to(elements[i], x[i]);
    __builtin_memcpy(&bits, elements, sizeof elements);
}

template <class A, unsigned N>
HVD_KERNEL_HOST_DEVICE void widen(A (&x)[N], const update_bits& bits, dtype id) {
    if constexpr (sizeof(A) == 4) {
        if (id == dtype::float16) return widen_as<float16_bits>(x, bits);
        if (id == dtype::bfloat16) return widen_as<bfloat16_bits>(x, bits);
    }
    widen_as<A>(x, bits);
}
template <class A, unsigned N>
HVD_KERNEL_HOST_DEVICE void narrow(const A (&x)[N], update_bits& bits, dtype id) {
    if constexpr (sizeof(A) == 4) {
        if (id == dtype::float16) return narrow_as<float16_bits>(x, bits);
        if (id == dtype::bfloat16) return narrow_as<bfloat16_bits>(x, bits);
    }
    narrow_as<A>(x, bits);
}

// One element, for tensors that are not aligned alike.
template <class A>
HVD_KERNEL_HOST_DEVICE A load_number(const std::byte* from, dtype id, std::size_t i) {
    if constexpr (sizeof(A) == 4) {
        if (id == dtype::float16) return widened(reinterpret_cast<const float16_bits*>(from)[i]);
        if (id == dtype::bfloat16) return widened(reinterpret_cast<const bfloat16_bits*>(from)[i]);
    }
    return reinterpret_cast<const A*>(from)[i];
}
template <class A>
HVD_KERNEL_HOST_DEVICE void store_number(A x, std::byte* to, dtype id, std::size_t i) {
    if constexpr (sizeof(A) == 4) {
        if (id == dtype::float16) return narrow_to(reinterpret_cast<float16_bits*>(to)[i], x);
        if (id == dtype::bfloat16) return narrow_to(reinterpret_cast<bfloat16_bits*>(to)[i], x);
    }
    reinterpret_cast<A*>(to)[i] = x;
}

// The rule of a launch for numbers of type A, at the parameter's own step.
template <class A>
HVD_KERNEL_HOST_DEVICE sgd_rule<A> rule_at(const update_rule& r, const update_progress& now,
                                           const update_clock& clock, sgd_rule<A>*) {
    return {A(r.rate * now.rate), A(r.momentum), A(r.dampening),
            A(r.decay),           r.nesterov,    clock.steps == 0};
}
template <class A>
HVD_KERNEL_HOST_DEVICE adam_rule<A> rule_at(const update_rule& r, const update_progress& now,
                                            const update_clock& clock, adam_rule<A>*) {
    const double rate = r.rate * now.rate;
    return {rate,
            r.beta1,
            r.beta2,
            r.epsilon,
            r.decay,
            r.decoupled,
            rate * clock.correction1,
            clock.correction2};
}

// Updates a group of elements from number `at` of the tile on, by vectors.
template <class A, class Rule>
HVD_KERNEL_HOST_DEVICE void update_group(const update_tile& t, const Rule& rule, A factor,
                                         std::size_t at) {
    constexpr unsigned n = updated_by_thread<A>;
    constexpr dtype number = sizeof(A) == 8 ? dtype::float64 : dtype::float32;
    std::byte* const parameter = t.parameter + at * bytes_of_float(t.parameter_id);
    const std::byte* const source = t.master != nullptr ? t.master + at * sizeof(A) : parameter;
    const dtype source_id = t.master != nullptr ? number : t.parameter_id;
    // All loads are under way before the first is used.
    update_bits p{}, g{}, s{}, v{};
    load_bits(g, t.gradient + at * bytes_of_float(t.gradient_id), t.gradient_id);
    load_bits(p, source, source_id);
    if (t.state1 != nullptr) load_bits(s, t.state1 + at * sizeof(A), number);
    if (Rule::states > 1) load_bits(v, t.state2 + at * sizeof(A), number);
    A parameters[n], gradients[n], first[n], second[n];
    widen(gradients, g, t.gradient_id);
    widen(parameters, p, source_id);
    widen_as<A>(first, s);
    widen_as<A>(second, v);
    for (unsigned i = 0; i < n; ++i) {
        times(gradients[i], factor);
        rule(parameters[i], gradients[i], first[i], second[i]);
    }
    const auto store = [at](const A(&x)[n], std::byte* to) {
        update_bits bits{};
        narrow_as<A>(x, bits);
        store_bits(bits, to + at * sizeof(A), number);
    };
    if (t.state1 != nullptr) store(first, t.state1);
    if (Rule::states > 1) store(second, t.state2);
    if (t.master != nullptr) store(parameters, t.master);
    narrow(parameters, p, t.parameter_id);
    store_bits(p, parameter, t.parameter_id);
}

template <class A, class Rule>
HVD_KERNEL_HOST_DEVICE void update_one(const update_tile& t, const Rule& rule, A factor,
                                       std::size_t i) {
    A* const first = reinterpret_cast<A*>(t.state1);
    A* const second = reinterpret_cast<A*>(t.state2);
    A* const master = reinterpret_cast<A*>(t.master);
    A g = load_number<A>(t.gradient, t.gradient_id, i),
      p = master != nullptr ? master[i] : load_number<A>(t.parameter, t.parameter_id, i),
      s = first != nullptr ? first[i] : A(0), v = Rule::states > 1 ? second[i] : A(0);
    times(g, factor);
    rule(p, g, s, v);
    if (first != nullptr) first[i] = s;
    if (Rule::states > 1) second[i] = v;
    if (master != nullptr) master[i] = p;
    store_number(p, t.parameter, t.parameter_id, i);
}

// The factor that brings the measured norm down to the largest.
HVD_KERNEL_HOST_DEVICE inline double clip_factor(const update_rule& rule,
                                                 const update_progress& now) {
    if (rule.max_norm > largest_number) return 1;                // no limit
    if (now.squares <= rule.max_norm * rule.max_norm) return 1;  // as without a limit
    double norm = now.squares;
    root_of(norm);
    return norm <= rule.max_norm ? 1 : rule.max_norm / norm;  // NaN of a NaN
}

// Updates one thread's share of a tile: a group by vectors where all is aligned, single elements
// elsewhere.
template <class A, class Rule>
HVD_KERNEL_HOST_DEVICE void update_tile_as(const update_tile& t, const update_launch& l,
                                           const update_progress& now, unsigned thread) {
    constexpr unsigned n = updated_by_thread<A>;
    const Rule rule = rule_at(l.rule, now, l.clocks[t.clock], static_cast<Rule*>(nullptr));
    const A factor = A(l.rule.factor * now.factor * (t.clipped ? clip_factor(l.rule, now) : 1));
    const unsigned groups = t.aligned ? t.count / n : 0;
    if (thread < groups) update_group<A>(t, rule, factor, std::size_t(thread) * n);
    for (unsigned i = groups * n + thread; i < t.count; i += update_threads)
        update_one<A>(t, rule, factor, i);
}

// True if all gradients of the thread's share are finite.
template <class A>
HVD_KERNEL_HOST_DEVICE bool is_finite(const update_tile& t, unsigned thread) {
    constexpr unsigned n = updated_by_thread<A>;
    const unsigned groups = t.aligned ? t.count / n : 0;
    A sum = 0;  // of zeros, or a NaN
    if (thread < groups) {
        update_bits g{};
        A x[n];
        load_bits(g, t.gradient + std::size_t(thread) * n * bytes_of_float(t.gradient_id),
                  t.gradient_id);
        widen(x, g, t.gradient_id);
        for (unsigned i = 0; i < n; ++i) sum += x[i] - x[i];
    }
    for (unsigned i = groups * n + thread; i < t.count; i += update_threads) {
        const A x = load_number<A>(t.gradient, t.gradient_id, i);
        sum += x - x;
    }
    return sum == 0;
}

// The sum of the squares in the thread's share. A thread takes the same elements of a tile that is
// not aligned, so that ranks whose tensors lie elsewhere get the same bits.
template <class A>
HVD_KERNEL_HOST_DEVICE double squares_of(const update_tile& t, unsigned thread) {
    constexpr unsigned n = updated_by_thread<A>;
    const unsigned first = thread * n;
    if (first >= t.count) return 0;
    const unsigned count = t.count - first < n ? t.count - first : n;
    A x[n] = {};
    if (t.aligned && count == n) {
        update_bits g{};
        load_bits(g, t.gradient + std::size_t(first) * bytes_of_float(t.gradient_id),
                  t.gradient_id);
        widen(x, g, t.gradient_id);
    } else {
        for (unsigned i = 0; i < count; ++i)
            x[i] = load_number<A>(t.gradient, t.gradient_id, first + i);
    }
    double sum = 0;
    for (unsigned i = 0; i < n; ++i) add(sum, double(x[i]), double(x[i]));
    return sum;
}
HVD_KERNEL_HOST_DEVICE inline double squares_of_block(const update_launch& l, unsigned block,
                                                      unsigned thread) {
    const update_tile t = l.tiles[block];
    return t.parameter_id == dtype::float64 ? squares_of<double>(t, thread)
                                            : squares_of<float>(t, thread);
}
// The sum of the thread's share of the sums of all blocks.
HVD_KERNEL_HOST_DEVICE inline double sums_of_thread(const update_launch& l, unsigned thread) {
    double sum = 0;
    for (unsigned b = thread; b < l.blocks; b += update_threads) sum += l.sums[b];
    return sum;
}

// The kernel's body, for a rule that is sgd_rule or adam_rule.
template <template <class> class Rule>
HVD_KERNEL_HOST_DEVICE void update_block(const update_launch& l, const update_progress& now,
                                         unsigned block, unsigned thread) {
    if (now.skip != 0 || l.is_stopped()) return;
    const update_tile t = l.tiles[block];
    if (t.parameter_id == dtype::float64) update_tile_as<double, Rule<double>>(t, l, now, thread);
    else update_tile_as<float, Rule<float>>(t, l, now, thread);
}

HVD_KERNEL_HOST_DEVICE inline void look_at_block(const update_launch& l, unsigned block,
                                                 unsigned thread) {
    const update_tile t = l.tiles[block];
    const bool finite = t.parameter_id == dtype::float64 ? is_finite<double>(t, thread)
                                                         : is_finite<float>(t, thread);
    if (!finite) l.progress->skip = 1;
}

// Counts the blocks that are done. It is true once in a launch.
HVD_KERNEL_HOST_DEVICE inline bool is_last_block(const update_launch& l) {
    update_progress& now = *l.progress;
#ifdef __CUDA_ARCH__
    const unsigned before = atomicAdd(&now.blocks, 1u);
#else
    const unsigned before = __atomic_fetch_add(&now.blocks, 1u, __ATOMIC_ACQ_REL);
#endif
    if (before + 1 < l.blocks) return false;
    now.blocks = 0;
    return true;
}

// Called by one thread of each block when the others have read the progress. True in the last block
// if the step counts; its threads then call advance_clocks.
HVD_KERNEL_HOST_DEVICE inline bool end_block(const update_launch& l) {
    if (l.work != update_work::finish || !is_last_block(l) || l.is_stopped()) return false;
    update_progress& now = *l.progress;
    if (now.skip != 0) {
        now.skip = 0;
        now.skipped += 1;
        return false;
    }
    now.steps += 1;
    return true;
}

// Advances the thread's share of the clocks.
HVD_KERNEL_HOST_DEVICE inline void advance_clocks(const update_launch& l, unsigned thread) {
    for (unsigned i = thread; i < l.clock_count; i += update_threads) {
        update_clock& c = l.clocks[i];
        if (!c.runs) continue;
        c.steps += 1;
        c.power1 *= l.rule.beta1;
        c.power2 *= l.rule.beta2;
        c.correction1 = 1 / (1 - c.power1);
        c.correction2 = 1 / (1 - c.power2);
    }
}

#ifdef __CUDACC__

template <template <class> class Rule>
__global__ void __launch_bounds__(update_threads, 4)
    update_tiles(const __grid_constant__ update_launch launch) {
    __shared__ bool step_ends;
    update_block<Rule>(launch, *launch.progress, blockIdx.x, threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) step_ends = end_block(launch);
    __syncthreads();
    if (step_ends) advance_clocks(launch, threadIdx.x);
}

template <int>
__global__ void __launch_bounds__(update_threads)
    look_at_tiles(const __grid_constant__ update_launch launch) {
    look_at_block(launch, blockIdx.x, threadIdx.x);
}

// The sum over the threads of a block, in thread 0, in an order that is always the same.
__device__ inline double sum_of_block(double x) {
    __shared__ double of_threads[update_threads];
    of_threads[threadIdx.x] = x;
    for (unsigned half = update_threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) of_threads[threadIdx.x] += of_threads[threadIdx.x + half];
    }
    return of_threads[0];
}

template <int>
__global__ void __launch_bounds__(update_threads)
    measure_tiles(const __grid_constant__ update_launch launch) {
    __shared__ bool last;
    const double sum = sum_of_block(squares_of_block(launch, blockIdx.x, threadIdx.x));
    if (threadIdx.x == 0) {
        launch.sums[blockIdx.x] = sum;
        __threadfence();
        last = is_last_block(launch);
        __threadfence();
    }
    __syncthreads();
    if (!last) return;
    const double all = sum_of_block(sums_of_thread(launch, threadIdx.x));
    if (threadIdx.x == 0) launch.progress->squares = all;
}

inline cudaError_t update_on_device(const update_launch& launch, cudaStream_t stream) {
    void (*kernel)(update_launch) = update_tiles<sgd_rule>;
    if (launch.work == update_work::look) kernel = look_at_tiles<0>;
    else if (launch.work == update_work::measure) kernel = measure_tiles<0>;
    else if (launch.rule.kind == update_kind::adam) kernel = update_tiles<adam_rule>;
    return launch_kernel(kernel, launch.blocks, update_threads, launch, stream);
}
inline cudaError_t load_update_kernels() {
    return load_all(update_tiles<sgd_rule>, update_tiles<adam_rule>, look_at_tiles<0>,
                    measure_tiles<0>);
}
static const registered update_registered(kernels.update, &update_on_device);
static const registered update_loaded(kernels.load_update, &load_update_kernels);

#endif

}  // namespace hvd::inline v0::detail
