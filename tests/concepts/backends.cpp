// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <hvd/hvd.hpp>
#include <hvd/tcp.hpp>
#if __has_include(<nccl.h>)
#include <hvd/nccl.hpp>
#endif

namespace {

template <class B>
constexpr bool only_host = hvd::host_backend<B> && !hvd::device_backend<B> && hvd::backend<B>;
template <class B>
constexpr bool only_device = hvd::device_backend<B> && !hvd::host_backend<B> && hvd::backend<B>;

struct stranger {};
struct endpoint_of_nothing {
    using endpoint_type = stranger;
};
struct endpoint_with_state : hvd::threads {
    int state;
};

// Each lacks one of the things that a device backend has.
struct session {};
struct device_policy {
    using space_type = hvd::device;
    using session_type = session;
    template <class T, class Op>
    static constexpr bool reduces = false;
};
struct of_host_memory : device_policy {
    using space_type = hvd::host;
};
struct with_state : device_policy {
    int state;
};
struct without_session {
    using space_type = hvd::device;
    template <class T, class Op>
    [[maybe_unused]] static constexpr bool reduces = true;
};
struct without_reductions {
    using space_type = hvd::device;
    using session_type = session;
};

struct watcher {
    void on_begin(const hvd::event&) {}
    void on_end(const hvd::event&, bool) {}
};

}  // namespace

static_assert(only_host<hvd::threads> && only_host<hvd::checked<hvd::threads>> &&
              only_host<hvd::observed<hvd::threads, watcher>>);
static_assert(only_host<hvd::tcp> && only_host<hvd::checked<hvd::tcp>> &&
              hvd::splittable_endpoint<hvd::tcp::endpoint_type>);
static_assert(!hvd::backend<stranger> && !hvd::backend<int> && !hvd::backend<endpoint_of_nothing> &&
              !hvd::backend<endpoint_with_state>);
static_assert(only_device<device_policy>);
static_assert(!hvd::backend<of_host_memory> && !hvd::backend<with_state> &&
              !hvd::backend<without_session> && !hvd::backend<without_reductions>);
#if HVD_HAS_MPI
static_assert(only_host<hvd::mpi> && only_host<hvd::direct<hvd::mpi>> &&
              only_host<hvd::checked<hvd::mpi>> && only_host<hvd::checked<hvd::direct<hvd::mpi>>> &&
              only_host<hvd::observed<hvd::mpi, watcher>>);
#endif

#if __has_include(<nccl.h>)
template <class Host>
constexpr bool fits_devices =
    only_device<hvd::staged<Host>> && only_device<hvd::hierarchical<hvd::nccl, Host>> &&
    only_device<hvd::per_operation<hvd::nccl, hvd::staged<Host>, hvd::staged<Host>>> &&
    only_host<hvd::per_operation<Host, hvd::threads, Host>>;

static_assert(only_device<hvd::nccl>);
static_assert(fits_devices<hvd::threads>);
#if HVD_HAS_MPI
static_assert(fits_devices<hvd::mpi> && only_device<hvd::cuda_aware<hvd::mpi>>);
#endif

template <class B>
concept may_be_checked = requires { typename hvd::checked<B>; };
static_assert(may_be_checked<hvd::threads> && !may_be_checked<hvd::nccl>);
#endif
