// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/clock.hpp"
#include "../../train/checkpoint/atomic_file.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Keeps two jobs from writing to one directory. The process that writes locks a file, which has the
// number of its job. The system frees the lock when the process ends, and children of the process
// do not have it. Where the file system has no locks, there is none.
class job_lock {
public:
    static constexpr std::int64_t patience = 3 * tuning::second;  // of a job that is started again

    explicit job_lock(std::string directory, std::string path)
        : directory_(std::move(directory)), path_(std::move(path)) {}

    // Another process of the same job may have the lock and be about to leave.
    // @throws checkpoint_error if another job has it
    void take(std::uint64_t job) {
        for (const time_point limit = now() + patience; file_.get() < 0;) {
            file_descriptor file(path_, O_RDWR | O_CREAT);
            if (file.get() < 0) return;
            std::uint64_t other = 0;
            if (locks(file)) {
                if (::pwrite(file.get(), &job, sizeof job, 0) == sizeof job)
                    file_ = std::move(file);
                return;
            }
            if (errno != EACCES && errno != EAGAIN) return;
            if (::pread(file.get(), &other, sizeof other, 0) == sizeof other && other == job)
                return;
            if (now() > limit)
                refuse_file(directory_,
                            "is in use by another job, which runs on this host. Each "
                            "job needs a directory of its own");
            sleep_for(20 * tuning::millisecond);
        }
    }
    void release() { file_.close(); }

private:
    static bool locks(const file_descriptor& file) {
        struct flock whole{};
        whole.l_type = F_WRLCK;
        whole.l_whence = SEEK_SET;
        return ::fcntl(file.get(), F_SETLK, &whole) == 0;
    }

    const std::string directory_, path_;
    file_descriptor file_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
