// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <type_traits>
#include <vector>

#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 33)
#include <malloc.h>
#define HVD_TEST_HEAP 1
#endif
#endif

#include "data_test.hpp"
#include "tar_archive.hpp"
#include "temporary_directory.hpp"

#include <hvd/data_formats.hpp>

namespace data_formats_tests {

namespace data = hvd::data;
using data_tests::tar_archive;

namespace {

struct files {
    hvd_test::temporary_directory folder;

    std::string operator()(const std::string& name, const std::string& bytes) const {
        const auto path = folder / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path, std::ios::binary) << bytes;
        return path.string();
    }
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string text_of(const std::vector<std::byte>& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

using namespace std::string_literals;

const std::string idx_of_bytes = "\0\0\x08\x03\0\0\0\x03\0\0\0\x02\0\0\0\x02"s + "abcdefghijkl";

std::string token_header(std::uint32_t magic, std::uint32_t version, std::uint32_t tokens) {
    std::vector<std::uint32_t> header(256);
    header[0] = magic;
    header[1] = version;
    header[2] = tokens;
    return bytes_of(header);
}

// An error names the file, and says this.
template <class F>
void refused(const std::string& path, const char* text, F f) {
    try {
        f();
        FAIL_CHECK("not refused: ", text);
    } catch (const data::file_error& e) {
        CHECK(std::string(e.what()).starts_with(path));
        CHECK_MESSAGE(std::string(e.what()).find(text) != std::string::npos, e.what());
    }
}

}  // namespace

TEST_CASE("a sample of an IDX file is a slice along its first dimension") {
    const files file;
    const data::idx_file images(file("images", idx_of_bytes));
    CHECK(images.size() == 3);
    CHECK(images.shape() == std::vector<std::size_t>{3, 2, 2});
    CHECK(images.read(1) == std::vector<std::uint8_t>{'e', 'f', 'g', 'h'});
    const data::idx_file<std::int16_t> shorts(
        file("shorts", "\0\0\x0b\x01\0\0\0\x02\x01\x02\xff\xfe"s));
    CHECK(shorts.read(0) == std::vector<std::int16_t>{0x102});
    CHECK(shorts.read(1) == std::vector<std::int16_t>{-2});
    const data::idx_file<float> floats(
        file("floats", "\0\0\x0d\x02\0\0\0\x01\0\0\0\x02\x3f\x80\0\0\xc0\0\0\0"s));
    CHECK(floats.read(0) == std::vector<float>{1, -2});
    const data::idx_file none(file("none", "\0\0\x08\x01\0\0\0\0"s));
    CHECK(none.size() == 0);
}

TEST_CASE("an IDX file that is not what its header says is refused, with the place") {
    const files file;
    const auto open = [&](const std::string& bytes, const char* text) {
        const std::string path = file("wrong", bytes);
        refused(path, text, [&] { data::idx_file opened(path); });
    };
    open("", "it has 0 bytes");
    open("\x1f\x8b\x08\0\0\0"s, "gunzip");
    open("\0\1\x08\1\0\0\0\0"s, "byte 0: not an IDX file");
    open("\0\0\x08\0\0\0\0\0"s, "not an IDX file");
    open("\0\0\x0d\1\0\0\0\0"s, "byte 2: elements of the type 13, and 8 was expected");
    open("\0\0\x08\xff\0\0\0\0"s, "header alone would have 1024 bytes");
    open("\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"s, "byte 12: ");
    open(idx_of_bytes + "m", "12 bytes of elements, it has 13");
    open(idx_of_bytes.substr(0, 27), "12 bytes of elements, it has 11");
    refused(file.folder.path() + "/absent", "No such file",
            [&] { data::idx_file opened(file.folder.path() + "/absent"); });
    refused(file.folder.path(), "not a regular file",
            [&] { data::idx_file opened(file.folder.path()); });
    refused("images", "the path has a NUL", [&] { data::idx_file opened("images\0x"s); });

    const std::string path = file("images", idx_of_bytes);
    const data::idx_file images(path);
    refused(path, "sample 3 of 3", [&] { images.read(3); });
    std::filesystem::resize_file(path, 22);  // after it was opened
    refused(path, "byte 22: torn", [&] { images.read(1); });
}

TEST_CASE("a sample of a token file is a window of one token more than its length") {
    const files file;
    std::vector<std::uint16_t> tokens(100);
    for (std::size_t i = 0; i < 100; ++i) tokens[i] = std::uint16_t(1000 + i);
    const std::string path = file("gpt2.bin", token_header(20240520, 1, 100) + bytes_of(tokens));
    const data::token_file windows(path, {.length = 9});
    CHECK(windows.tokens() == 100);
    CHECK(windows.size() == 11);
    CHECK(windows.read(0) == std::vector<std::uint16_t>(tokens.begin(), tokens.begin() + 10));
    CHECK(windows.read(10) == std::vector<std::uint16_t>(tokens.begin() + 90, tokens.end()));
    for (const auto& [length, stride, count] :
         std::vector<std::array<std::size_t, 3>>{{10, 0, 9},
                                                 {99, 0, 1},
                                                 {100, 0, 0},
                                                 {9, 1, 91},
                                                 {9, 4, 23},
                                                 {1, 0, 99},
                                                 {1000, 0, 0}}) {
        const data::token_file some(path, {.length = length, .stride = stride});
        CHECK(some.size() == count);
        if (count > 0) CHECK(some.read(count - 1).size() == length + 1);
    }
    const data::token_file plain(file("plain.bin", bytes_of(tokens)),
                                 {.length = 9, .has_header = false});
    CHECK(plain.read(3) == windows.read(3));
    const data::token_file<std::uint32_t> wide(
        file("llama.bin",
             token_header(20240801, 7, 3) + bytes_of(std::vector<std::uint32_t>{7, 128'000, 9})),
        {.length = 2});
    CHECK(wide.read(0) == std::vector<std::uint32_t>{7, 128'000, 9});
}

TEST_CASE("a token file that is not what its header says is refused") {
    const files file;
    const auto open = [&](const std::string& bytes, const char* text, bool has_header = true) {
        const std::string path = file("wrong", bytes);
        refused(path, text, [&] { data::token_file opened(path, {.has_header = has_header}); });
    };
    open("short", "it has 5 bytes");
    open(token_header(20240801, 7, 0), "byte 0: it begins with 20240801");
    open(token_header(20240520, 2, 0), "byte 4: version 2, and 1 was expected");
    open(token_header(20240520, 1, 4'000'000'000) + "ab", "byte 8: its header says 4000000000");
    open(token_header(20240520, 1, 1) + "abc", "1 tokens, it has 3 bytes");
    open("abc", "3 bytes are no tokens of 2", false);
    CHECK_THROWS_WITH_AS(
        data::token_file(file("right", token_header(20240520, 1, 0)), {.length = 0}),
        doctest::Contains("windows of 0 tokens"), hvd::usage_error);
}

TEST_CASE("a sample of a text is a line") {
    const files file;
    const auto lines_of = [&](const std::string& text) {
        const data::text_lines lines(file("text", text));
        std::vector<std::string> all;
        for (std::size_t i = 0; i < lines.size(); ++i) all.push_back(lines.read(i));
        return all;
    };
    using texts = std::vector<std::string>;
    CHECK(lines_of("").empty());
    CHECK(lines_of("\n") == texts{""});
    CHECK(lines_of("a\n\nbc") == texts{"a", "", "bc"});
    CHECK(lines_of("a\r\nb\n") == texts{"a\r", "b"});
    std::string large;
    texts expected;
    for (int i = 0; i < 100'000; ++i) {
        expected.push_back("line " + std::to_string(7 * i));
        large += expected.back() + "\n";
    }
    CHECK(lines_of(large) == expected);  // longer than the buffer
    const std::string path = file("text", "a\nb\n");
    refused(path, "sample 2 of 2", [&] { data::text_lines(path).read(2); });
}

TEST_CASE("a folder has its files in the order of their names, also those in other folders") {
    const files file;
    file("b.jpg", "two");
    file("cats/1.jpg", "three");
    file("a.jpg", "one");
    file("a.txt", "text");
    file("cats/deep/2.jpg", "");
    std::filesystem::create_directory_symlink(file.folder.path(), file.folder / "loop.jpg");
    std::filesystem::create_symlink(file.folder / "a.jpg", file.folder / "c.jpg");
    const data::folder_files pictures(file.folder.path(), {.ending = ".jpg"});
    std::vector<std::string> names, contents;
    for (std::size_t i = 0; i < pictures.size(); ++i) {
        names.push_back(pictures.name(i));
        CHECK(pictures.read(i).name == names.back());
        contents.push_back(text_of(pictures.read(i).bytes));
    }
    CHECK(names ==
          std::vector<std::string>{"a.jpg", "b.jpg", "c.jpg", "cats/1.jpg", "cats/deep/2.jpg"});
    CHECK(contents == std::vector<std::string>{"one", "two", "one", "three", ""});
    CHECK(data::folder_files(file.folder.path()).size() == 6);
    refused(file.folder.path() + "/absent", "No such file",
            [&] { data::folder_files opened(file.folder.path() + "/absent"); });
    refused(file.folder.path(), "sample 5 of 5", [&] { pictures.read(5); });
    std::filesystem::remove(file.folder / "b.jpg");
    refused(file.folder.path() + "/b.jpg", "No such file", [&] { pictures.read(1); });
}

TEST_CASE("the files of a tar archive with one key are a sample") {
    const files file;
    tar_archive archive;
    archive.folder("train");
    archive.file("train/1.jpg", "picture").file("train/1.CLS", "7").file("train/2.jpg", "");
    archive.file("train/2.seg.png", std::string(1000, 'x')).file("train/readme", "left out");
    archive.file("train/.hidden", "left out").file("__index__/3.txt", "left out");
    archive.file("train/3.cls", std::string(512, '9'));
    const data::tar_samples samples(file("set.tar", archive.ended()));
    REQUIRE(samples.size() == 3);
    CHECK(samples.read(0).key == "train/1");
    CHECK(text_of(samples.read(0)["jpg"]) == "picture");
    CHECK(text_of(samples.read(0)["cls"]) == "7");
    CHECK(samples.read(1)["jpg"].empty());
    CHECK(text_of(samples.read(1)["seg.png"]) == std::string(1000, 'x'));
    CHECK(text_of(samples.read(2)["cls"]) == std::string(512, '9'));
    CHECK_THROWS_WITH_AS(samples.read(0)["png"], "sample train/1 has no file png, it has cls, jpg",
                         data::file_error);
    CHECK(data::tar_samples(file("empty.tar", tar_archive().ended())).size() == 0);
    // Not even an archive without files is empty: it ends with blocks of zeros.
    CHECK_THROWS_AS(data::tar_samples(file("none.tar", "")), data::file_error);
}

namespace {

// Gives a file the time of its last change, a minute or more ago.
void age(const std::string& path, int minutes) {
    const auto now = std::filesystem::file_time_type::clock::now();
    std::filesystem::last_write_time(path, now - std::chrono::minutes(minutes));
}

// Changes a byte, and leaves the time of the last change as it was.
void change(const std::string& path, std::size_t at, char to) {
    const auto time = std::filesystem::last_write_time(path);
    {
        std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(std::streamoff(at));
        file.put(to);
    }
    std::filesystem::last_write_time(path, time);
}

}  // namespace

TEST_CASE("the index of a tar archive is made once, beside it, and anew when the archive changes") {
    const files file;
    tar_archive archive;
    archive.file("1.jpg", "picture").file("1.cls", "7").file("2.jpg", "other");
    const std::string path = file("set.tar", archive.ended()), index = path + ".hvd-index";
    const auto is_right = [&] {
        const data::tar_samples samples(path);
        return samples.size() == 2 && samples.read(0).key == "1" &&
               text_of(samples.read(0)["jpg"]) == "picture" &&
               text_of(samples.read(0)["cls"]) == "7" && text_of(samples.read(1)["jpg"]) == "other";
    };
    const auto is_refused = [&] {
        CHECK_THROWS_AS(data::tar_samples{path}, data::file_error);
        return true;
    };
    CHECK(is_right());
    CHECK_FALSE(std::filesystem::exists(index));  // it may change again in the same moment
    age(path, 5);
    CHECK(is_right());
    REQUIRE(std::filesystem::exists(index));
    CHECK(std::filesystem::status(index).permissions() ==
          std::filesystem::status(path).permissions());
    change(path, 512 + 512 + 3, 'X');  // the second header, which nobody reads again
    CHECK(is_right());
    age(path, 4);  // then the archive is another one
    CHECK(is_refused());
    file("set.tar", archive.ended());
    age(path, 3);
    CHECK(is_right());
    // each byte of the index counts, and a part of it is none
    const auto bytes = std::filesystem::file_size(index);
    for (std::size_t at = 0; at < bytes; ++at) {
        char was = 0;
        {
            std::ifstream kept(index, std::ios::binary);
            kept.seekg(std::streamoff(at));
            kept.get(was);
        }
        change(index, at, char(was ^ 1));
        CHECK(is_right());
        change(index, at, was);
        std::filesystem::resize_file(index, at);
        CHECK(is_right());  // and it is made again
        CHECK(std::filesystem::file_size(index) == bytes);
    }
    std::filesystem::remove(index);
    std::filesystem::create_directories(index + "/full");  // no place for it
    CHECK(is_right());
    for (const auto& entry : std::filesystem::directory_iterator(file.folder.path()))
        CHECK(entry.path().string().find(".hvd-index.") == std::string::npos);
}

TEST_CASE("names of tar archives may be long, in each of the forms, and sizes in base 256") {
    const files file;
    const std::string folder(90, 'd'), name(80, 'n'),
        longest = folder + "/" + std::string(300, 'm');
    tar_archive archive;
    archive.file(name + ".a", "1", {.prefix = folder});          // POSIX
    archive.gnu_name(longest + ".b").file("cut.b", "2");         // GNU
    archive.pax({{"path", longest + ".c"}}).file("cut.c", "3");  // pax
    archive.pax({{"size", "5"}, {"mtime", "1.5"}}).file("z.d", "fives", {.told_size = 0});
    archive.pax({{"path", "of all"}}, 'g').file("z.e", "6", {.in_base_256 = true});
    archive.link("z.f", 100).file("z.g", "8");
    const data::tar_samples samples(file("set.tar", archive.ended()));
    REQUIRE(samples.size() == 3);
    CHECK(samples.read(0).key == folder + "/" + name);
    CHECK(text_of(samples.read(0)["a"]) == "1");
    CHECK(samples.read(1).key == longest);
    CHECK(text_of(samples.read(1)["b"]) == "2");
    CHECK(text_of(samples.read(1)["c"]) == "3");
    CHECK(samples.read(2).key == "z");
    CHECK(text_of(samples.read(2)["d"]) == "fives");
    CHECK(text_of(samples.read(2)["e"]) == "6");
    CHECK(text_of(samples.read(2)["g"]) == "8");
}

TEST_CASE("a tar archive that is damaged is refused, with the byte") {
    const files file;
    const auto open = [&](const std::string& bytes, const char* text) {
        const std::string path = file("wrong.tar", bytes);
        refused(path, text, [&] { data::tar_samples opened(path); });
    };
    const auto one = [](const char* content) {
        tar_archive archive;
        archive.file("1.txt", content);
        return archive;
    };
    open("no archive", "byte 0: torn: 10 bytes");
    open(std::string(512, 'x'), "no number of a header of tar");
    std::string damaged = one("abc").file("2.txt", "def").ended();
    damaged[1024 + 3] = 'X';
    open(damaged, "byte 1024: no header of tar, or a damaged one: its checksum is");
    open(one("abc").bytes().substr(0, 514), "byte 0: torn: a file of 3 bytes, of which 2 are");
    tar_archive huge;
    huge.file("1.txt", "", {.told_size = std::uint64_t(1) << 62, .in_base_256 = true});
    open(huge.ended(), "torn: a file of 4611686018427387904 bytes");
    tar_archive negative;
    negative.file("1.txt", "", {.told_size = ~std::uint64_t(0), .in_base_256 = true});
    open(negative.ended(), "torn: a file of 18446744073709551615 bytes");
    tar_archive pax;
    pax.extended('x', "99 path=a\n").file("1.txt", "");
    open(pax.ended(), "byte 512: no record of an extended header");
    tar_archive text;
    text.extended('x', "9x path=a\n").file("1.txt", "");
    open(text.ended(), "byte 512: no number of an extended header");
    tar_archive sparse;
    sparse.pax({{"GNU.sparse.major", "1"}}).file("1.txt", "");
    open(sparse.ended(), "sparse");
    tar_archive long_name;
    long_name.extended('L', std::string((1 << 20) + 1, 'n')).file("1.txt", "");
    open(long_name.ended(), "an extended header of 1048577 bytes");
    open(one("a").file("1.txt", "b").ended(), "sample 1 has two files txt");
}

static_assert(data::source<data::idx_file<>> && data::source<data::token_file<>> &&
              data::source<data::text_lines> && data::source<data::folder_files> &&
              data::source<data::tar_samples>);

TEST_CASE("files are sources of pipelines, several of them one") {
    const files file;
    std::vector<data::text_lines> parts;
    parts.emplace_back(file("a", "1\n2\n3\n"));
    parts.emplace_back(file("b", "4\n5\n"));
    const auto pipeline = data::from(data::chain(std::move(parts))) |
                          data::map([](const std::string& line) { return std::stoi(line); }) |
                          data::shuffle({.seed = 1}) | data::batch(2);
    for (const int ranks : {1, 2, 3, 4}) {
        std::vector<int> all;
        for (const auto& batch : data_tests::on_all_ranks(pipeline, ranks, 0, 3))
            all.insert(all.end(), batch.begin(), batch.end());
        const data::permutation order(5, 1, 0);
        for (std::size_t i = 0; i < 5; ++i) CHECK(all.at(i) == int(order(i)) + 1);
    }
    const auto pairs = data::zip(data::idx_file(file("images", idx_of_bytes)),
                                 data::text_lines(file("labels", "x\ny\nz\n")));
    CHECK(pairs.read(2) == std::tuple(std::vector<std::uint8_t>{'i', 'j', 'k', 'l'}, "z"s));
}

#if defined(HVD_TEST_HEAP)
TEST_CASE("an epoch of 100 million samples has no list of them") {
    constexpr std::size_t samples = 100'000'000;
    const files file;
    const std::string path = file("tokens", "");
    std::filesystem::resize_file(path, 2 * (samples + 1));  // a file without blocks
    const auto used = [] {
        const struct mallinfo2 heap = ::mallinfo2();
        return heap.uordblks + heap.hblkhd;
    };
    const std::size_t before = used();
    const data::token_file<std::uint16_t> tokens(path, {.length = 1, .has_header = false});
    REQUIRE(tokens.size() == samples);
    data::loader loader(data::from(tokens) | data::shuffle({.seed = 1}) | data::batch(256),
                        hvd::part{});
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        loader.begin_epoch(epoch);
        REQUIRE(loader.next());
        CHECK(used() < before + (1 << 20));
    }
}
#endif

}  // namespace data_formats_tests
