// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "secret.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include <hvd/transport/tcp/job_secret.hpp>

#include "failure.hpp"
#include "file_descriptor.hpp"

namespace hvdrun {
namespace {

std::string hex(const hvd::detail::shared_secret& secret) {
    return std::string(std::string_view(hvd::detail::hex_of(secret)));
}

// A rank may leave hvdrun's folder before it reads the file.
std::string absolute(const std::string& path) {
    std::error_code error;
    const std::filesystem::path result = std::filesystem::absolute(path, error);
    return error ? path : result.string();
}

// The path of a file that is not there yet, where other users' programs do not look if the system
// has such a place.
std::string new_path() {
    const char* folder = std::getenv("XDG_RUNTIME_DIR");
    if (folder == nullptr || ::access(folder, W_OK) != 0) folder = std::getenv("TMPDIR");
    const bool has_none = folder == nullptr || *folder == 0;
    return absolute(std::string(has_none ? "/tmp" : folder) + "/hvdrun." + random_digits());
}

// Makes the file, with mode 0600.
void write_file(const std::string& path, const std::string& digits) {
    const file_descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const std::string line = digits + "\n";
    if (file && write_all(file.number(), line.data(), line.size())) return;
    const int error = errno;
    if (file) ::unlink(path.c_str());
    throw failure(1, path + ": the file of the secret cannot be written: " + strerror(error) +
                         " (TMPDIR or XDG_RUNTIME_DIR names another folder)");
}

// A shell that removes the file when its input ends. It has another name than hvdrun and its guard,
// so that it outlives a signal to all of that name.
process start_remover(const std::string& path) {
    const char* const script = "trap '' HUP INT TERM; read -r line; exec rm -f -- \"$0\"";
    return start({"/bin/sh", "-c", script, path}, {{"PATH", "/usr/bin:/bin"}}, true, 0);
}

}  // namespace

std::string random_digits() { return hex(hvd::detail::new_secret()).substr(0, 32); }

job_secret::job_secret(const std::string& users_file) {
    if (users_file.empty()) {
        digits_ = hex(hvd::detail::new_secret());
        path_ = new_path();
        is_temporary_ = true;
        remover_ = start_remover(path_);  // before there is a file
        write_file(path_, digits_);
        return;
    }
    path_ = absolute(users_file);
    try {
        digits_ = hex(hvd::detail::secret_from_file(users_file.c_str()));
    } catch (const hvd::error& error) {
        throw usage_failure(std::string("--secret-file: ") + error.what());
    }
}

job_secret::~job_secret() {
    if (!is_temporary_) return;
    ::unlink(path_.c_str());
    remover_.input.close();
    reap(remover_.id);
}

}  // namespace hvdrun
