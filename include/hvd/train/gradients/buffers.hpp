// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../../fusion/fuse.hpp"
#include "../agreement.hpp"
#include "../tensors.hpp"

namespace hvd::inline v0 {

/// The way in which `synchronize_buffers` makes a buffer equal on all ranks.
enum class buffer_policy : std::uint8_t {
    averaged,   ///< the mean over the ranks, as running statistics want it
    from_root,  ///< the root's
};

namespace detail {

// The buffers of a model with elements T.
template <class T, class Space>
class buffers_of {
public:
    struct buffer {
        std::string name;
        tensor_view<T, Space> value;
        std::vector<std::size_t> shape;
        buffer_policy policy;
    };

    void add(buffer b) { all_.push_back(std::move(b)); }

    template <class F>
    void for_each(F&& f) const {
        for (const buffer& b : all_) f(b);
    }

    // Those that `chosen(policy)` names.
    template <class Chosen>
    std::vector<tensor_view<T, Space>> views(Chosen chosen) const {
        std::vector<tensor_view<T, Space>> some;
        for (const buffer& b : all_)
            if (chosen(b.policy)) some.push_back(b.value);
        return some;
    }

private:
    std::vector<buffer> all_;
};

/// The part of a distributed_optimizer that has the model's buffers: tensors that are no parameters
/// but belong to the model, such as running statistics.
template <class Space>
class registered_buffers {
public:
    /// Registers a buffer of float or double that all ranks have. `synchronize_buffers` makes it
    /// equal on all ranks as the policy says, and `broadcast_parameters` sends the root's.
    /// **Buffers**: it outlives the optimizer, and has no gaps.
    /// @throws hvd::usage_error for a name that is already registered.
    /// @snippet tests/train/snippets.cpp buffers
    template <class X>
        requires writable<X>
    void register_buffer(std::string_view name, X&& value,
                         buffer_policy policy = buffer_policy::averaged) {
        using T = element_of<X>;
        constexpr bool has_type = std::is_same_v<T, float> || std::is_same_v<T, double>;
        static_assert(has_type, "hvd: a buffer has elements of float or double");
        static_assert(is_borrowed<X>,
                      "hvd: buffers outlive the optimizer; this temporary's memory would be gone");
        for_each_buffer([&](const std::string& known, const auto&, const auto&) {
            if (known == name) refuse(rank_, "a buffer named \"", name, "\" is registered already");
        });
        const auto shape = to_view(value).shape();
        if constexpr (has_type)
            list(T()).add(
                {std::string(name), flat_view<Space>(value), {shape.begin(), shape.end()}, policy});
        agreed_ = false;
    }

    /// Calls `f(name, value, shape)` for each buffer, of float first. The value is flat.
    template <class F>
    void for_each_buffer(F f) const {
        const auto each = [&](const auto& b) { f(b.name, b.value, b.shape); };
        floats_.for_each(each);
        doubles_.for_each(each);
    }

    /// For hvd: the buffers with elements T, in the order of `for_each_buffer`.
    template <class T>
    std::vector<tensor_view<T, Space>> views_of(T) const {
        const auto every = [](buffer_policy) { return true; };
        if constexpr (std::is_same_v<T, float>) return floats_.views(every);
        else return doubles_.views(every);
    }

    /// For hvd: calls `f(fuse(…))` with the buffers of the chosen policies, unless there are none.
    /// **Collective** after a registration, over `calls`.
    template <class Calls, class Chosen, class F>
    void with_buffers(Calls& calls, Chosen chosen, F f) {
        agree(calls);
        const auto floats = floats_.views(chosen);
        const auto doubles = doubles_.views(chosen);
        if (!floats.empty() || !doubles.empty()) f(fuse(floats, doubles));
    }

    /// For hvd: makes the buffers equal, each as its policy says. **Collective**.
    template <class Comm>
    void synchronize_buffers_over(Comm& comm, root from) {
        const auto has = [](buffer_policy p) { return [p](buffer_policy q) { return p == q; }; };
        with_buffers(comm, has(buffer_policy::averaged), [&](const auto& averaged) {
            comm.allreduce(averaged, average, {.name = "buffers"});
        });
        with_buffers(comm, has(buffer_policy::from_root),
                     [&](const auto& sent) { comm.broadcast(sent, from, {.name = "buffers"}); });
    }

    /// For hvd: no buffers.
    explicit registered_buffers(int rank) : rank_(rank) {}

private:
    buffers_of<float, Space>& list(float) { return floats_; }
    buffers_of<double, Space>& list(double) { return doubles_; }

    template <class Calls>
    void agree(Calls& calls) {
        if (agreed_) return;
        std::string described;
        const auto describe = [&](const auto& b) {
            described += text(described.empty() ? "" : ", ", b.name, " ", print_list(b.shape),
                              b.policy == buffer_policy::averaged ? " averaged" : " broadcast");
        };
        floats_.for_each(describe);
        doubles_.for_each(describe);
        agree_on_values(calls, "buffers",
                        [&](auto say) { say("buffers", std::string_view(described)); });
        agreed_ = true;
    }

    int rank_;
    buffers_of<float, Space> floats_;
    buffers_of<double, Space> doubles_;
    bool agreed_ = true;  // the ranks have compared what is registered
};

}  // namespace detail
}  // namespace hvd::inline v0
