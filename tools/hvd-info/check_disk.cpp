// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The folder for files of a job: TMPDIR, or /tmp.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "checks.hpp"

namespace hvd_info {
namespace {

constexpr std::size_t tried_bytes = 1 << 20;

// Writes a file without leaving it. Returns 0, or the error of the system.
int try_to_write(const std::string& folder) {
    std::string name = folder + "/hvd-info-XXXXXX";
    const int file = ::mkstemp(name.data());
    if (file < 0) return errno;
    ::unlink(name.c_str());
    const std::vector<char> bytes(tried_bytes, 1);
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    const int code = n < 0 ? errno : std::size_t(n) < bytes.size() ? ENOSPC : 0;
    ::close(file);
    return code;
}

}  // namespace

check_report check_disk(const context&) {
    check_report report{"disk", {}, {}};
    const char* const chosen = std::getenv("TMPDIR");
    const std::string folder = chosen != nullptr && *chosen != 0 ? chosen : "/tmp";
    report.add("temporary files", folder);
    struct statvfs about{};
    if (::statvfs(folder.c_str(), &about) == 0)
        report.add("left there", bytes_text(double(about.f_bavail) * double(about.f_frsize)));
    const int code = try_to_write(folder);
    const std::string uses = ": hvdrun keeps a job's secret there, and Open MPI its sessions";
    if (code == ENOSPC || code == EDQUOT)
        report.wrong(folder + " is full" + uses,
                     "remove files there, or set TMPDIR to a folder with room");
    else if (code != 0)
        report.wrong(folder + " cannot be written (" + std::strerror(code) + ")" + uses,
                     "set TMPDIR to a folder of this host that you may write to, as " +
                         std::string(code == EROFS ? "/dev/shm" : "/var/tmp"));
    return report;
}

}  // namespace hvd_info
