// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <chrono>
#include <string>

#include "disagreement.hpp"
#include "reference.hpp"

namespace objects_tests {

using namespace hvd_test;

namespace {

// A type with its own serializer.
struct checkpoint {
    std::string name;
    std::vector<double> values;
    friend bool operator==(const checkpoint&, const checkpoint&) = default;
};

checkpoint of_rank(int rank) {
    return {"rank " + std::to_string(rank), std::vector<double>(std::size_t(rank) * 1000, rank)};
}

struct unreadable {
    int value = 0;
    std::string text;
};

// Its serializer throws something that is no std::exception.
struct unwritable {
    bool fails = false;
};

}  // namespace

}  // namespace objects_tests

template <>
struct hvd::serializer<objects_tests::checkpoint> {
    static void write(std::vector<std::byte>& buffer, const objects_tests::checkpoint& c) {
        serializer<std::string>::write(buffer, c.name);
        serializer<std::vector<double>>::write(buffer, c.values);
    }
    static objects_tests::checkpoint read(std::span<const std::byte>& bytes) {
        objects_tests::checkpoint c;
        c.name = serializer<std::string>::read(bytes);
        c.values = serializer<std::vector<double>>::read(bytes);
        return c;
    }
};

template <>
struct hvd::serializer<objects_tests::unreadable> {
    static void write(std::vector<std::byte>& buffer, const objects_tests::unreadable& u) {
        serializer<int>::write(buffer, u.value);
    }
    static objects_tests::unreadable read(std::span<const std::byte>&) {
        throw std::runtime_error("not my version");
    }
};

template <>
struct hvd::serializer<objects_tests::unwritable> {
    static void write(std::vector<std::byte>& buffer, const objects_tests::unwritable& u) {
        if (u.fails) throw 7;
        serializer<bool>::write(buffer, u.fails);
    }
    static objects_tests::unwritable read(std::span<const std::byte>& bytes) {
        return {serializer<bool>::read(bytes)};
    }
};

namespace objects_tests {

TEST_CASE("broadcast_object gives every rank each root's object in place, copy_of_root by value") {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root) {
            checkpoint mine = of_rank(comm.rank());
            const checkpoint fixed = mine;
            CHECK(comm.copy_of_root(fixed, hvd::root{root}) == of_rank(root));
            CHECK(fixed == of_rank(comm.rank()));
            CHECK(&comm.broadcast_object(mine, hvd::root{root}) == &mine);
            hvd::options named{.name = "mine"};  // no constant
            comm.broadcast_object(mine, hvd::root{root}, named);
            comm.broadcast_object(mine, hvd::root{root}, hvd::options{.name = "mine"});
            comm.broadcast_object_async(mine, hvd::root{root}, named).wait();
            CHECK(mine == of_rank(root));
        }
    });
}

TEST_CASE("allgather_object gives every rank's object in rank order") {
    on_every_transport([](auto& comm) {
        const auto all = comm.allgather_object(of_rank(comm.rank()));
        REQUIRE(all.size() == size_of(comm));
        for (int r = 0; r < comm.size(); ++r) CHECK(all[std::size_t(r)] == of_rank(r));
    });
}

TEST_CASE("gather_object gives the root every rank's object in rank order, and the others none") {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root) {
            const auto all = comm.gather_object(of_rank(comm.rank()), hvd::root{root});
            REQUIRE(all.size() == (comm.rank() == root ? size_of(comm) : 0));
            for (std::size_t r = 0; r < all.size(); ++r) CHECK(all[r] == of_rank(int(r)));
        }
        CHECK(comm.gather_object(std::string()).size() == (comm.rank() == 0 ? size_of(comm) : 0));
    });
}

TEST_CASE("scatter_object gives every rank its object of the root's list") {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root) {
            std::vector<checkpoint> objects;  // those of other ranks than the root do not matter
            if (comm.rank() == (root + 1) % comm.size()) objects.push_back(of_rank(100));
            if (comm.rank() == root) {
                objects.clear();
                for (int r = 0; r < comm.size(); ++r) objects.push_back(of_rank(r + root));
            }
            CHECK(comm.scatter_object(objects, hvd::root{root}) == of_rank(comm.rank() + root));
        }
        std::vector<std::string> empty(comm.rank() == 0 ? size_of(comm) : 0);
        CHECK(comm.scatter_object(empty) == "");
        std::vector<bool> flags(size_of(comm), true);
        CHECK(comm.scatter_object(flags));
    });
}

TEST_CASE("a list of objects to scatter that has not one for each rank is refused on all ranks") {
    on_every_transport([](auto& comm) {
        const int root = comm.size() - 1;
        for (const std::size_t n : {size_of(comm) - 1, size_of(comm) + 1}) {
            const std::vector<std::string> objects(n, "x");
            const std::string why =
                std::to_string(n) + " objects for " + std::to_string(comm.size()) + " ranks";
            const auto check = [&](const auto& call) {
                if (comm.rank() == root) {
                    const auto e = thrown<hvd::usage_error>(call);
                    if (e) CHECK(contains(e->what(), why));
                } else if (const auto e = thrown<hvd::peer_error>(call)) {
                    CHECK(contains(e->what(), why));
                    CHECK(e->peers() == std::vector{root});
                }
                check_that_it_works(comm);
            };
            check([&] { (void)comm.scatter_object(objects, hvd::root{root}); });
            check([&] { (void)comm.scatter_object_async(objects, hvd::root{root}).wait(); });
        }
    });
}

TEST_CASE("objects are begun, and complete when they are waited for") {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root) {
            checkpoint sent = of_rank(comm.rank()), late = sent;
            std::string empty = comm.rank() == root ? "" : "something";
            std::vector<checkpoint> deal;
            if (comm.rank() == root)
                for (int r = 0; r < comm.size(); ++r) deal.push_back(of_rank(r + root));
            auto first = comm.broadcast_object_async(sent, hvd::root{root});
            auto everyones = comm.allgather_object_async(of_rank(comm.rank()));
            auto roots = comm.gather_object_async(of_rank(comm.rank()), hvd::root{root});
            auto dealt = comm.scatter_object_async(deal, hvd::root{root});
            deal.clear();
            auto second = comm.broadcast_object_async(late, hvd::root{root});
            bool was_there = false;
            second.then(
                [&](const std::exception_ptr& e) { was_there = !e && late == of_rank(root); });
            auto nothing = comm.broadcast_object_async(empty, hvd::root{root});
            nothing.wait();
            CHECK(empty.empty());
            second.wait();
            CHECK(was_there);
            CHECK(late == of_rank(root));
            CHECK(dealt.wait() == of_rank(comm.rank() + root));
            const auto at_root = roots.wait();
            REQUIRE(at_root.size() == (comm.rank() == root ? size_of(comm) : 0));
            for (std::size_t r = 0; r < at_root.size(); ++r) CHECK(at_root[r] == of_rank(int(r)));
            const auto all = everyones.wait();
            REQUIRE(all.size() == size_of(comm));
            for (int r = 0; r < comm.size(); ++r) CHECK(all[std::size_t(r)] == of_rank(r));
            first.wait();
            CHECK(sent == of_rank(root));
        }
    });
}

TEST_CASE("a broadcast_object that was begun gives up after its timeout") {
    on_every_transport_from(2, [](auto& comm) {
        using namespace std::chrono_literals;
        auto doomed = comm.split(0);
        std::string text;
        if (comm.rank() == 0)
            thrown<hvd::timeout_error>([&] {
                doomed.broadcast_object_async(text, hvd::root{0}, {.timeout = 50ms}).wait();
            });
        comm.barrier();  // the others do not leave before
    });
}

TEST_CASE("some ranks may begin the calls of objects that others make") {
    on_every_transport([](auto& comm) {
        const bool begins = comm.rank() % 2 == 0;
        std::string text = std::to_string(comm.rank());
        const hvd::root last{comm.size() - 1};
        if (begins) comm.broadcast_object_async(text, last).wait();
        else comm.broadcast_object(text, last);
        CHECK(text == std::to_string(comm.size() - 1));
        const auto all = begins ? comm.allgather_object_async(comm.rank()).wait()
                                : comm.allgather_object(comm.rank());
        CHECK(all.back() == comm.size() - 1);
        const std::vector<double> deal(size_of(comm), 0.5);
        CHECK((begins ? comm.scatter_object_async(deal).wait() : comm.scatter_object(deal)) == 0.5);
    });
}

TEST_CASE("numbers, strings, empty ones, and vectors of vectors are objects") {
    on_every_transport([](auto& comm) {
        const int last = comm.size() - 1;
        int number = comm.rank();
        std::string text = comm.rank() == last ? "" : "something";
        std::vector<std::vector<std::string>> nested;
        if (comm.rank() == last) nested = {{}, {"a", ""}, {std::string(1000, 'x')}};
        comm.broadcast_object(number, hvd::root{last});
        comm.broadcast_object(text, hvd::root{last});
        comm.broadcast_object(nested, hvd::root{last});
        CHECK(number == last);
        CHECK(text.empty());
        CHECK(nested ==
              std::vector<std::vector<std::string>>{{}, {"a", ""}, {std::string(1000, 'x')}});
        CHECK(comm.allgather_object(std::string()) == std::vector<std::string>(size_of(comm)));
        CHECK(comm.allgather_object(comm.rank()).back() == last);
    });
}

TEST_CASE("a bool that is neither true nor false is refused") {
    const auto read = [](std::byte value) {
        std::vector<std::byte> buffer;
        hvd::serializer<std::vector<bool>>::write(buffer, {true, false});
        buffer.back() = value;
        std::span<const std::byte> bytes(buffer);
        return hvd::serializer<std::vector<bool>>::read(bytes);
    };
    CHECK(read(std::byte(0)) == std::vector<bool>{true, false});
    CHECK(read(std::byte(1)) == std::vector<bool>{true, true});
    CHECK_THROWS_AS(read(std::byte(2)), hvd::usage_error);
    CHECK_THROWS_AS(read(std::byte(255)), hvd::usage_error);
}

TEST_CASE("objects of different types are a mismatch that names the types") {
    on_every_transport_from(2, [](auto& comm) {
        const bool first = comm.rank() == 0;
        const auto types = [](const char* of_first, const char* of_others) {
            return [=](int rank) { return rank == 0 ? of_first : of_others; };
        };
        expect_mismatch(comm, "element type", types("int64", "float64"), [&] {
            std::int64_t whole = 77;
            double number = 0;
            if (first) comm.broadcast_object(whole);
            else comm.broadcast_object(number);
        });
        expect_mismatch(comm, "element type", types("string", "vector of uint8"), [&] {
            if (first) (void)comm.copy_of_root(std::string("abc"));
            else (void)comm.copy_of_root(std::vector<std::uint8_t>());
        });
        expect_mismatch(comm, "element type", types("uint32", "float32"), [&] {
            if (first) (void)comm.allgather_object(1u);
            else (void)comm.allgather_object(1.0f);
        });
        expect_mismatch(comm, "element type", types("int32", "float64"), [&] {
            if (first) (void)comm.gather_object(1);
            else (void)comm.gather_object(1.0);
        });
        expect_mismatch(comm, "element type", types("string", "float64"), [&] {
            if (first) (void)comm.scatter_object(std::vector<std::string>(size_of(comm)));
            else (void)comm.scatter_object(std::vector<double>());
        });
        expect_mismatch(comm, "element type", types("int64", "float64"), [&] {
            std::int64_t whole = 77;
            double number = 0;
            auto begun =
                first ? comm.broadcast_object_async(whole) : comm.broadcast_object_async(number);
            const auto behind = comm.allgather_object_async(1).wait();  // the ranks are in step
            CHECK(behind == std::vector<int>(size_of(comm), 1));
            begun.wait();
        });
        expect_mismatch(comm, "element type", types("int32", "float64"), [&] {
            if (first) (void)comm.gather_object_async(1).wait();
            else (void)comm.gather_object(1.0);
        });
        const auto e = thrown<hvd::mismatch_error>([&] {
            if (first) (void)comm.allgather_object(std::vector<std::vector<std::vector<int>>>());
            else (void)comm.allgather_object(std::vector<std::vector<std::vector<float>>>());
        });
        if (e) CHECK(contains(e->what(), "vector of vect#"));
        check_that_it_works(comm);
    });
}

TEST_CASE("an object of many megabytes arrives whole") {
    on_every_transport([](auto& comm) {
        std::string large;
        if (comm.rank() == 0)
            for (int i = 0; i < 500000; ++i) large += std::to_string(i);
        comm.broadcast_object(large);
        CHECK(large.size() == 2888890);
        CHECK(large.substr(large.size() - 6) == "499999");
    });
}

TEST_CASE("an exception of a serializer leaves the call, and the communicator works on") {
    on_every_transport([](auto& comm) {
        unreadable object;
        if (comm.rank() == 0) comm.broadcast_object(object);
        else thrown<std::runtime_error>([&] { comm.broadcast_object(object); });
        check_that_it_works(comm);
        auto begun = comm.broadcast_object_async(object);
        auto all = comm.allgather_object_async(object);
        if (comm.rank() == 0) begun.wait();
        else thrown<std::runtime_error>([&] { begun.wait(); });
        thrown<std::runtime_error>([&] { (void)all.wait(); });
        const std::vector<unreadable> deal(size_of(comm));
        thrown<std::runtime_error>([&] { (void)comm.scatter_object_async(deal).wait(); });
        check_that_it_works(comm);
    });
}

TEST_CASE("if a serializer throws while it writes, the peers learn of it") {
    on_every_transport([](auto& comm) {
        unwritable object{comm.rank() == 0};
        const auto check = [&](const auto& call) {
            if (object.fails) CHECK_THROWS_AS(call(), int);
            else thrown<hvd::peer_error>(call);
            check_that_it_works(comm);
        };
        check([&] { comm.broadcast_object(object); });
        check([&] { (void)comm.allgather_object(object); });
        check([&] { (void)comm.gather_object(object, hvd::root{comm.size() - 1}); });
        check([&] { (void)comm.scatter_object(std::vector(size_of(comm), object)); });
        check([&] { comm.broadcast_object_async(object).wait(); });
        check([&] { (void)comm.allgather_object_async(object).wait(); });
        check([&] { (void)comm.scatter_object_async(std::vector(size_of(comm), object)).wait(); });
    });
}

TEST_CASE("a root that is no rank is refused for objects, too") {
    on_every_transport([](auto& comm) {
        std::string object;
        thrown<hvd::usage_error>([&] { comm.broadcast_object(object, hvd::root{comm.size()}); });
        thrown<hvd::usage_error>([&] { (void)comm.gather_object(object, hvd::root{-1}); });
        thrown<hvd::usage_error>(
            [&] { (void)comm.scatter_object(std::vector{object}, hvd::root{comm.size()}); });
        thrown<hvd::usage_error>(
            [&] { comm.broadcast_object_async(object, hvd::root{comm.size()}).wait(); });
        thrown<hvd::usage_error>(
            [&] { (void)comm.gather_object_async(object, hvd::root{-1}).wait(); });
        check_that_it_works(comm);
    });
}

TEST_CASE("an error of objects names the user's call on every rank") {
    hvd_test::on_ranks([](auto& comm) {
        if (comm.size() < 2) return;
        const auto text_of = [](auto&& call) {
            try {
                call();
            } catch (const hvd::mismatch_error& e) {
                return std::string(e.what());
            }
            return std::string();
        };
        const std::string sent = text_of([&] {
            if (comm.rank() == 0) (void)comm.copy_of_root(std::string("abc"));
            else comm.barrier();
        });
        CHECK(sent.find("'broadcast_object'") != std::string::npos);
        const std::string gathered = text_of([&] {
            if (comm.rank() == 0) (void)comm.allgather_object(std::string("abc"));
            else comm.barrier();
        });
        CHECK(gathered.find("'allgather_object'") != std::string::npos);
        const std::string scattered = text_of([&] {
            if (comm.rank() == 0) (void)comm.scatter_object(std::vector<int>(size_of(comm)));
            else (void)comm.gather_object(1);
        });
        CHECK(scattered.find("'scatter_object'") != std::string::npos);
        CHECK(scattered.find("'gather_object'") != std::string::npos);
    });
}

}  // namespace objects_tests
