// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Optimizers on the device, by the same body that a GPU runs, against the rules of the host.

#include <cmath>
#include <limits>

#include <hvd/kernel/cuda/update_device.hpp>
#include <hvd/kernel/update.hpp>

#include "support.hpp"

namespace updates_tests {

using namespace hvd::detail;
using device_test::tensor;

namespace {

constexpr std::size_t margin = 16;  // elements before and after a tensor that nobody writes

// Sizes around the groups of a thread and the tiles of a block, in float and in double.
constexpr std::size_t counts[] = {0, 1, 3, 7, 8, 9, 1023, 1025, 2047, 2048, 2049, 5000};

template <class T>
std::vector<T> waves(std::size_t count, double speed) {
    std::vector<T> values;
    for (std::size_t i = 0; i < count + 2 * margin; ++i)
        values.push_back(T(float(std::sin(double(i) * speed))));
    return values;
}

// One tensor on the device with its gradient and state, and the same on the host. P and G are the
// types of parameter and gradient. `shift` moves the parameter, and `gradient_shift` the gradient,
// by so many elements from an aligned place.
template <class P, class G>
struct problem {
    using A = std::conditional_t<sizeof(P) == 8, double, float>;

    std::size_t n, shift, gradient_shift;
    bool with_master;
    std::vector<P> p;
    std::vector<G> g;
    std::vector<A> m, s, v;
    tensor<P> parameter;
    tensor<G> gradient;
    tensor<A> master, first, second;

    problem(std::size_t count, std::size_t shift_, std::size_t gradient_shift_, bool with_master_)
        : n(count),
          shift(shift_),
          gradient_shift(gradient_shift_),
          with_master(with_master_),
          p(waves<P>(count, 0.3)),
          g(waves<G>(count, 0.7)),
          m(p.begin(), p.end()),
          s(p.size()),
          v(p.size()),
          parameter(p),
          gradient(g),
          master(m),
          first(s),
          second(v) {
        // The host works at the places of the device, margins included.
    }

    template <class T>
    static std::byte* at(const tensor<T>& t, std::size_t element) {
        return reinterpret_cast<std::byte*>(t.data() + element);
    }

    update_row row(int states) const {
        const std::size_t begin = margin + shift;
        return {at(parameter, begin),
                hvd::dtype_traits<P>::id,
                at(gradient, margin + gradient_shift),
                hvd::dtype_traits<G>::id,
                n,
                with_master ? at(master, begin) : nullptr,
                states > 0 ? at(first, begin) : nullptr,
                states > 1 ? at(second, begin) : nullptr};
    }

    template <class Rule>
    void step_on_host(const Rule& rule, double factor) {
        for (std::size_t k = 0; k < n; ++k) {
            const std::size_t i = margin + shift + k;
            const A before = with_master ? m[i] : A(p[i]),
                    scaled = A(g[margin + gradient_shift + k]) * A(factor);
            A after;
            update_plain<A>(rule, 1, &before, &scaled, &s[i], &v[i], &after);
            m[i] = with_master ? after : m[i];
            p[i] = P(after);
        }
    }

    template <class T>
    static void check_near(const std::vector<T>& got, const std::vector<T>& expected) {
        // Rounding to 16 bits may fall to the other side.
        const double digits = sizeof(T) == 2 ? 1e-2 : sizeof(T) == 4 ? 1e-5 : 1e-13;
        double worst = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
            const double x = double(got[i]), y = double(expected[i]);
            worst = std::max(worst, std::abs(x - y) / (1 + std::abs(y)));
        }
        CHECK(worst <= digits);
    }

    void check() const {
        check_near(parameter.values(), p);
        check_near(master.values(), m);
        check_near(first.values(), s);
        check_near(second.values(), v);
    }
};

update_rule sgd(double momentum, bool nesterov) {
    update_rule r;
    r.rate = 0.125;
    r.momentum = momentum;
    r.dampening = 0.25;
    r.decay = 0.0625;
    r.nesterov = nesterov;
    return r;
}
update_rule adam(bool decoupled) {
    update_rule r;
    r.kind = update_kind::adam;
    r.rate = 0.0625;
    r.beta1 = 0.875;
    r.beta2 = 0.96875;
    r.decay = 0.125;
    r.decoupled = decoupled;
    return r;
}
const update_rule rules[] = {sgd(0, false), sgd(0.75, false), sgd(0.75, true), adam(false),
                             adam(true)};

// Calls f with the rule of the host for this step, which counts from 1.
template <class A, class F>
void with_rule(const update_rule& r, int step, F f) {
    if (r.kind == update_kind::adam)
        f(adam_rule<A>(r.rate, r.beta1, r.beta2, r.epsilon, r.decay, r.decoupled, step));
    else
        f(sgd_rule<A>{A(r.rate), A(r.momentum), A(r.dampening), A(r.decay), r.nesterov, step == 1});
}

// It waits for the copies of the legacy stream, which fill the tensors.
struct stream_of_test {
    cudaStream_t stream{};
    stream_of_test() { cudaStreamCreate(&stream); }
    ~stream_of_test() { cudaStreamDestroy(stream); }
};

// Makes three steps on the device and on the host.
template <class P, class G>
void check_update(update_rule rule, problem<P, G>& x) {
    const stream_of_test on;
    rule.factor = 0.5;
    // A rule without momentum leaves a velocity as it is.
    const update_row rows[] = {x.row(rule.states() > 0 ? rule.states() : 1)};
    const update_rows cut(rows, on.stream, 0);
    const device_progress progress(rule, 0, on.stream, 0);
    for (int step = 1; step <= 3; ++step) {
        launch_update(rule, cut, progress, on.stream, 0);
        with_rule<typename problem<P, G>::A>(rule, step,
                                             [&](const auto& r) { x.step_on_host(r, 0.5); });
    }
    cudaStreamSynchronize(on.stream);
    x.check();
    CHECK(progress.get(on.stream, 0).steps == 3);
}

template <class P, class G>
void check_types(bool with_master) {
    for (const update_rule& rule : rules)
        for (const std::size_t count : counts)
            for (const std::size_t shift : {0, 1, 8})
                for (const std::size_t gradient_shift : {0, 1}) {
                    CAPTURE(int(rule.kind));
                    CAPTURE(count);
                    CAPTURE(shift);
                    CAPTURE(gradient_shift);
                    problem<P, G> x(count, shift, gradient_shift, with_master);
                    check_update(rule, x);
                }
}

}  // namespace

TEST_CASE("every optimizer in float and double, every edge and alignment") {
    check_types<float, float>(false);
    check_types<double, double>(false);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("16-bit parameters, with a master in float and without") {
    for (const bool with_master : {false, true}) {
        check_types<hvd::bfloat16, hvd::bfloat16>(with_master);
        check_types<hvd::float16, hvd::float16>(with_master);
        check_types<hvd::bfloat16, float>(with_master);
    }
    check_types<float, hvd::bfloat16>(false);
    check_types<float, hvd::float16>(false);
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("one launch updates any number of tensors of mixed types") {
    problem<float, float> a(3000, 0, 0, false);
    problem<hvd::bfloat16, float> b(5, 1, 0, true);
    problem<double, double> c(2000, 0, 0, false);
    problem<float, float> none(0, 0, 0, false);
    {
        const stream_of_test on;
        const update_rule rule = adam(true);
        const update_row rows[] = {a.row(2), none.row(2), b.row(2), c.row(2)};
        const update_rows cut(rows, on.stream, 0);
        const device_progress progress(rule, 0, on.stream, 0);
        emulation::reset();
        for (int step = 1; step <= 4; ++step) {
            launch_update(rule, cut, progress, on.stream, 0);
            with_rule<float>(rule, step, [&](const auto& r) {
                a.step_on_host(r, 1);
                b.step_on_host(r, 1);
            });
            with_rule<double>(rule, step, [&](const auto& r) { c.step_on_host(r, 1); });
        }
        CHECK(emulation::calls_of("launch_update") == 4);
        CHECK(emulation::calls_of("cudaMalloc") == 0);
        CHECK(emulation::calls_of("cudaStreamSynchronize") == 0);
        cudaStreamSynchronize(on.stream);
        a.check();
        b.check();
        c.check();
        none.check();
    }
}

TEST_CASE("groups with their own rates are launches of one step") {
    problem<float, float> a(100, 0, 0, false), b(100, 0, 0, false);
    {
        const stream_of_test on;
        update_rule fast = adam(false), slow = adam(false);
        slow.rate = 0.25 * fast.rate;
        const update_row first[] = {a.row(2)}, second[] = {b.row(2)};
        const update_rows first_group(first, on.stream, 0), second_group(second, on.stream, 0);
        const device_progress progress(fast, 0, on.stream, 0);
        for (int step = 1; step <= 3; ++step) {
            launch_update(fast, first_group, progress, on.stream, 0, update_work::step);
            launch_update(slow, second_group, progress, on.stream, 0);
            with_rule<float>(fast, step, [&](const auto& r) { a.step_on_host(r, 1); });
            with_rule<float>(slow, step, [&](const auto& r) { b.step_on_host(r, 1); });
        }
        CHECK(progress.get(on.stream, 0).steps == 3);
        a.check();
        b.check();
    }
}

TEST_CASE_TEMPLATE("a step with a gradient that is not finite changes nothing and does not count",
                   G, float, double, hvd::float16, hvd::bfloat16) {
    using P = std::conditional_t<sizeof(G) == 8, double, float>;
    const float infinity = std::numeric_limits<float>::infinity();
    // The places: in a group of a thread, in the elements after the groups, in the second tensor.
    for (const std::size_t place : {0, 13, 2047, 2048, 4098, 5000})
        for (const float bad : {infinity, -infinity, std::nanf("")})
            for (const update_rule& rule : {sgd(0.75, false), adam(true)}) {
                CAPTURE(place);
                CAPTURE(bad);
                problem<P, G> a(4099, 0, 0, false), b(1000, 1, 0, false);
                const stream_of_test on;
                const update_row rows[] = {a.row(2), b.row(2)};
                const update_rows cut(rows, on.stream, 0);
                const device_progress progress(rule, 0, on.stream, 0);
                // The bad gradient comes in the first and in the third step.
                const G worse = G(bad);
                const bool in_a = place < 4099;
                G* const at = in_a ? a.gradient.data() + margin + place
                                   : b.gradient.data() + margin + (place - 4099);
                const G good = in_a ? a.g[margin + place] : b.g[margin + (place - 4099)];
                int counted = 0;
                for (int step = 1; step <= 4; ++step) {
                    const bool skipped = step % 2 == 1;
                    cudaMemcpyAsync(at, skipped ? &worse : &good, sizeof(G), cudaMemcpyHostToDevice,
                                    on.stream);
                    launch_look(cut, progress, on.stream, 0);
                    launch_update(rule, cut, progress, on.stream, 0);
                    cudaStreamSynchronize(on.stream);
                    if (skipped) continue;
                    with_rule<P>(rule, ++counted, [&](const auto& r) {
                        a.step_on_host(r, 1);
                        b.step_on_host(r, 1);
                    });
                }
                a.check();
                b.check();
                const update_progress now = progress.get(on.stream, 0);
                CHECK(now.steps == 2);
                CHECK(now.skipped == 2);
                CHECK(now.skip == 0);
                CHECK(now.blocks == 0);
            }
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("gradients that are large but finite are no reason to skip") {
    const stream_of_test on;
    const update_rule rule = sgd(0, false);
    const float most = std::numeric_limits<float>::max();
    const tensor<float> p(std::vector<float>(20, 0)), g(std::vector<float>(20, most));
    const update_row rows[] = {{problem<float, float>::at(p, 0), hvd::dtype::float32,
                                problem<float, float>::at(g, 0), hvd::dtype::float32, 20}};
    const update_rows cut(rows, on.stream, 0);
    const device_progress progress(rule, 0, on.stream, 0);
    launch_look(cut, progress, on.stream, 0);
    CHECK(progress.get(on.stream, 0).skip == 0);
}

TEST_CASE("the flag of another rank skips the step") {
    const stream_of_test on;
    const update_rule rule = sgd(0.5, false);
    problem<float, float> a(100, 0, 0, false);
    const update_row rows[] = {a.row(1)};
    const update_rows cut(rows, on.stream, 0);
    const device_progress progress(rule, 0, on.stream, 0);
    const std::uint32_t one = 1;
    cudaMemcpy(progress.skip(), &one, sizeof one, cudaMemcpyHostToDevice);
    launch_update(rule, cut, progress, on.stream, 0);
    CHECK(progress.get(on.stream, 0).skipped == 1);
    a.check();
}

TEST_CASE("rate and factor of the progress change a captured step") {
    problem<float, float> a(100, 0, 0, false);
    {
        const stream_of_test on;
        const update_rule rule = adam(true);
        const update_row rows[] = {a.row(2)};
        const update_rows cut(rows, on.stream, 0);
        device_progress progress(rule, 0, on.stream, 0);
        cudaGraph_t graph{};
        cudaGraphExec_t launched{};
        cudaStreamBeginCapture(on.stream, cudaStreamCaptureModeThreadLocal);
        launch_look(cut, progress, on.stream, 0);
        launch_update(rule, cut, progress, on.stream, 0);
        cudaStreamEndCapture(on.stream, &graph);
        cudaGraphInstantiate(&launched, graph, 0);
        for (int step = 1; step <= 3; ++step) {
            update_progress now = progress.get(on.stream, 0);
            now.rate = 1.0 / step;
            now.factor = 0.25 * step;
            progress.set(now, on.stream, 0);
            cudaGraphLaunch(launched, on.stream);
            update_rule changed = rule;
            changed.rate *= now.rate;
            with_rule<float>(changed, step, [&](const auto& r) { a.step_on_host(r, now.factor); });
        }
        cudaStreamSynchronize(on.stream);
        a.check();
        cudaGraphExecDestroy(launched);
        cudaGraphDestroy(graph);
    }
}

TEST_CASE("the progress begins after any number of steps") {
    const stream_of_test on;
    const update_rule rule = adam(false);
    problem<float, float> a(64, 0, 0, false);
    const update_row rows[] = {a.row(2)};
    const update_rows cut(rows, on.stream, 0);
    const device_progress progress(rule, 1000, on.stream, 0);
    launch_update(rule, cut, progress, on.stream, 0);
    with_rule<float>(rule, 1001, [&](const auto& r) { a.step_on_host(r, 1); });
    CHECK(progress.get(on.stream, 0).steps == 1001);
    a.check();
}

namespace {

// Two tensors are measured, and one of them is clipped with their norm as it is on the host.
template <class T>
void check_clipped(std::size_t count, std::size_t gradient_shift) {
    const stream_of_test on;
    problem<T, T> x(count, 0, gradient_shift, false), other(5, 0, 1, false);
    using A = typename problem<T, T>::A;
    double squares = 0;
    for (const auto* p : {&x, &other})
        for (std::size_t k = 0; k < p->n; ++k) {
            const double g = double(A(p->g[margin + p->gradient_shift + k]));
            squares += g * g;
        }
    const update_row both[] = {x.row(0), other.row(0)};
    const measured_rows measured(both, on.stream, 0);
    const update_rows cut(std::span(both, 1), on.stream, 0);
    update_rule rule = sgd(0, false);
    rule.dampening = 0;
    const device_progress progress(rule, 0, on.stream, 0);
    for (const double part : {0.5, 2.0}) {  // the second is no limit
        rule.max_norm = part * std::sqrt(squares);
        launch_measure(measured, progress, on.stream, 0);
        launch_update(rule, cut, progress, on.stream, 0);
        with_rule<A>(rule, 1, [&](const auto& r) { x.step_on_host(r, part < 1 ? part : 1); });
    }
    CHECK(progress.get(on.stream, 0).squares == doctest::Approx(squares).epsilon(1e-12));
    std::fill(x.s.begin(), x.s.end(), 0);  // the host kept it
    x.check();
}

}  // namespace

TEST_CASE("gradients are scaled down to the largest norm, every edge and alignment") {
    for (const std::size_t count : counts)
        for (const std::size_t gradient_shift : {0, 1}) {
            CAPTURE(count);
            CAPTURE(gradient_shift);
            check_clipped<float>(count, gradient_shift);
            check_clipped<double>(count, gradient_shift);
            check_clipped<hvd::bfloat16>(count, gradient_shift);
        }
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("updates that no kernel makes are refused, with the parameter's number") {
    const stream_of_test on;
    const tensor<float> p(std::vector<float>(8, 0));
    std::byte* const at = problem<float, float>::at(p, 0);
    const auto refusal = [&](update_row second) {
        const update_row rows[] = {{at, hvd::dtype::float32, at, hvd::dtype::float32, 1}, second};
        try {
            const update_rows cut(rows, on.stream, 3);
        } catch (const hvd::usage_error& e) {
            return std::string(e.what());
        }
        return std::string("none");
    };
    const auto names = [](const std::string& text, const char* what) {
        CAPTURE(text);
        CHECK(text.find("rank 3") != std::string::npos);
        CHECK(text.find("parameter 1") != std::string::npos);
        CHECK(text.find(what) != std::string::npos);
    };
    names(refusal({at, hvd::dtype::int32, at, hvd::dtype::float32, 1}), "int32");
    names(refusal({at, hvd::dtype::float64, at, hvd::dtype::float32, 1}), "float64");
    names(refusal({at, hvd::dtype::float32, at, hvd::dtype::float64, 1}), "float64");
    names(refusal({at, hvd::dtype::float32, at, hvd::dtype::float32, 1, at}), "master");
    names(refusal({nullptr, hvd::dtype::float32, at, hvd::dtype::float32, 1}), "null pointer");
    names(refusal({at, hvd::dtype::float32, nullptr, hvd::dtype::float32, 7}), "7 elements");
    CHECK(refusal({nullptr, hvd::dtype::float32, nullptr, hvd::dtype::float32, 0}) == "none");

    // A rule with state needs it in every row.
    const update_row rows[] = {{at, hvd::dtype::float32, at, hvd::dtype::float32, 1, nullptr, at}};
    const update_rows cut(rows, on.stream, 3);
    const device_progress progress(adam(true), 0, on.stream, 3);
    CHECK_THROWS_WITH_AS(launch_update(adam(true), cut, progress, on.stream, 3),
                         doctest::Contains("2 states"), hvd::usage_error);
    launch_update(sgd(0.5, false), cut, progress, on.stream, 3);
    emulation::fail("launch_update", 1, cudaErrorLaunchFailure);
    CHECK_THROWS_WITH_AS(launch_update(sgd(0.5, false), cut, progress, on.stream, 3),
                         doctest::Contains("update kernel"), hvd::cuda_error);
    cudaStreamSynchronize(on.stream);
    emulation::reset();
}

}  // namespace updates_tests
