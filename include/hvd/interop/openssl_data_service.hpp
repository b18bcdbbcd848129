// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// TLS between the trainers and the workers of a data service. A program that includes this beside
// hvd/data_service.hpp takes part in a service whose config says `encrypted`.
#include "../standard.hpp"  // first: an older standard is told at once

#include <memory>
#include <span>
#include <utility>

#include "../data/service/link.hpp"
#include "openssl.hpp"

namespace hvd::inline v0::detail {

class tls_link final : public encrypted_link {
public:
    tls_link(descriptor socket, bool connects, const shared_secret& secret)
        : wire_(std::move(socket), connects, secret) {}

    ssize_t write(std::span<const std::byte> first, std::span<const std::byte> second) override {
        // The first part is a head, or more than a record takes.
        if (first.size() > most_head) return wire_.write(nullptr, 0, first.data(), first.size());
        return wire_.write(first.data(), first.size(), second.data(), second.size());
    }
    ssize_t read(std::byte* to, std::size_t bytes) override {
        return wire_.read(to, bytes, nullptr, 0);
    }
    bool flush() override { return wire_.flush(); }
    short events(bool reads, bool writes) const override { return wire_.events(reads, writes); }
    const char* why() const override { return wire_.why_closed(); }

private:
    static constexpr std::size_t most_head = tls_session::record_bytes / 2;
    tls_wire wire_;
};

inline const bool has_encrypted_links = [] {
    encrypts_links = [](descriptor socket, bool connects,
                        const shared_secret& secret) -> std::unique_ptr<encrypted_link> {
        return std::make_unique<tls_link>(std::move(socket), connects, secret);
    };
    return true;
}();

}  // namespace hvd::inline v0::detail
