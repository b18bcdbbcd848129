// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Files of checkpoints: writers that are killed, that write at the same time, or whose disk fails;
// where tensors lie, and names and types that other programs write.

#include <dlfcn.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>

#include "hvd_test.hpp"
#include "temporary_directory.hpp"

namespace checkpoint_files_tests {

using hvd_test::temporary_directory;

namespace {

bool fsync_fails = false;

// The names in a folder.
std::vector<std::string> names_in(const temporary_directory& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator((folder / "").string()))
        names.push_back(entry.path().filename());
    return names;
}

std::string path_in(const temporary_directory& folder, const char* name = "c") {
    return (folder / name).string();
}

// A file whose every number is `round`, and whose size depends on the writer.
void save(const std::string& path, std::uint64_t writer, std::uint64_t round) {
    std::vector<std::uint64_t> values((std::size_t(1) << 14) + 1000 * writer, round);
    hvd::write_safetensors(path, std::vector{hvd::named("v", values)},
                           {{"round", std::to_string(round)}, {"writer", std::to_string(writer)}});
}

// Returns the round of a file, which is whole.
std::uint64_t round_of(const std::string& path) {
    const hvd::safetensors_file file(path);
    const auto round = std::stoull(file.metadata().at("round"));
    const auto writer = std::stoull(file.metadata().at("writer"));
    std::vector<std::uint64_t> values((std::size_t(1) << 14) + 1000 * writer);
    file.read(hvd::named("v", values));
    CHECK(values == std::vector<std::uint64_t>(values.size(), round));
    return round;
}

#if !defined(HVD_TEST_BACKEND_MPI)  // MPI's processes can't be forked

pid_t start_writer(const std::string& path, std::uint64_t writer, std::uint64_t first) {
    const pid_t pid = fork();
    if (pid == 0) try {
            for (std::uint64_t round = first;; ++round) save(path, writer, round);
        } catch (...) {
            _exit(1);
        }
    return pid;
}

void kill_and_wait(pid_t writer) {
    ::kill(writer, SIGKILL);
    int status = 0;
    REQUIRE(waitpid(writer, &status, 0) == writer);
    CHECK(WIFSIGNALED(status));  // it did not end by an error
}

#endif

std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& header, const std::string& data) {
    const std::uint64_t length = header.size();
    std::ofstream(path, std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), 8) << header << data;
}

}  // namespace

// The test's own fsync, which stands before that of the system.
extern "C" int fsync(int file) {
    if (fsync_fails) {
        errno = EIO;
        return -1;
    }
    static const auto next = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"));
    return next(file);
}

#if !defined(HVD_TEST_BACKEND_MPI)

TEST_CASE("killing the writer at any moment leaves the old checkpoint or the new one") {
    const temporary_directory folder;
    const std::string path = path_in(folder);
    save(path, 0, 0);
    std::uint64_t rounds = 0;
    for (int kill = 0; kill < 50; ++kill) {
        const pid_t writer = start_writer(path, 0, rounds + 1);
        usleep(useconds_t(500 + 173 * kill));
        kill_and_wait(writer);
        const std::uint64_t round = round_of(path);
        CHECK(round >= rounds);
        rounds = round;
        CHECK(names_in(folder).size() <= 2);  // what one killed writer left, the next removed
    }
    CHECK(rounds > 0);
    save(path, 0, 1);
    CHECK(names_in(folder) == std::vector<std::string>{"c"});
}

TEST_CASE("two writers of one path do not mix, whenever they are killed") {
    const temporary_directory folder;
    const std::string path = path_in(folder);
    bool first = false, second = false;
    for (int kill = 0; kill < 50; ++kill) {
        save(path, 0, 0);
        const pid_t writers[] = {start_writer(path, 1, 1), start_writer(path, 2, 1)};
        while (round_of(path) == 0) usleep(200);
        usleep(useconds_t(173 * kill));
        kill_and_wait(writers[kill % 2]);
        round_of(path);
        usleep(useconds_t(97 * kill));
        kill_and_wait(writers[1 - kill % 2]);
        CHECK(round_of(path) > 0);
        const std::string writer = hvd::safetensors_file(path).metadata().at("writer");
        (writer == "1" ? first : second) = true;
    }
    CHECK(first);
    CHECK(second);
    save(path, 0, 1);
    CHECK(names_in(folder) == std::vector<std::string>{"c"});
}

TEST_CASE("a write that fails, as on a full disk, leaves the old file and no other") {
    const temporary_directory folder;
    const std::string path = path_in(folder);
    save(path, 0, 7);
    const std::string before = content(path);
    for (const rlim_t most : {rlim_t(0), rlim_t(100), rlim_t(100'000)}) {
        const pid_t writer = fork();
        if (writer == 0) {
            const rlimit limit{most, most};
            ::signal(SIGXFSZ, SIG_IGN);
            int status = setrlimit(RLIMIT_FSIZE, &limit) == 0 ? 1 : 2;
            try {
                save(path, 1, 8);
            } catch (const hvd::checkpoint_error& e) {
                const std::string_view what = e.what();
                if (what.find("cannot be written: File too large") != what.npos) status *= 10;
            }
            _exit(status);
        }
        int status = 0;
        REQUIRE(waitpid(writer, &status, 0) == writer);
        REQUIRE(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 10);
        CHECK(content(path) == before);
        CHECK(names_in(folder) == std::vector<std::string>{"c"});
    }
}

#endif

TEST_CASE("a file that cannot be flushed or renamed leaves the old one and no other") {
    const temporary_directory folder;
    const std::string path = path_in(folder);
    save(path, 0, 7);
    fsync_fails = true;
    CHECK_THROWS_WITH_AS(save(path, 1, 8),
                         doctest::Contains("cannot be synchronized to the disk: Input/output"),
                         hvd::checkpoint_error);
    fsync_fails = false;
    CHECK(round_of(path) == 7);
    CHECK(names_in(folder) == std::vector<std::string>{"c"});

    {
        hvd::detail::atomic_file file(path);
        file.write(std::vector<std::byte>(10));
        CHECK(names_in(folder).size() == 2);
        std::filesystem::remove(path);
        std::filesystem::create_directory(path);
        CHECK_THROWS_WITH_AS(file.commit(), doctest::Contains("cannot be put in its place"),
                             hvd::checkpoint_error);
    }
    CHECK(names_in(folder) == std::vector<std::string>{"c"});
    CHECK(std::filesystem::is_directory(path));
}

TEST_CASE("only what killed writers of the same path left is removed") {
    const temporary_directory folder;
    const std::string path = path_in(folder);
    for (const char* name : {"c.tmp-0123456789abcdef", "d.tmp-0123456789abcdef", "c.tmp-mine"})
        std::ofstream(path_in(folder, name)) << "left";
    {
        hvd::detail::atomic_file alive(path);
        CHECK_FALSE(std::filesystem::exists(path_in(folder, "c.tmp-0123456789abcdef")));
        save(path, 0, 1);
        alive.write(std::vector<std::byte>(10));
        alive.commit();
    }
    CHECK(std::filesystem::file_size(path) == 10);
    CHECK(names_in(folder).size() == 3);
}

TEST_CASE("tensors lie at multiples of their elements' sizes, whatever their order") {
    const temporary_directory folder;
    const std::string path = path_in(folder);
    std::vector<hvd::bfloat16> halves(3, hvd::bfloat16(0.5f));
    std::vector<std::uint8_t> bytes = {1, 2, 3, 4, 5};
    std::vector<double> doubles = {1.5, 2.5};
    std::vector<float> floats = {3.5f}, none;
    for (const char* name : {"n", "a longer name", "name"}) {  // headers of other sizes
        hvd::write_safetensors(path,
                               std::vector{hvd::named("bytes", bytes), hvd::named("halves", halves),
                                           hvd::named(name, doubles), hvd::named("none", none),
                                           hvd::named("floats", floats)});
        const hvd::safetensors_file file(path);
        CHECK(file.tensors().at(name).first % 8 == 0);
        CHECK(file.tensors().at("floats").first % 4 == 0);
        CHECK(file.tensors().at("halves").first % 2 == 0);
        std::vector<double> read_doubles(2);
        std::vector<std::uint8_t> read_bytes(5);
        file.read(hvd::named(name, read_doubles));
        file.read(hvd::named("bytes", read_bytes));
        CHECK(read_doubles == doubles);
        CHECK(read_bytes == bytes);
    }
}

TEST_CASE("names and paths with a NUL are not written") {
    const temporary_directory folder;
    const std::string path = path_in(folder), odd("a\0b", 3);
    std::vector<float> a = {1};
    const auto refused = [](auto f, const char* reason) {
        CHECK_THROWS_WITH_AS(f(), doctest::Contains(reason), hvd::checkpoint_error);
    };
    refused([&] { hvd::write_safetensors(path, std::vector{hvd::named(odd, a)}); },
            "the name of a tensor has a NUL: \"a\" and 1 more bytes");
    refused([&] { hvd::write_safetensors(path, {}, {{odd, "x"}}); },
            "a key of the metadata has a NUL");
    refused([&] { hvd::write_safetensors(path + odd, std::vector{hvd::named("a", a)}); },
            "the path has a NUL");
    refused([&] { hvd::safetensors_file(path + odd); }, "the path has a NUL");
    CHECK(names_in(folder).empty());
}

TEST_CASE("a tensor of a type that hvd has not is refused if it is asked for") {
    const temporary_directory folder;
    const std::string path = path_in(folder);
    std::vector<float> a = {0};
    std::vector<std::uint8_t> b = {1, 2, 3, 4};
    write(path,
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
          R"("b":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[4,8]}})",
          std::string("\0\0\x80\x3f", 4) + "1234");
    const hvd::safetensors_file file(path);
    file.read(hvd::named("a", a));
    CHECK(a[0] == 1);
    CHECK_THROWS_WITH_AS(file.read(hvd::named("b", b)),
                         doctest::Contains("\"b\" is of F8_E4M3, and of uint8 was expected"),
                         hvd::checkpoint_error);
    CHECK(b == std::vector<std::uint8_t>{1, 2, 3, 4});
    write(path, R"({"b":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}})", "1234");
    CHECK_THROWS_WITH_AS(hvd::safetensors_file{path}, doctest::Contains("torn"),
                         hvd::checkpoint_error);
}

TEST_CASE("bytes that stand for bools become 0 or 1") {
    const temporary_directory folder;
    const std::string path = path_in(folder);
    write(path, R"({"b":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}})",
          std::string("\0\x01\x02\xff", 4));
    alignas(bool) std::byte read[4] = {};
    hvd::safetensors_file(path).read({"b", hvd::dtype::boolean, {4}, read, 4});
    CHECK(std::vector<std::byte>(read, read + 4) ==
          std::vector{std::byte(0), std::byte(1), std::byte(1), std::byte(1)});
}

}  // namespace checkpoint_files_tests
