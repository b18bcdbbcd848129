// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/lean/handles.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Knows that the ranks of a communicator wait in vain, from another source than their messages. Any
// thread may ask it, about once in a millisecond of waiting.
class outside_news : public counted {
public:
    bool tell_of_an_end() { return ask_(*this); }

protected:
    explicit outside_news(bool (*ask)(outside_news&)) : ask_(ask) {}
    ~outside_news() = default;

private:
    bool (*const ask_)(outside_news&);
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
