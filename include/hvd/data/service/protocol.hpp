// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "../../platform/network/resolve.hpp"
#include "../../protocol/call_header.hpp"
#include "../../transport/tcp/job_secret.hpp"
#include "batch_codec.hpp"
#include "link.hpp"

namespace hvd::inline v0::detail {

// The side that connects and the one that accepts have these numbers in their handshake.
constexpr int service_rank = rendezvous_rank;

// Connections of data services know another secret than those of ranks.
inline shared_secret service_secret(std::string_view key, std::string_view where) {
    return derived_secret(secret_from_hex(key, where), 0x64617461);
}

enum class service_role : std::uint32_t { worker = 1, dispatcher, trainer, reader };

// A process tells it at the begin of a connection.
struct service_hello {
    std::uint32_t version = 5;
    service_role role = service_role::trainer;
    std::uint64_t job = 0;          // a hash of its id
    std::uint64_t fingerprint = 0;  // of the pipeline, between workers and trainers
    std::uint32_t dispatcher = 0;   // the number of it
    std::int32_t rank = 0, size = 1;
    std::uint32_t workers = 0;       // that a dispatcher lists
    std::uint64_t host = 0;          // 0 if it does not share memory
    std::uint32_t share = 0;         // of a trainer: a batch_share
    std::uint32_t is_encrypted = 0;  // what follows between a trainer and a worker
};

// A trainer's request. The batch comes in its slot of the trainer's arena if it fits.
struct service_request {
    static constexpr std::uint64_t no_slot = UINT64_MAX;
    data::batch_request batch;
    std::uint64_t slot = no_slot;
};

// A worker and its addresses, as the dispatcher lists them.
struct worker_place {
    std::uint64_t id = 0;  // drawn when it started
    std::vector<std::string> addresses;
};

constexpr std::size_t most_listed_addresses = 64;  // of a worker
constexpr std::uint64_t most_control_bytes = std::uint64_t(1) << 20;
constexpr std::uint64_t most_batch_bytes = std::uint64_t(1) << 32;

inline std::uint64_t job_number(std::string_view id) { return hash().add(id).value(); }

// A failure while a batch was made. `stage` is below 0 for one of no stage.
struct service_failure {
    std::int32_t stage = -1;
    std::uint64_t sample = 0;
    std::string what;
};

// That of the exception that is being handled.
inline service_failure current_failure() {
    try {
        throw;
    } catch (const data::stage_error& e) {
        return {e.stage(), e.sample(), e.what()};
    } catch (const std::exception& e) {
        return {-1, 0, e.what()};
    } catch (...) {
        return {-1, 0, "an exception of an unknown type"};
    }
}

template <class T>
std::span<const std::byte> plain_bytes_of(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return std::as_bytes(std::span(&value, 1));
}

inline std::vector<std::byte> encoded(const service_failure& f) {
    std::vector<std::byte> bytes;
    serializer<std::int32_t>::write(bytes, f.stage);
    serializer<std::uint64_t>::write(bytes, f.sample);
    serializer<std::string>::write(bytes, f.what);
    return bytes;
}
inline service_failure decoded_failure(std::span<const std::byte> bytes) {
    service_failure f;
    f.stage = serializer<std::int32_t>::read(bytes);
    f.sample = serializer<std::uint64_t>::read(bytes);
    f.what = serializer<std::string>::read(bytes);
    return f;
}

inline void write_place(std::vector<std::byte>& bytes, const worker_place& place) {
    serializer<std::uint64_t>::write(bytes, place.id);
    serializer<std::vector<std::string>>::write(bytes, place.addresses);
}
inline worker_place read_place(std::span<const std::byte>& bytes) {
    worker_place place;
    place.id = serializer<std::uint64_t>::read(bytes);
    place.addresses = serializer<std::vector<std::string>>::read(bytes);
    return place;
}

// Connects to the first address that answers as a process of this service, and says hello. Gives
// no link if none does: `why` says the reason of the last one.
class service_dial {
public:
    service_dial(const shared_secret& secret, const service_hello& mine, std::uint64_t most)
        : secret_(secret), mine_(mine), most_(most) {}

    bool to(std::span<const std::string> addresses, service_link& link) {
        why_ = "it has no address";
        for (const std::string& written : addresses) {
            if (to(written, link)) return true;
            if (refused_) return false;
        }
        return false;
    }

    const message& why() const { return why_; }
    // True if it answered, and refused.
    bool was_refused() const { return refused_; }
    const service_hello& theirs() const { return theirs_; }

private:
    static constexpr std::int64_t patience = 2 * tuning::second;  // with each address

    bool to(const std::string& written, service_link& link) try {
        const host_and_port place = read_host_and_port(written, "an address of a data service");
        for (const host_address& address :
             resolve(place.host.c_str(), "an address of a data service")) {
            dial connection(secret_, mine_.rank, service_rank, -1);
            const time_point until = now() + patience;
            descriptor socket = connection.to(address, place.port, until, until);
            if (!socket) {
                why_ = std::string_view(connection.why());
                continue;
            }
            link = service_link(std::move(socket), connection.connection_key(), true, most_);
            return say_hello(link, until, written);
        }
        return false;
    } catch (const error& e) {
        why_ = e.what();
        return false;
    }

    bool say_hello(service_link& link, time_point until, const std::string& at) {
        if (!link.send(service_frame::hello, 0, plain_bytes_of(mine_), until) ||
            !link.wait(until)) {
            why_ = detail::text(link.why(), " (", at, ")");
            return false;
        }
        refused_ = link.head().kind == service_frame::refused;
        if (refused_) why_ = link.text();
        if (link.head().kind != service_frame::welcome ||
            link.contents().size() != sizeof theirs_) {
            if (!refused_) why_ = text("it answers with what no service says (", at, ")");
            return false;
        }
        std::memcpy(&theirs_, link.contents().data(), sizeof theirs_);
        return true;
    }

    const shared_secret& secret_;
    service_hello mine_;
    std::uint64_t most_;
    message why_;
    bool refused_ = false;
    service_hello theirs_;
};

}  // namespace hvd::inline v0::detail
