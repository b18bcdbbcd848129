// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "../standard.hpp"

namespace hvd::inline v0::detail {

// Every threshold and every time constant of hvd, with its unit and the measurement behind it.
// Options, transports and tests read them from here. The file is in core/ and not in transport/,
// since the options, the clock and the kernels, which come before transport/, read it too. "The
// benchmarks page" is docs/benchmarks.md with docs/log; its machine is an AMD EPYC with 2 cores.
namespace tuning {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;
// It is the largest size where addresses have 32 bits.
constexpr std::size_t TiB = sizeof(std::size_t) > 4 ? 1024 * GiB : ~std::size_t(0);
constexpr std::int64_t microsecond = 1000, millisecond = 1000 * microsecond,
                       second = 1000 * millisecond;  // times are nanoseconds

// Bytes that processors pass to each other together. Memory of different ranks never shares a line.
// It is a property of the processors, not a choice.
constexpr std::size_t cache_line = 64;

// ---- inside a node ------------------------------------------------------------------------------

// Bytes of a window, through which tensors go in chunks, and the windows of each rank: a ring in
// shared memory, by which a rank runs ahead of the others. Measured in a program with nothing but
// such rings, on 2 cores of an AMD Zen 5, float, average: chunks of 64 KiB and 256 KiB in a ring of
// 1 MiB, and rings of 512 KiB, 1 MiB and 2 MiB, differ by less than 10 % from 64 KiB to 4 MiB, near
// (1 MiB: 21 to 25 GB/s, a line goes one way in 65 ns) and far (64 KiB and 256 KiB: 12 to 13 GB/s,
// 250 ns). A rank that comes back to the same memory sooner is slower.
constexpr std::size_t window_bytes = 256 * KiB;
constexpr std::size_t windows = 4;
constexpr std::size_t shared_memory_bytes = windows * window_bytes;

// The steps of a rank whose lines and headers stay in shared memory, and by how many a rank may be
// ahead of another one, since it leaves calls whose data it has. A failure of a call is found in
// the memory by all ranks as long as twice the second number is less than the first. Four ranks on
// 2 cores of an Intel Xeon, beside other work, took 1.4 to 2.4 times as long with 32 and 14 for
// calls with a root of 4 B to 2 KiB, a scatter 1.0 to 1.9; two ranks 1.0 to 1.2. Other numbers were
// not measured.
constexpr std::size_t steps_kept = 64, most_ahead = 30;
// Bytes of data that a rank leaves to the others and goes on, and the room for those of several
// steps. With counts they are 8 KiB for up to 64 ranks. Not measured.
constexpr std::size_t deposit_bytes = 8 * KiB + 512, deposits = 32;
// Bytes of all ranks that the root of a reduce reduces alone so. Not measured.
constexpr std::size_t most_by_root = 64 * KiB;

// Bytes from which a rank chooses how it writes into its windows. On 2 cores of an AMD Zen 5, 64
// KiB, GB/s of an allreduce with stores of AVX2, of `rep movsb`, and past the caches: near 17, 25
// and 8; far 5, 12 and 10. At 4 KiB: near 11, 13 and 4; far 3.5, 5 and 4. An AMD Zen 4 has 17, 17
// and 7 near, and 3, 3 and 10 far.
constexpr std::size_t least_store_choice = 2 * KiB;
// How often each way is tried. The least time counts, so that four are enough.
constexpr int store_trials = 4;
// Bytes after which the ways are tried again. The trials take about 2 % of the time.
constexpr std::size_t store_choice_holds = 64 * MiB;

// Bytes from which tensors that all ranks can reach stay where they lie. Below, copying is cheaper
// than waiting a second time until all ranks are done. The limit itself was not measured; the
// benchmarks page has tensors in an arena at 1.77 times the speed of MPI_Allreduce at 1 KiB, where
// they are copied, and at 6.14 times at 256 KiB.
constexpr std::size_t least_in_place = 4 * KiB;

// Bytes from which the ranks of a node, as processes, read each other's private tensors by the
// system (process_vm_readv), in one copy. Two ranks on an Intel Xeon, far cores, over the time of
// two copies through windows: allgather of 2 × 8, 16, 32 and 64 KiB 0.99, 0.84, 0.71 and 0.56,
// gather of 32 KiB and 64 KiB each 0.85 and 0.59. Where one rank gives all, twice the size:
// broadcast of 32, 64 and 128 KiB 1.24, 1.00 and 0.82, alltoall 1.13, 0.89 and 0.68. Four ranks on
// two cores gain in alltoall, gather and scatter (0.5 to 0.9 from 1 MiB on), and lose in allgather
// (1.3 to 1.8), which goes through windows there.
constexpr std::size_t least_private = 32 * KiB;

// Bytes, all ranks together, up to which more than two ranks each reduce the whole of a tensor: the
// work is repeated, and the ranks wait for each other once instead of twice. Not measured.
constexpr std::size_t most_by_all = 16 * KiB;
// The same limit if ranks outnumber the processors, so that waiting costs more. Not measured.
constexpr std::size_t most_by_all_crowded = 64 * KiB;

// Bytes up to which each of two ranks reduces the whole of a tensor: they wait for each other once
// instead of twice, and little more moves than by slices. It is no limit. Two processes on 2 cores,
// with about twenty other threads beside them, float, average, time by slices over that of the
// whole, medians of two runs: 4 KiB 1.63 and 1.70, 16 KiB 1.23 and 1.14, 64 KiB 1.03 and 1.19, 256
// KiB 0.98 and 0.98, 1 MiB 0.88 and 1.04, 4 MiB 0.85 and 0.83; 16 MiB and more differed by chance.
constexpr std::size_t most_by_two = TiB;

// The same limit for a 16-bit floating-point tensor, whose conversions cost more than waiting. From
// 16 MiB on, slices take 0.55 of the time of the same number of floats, and the whole on both ranks
// 0.61 (medians, benchmarks page). Smaller sizes were not measured.
constexpr std::size_t most_by_two_16_bit = 128 * KiB;

// ---- between nodes ------------------------------------------------------------------------------

// Bytes of a chunk of a reduction. One chunk crosses while the nodes reduce the next one. Between
// two hosts with cables of 1 Gbit/s, 4 MiB take 34.8 ms, where the cable needs 34 ms (benchmarks
// page). Other sizes were not measured.
constexpr std::size_t chunk_bytes = 256 * KiB;

// Bytes of a chunk where nothing is computed, so that a chunk only bounds what is under way at a
// time. Not measured.
constexpr std::size_t chunk_of_exchange = 1 * MiB;

// Bytes of data that leave a node with the headers of a call, all messages together. Two hosts of
// one rank with cables of 1 Gbit/s allreduce 16 KiB in 0.032 ms so, and MPI_Allreduce takes 0.066
// ms (benchmarks page). Other limits were not measured.
constexpr std::size_t most_carried = 16 * KiB;
// Bytes that go with the headers to any number of nodes: the message is still one packet of
// Ethernet. An exchange of two ranks took 11.6 microseconds with 1024 bytes and 17.3 with 1536.
constexpr std::size_t least_carried = 1 * KiB;

// Bytes up to which an allreduce crosses in one step, by slices. Measured on 2 and 3 hosts when
// slices were added; the figures were not kept.
constexpr std::size_t most_in_slices = 128 * KiB;

// Bytes up to which a broadcast goes straight to one rank of each node. Not measured.
constexpr std::size_t most_broadcast_whole = 64 * KiB;

// Bytes of one MPI message. Open MPI 4.1 sends messages of more than 64 KiB, its header included,
// over TCP in a way that leaves the wire empty half of the time: 4 MiB took 61 ms with
// MPI_Allreduce and 35 ms in these messages (benchmarks page).
constexpr std::size_t mpi_message_bytes = 60 * KiB;

// A message inside a node goes through two windows of this size, if the receiver can't reach the
// tensor of the sender. Both stay in the cache of the second level.
constexpr std::size_t message_window = 32 * KiB;
// MPI messages from one rank to another that are under way at a time, each in a buffer. Without
// buffers, and with all messages of a chunk begun at once, an allreduce of two ranks as two nodes
// on one host had 0.63 to 0.96 of the speed from 64 KiB to 16 MiB, and 1.04 at 1 KiB; over TCP on
// one host 0.79 to 1.08. Other numbers were not measured.
constexpr int messages_under_way = 8;
// Bytes of a frame of `tcp`: a message is cut into frames, between which a notice can go, and the
// rest of one is copied when a call is given up. Not measured.
constexpr std::size_t frame_bytes = 256 * KiB;
// Bytes that a rank of `tcp` reads ahead of what it has asked for, when it looks for a notice
// behind them. Not measured.
constexpr std::size_t read_ahead = 2 * MiB;
// Ranks that a rank of an engine negotiates with, beside the one above it. Not measured.
constexpr std::size_t engine_fanout = 8;
// Elements of one MPI_Allreduce. MPI counts with an int; this leaves room to spare. It is no choice
// of speed.
constexpr std::size_t mpi_largest_count = std::size_t(1) << 27;

// ---- waiting ------------------------------------------------------------------------------------

// Time for which a waiting thread spins before it first yields its processor, if it has one. 2
// ranks on 2 processors beside two endless loops, 16 MiB, two runs of each: 10.6 and 10.2 ms with
// 50 microseconds, 16.2 and 14.3 ms with 100.
constexpr std::int64_t spin_time = 50 * microsecond;
// Looks between two looks at the clock meanwhile: they take a microsecond, and the clock 25
// nanoseconds.
constexpr unsigned looks_per_time = 64;
// Time for which it then yields before it sleeps. A yield takes 0.5 microseconds where nobody else
// wants the processor. Other times were not measured.
constexpr std::int64_t yield_time = 300 * microsecond;
// A yield that takes longer gave the processor to a process of somebody else, which keeps it for
// some milliseconds. Other limits were not measured.
constexpr std::int64_t long_yield = 500 * microsecond;
// The same limit where ranks outnumber the processors, and compute while others yield. Not measured
// by itself.
constexpr std::int64_t long_yield_crowded = 2 * millisecond;
// Time for which that process is expected to stay, at first and at most: until then waiting threads
// sleep and do not yield. 16 MiB beside two endless loops, on 2 ranks 14.3 and 16.2 ms with the
// longest time, without it 21.8 and 48.7 ms; on 4 ranks 8.1 and 76 ms. Other times were not
// measured.
constexpr std::int64_t others_stay = 5 * millisecond, others_stay_longest = 100 * millisecond;
// Time between two reports of a waiting rank that it still waits. Not measured.
constexpr std::int64_t check_interval = 1 * millisecond;
// Time after which a waiting rank that nobody wakes sleeps between its looks. Not measured.
constexpr std::int64_t sleep_after = 20 * millisecond;
// Time of one such sleep. Not measured.
constexpr std::int64_t sleep_time = 50 * microsecond;

// Time in which the ranks of a new engine find each other, unless the communicator's timeout is
// longer. Not measured.
constexpr std::int64_t engine_start_timeout = 30 * second;

// Time after which a rank that waits without a timeout says for whom, unless an option or the
// environment says otherwise. Steps of training take less, and a person at a terminal waits as
// long before looking for a reason. Not measured.
constexpr std::int64_t waiting_notice = 10 * second;

// A rank that has waited for so long in a call writes into its record for whom.
constexpr std::int64_t record_missing_after = 300 * millisecond;

// Time after which an engine tells of a tensor that ranks wait for. Horovod has the same.
constexpr std::int64_t stall_warn = 60 * second;

// ---- giving up ----------------------------------------------------------------------------------

// Time for which calls are driven in which nothing goes on, where no thread drives them and a
// program submits a call or reports a gradient. 50 gradients of 2 MiB, reported in 250 ms, 2 ranks
// below MPI_THREAD_MULTIPLE beside other work, medians of 15 steps: step() then took 29 ms on one
// node without it, 0.0 with 200 and with 500 microseconds, and as two nodes 231, 69 and 0.0 ms.
constexpr std::int64_t least_patience = 20 * microsecond, most_patience = 500 * microsecond;

// Time that a destructor waits for calls under way, unless an option says
// otherwise. Not measured.
constexpr std::int64_t destructor_timeout = 2 * second;
// Time after which a rank of one node no longer waits for a process that may still reach for its
// tensors: the process may have been stopped. Not measured.
constexpr std::int64_t reach_patience = 1 * second;
// Time that a rank which gives up waits for the words of others, while two or more are silent. A
// rank that waits in a call looks for notices every millisecond, so it answers far sooner. Not
// measured.
constexpr std::int64_t answer_patience = 1 * second;
// Time in which a call that has begun to give up is over, beside busy processes too. Not measured.
constexpr std::int64_t time_to_give_up = reach_patience + answer_patience + 1 * second;
// Time between two looks for a notice meanwhile. Not measured.
constexpr std::int64_t notice_interval = 1 * millisecond;
// Time after which a host that acknowledges nothing is taken for gone by `tcp`. It gets three tries
// at least. Three hosts, five cables cut: all noticed it after 1.8 to 2.1 s.
constexpr std::int64_t host_patience = 1700 * millisecond;
// Time that the peers of a job that ends by an exception have to report it. Not measured.
constexpr std::int64_t abort_patience = 250 * millisecond;

// ---- arithmetic ---------------------------------------------------------------------------------

// Bytes from which hvd copies by its own loop. An AMD Zen 3 copies 64 KiB at 3 GB/s by glibc's `rep
// movsb` where the destination lies a little further into its page than the source, and at 34 GB/s
// by this loop. 2 KiB is where glibc begins to use `rep movsb`.
constexpr std::size_t own_copy_from = 2 * KiB;
// Bytes from which results that go to several places are stored past the caches. Measured on 2
// cores of an AMD Zen 3 with 32 MiB of third cache, a float sum of 2 inputs to 2 places, medians of
// 15 to 25 interleaved runs, GB/s without and with: 1 MiB 31.3 and 31.7, 4 MiB 18.0 and 26.3, 64
// MiB 16.3 and 21.0.
constexpr std::size_t streaming_from = 4 * MiB;
// Bytes that are reduced, updated or written at a time, so that they stay in the first cache. Not
// measured.
constexpr std::size_t cached_block = 8 * KiB;
// Bytes between what is reduced and what is fetched into the cache meanwhile, where the inputs were
// written by other processors. On 2 cores of an AMD Zen 5, GB/s of an allreduce (float, sum)
// without this, with 2 KiB, 4 KiB and 8 KiB: near 64 KiB 28, 31, 30.5 and 29, 256 KiB 30, 35, 34.5
// and 33; far 256 KiB 12, 12.6, 14.5 and 14.4, 4 MiB 11, 12.6, 15 and 14.3.
constexpr std::size_t fetched_ahead = 4 * KiB;
// Bytes of running results below which no level is chosen: AVX2 and AVX-512 have no vectors for so
// few. A property of the kernels, not a choice.
constexpr std::size_t least_vectorized = 64;
// Bytes of running results at a time if the compiler makes the vectors. Not measured.
constexpr std::size_t running_block = 4 * KiB;

// ---- devices ------------------------------------------------------------------------------------

// Bytes of a chunk of a staged tensor, for all ranks together. While one chunk is reduced, the next
// is copied to the host and the previous one to the device. Not measured.
constexpr std::size_t staged_chunk_bytes = 4 * MiB;
// Bytes of a device's cache line. Tensors of an arena share none, and vectors of the kernels are
// aligned. It is a property of the devices, not a choice.
constexpr std::size_t device_unit = 128;
// Operations of NCCL in one group. It takes 2048, and messages are counted for both directions.
constexpr std::size_t nccl_operations = 1024;
// The longest time between two agreements of ranks that NCCL joins. It begins with check_interval
// and doubles. A rank that failed tells the others after it at the latest. Not measured.
constexpr std::int64_t longest_join_round = 64 * millisecond;
// Tensors of fewer bytes are packed together by a plan for device tensors. Not measured.
constexpr std::size_t pack_below = 512 * KiB;

// ---- observing ----------------------------------------------------------------------------------

// Bytes of the events of a timeline that are not written yet; those for which there is no room are
// counted. Not measured.
constexpr std::size_t timeline_buffer_bytes = 4 * MiB;

// ---- training -----------------------------------------------------------------------------------

// Bytes of gradients that travel together. With 50 gradients of 100 MiB together, a step takes 1.03
// times as long as its communication alone (benchmarks page). Other sizes were not measured.
constexpr std::size_t bucket_bytes = 4 * MiB;
// Batches that a loader makes ahead: the next one, and one more for those that take longer. Not
// measured.
constexpr std::size_t batches_ahead = 2;

}  // namespace tuning
}  // namespace hvd::inline v0::detail
