// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/lean/finite.hpp"
#include "allreduce.hpp"
#include "call/result_types.hpp"

namespace hvd::inline v0 {

/// An element and the rank that has it: what `allreduce_with_rank` returns.
template <class T>
struct with_rank {
    T value;
    int rank;
    friend bool operator==(const with_rank&, const with_rank&) = default;
};

namespace detail {

// The same while it travels: of each operation a type, whose name the ranks compare.
template <class Op, class T>
struct ranked : with_rank<T> {};

template <class Op, class T>
struct name_with_rank {
    static constexpr std::string_view element = dtype_name<T>(),
                                      suffix = std::is_same_v<Op, op::max>
                                                   ? std::string_view(" max rank")
                                                   : std::string_view(" min rank");
    char letters[element.size() + suffix.size()] = {};

    constexpr name_with_rank() {
        for (std::size_t i = 0; i < element.size(); ++i) letters[i] = element[i];
        for (std::size_t i = 0; i < suffix.size(); ++i) letters[element.size() + i] = suffix[i];
    }
};
template <class Op, class T>
inline constexpr name_with_rank<Op, T> kept_name_with_rank;

// The larger or smaller one of two: among equal ones that of the lower rank. A NaN goes before
// numbers, as in max and min.
template <class Op, class T>
struct extreme {
    ranked<Op, T> operator()(const ranked<Op, T>& a, const ranked<Op, T>& b) const {
        const bool a_is_nan = is_nan(a.value), b_is_nan = is_nan(b.value);
        if (a_is_nan != b_is_nan) return a_is_nan ? a : b;
        constexpr bool largest = std::is_same_v<Op, op::max>;
        if (!a_is_nan && (largest ? b.value < a.value : a.value < b.value)) return a;
        if (!a_is_nan && (largest ? a.value < b.value : b.value < a.value)) return b;
        return a.rank < b.rank ? a : b;
    }
};

}  // namespace detail

template <class Op, class T>
struct dtype_traits<detail::ranked<Op, T>> : transport_only<detail::ranked<Op, T>> {
    static constexpr std::string_view name{detail::kept_name_with_rank<Op, T>.letters,
                                           sizeof detail::kept_name_with_rank<Op, T>.letters};
};

namespace detail {

/// The members of a communicator for allreduce_with_rank.
template <class Comm, class B>
class allreduce_with_rank_calls {
public:
    /// Returns the largest or smallest value of all ranks, and the lowest rank that has it:
    /// `world.allreduce_with_rank(loss, hvd::min)`. A tensor gives a vector with both for each
    /// element.
    ///
    /// A NaN of any rank is the result, as of `hvd::max` and `hvd::min`. **Collective**,
    /// **Buffers** (`x` is read), **Completion** and errors are as for `allreduce`. MPI:
    /// `MPI_MAXLOC` and `MPI_MINLOC`.
    /// @snippet tests/docs/snippets.cpp allreduce_with_rank
    template <class X, class Op>
    [[nodiscard("hvd: the result of the call is what it returns")]] auto allreduce_with_rank(
        const X& x, const Op&, const options& o = {}) {
        constexpr bool is_extreme = std::is_same_v<Op, op::max> || std::is_same_v<Op, op::min>;
        static_assert(is_extreme, "hvd: allreduce_with_rank takes hvd::max or hvd::min");
        if constexpr (is_extreme && check_unfused<X>() && check_tensor<B, const X&>() &&
                      check_reduced<B, const X&, Op>()) {
            using T = element_of<const X&>;
            auto all = run_ranked<T, Op>(view_for(self(), collective::allreduce, o, x), o);
            if constexpr (element<X>) return all.front();
            else return all;
        } else {
            return refused_call();
        }
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }

    template <class T, class Op, class View>
    std::vector<with_rank<T>> run_ranked(const View& view, const options& o) {
        const bool is_there = view.data() != nullptr;  // if not, the call says so
        std::vector<ranked<Op, T>> all;
        std::vector<with_rank<T>> result;  // with its memory, which a rank may lack
        prepare(access::session_of(self()), collective::allreduce, o, [&] {
            std::vector<stored<T>> values(is_there ? view.size() : 0);
            if (is_there) pack(erase(view), reinterpret_cast<std::byte*>(values.data()));
            all.reserve(values.size());
            result.reserve(values.size());
            for (const stored<T>& value : values) all.push_back({{T(value), self().rank()}});
        });
        self().allreduce(hvd::view(is_there ? all.data() : nullptr, view.shape()),
                         custom(extreme<Op, T>(), commutative),
                         {.name = o.name, .timeout = o.timeout});
        result.assign(all.begin(), all.end());
        return result;
    }
};

}  // namespace detail
}  // namespace hvd::inline v0
