// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// A data service whose connections have TLS.
#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include <hvd/data_service.hpp>
#include <hvd/interop/openssl_data_service.hpp>

#include "data_test.hpp"
#include "hvd_test.hpp"

namespace encrypted_service_tests {

namespace data = hvd::data;
using data_tests::batches_of;
using data_tests::numbers_below;
using namespace std::chrono_literals;

namespace {

// Batches of some bytes, and of several records of TLS.
auto pipeline() {
    return data::from(numbers_below(60)) |
           data::map([](int i) { return std::vector<int>(i % 3 == 0 ? 10 : 50'000, i); }) |
           data::shuffle({.seed = 2}) | data::batch(1, data::concatenate);
}
using worker = data::service_worker<decltype(pipeline())>;

std::string address_of(const worker& w) { return "127.0.0.1:" + std::to_string(w.port()); }

template <class F>
std::string thrown_by(F f) {
    try {
        f();
    } catch (const hvd::error& e) {
        return e.what();
    }
    return "nothing was thrown";
}

data::service_config config_of(bool is_encrypted, bool has_shared_memory = false) {
    data::service_config config = data::service_config::make(0, 0);
    config.encrypted = is_encrypted;
    config.shared_memory = has_shared_memory;
    config.timeout = 5s;
    return config;
}

}  // namespace

TEST_CASE("batches of an encrypted service are those of the pipeline without it") {
    for (const bool has_shared_memory : {false, true}) {
        data::service_config config = config_of(true, has_shared_memory);
        const worker one(pipeline(), config), two(pipeline(), config);
        config.worker_addresses = {address_of(one), address_of(two)};
        const auto remote =
            pipeline() | data::send_to_data_service(config, 0, 1) | data::prefetch(4);
        data::loader expected(pipeline(), hvd::part{});
        data::loader loader(remote);
        for (const std::uint64_t epoch : {0, 1}) {
            const auto wanted = batches_of(expected, epoch), got = batches_of(loader, epoch);
            REQUIRE(got.size() == wanted.size());
            for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i].values == wanted[i].values);
        }
        CHECK((remote.totals().in_shared_memory > 0) == has_shared_memory);
        CHECK(one.made() + two.made() == 120);
    }
}

TEST_CASE("sides of which one encrypts refuse each other, and so does a program that can't") {
    for (const bool worker_encrypts : {true, false}) {
        data::service_config config = config_of(worker_encrypts);
        const worker one(pipeline(), config);
        config.worker_addresses = {address_of(one)};
        config.encrypted = !worker_encrypts;
        data::loader loader(pipeline() | data::send_to_data_service(config, 0, 1));
        const std::string why = thrown_by([&] { (void)loader.next(); });
        CHECK_MESSAGE(
            why.find(worker_encrypts ? "the worker encrypts" : "the trainer encrypts") != why.npos,
            why);
    }
    const auto can = std::exchange(hvd::detail::encrypts_links, nullptr);
    for (const std::string& why :
         {thrown_by([] { const worker one(pipeline(), config_of(true)); }), thrown_by([] {
              data::loader loader(pipeline() | data::send_to_data_service(config_of(true), 0, 1));
          })})
        CHECK_MESSAGE(why.find("include hvd/interop/openssl_data_service.hpp") != why.npos, why);
    hvd::detail::encrypts_links = can;
}

namespace {

// Two ends of a connection. A thread of its own sends what the other end takes.
struct encrypted_pair {
    encrypted_pair() {
        int ends[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
        const hvd::detail::shared_secret key = hvd::detail::new_secret();
        sends = hvd::detail::service_link(hvd::detail::descriptor(ends[0]), key, true, 100'000);
        takes = hvd::detail::service_link(hvd::detail::descriptor(ends[1]), key, false, 100'000);
        sends.encrypt();
        takes.encrypt();
    }
    bool send(std::string_view text) {
        return sends.send_text(hvd::detail::service_frame::batch, 3, text);
    }
    bool take() { return takes.wait(hvd::detail::now() + 5'000'000'000); }

    hvd::detail::service_link sends, takes;
};

}  // namespace

TEST_CASE("a large batch is encrypted, and ends the connection if a byte of it was changed") {
    const std::string secret(20'000, 'x');
    for (const bool is_changed : {false, true}) {
        encrypted_pair pair;
        std::thread first([&] { CHECK(pair.send("hello")); });
        REQUIRE(pair.take());
        first.join();
        CHECK(pair.takes.text() == "hello");
        REQUIRE(pair.send(secret));
        std::string bytes(100'000, 0);
        const int socket = pair.takes.socket().number();
        const ssize_t n = ::recv(socket, bytes.data(), bytes.size(), 0);
        REQUIRE(n > 20'000);
        bytes.resize(std::size_t(n));
        CHECK(bytes.find("xxxxxxxx") == bytes.npos);
        if (is_changed) bytes[15'000] = char(bytes[15'000] ^ 1);
        REQUIRE(::send(pair.sends.socket().number(), bytes.data(), bytes.size(), 0) == n);
        CHECK(pair.take() == !is_changed);
        if (is_changed)
            CHECK_MESSAGE(pair.takes.why().find("TLS") != std::string_view::npos,
                          std::string(pair.takes.why()));
        else CHECK(pair.takes.text() == secret);
    }
}

}  // namespace encrypted_service_tests
