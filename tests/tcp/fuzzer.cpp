// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <hvd/data/service/claim_book.hpp>
#include <hvd/data/service/protocol.hpp>
#include <hvd/data/service/stage_totals.hpp>
#include <hvd/elastic.hpp>
#include <hvd/engine/negotiation/negotiator.hpp>
#include <hvd/transport/tcp/rendezvous.hpp>
#include <hvd/transport/tcp/rendezvous_client.hpp>
#if defined(HVD_TEST_OPENSSL)
#include <hvd/interop/openssl.hpp>
#endif
#if defined(HVD_TEST_WITH_GLOO)
#include <gloo/transport/tcp/address.h>
#include <hvd/interop/gloo_pairs.hpp>
#endif

// All that reads bytes from a connection or from the memory of a node, played by libFuzzer:
// strangers who do not know the secret, and peers who send or show what none does. Memory is
// checked by AddressSanitizer.

using namespace hvd::detail;

namespace {

void require(bool holds) {
    if (!holds) std::abort();
}

constexpr shared_secret secret{std::byte(7)};

struct two_ends {
    two_ends() {
        int ends[2];
        require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
        own = descriptor(ends[0]);
        foreign = descriptor(ends[1]);
    }
    // Writes a part of what the foreign side says; false when all is said.
    bool say_some(FuzzedDataProvider& from) {
        if (from.remaining_bytes() == 0) return false;
        say(from.ConsumeBytes<std::uint8_t>(from.ConsumeIntegral<std::uint16_t>()));
        return true;
    }
    void say(std::span<const std::uint8_t> bytes) {
        if (!bytes.empty())
            (void)!::send(foreign.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    void drop_answers() {
        std::byte answer[4096];
        while (::recv(foreign.number(), answer, sizeof answer, 0) > 0) {
        }
    }
    descriptor own, foreign;
};

// Changes some bytes of what a rank would have sent.
void change(FuzzedDataProvider& from, std::span<std::byte> bytes) {
    for (int changes = from.ConsumeIntegralInRange(0, 8); changes > 0 && !bytes.empty(); --changes)
        bytes[from.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] =
            std::byte(from.ConsumeIntegral<std::uint8_t>());
}

// Nobody gets in who does not know the secret, whichever side it is on.
void greet(FuzzedDataProvider& from) {
    two_ends ends;
    const int expected = from.ConsumeBool() ? 3 : -1;
    handshake talk(secret, 5, expected, 17);
    for (bool more = true; more;) {
        more = ends.say_some(from);
        const handshake::state now = talk.advance(ends.own);
        require(now != handshake::state::done);
        if (now == handshake::state::refused) return require(*talk.reason() != 0);
        ends.drop_answers();
    }
}

template <class Message>
std::vector<std::uint8_t> frame_of(const Message& said, std::size_t more_bytes) {
    const std::size_t bytes = sizeof said + more_bytes;
    std::vector<std::uint8_t> frame(4 + bytes, 1);
    for (std::size_t i = 0; i < 4; ++i) frame[i] = std::uint8_t(bytes >> (8 * i));
    std::memcpy(frame.data() + 4, &said, sizeof said);
    return frame;
}

// The other side of a connection that a rank or a rendezvous makes: it knows the secret.
void answer(handshake talk, const descriptor& socket, std::span<const std::uint8_t> said) {
    for (int i = 0; i < 1000; ++i) {
        const handshake::state now = talk.advance(socket);
        if (now == handshake::state::refused) return;
        if (now == handshake::state::done) break;
        pollfd p{socket.number(), short(talk.wants_to_write() ? POLLOUT : POLLIN), 0};
        ::poll(&p, 1, 1);
    }
    (void)!::send(socket.number(), said.data(), said.size(), MSG_NOSIGNAL);
}

// A rank hears a rendezvous, and a rendezvous a rank.
void meet(FuzzedDataProvider& from) {
    const host_address here = host_address::loopback();
    const int size = from.ConsumeIntegralInRange(1, 3);
    const auto soon = [] { return now() + 20 * tuning::millisecond; };
    if (from.ConsumeBool()) {
        rendezvous_answer said;
        said.accepted = from.ConsumeIntegralInRange<std::uint16_t>(0, 1);
        said.size = from.ConsumeIntegralInRange<std::uint32_t>(0, 4);
        const auto more = from.ConsumeIntegralInRange<std::size_t>(0, 4) * sizeof(listening_place);
        std::vector<std::uint8_t> bytes = frame_of(said, more + from.ConsumeIntegral<bool>());
        const auto places = from.ConsumeBytes<std::uint8_t>(bytes.size() - 4 - sizeof said);
        std::copy(places.begin(), places.end(), bytes.begin() + 4 + sizeof said);
        if (from.ConsumeBool()) bytes = from.ConsumeRemainingBytes<std::uint8_t>();
        const listening_socket listener(-1, 0, {&here, 1});
        const std::jthread server([&] {
            descriptor socket;
            for (int i = 0; i < 100 && !(socket = listener.accept()); ++i)
                sleep_for(tuning::millisecond / 10);
            if (socket) answer(handshake(secret, rendezvous_rank, -1), socket, bytes);
        });
        try {
            const message place = text("127.0.0.1:", listener.port());
            const job_table got = rendezvous_client(place, 0, size, secret).meet({}, soon());
            require(got.places.size() == std::size_t(size));
        } catch (const hvd::error&) {
        }
        return;
    }
    registration said;
    said.version += from.ConsumeIntegralInRange<std::uint32_t>(0, 1);
    said.size = from.ConsumeIntegralInRange(0, 3);
    const int rank = from.ConsumeIntegralInRange(0, 3);
    std::vector<std::uint8_t> bytes = frame_of(said, from.ConsumeIntegral<bool>());
    if (from.ConsumeBool()) bytes = from.ConsumeRemainingBytes<std::uint8_t>();
    rendezvous_server server(0, size, secret, hvd::time_span::of_nanoseconds(20'000'000), -1,
                             {&here, 1});
    const std::jthread client([&] {
        const descriptor socket = begin_connect(here, server.port());
        if (socket) answer(handshake(secret, rank, rendezvous_rank), socket, bytes);
    });
    try {
        server.serve();
    } catch (const hvd::error&) {
    }
}

std::vector<std::uint8_t> work_with(FuzzedDataProvider& from) {
    work_message said;
    said.step = from.ConsumeIntegral<std::int8_t>();
    said.samples = from.ConsumeIntegral<std::int64_t>();
    return frame_of(said, from.ConsumeIntegralInRange<std::size_t>(0, 1));
}

// A message that is nearly right, so that more of it is read than its length and its version.
std::vector<std::uint8_t> join_with(FuzzedDataProvider& from) {
    join_message said;
    said.self.id = from.ConsumeIntegralInRange<std::uint64_t>(1, 4);
    said.self.place.addresses = said.self.coordinator.addresses = 1;
    said.leaves = from.ConsumeBool();
    said.finished = from.ConsumeBool();
    said.saw_end = from.ConsumeBool();
    said.ended = from.ConsumeIntegralInRange<std::uint64_t>(0, 4);
    const bool are_small = from.ConsumeBool();
    const auto number = [&] {
        return are_small ? from.ConsumeIntegral<std::uint8_t>()
                         : from.ConsumeIntegral<std::uint64_t>();
    };
    said.stamp = {std::int64_t(number() - 1), number()};
    said.self.started_as = std::int64_t(number());
    for (epoch_head* head : {&said.worked, &said.recorded})
        *head = {number(), from.ConsumeIntegralInRange<std::uint64_t>(0, 4),
                 from.ConsumeIntegral<std::uint8_t>(), 0};
    return frame_of(said, from.ConsumeIntegral<std::uint8_t>() * sizeof(std::uint64_t));
}

std::vector<std::uint8_t> gone_with(FuzzedDataProvider& from) {
    const member_head head{.what = member_head::finds_gone};
    return frame_of(head, from.ConsumeIntegral<std::uint8_t>());
}

// A member of an elastic job joins, leaves, and says what none says.
void join(FuzzedDataProvider& from) {
    coordinator_rules rules;
    rules.start = from.ConsumeIntegralInRange<std::size_t>(1, 3);
    rules.least = from.ConsumeIntegralInRange<std::size_t>(1, 2);
    rules.acts = from.ConsumeBool();
    coordinator machine(rules);
    struct member {
        two_ends ends;
        std::unique_ptr<framed_socket> link;
    };
    member members[3];
    for (member& m : members)
        m.link =
            std::make_unique<framed_socket>(0, std::move(m.ends.own), join_message::most_bytes());
    time_point at = 1;
    while (from.remaining_bytes() > 0) {
        const int who = from.ConsumeIntegralInRange(0, 2);
        member& m = members[who];
        switch (from.ConsumeIntegralInRange(0, 3)) {
            case 0: m.ends.say(join_with(from)); break;
            case 1: m.ends.say(work_with(from)); break;
            case 2: m.ends.say(gone_with(from)); break;
            default: m.ends.say_some(from);
        }
        at += from.ConsumeIntegral<std::uint32_t>();
        m.link->fill();
        for (std::span<const std::byte> bytes; m.link->next(bytes);) {
            join_request request;
            // A copy of its own, so that nothing is read beside it.
            const std::vector<std::byte> message(bytes.begin(), bytes.end());
            member_head head;
            if (*read_head(message, head) != 0) continue;
            if (work_message work; head.what == member_head::works) {
                require(*read_work(message, work) != 0 || (work.step >= 0 && work.samples >= 0));
                continue;
            }
            if (std::vector<std::uint64_t> gone; head.what == member_head::finds_gone) {
                if (*read_gone(message, gone) == 0) machine.find_gone(gone, at);
                continue;
            }
            if (*read_join(message, request) != 0) continue;
            request.said.leaves != 0 ? machine.lose(who, true, at)
                                     : machine.join(who, std::move(request), at);
        }
        if (from.ConsumeBool()) machine.lose(who, from.ConsumeBool(), at);
        machine.advance(at);
        for (const coordinator::order& o : machine.take_orders())
            require(o.what != coordinator_message::epoch_begins || o.rank < machine.table().size());
    }
}

std::vector<std::uint8_t> order_with(FuzzedDataProvider& from, std::uint64_t id) {
    coordinator_message said;
    said.what = coordinator_message::word(from.ConsumeIntegralInRange<std::uint32_t>(0, 7));
    said.size = from.ConsumeIntegralInRange<std::uint32_t>(0, 4);
    said.rank = from.ConsumeIntegralInRange<std::uint32_t>(0, 4);
    said.source = from.ConsumeIntegralInRange<std::uint32_t>(0, 4);
    said.epoch = from.ConsumeIntegralInRange<std::uint64_t>(0, 3);
    std::vector<elastic_member> table(from.ConsumeBool() ? said.size : 1);
    for (elastic_member& m : table) {
        m.id = from.ConsumeIntegralInRange<std::uint64_t>(0, 3);
        m.place.addresses = from.ConsumeIntegral<std::uint16_t>();
        m.coordinator.addresses = from.ConsumeIntegral<std::uint16_t>();
    }
    if (said.rank < table.size() && from.ConsumeBool()) table[said.rank].id = id;
    if (from.ConsumeIntegral<std::uint8_t>() == 255) said.size = UINT32_MAX;
    const std::string reason = from.ConsumeRandomLengthString(9);
    std::vector<std::uint8_t> all =
        frame_of(said, table.size() * sizeof(elastic_member) + reason.size());
    const std::size_t first = 4 + sizeof said;
    if (!table.empty())
        std::memcpy(all.data() + first, table.data(), table.size() * sizeof table[0]);
    std::copy(reason.begin(), reason.end(), all.end() - std::ptrdiff_t(reason.size()));
    return all;
}

// A member of an elastic job hears a coordinator, which says what none says.
void be_coordinated(FuzzedDataProvider& from) {
    static std::uint64_t jobs = 0;  // it takes part in each of them once
    const shared_secret of_job = derived_secret(secret, ++jobs);
    const host_address here = host_address::loopback();
    auto listener = std::make_unique<listening_socket>(-1, std::uint16_t(0), std::span(&here, 1));
    const std::string where(std::string_view(text("127.0.0.1:", listener->port())));
    const auto secret_of_members = membership_secret(of_job);
    const hvd::time_limit soon = hvd::time_span::of_nanoseconds(tuning::millisecond);
    membership mine({.rank = 0,
                     .size = 1,
                     .rendezvous = where,
                     .rendezvous_served = true,
                     .secret = std::string(std::string_view(hex_of(of_job)))},
                    {.timeout = soon});
    const std::jthread server([&] {
        descriptor socket;
        for (int i = 0; i < 1000 && !(socket = listener->accept()); ++i)
            sleep_for(tuning::millisecond / 10);
        listener.reset();
        if (!socket) return;
        answer(handshake(secret_of_members, rendezvous_rank, -1), socket, {});
        std::uint8_t came[4 + sizeof(join_message)];
        std::size_t n = 0;
        for (int i = 0; i < 1000 && n < sizeof came; ++i) {
            pollfd p{socket.number(), POLLIN, 0};
            ::poll(&p, 1, 1);
            const ssize_t got = ::recv(socket.number(), came + n, sizeof came - n, 0);
            n += std::size_t(std::max<ssize_t>(got, 0));
        }
        join_message joins;
        std::memcpy(static_cast<void*>(&joins), came + 4, sizeof joins);
        while (from.remaining_bytes() > 0) {
            auto bytes = order_with(from, joins.self.id);
            if (from.ConsumeBool())
                bytes.resize(from.ConsumeIntegralInRange<std::size_t>(0, bytes.size()));
            (void)!::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        }
    });
    try {
        const elastic_epoch made = mine.join({}, false);
        require(made.has_ended || (made.rank < made.size && made.source < made.size &&
                                   made.members.size() == std::size_t(made.size)));
        mine.record(made);
        static_cast<void>(mine.should_join());
    } catch (const hvd::error& e) {
        require(std::strlen(e.what()) < 10000);
    }
}

// Frames of data and notices, nearly right, and bytes that are none.
std::vector<std::uint8_t> some_frames(FuzzedDataProvider& from) {
    std::vector<std::uint8_t> all;
    const auto add = [&all](const void* data, std::size_t n) {
        const auto* const bytes = static_cast<const std::uint8_t*>(data);
        all.insert(all.end(), bytes, bytes + n);
    };
    for (int n = from.ConsumeIntegralInRange(0, 3); n > 0; --n) {
        frame head{from.ConsumeIntegral<std::uint16_t>(),
                   frame::kind(0x68766401 + from.ConsumeIntegralInRange<std::uint32_t>(0, 5))};
        failure_notice news = notice_of(1, word::waits, "some reason", {0, 1});
        if (head.what == frame::kind::notice) {
            change(from, {reinterpret_cast<std::byte*>(&news), sizeof news});
            if (from.ConsumeBool()) head.bytes = sizeof news;
        }
        add(&head, sizeof head);
        if (head.what == frame::kind::notice) add(&news, sizeof news);
        else all.resize(all.size() + (from.ConsumeBool() ? head.bytes : 0));
    }
    for (const std::uint8_t byte :
         from.ConsumeBytes<std::uint8_t>(from.ConsumeIntegral<std::uint8_t>()))
        all.push_back(byte);
    return all;
}

// A rank of a communicator sends data, notices, and frames that none sends. `say(bytes)` sends
// some, and reads what is answered.
template <class Wire, class F>
void send(FuzzedDataProvider& from, Wire wire, F say) {
    std::vector<Wire> wires(2);
    wires[1] = std::move(wire);
    basic_tcp_messages<Wire> messages(std::move(wires));
    std::vector<std::unique_ptr<std::byte[]>> blocks;
    message why;
    while (from.remaining_bytes() > 0) {
        say(from.ConsumeBool()
                ? some_frames(from)
                : from.ConsumeBytes<std::uint8_t>(from.ConsumeIntegral<std::uint16_t>()));
        switch (from.ConsumeIntegralInRange(0, 4)) {
            case 0: {
                const std::size_t bytes = from.ConsumeIntegralInRange<std::size_t>(1, 5000);
                blocks.push_back(std::make_unique<std::byte[]>(bytes));
                messages.receive(1, blocks.back().get(), bytes);
                break;
            }
            case 1: messages.cancel(); break;
            case 2: messages.lost(why); break;
            default: break;
        }
        messages.poll();
        for (failure_notice news; messages.receive_notice(news);) {
            require(news.sender == 1 && std::string_view(news.text).size() < sizeof news.text);
            for (const int rank : news.ranks) require(rank < 2);
        }
    }
    messages.say_goodbye();
}

void send_plain(FuzzedDataProvider& from) {
    two_ends ends;
    plain_wire wire(std::move(ends.own));
    send(from, std::move(wire), [&](std::span<const std::uint8_t> bytes) {
        ends.say(bytes);
        ends.drop_answers();
    });
}

// Neighbours in the tree of an engine send words, some nearly right. Nothing is read beside a
// message, and what is taken can be said again.
void negotiate(FuzzedDataProvider& from) {
    const int size = from.ConsumeIntegralInRange(2, 9), me = from.ConsumeIntegralInRange(0, 1);
    negotiator talks(me, size, {.fanout = from.ConsumeIntegralInRange(1, 3)});
    while (from.remaining_bytes() > 0) {
        message_writer said(from.ConsumeIntegralInRange<std::uint32_t>(0, 1));
        while (from.ConsumeBool() && from.remaining_bytes() > 0) {
            said.begin(engine_word(from.ConsumeIntegralInRange<unsigned>(0, last_word + 1)));
            for (int n = from.ConsumeIntegralInRange(0, 3); n > 0; --n)
                if (from.ConsumeBool()) said.add(from.ConsumeIntegralInRange<std::uint64_t>(0, 9));
                else said.add(std::string_view(from.ConsumeRandomLengthString(9)));
        }
        std::vector<std::byte> bytes = said.take();
        for (const std::uint8_t b :
             from.ConsumeBytes<std::uint8_t>(from.ConsumeIntegral<std::uint8_t>()))
            bytes.push_back(std::byte(b));
        bytes.shrink_to_fit();  // so that a look beside it is seen
        const int sender = from.ConsumeIntegralInRange(-1, size);
        try {
            talks.receive(sender, bytes);
        } catch (const hvd::usage_error&) {
            return;  // the link ends
        }
        if (from.ConsumeBool()) talks.submit(from.ConsumeRandomLengthString(2), signature());
        talks.decide();
        for (decision d; talks.next_decision(d);)
            for (const int rank : d.ranks.list()) require(rank >= 0 && rank < size);
        for (negotiator::outgoing out; talks.next_message(out);) require(out.to != me);
    }
}

#if defined(HVD_TEST_OPENSSL)
// Somebody who does not know the secret, so that nothing that he says is data.
void send_encrypted(FuzzedDataProvider& from) {
    two_ends ends;
    if (from.ConsumeBool()) {
        const frame greeting{0, frame::kind::encrypted};
        std::uint8_t bytes[sizeof greeting];
        std::memcpy(bytes, &greeting, sizeof greeting);
        ends.say(bytes);
    }
    tls_wire wire(std::move(ends.own), from.ConsumeBool(), secret);
    send(from, std::move(wire), [&](std::span<const std::uint8_t> bytes) {
        ends.say(bytes);
        ends.drop_answers();
    });
}

// A peer who knows it, whose records are right, unless somebody on the way changes them.
void send_within_tls(FuzzedDataProvider& from) {
    two_ends ends, onward;
    tls_wire foreign(std::move(ends.foreign), true, secret);
    tls_wire own(std::move(onward.own), false, secret);
    const bool may_change = from.ConsumeBool();
    const auto pass = [&](const descriptor& a, const descriptor& b, bool may) {
        std::byte bytes[8192];
        ssize_t n = 0;
        while ((n = ::recv(a.number(), bytes, sizeof bytes, 0)) > 0) {
            if (may) change(from, {bytes, std::size_t(n)});
            (void)!::send(b.number(), bytes, std::size_t(n), MSG_NOSIGNAL);
        }
    };
    std::byte answer[64];
    for (int turns = 0; turns < 3; ++turns) {  // the handshake
        foreign.read(answer, sizeof answer, nullptr, 0);
        pass(ends.own, onward.foreign, false);
        require(own.read(answer, sizeof answer, nullptr, 0) <= 0);
        pass(onward.foreign, ends.own, false);
    }
    require((foreign.events(false, true) & own.events(false, true) & POLLOUT) != 0);
    send(from, std::move(own), [&](std::span<const std::uint8_t> bytes) {
        const auto data = std::as_bytes(bytes);
        if (!data.empty()) foreign.write(nullptr, 0, data.data(), data.size());
        pass(ends.own, onward.foreign, may_change);
        pass(onward.foreign, ends.own, may_change);
        foreign.read(answer, sizeof answer, nullptr, 0);
    });
}
#else
void send_encrypted(FuzzedDataProvider&) {}
void send_within_tls(FuzzedDataProvider&) {}
#endif

call_header some_header(FuzzedDataProvider& from) {
    call_header h;
    std::memset(static_cast<void*>(&h), 0, sizeof h);
    h.kind = collective(from.ConsumeIntegralInRange(0, int(std::size(collective_table)) - 1));
    h.dimensions = from.ConsumeIntegralInRange<std::uint8_t>(0, max_dimensions);
    h.count = from.ConsumeIntegral<std::uint8_t>();
    store(h.name, from.ConsumeRandomLengthString(60));
    if (from.ConsumeBool()) h.refuse(from.ConsumeRandomLengthString(300));
    return h;
}

// Compares and prints headers that have come, as calls and agreements do.
void use_headers(std::vector<call_header>& headers) {
    struct channel {
        std::vector<call_header>& all;
        int left = 3;
        int rank() const { return 0; }
        int size() const { return int(all.size()); }
        table<call_header> exchange_headers(const call_header& mine, time_point) {
            if (left-- == 0) throw hvd::error(0, "enough");
            table<call_header> got(all.size());
            for (std::size_t r = 1; r < all.size(); ++r) got[r] = all[r];
            copy_header(got[0], mine);
            return got;
        }
    };
    const auto run = [](auto f) {
        try {
            f();
        } catch (const hvd::error& e) {
            require(std::strlen(e.what()) < 10000);
        }
    };
    run([&] { check_headers(0, slice<const call_header>(headers)); });
    for (const call_header& h : headers) {
        (void)h.label();
        for (int f = 0; f <= int(field::none); ++f) (void)print_field(h, field(f));
    }
    const std::string name = headers[headers.size() - 1].name;
    channel on{headers};
    run([&] { (void)texts_of_all(on, name, "some text", never); });
    const std::int64_t numbers[3] = {1, 2, 3};
    on.left = 1;
    run([&] { (void)numbers_of_all(on, name, numbers, never); });
}

// Headers from other nodes, and headers as plain bytes.
void show_headers(FuzzedDataProvider& from) {
    const std::size_t n = from.ConsumeIntegralInRange<std::size_t>(1, 4);
    std::vector<call_header> sent, got(n);
    for (std::size_t i = 0; i < n; ++i)
        sent.push_back(i > 0 && from.ConsumeBool() ? sent.back() : some_header(from));
    if (from.ConsumeBool()) {
        std::vector<std::byte> room(n * most_packed_header);
        const std::byte* const end = pack_headers(
            int(n), room.data(), [&](int i) -> const call_header& { return sent[std::size_t(i)]; });
        change(from, {room.data(), std::size_t(end - room.data())});
        const std::size_t cut = std::size_t(end - room.data());
        const std::vector<std::byte> come(
            room.data(), room.data() + from.ConsumeIntegralInRange<std::size_t>(0, cut));
        const std::byte* const to = come.data() + come.size();
        if (unpack_headers(int(n), come.data(), to,
                           [&](int i) -> call_header& { return got[std::size_t(i)]; }) == nullptr)
            return;
        for (const call_header& h : got) require(is_header(h));
    } else {
        change(from, {reinterpret_cast<std::byte*>(sent.data()), n * sizeof sent[0]});
        replace_other_bytes({sent.data(), n});
        got = sent;
    }
    use_headers(got);
}

// Notices that come by any transport.
void hear_notice(FuzzedDataProvider& from) {
    failure_notice news = notice_of(1, word::waits, "some reason", {0, 2});
    change(from, {reinterpret_cast<std::byte*>(&news), sizeof news});
    if (!is_notice(news, 3)) return;
    require(std::strlen(news.text) < sizeof news.text && news.sender >= 0 && news.sender < 3);
    for (const int rank : ranks_of(news)) require(rank >= 0 && rank < 3);
}

#if defined(HVD_TEST_WITH_GLOO)
// The place at which a peer says that its pair of Gloo listens. Nobody connects to it.
void hear_gloo_place(FuzzedDataProvider& from) {
    gloo_place said;
    said.size = from.ConsumeIntegralInRange<std::uint32_t>(0, sizeof said.bytes);
    for (char& byte : said.bytes) byte = from.ConsumeIntegral<char>();
    change(from, {reinterpret_cast<std::byte*>(&said), sizeof said});
    const std::vector<char> address = said.address();
    gloo_place again;
    again.take(address);
    require(address.size() <= sizeof said.bytes && again.address() == address);
    try {
        (void)::gloo::transport::tcp::Address(address).str();
    } catch (const std::exception&) {
    }
}
#else
void hear_gloo_place(FuzzedDataProvider&) {}
#endif

// A rank shows in the memory of its node what no rank shows.
void show_in_memory(FuzzedDataProvider& from) {
    constexpr std::size_t window = 8192, most = 6000;
    static std::vector<float> own(most), theirs(most);
    const auto area = shared_memory::of_this_process(shm_region::bytes(2, window));
    auto reachable = shared<segments>::make();
    if (from.ConsumeBool()) {
        const std::size_t bytes = std::size_t(1) << 16;
        reachable->prepare();
        reachable->begin();
        reachable->add(1, shared_memory::of_this_process(bytes), bytes, 0, bytes);
    }
    const shm_region region(area.data(), 2, window, reachable);
    region.construct();
    shm_transport a(region, 0), b(region, 1);
    const std::size_t n = from.ConsumeIntegralInRange<std::size_t>(0, most);
    using view = hvd::tensor_view<float, hvd::host, 1>;
    const auto make = [n](std::vector<float>& x) {
        return allreduce_call<view, view, hvd::op::sum>(hvd::view(x.data(), n),
                                                        hvd::view(x.data(), n), hvd::sum, {});
    };
    auto of_a = make(own), of_b = make(theirs);
    a.choose(of_a.op);
    b.choose(of_b.op);
    b.begin(of_b.op);
    node_slot& shown = region.slot(1);
    change(from, {reinterpret_cast<std::byte*>(shown.steps), sizeof shown.steps});
    change(from, {reinterpret_cast<std::byte*>(shown.entry), sizeof shown.entry});
    change(from, {reinterpret_cast<std::byte*>(shown.farewell), sizeof shown.farewell});
    shown.left.store(from.ConsumeBool());
    shown.culprit = from.ConsumeIntegral<std::int32_t>();
    try {
        a.begin(of_a.op);
        if (!a.ready()) a.fail(verdict::hopeless);
        if (!a.ready()) return;
        a.next();
        if (!a.agreed) check_headers(0, a.headers, 2);
        a.allreduce(of_a.op);
        for (int step = 0; step < 20 && a.ready() && a.next();) ++step;
    } catch (const hvd::error& e) {
        require(std::strlen(e.what()) < 10000);
    }
}

template <class Batch>
void decode(std::span<const std::byte> bytes) {
    try {
        static_cast<void>(decoded_batch<Batch>(bytes));
    } catch (const hvd::error&) {
    }
}

// Contents of a frame of a data service that nobody has written so.
void decode_contents(std::span<const std::byte> bytes) {
    decode<std::vector<int>>(bytes);
    decode<std::vector<bool>>(bytes);
    decode<std::vector<std::string>>(bytes);
    decode<hvd::data::rows<float>>(bytes);
    decode<std::vector<std::tuple<std::vector<float>, int>>>(bytes);
    try {
        const auto got = decoded_batch<hvd::data::ragged_rows<char>>(bytes).batch;
        for (std::size_t i = 0; i < got.size(); ++i)
            require(got.offsets[i] <= got.offsets[i + 1] &&
                    got.offsets[i + 1] <= got.values.size());
    } catch (const hvd::error&) {
    }
    try {
        static_cast<void>(decoded_failure(bytes));
    } catch (const hvd::error&) {
    }
    try {
        for (std::span<const std::byte> rest = bytes; !rest.empty();) read_place(rest);
    } catch (const hvd::error&) {
    }
    stage_totals totals;
    std::vector<stage_report> told;
    if (totals.take(told, bytes))
        for (const hvd::data::stage_statistics& s : totals.all()) require(!s.text().empty());
    totals.forget(told);
    claim_book book(2);
    for (; bytes.size() >= sizeof(claim_request); bytes = bytes.subspan(sizeof(claim_request))) {
        claim_request request;
        std::memcpy(&request, bytes.data(), sizeof request);
        try {
            static_cast<void>(book.answer(1, request));
        } catch (const hvd::error&) {
        }
    }
}

// Frames of a data service, some of which somebody changes, cuts, repeats or leaves out: those that
// arrive are the ones that were sent, in order. Only the size of a large one is sure.
void send_data(FuzzedDataProvider& from) {
    constexpr std::uint64_t most = 5000;
    two_ends ends;
    service_link sends(std::move(ends.foreign), secret, true, most);
    service_link takes(std::move(ends.own), secret, false, most);
    struct frame {
        service_frame kind;
        std::uint64_t number;
        std::vector<std::uint8_t> contents;
    };
    std::vector<frame> sent;
    std::size_t received = 0;
    while (from.remaining_bytes() > 0 && sent.size() < 8) {
        const frame& f = sent.emplace_back(frame{
            service_frame(from.ConsumeIntegral<std::uint8_t>()),
            from.ConsumeIntegral<std::uint64_t>(),
            from.ConsumeBytes<std::uint8_t>(from.ConsumeIntegralInRange<std::size_t>(0, 64))});
        if (from.ConsumeBool())
            sent.back().contents.resize(from.ConsumeIntegralInRange<std::size_t>(0, most + 1));
        require(sends.send(f.kind, f.number, std::as_bytes(std::span(f.contents))));
        if (from.ConsumeBool()) {
            std::vector<std::byte> under_way(2 * most);
            const ssize_t n =
                ::recv(takes.socket().number(), under_way.data(), under_way.size(), 0);
            under_way.resize(std::size_t(std::max<ssize_t>(n, 0)));
            change(from, under_way);
            under_way.resize(from.ConsumeIntegralInRange<std::size_t>(0, under_way.size()));
            for (int times = from.ConsumeIntegralInRange(0, 2); times > 0; --times)
                (void)!::send(sends.socket().number(), under_way.data(), under_way.size(),
                              MSG_NOSIGNAL);
        }
        service_link::state now = {};
        while ((now = takes.advance()) == service_link::state::complete) {
            require(received < sent.size());
            const frame& expected = sent[received++];
            const auto got = takes.contents();
            require(takes.head().kind == expected.kind && takes.head().number == expected.number &&
                    got.size() == expected.contents.size() && got.size() <= most);
            require(got.size() > service_head::most_authenticated ||
                    std::ranges::equal(got, std::as_bytes(std::span(expected.contents))));
            decode_contents(got);
        }
        if (now == service_link::state::over) return require(!takes.why().empty());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    FuzzedDataProvider from(data, size);
    static const char* const chosen = std::getenv("HVD_FUZZ_ONLY");  // the number of one of them
    const int any = from.ConsumeIntegralInRange(0, 12);
    switch (chosen == nullptr ? any : std::atoi(chosen)) {
        case 0: greet(from); break;
        case 1: join(from); break;
        case 2: send_encrypted(from); break;
        case 3: show_headers(from); break;
        case 4: hear_notice(from); break;
        case 5: show_in_memory(from); break;
        case 6: negotiate(from); break;
        case 7: send_data(from); break;
        case 8: meet(from); break;
        case 9: hear_gloo_place(from); break;
        case 11: send_within_tls(from); break;
        case 12: be_coordinated(from); break;
        default: send_plain(from);
    }
    return 0;
}
