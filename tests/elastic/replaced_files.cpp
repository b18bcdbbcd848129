// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <hvd/elastic.hpp>

#include "temporary_directory.hpp"

namespace replaced_files_tests {

// Checkpoints and kept states are put in the place of what is there.

TEST_CASE("a file takes the place of a link, and what the link leads to stays as it is") {
    const hvd_test::temporary_directory directory;
    const std::filesystem::path folder = directory.path(), target = folder / "target",
                                link = folder / "link", loose = folder / "loose";
    std::ofstream(target) << "somebody's bytes";
    std::filesystem::create_symlink(target, link);
    std::filesystem::create_symlink(folder / "absent", loose);
    for (const std::filesystem::path& path : {link, loose}) {
        hvd::detail::atomic_file file(path.string());
        const std::byte bytes[3]{};
        file.write(bytes);
        file.commit();
        CHECK(std::filesystem::symlink_status(path).type() == std::filesystem::file_type::regular);
        CHECK(std::filesystem::file_size(path) == 3);
    }
    CHECK(std::filesystem::file_size(target) == 16);
    CHECK_FALSE(std::filesystem::exists(folder / "absent"));
}

}  // namespace replaced_files_tests
