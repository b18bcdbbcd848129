// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../sparse/sparse_gradient.hpp"
#include "host_calls.hpp"
#include "mirror.hpp"
#include "streams.hpp"

namespace hvd::inline v0 {
namespace detail {

// The rows on the device that this rank's backward passes reported in a step. Ranks have different
// numbers of rows, so the host merges and reduces them.
template <class T>
class device_sparse_gradient {
public:
    device_sparse_gradient(device_session& session, std::size_t parameter,
                           const tensor_view<T, device>& table, std::size_t columns,
                           sparse_policy policy)
        : session_(session),
          on_device_(table),
          table_(session, std::span(&table, 1)),
          rows_(parameter, table_.tensors()[0], columns, policy) {}

    std::size_t parameter() const { return rows_.parameter(); }

    void check(int rank, std::string_view name, const sparse_view<T, device>& rows) const {
        rows_.check_sizes(rank, name, rows);
    }

    // Copies the rows to the host, behind the work of the stream. Nothing waits.
    void add(const sparse_view<T, device>& rows, cudaStream_t stream) {
        const current_device here(session_.device(), session_.rank());
        session_.guarded([&] {
            report r{copied(rows.indices, stream), copied(rows.values, stream), {}};
            r.done = cuda_event(stream, session_.rank());
            reports_.push_back(std::move(r));
        });
    }

    void clear() {
        reports_.clear();
        rows_.clear();
    }

    void zero(cudaStream_t stream) const {
        const current_device here(session_.device(), session_.rank());
        session_.guarded([&] { zero_table(stream); });
    }

    // Reduces the rows into the table on the device, which becomes the gradient. The host waits.
    // **Collective**.
    template <class Comm>
    void reduce(host_calls<Comm>& calls, const optimizer_options& o, double prescale,
                double postscale, std::vector<float>& residual, std::string_view name,
                cudaStream_t stream) {
        for (const report& r : reports_) {
            session_.wait(r.done, "sparse gradient", session_.limit_for({}));
            rows_.add({elements_of<std::int64_t>(r.indices), elements_of<T>(r.values)});
        }
        // Nobody else writes to the table on the host.
        rows_.reduce(calls, o, prescale, postscale, residual, name, true);
        store(stream);
    }

    // The step with the reduced rows was made.
    void commit(std::vector<float>& residual) { rows_.commit(residual); }

private:
    struct report {
        cuda_memory indices, values;
        cuda_event done;
    };

    // Copies few rows one by one, into a table that the device sets to zero. The host waits.
    void store(cudaStream_t stream) {
        constexpr std::size_t bytes_in_the_time_of_a_copy = 32 << 10;
        std::vector<tensor_view<T>> parts;
        rows_.parts().for_each([&](const tensor_view<T>& part) { parts.push_back(part); });
        const std::size_t bytes = on_device_.size() * sizeof(T);
        if (parts.size() > bytes / bytes_in_the_time_of_a_copy) return table_.store(stream);
        const current_device here(session_.device(), session_.rank());
        session_.guarded([&] {
            zero_table(stream);
            for (const auto& part : parts)
                copy_async(on_device_.data() + (part.data() - table_.tensors()[0].data()),
                           part.data(), part.size() * sizeof(T), cudaMemcpyHostToDevice, stream,
                           session_.rank());
        });
        session_.wait(session_.mark(stream), "copy to the device", session_.limit_for({}));
    }

    void zero_table(cudaStream_t stream) const {
        const std::size_t bytes = on_device_.size() * sizeof(T);
        if (bytes > 0)
            check_cuda(cudaMemsetAsync(on_device_.data(), 0, bytes, stream), "cudaMemsetAsync",
                       session_.rank());
    }

    template <class X>
    cuda_memory copied(const tensor_view<X, device>& x, cudaStream_t stream) const {
        cuda_memory memory(cuda_memory::kind::pinned, x.size() * sizeof(X), session_.rank());
        copy_async(memory.data(), x.data(), memory.size(), cudaMemcpyDeviceToHost, stream,
                   session_.rank());
        return memory;
    }

    template <class X>
    static std::span<const X> elements_of(const cuda_memory& memory) {
        return {reinterpret_cast<const X*>(memory.data()), memory.size() / sizeof(X)};
    }

    device_session& session_;
    tensor_view<T, device> on_device_;
    host_mirror<T> table_;
    sparse_gradient<T> rows_;
    std::vector<report> reports_;
};

// A table on a device among the gradients of a reducer.
template <class Steps, class T>
class device_table final : public sparse_table<Steps>, public device_sparse_gradient<T> {
    using rows_of = device_sparse_gradient<T>;

public:
    using typename sparse_table<Steps>::calls;

    device_table(Steps& steps, std::size_t parameter, const tensor_view<T, device>& table,
                 std::size_t columns, sparse_policy policy)
        : rows_of(steps.session(), parameter, table, columns, policy), steps_(steps) {}

    void add(const sparse_view<T, device>& rows, cudaStream_t stream) {
        steps_.refuse_capture(stream, "rows of a sparse gradient");
        rows_of::add(rows, stream);
    }

    std::size_t parameter() const override { return rows_of::parameter(); }
    void clear() override { rows_of::clear(); }
    void zero(cudaStream_t stream) override { rows_of::zero(stream); }
    void reduce(calls& by, const optimizer_options& o, double prescale, double postscale,
                std::vector<float>& residual, std::string_view name, cudaStream_t stream,
                bool) override {
        rows_of::reduce(by, o, prescale, postscale, residual, name, stream);
    }
    void commit(std::vector<float>& residual) override { rows_of::commit(residual); }

private:
    Steps& steps_;
};

}  // namespace detail

/// Reduces sparse rows on the device to a dense gradient on the device, `into(table)`. The table
/// (`rows` × `columns`, row-major) gets zeros and the reduced rows. The host merges the rows, and
/// waits for them.
/// **Collective**. **Buffers**: ready on `stream`. @throws as on the host.
/// @snippet tests/train/device_snippets.cpp sparse
template <detail::device_communicator Comm, class T, class View>
void sparse_allreduce(Comm& comm, const sparse_view<T, device>& mine, const into_view<View>& table,
                      std::size_t columns, const sparse_options& o = {},
                      cudaStream_t stream = nullptr) {
    detail::refuse_capture(*detail::device_access::session_of(comm), stream, "sparse_allreduce");
    detail::host_calls calls(comm);
    const auto dense = detail::flat_view<device>(table.view);
    if (columns == 0 || dense.size() % columns != 0)
        detail::refuse_call(calls, "a table of ", dense.size(), " elements has no rows of ",
                            columns);
    detail::device_sparse_gradient<T> rows(calls.channel().session(), 0, dense, columns, o.policy);
    rows.add(mine, stream);
    std::vector<float> no_residual;
    rows.reduce(calls, {.op = o.op, .codec = o.codec}, 1, 1, no_residual, o.name, stream);
}

}  // namespace hvd::inline v0
