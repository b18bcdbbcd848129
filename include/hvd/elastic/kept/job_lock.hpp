// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/clock.hpp"
#include "../../train/checkpoint/atomic_file.hpp"

namespace hvd::inline v0::detail {

// Other users may write in the directory of a state, as in /tmp. A link there leads to a file that
// is not meant, and a file of theirs is no state of this job. @throws checkpoint_error
inline void require_own(const std::string& path, const file_descriptor& file) {
    struct stat status;
    if (file.get() < 0 && errno == ELOOP) refuse_file(path, "is a link, which is not followed");
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0) return;  // the caller tells
    if (status.st_uid != ::geteuid()) refuse_file(path, "belongs to another user");
    if (S_ISREG(status.st_mode) && status.st_nlink > 1)
        refuse_file(path, "has another name, which may be in use elsewhere");
}

// Keeps two jobs from writing to one directory. The process that writes locks a file, which has the
// number of its job. The system frees the lock when the process ends, and children of the process
// do not have it. Where the file system has no locks, there is none.
class job_lock {
public:
    static constexpr std::int64_t patience = 3 * tuning::second;  // of a job that is started again

    explicit job_lock(std::string directory, file_place place)
        : directory_(std::move(directory)), place_(std::move(place)) {}

    // Another process of the same job may have the lock and be about to leave.
    // @throws checkpoint_error if another job has it
    void take(std::uint64_t job) {
        for (const time_point limit = now() + patience; file_.get() < 0;) {
            file_descriptor file(place_.folder, place_.name,
                                 O_RDWR | O_CREAT | O_NONBLOCK | O_NOFOLLOW);
            if (file.get() < 0 && errno != ELOOP) return;
            require_own(place_.path, file);
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

    const std::string directory_;
    const file_place place_;
    file_descriptor file_;
};

}  // namespace hvd::inline v0::detail
