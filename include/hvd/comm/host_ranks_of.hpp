// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../protocol/host_ranks.hpp"
#include "communicator.hpp"

namespace hvd::inline v0::detail {

inline options options_until(time_point limit) { return {.timeout = limit_until(limit)}; }

// All ranks of the bootstrap are here: its calls that know no timeout wait for nobody afterwards.
template <class Bootstrap>
void meet(Bootstrap& bootstrap, const char* name, const communicator_options& options) {
    agree(access::session_of(bootstrap), agreement_header(name), limit_of(options.timeout));
}

// Ranks that came to their timeout in a part of the work have until then to say so. So it is told
// to all before the communicator that carries it gives up.
inline time_point limit_to_tell(time_point limit, const communicator_options& options) {
    return limit == never ? never : limit + options.destructor_timeout.nanoseconds;
}

// This rank's part of a communicator, which is made on all ranks or on none.
template <class Bootstrap, class F>
auto make_on_all(Bootstrap& bootstrap, const char* name, const communicator_options& options,
                 F&& make) {
    const time_point limit = limit_to_tell(limit_of(options.timeout), options);
    return run_on_all(access::session_of(bootstrap), name, limit, make);
}

template <class Host>
class host_ranks_of final : public host_ranks {
public:
    explicit host_ranks_of(communicator<Host> host)
        : host_ranks(host.rank(), host.size()), host_(std::move(host)) {}

    void allgather(std::span<const std::byte> mine, std::byte* all, time_point limit) override {
        host_.allgather(tensor_view<const std::byte>(mine.data(), {mine.size()}),
                        into(tensor_view<std::byte>(all, {mine.size() * std::size_t(size())})),
                        options_until(limit));
    }

    std::unique_ptr<host_ranks> split(int color, int key) override {
        auto part = host_.split(color, key);
        return part ? std::make_unique<host_ranks_of>(std::move(part)) : nullptr;
    }

private:
    communicator<Host> host_;
};

}  // namespace hvd::inline v0::detail
