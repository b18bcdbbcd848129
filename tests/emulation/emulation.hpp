// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The part of the CUDA runtime and of NCCL that hvd uses. It is linked instead of the real
// libraries, and compiled against their real headers. Ranks are threads of one process, or
// processes, or both. Each stream is a thread with random pauses (HVD_EMULATION_SEED repeats a
// run). A thread has default streams of its own: the legacy one waits for blocking streams of its
// device, and they for it. A copy from pageable memory returns before the data is there. Device
// memory is mapped twice. The host gets an address without access, so that it faults where it would
// with a GPU. The second mapping is for work that runs on "the device". The memory is poisoned with
// 0xff, which is NaN in every float.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace emulation {

// The k-th call of a function from now on, by any thread, does nothing and returns `code`. k = 1 is
// the next call.
void fail(const std::string& function, int k, int code);

// The process gets SIGKILL in the k-th call of a function from now on, before that does anything,
// or in the k-th "ncclDevKernel": the kernel of a collective that waits for the other ranks.
void kill_process(const std::string& function, int k);

// Makes the rank of this communicator dead: the network thread of all others notices it, and their
// state is ncclRemoteError for ever. Nobody notices a rank that only aborts.
void kill(ncclComm_t comm);

// Returns the configuration with which NCCL made it.
ncclConfig_t config_of(ncclComm_t comm);

// Returns the number of live communicators with this limit of blocks (maxCTAs).
int communicators_of(int most_blocks);

// Returns the number of windows that this rank has open.
std::size_t windows_of(ncclComm_t comm);

// Returns how many calls of NCCL had their input and their output in windows.
int symmetric_calls();

// Returns the differences between ranks of one communicator at the same position of their order of
// calls.
std::vector<std::string> disagreements();

// Sets the answer to "ncclGetVersion", "slices" or "discrete" from now on. It is 1 by default,
// which means the version of the header. A function that this version of NCCL lacks ends the
// program. If a GPU has several slices (MIG), as many devices in a row have its bus number, and
// differ in their UUIDs. A GPU that is not discrete says that it reads all memory of the host.
void answer(const std::string& question, int value);

// Each copy from the host to a device takes so long from now on, or 0: no longer than it must.
void slow_down(int milliseconds);

// The same for each ncclCommGetAsyncError.
void slow_states(int milliseconds);

// Makes one of the machine's GPUs, as number 0, the only one that this process sees; -1: all.
void see_only(int device);

// Returns how often a function was called.
int calls_of(const std::string& function);

// Returns the largest number of devices of which one thread has used, and so made, the context.
int most_devices_of_a_thread();

// Streams that a process makes from now on share so many queues of each device, whose work runs in
// the order in which it was given; 0: each stream has its own. It is HVD_EMULATION_QUEUES, or 0.
void share_queues(int count);

// From now on a call that waits for a device (one that frees, pins or loads, and at random one that
// allocates) keeps the other threads of its process out of CUDA meanwhile. It is
// HVD_EMULATION_LOCKS, or false.
void lock_contexts(bool are_locked);

// From now on a launch returns when its kernel is done, except into a graph. It is
// CUDA_LAUNCH_BLOCKING, or false.
void block_launches(bool are_blocking);

// A kernel has done harm: every call of CUDA returns this code from now on, as long as the program
// runs, or until reset().
void corrupt(int code);
bool is_corrupted();

// Makes the devices forget hvd's kernels. The first launch of a kernel waits for all work of this
// process, if nothing has loaded the kernel before.
void unload_kernels();

// Clears faults, answers, disagreements and counts.
void reset();

// Returns the number of allocations, streams, events and communicators that have not been freed.
std::size_t live_objects();

// Returns the address at which the device sees `bytes` of memory at `address`. It ends the program
// if they do not lie in one allocation. Host memory is seen where it is.
std::byte* seen_by_device(const void* address, std::size_t bytes);

// The same for a kernel. It ends the program for memory of the host that CUDA does not know.
std::byte* seen_by_kernel(const void* address, std::size_t bytes);

// Launches a kernel: `run_block(block)` for each block, in a random order.
void launch(cudaStream_t stream, int blocks, std::function<void(int block)> run_block);
// The same for a kernel whose threads do not wait for each other. Several blocks run at a time.
void launch(cudaStream_t stream, int blocks, unsigned threads,
            std::function<void(int block, unsigned thread)> run_thread);

// Threads of one process share its legacy default streams. A thread has a process of its own until
// it joins that of another thread.
class process;
std::shared_ptr<process> process_of_this_thread();
void join_process(std::shared_ptr<process> other);

// The rest is for the parts of the emulation. faulted() returns the code with which the call must
// fail, or 0.
int faulted(const char* function);
// As faulted(), for a call that CUDA forbids during a capture. The capture becomes invalid then.
int unsafe(const char* function);
// The error for work that is enqueued on this stream, because of captures under way.
cudaError_t refused(cudaStream_t stream);
cudaError_t refused_in_capture(cudaStream_t stream);  // for a wait by the host
cudaStream_t resolved(cudaStream_t stream);           // the default streams of this thread
void use_context();                                   // of the current device
void forget_contexts();                               // which reset() does
int& last_error();                                    // of this thread, until cudaGetLastError
cudaError_t failed(cudaError_t code);                 // remembers an error as the last one
int device_of_this_thread();
int device_of(cudaStream_t stream);
bool allocate_on_device(void** pointer, std::size_t bytes);
bool free_on_device(void* pointer, bool waits);  // for the work of all streams
int answer_of(const std::string& question);
void wait_as_slow_copies_do();
void wait_as_slow_states_do();
int nccl_version();
void enqueue(cudaStream_t stream, std::function<void()> task);
// Each run of a captured task is made when its graph is launched.
using task_maker = std::function<std::function<void()>()>;
void enqueue_made(cudaStream_t stream, task_maker make);
bool launches_block();
// True once the work that the stream has now is done.
std::function<bool()> end_of_work(cudaStream_t stream);
void finish_all_work();  // of this process's streams, as freeing memory does
bool contexts_are_locked();
void pass_context(const std::shared_ptr<process>& of);
void pass_context();  // waits while another thread of this process keeps its context
bool is_capturing(cudaStream_t stream);
unsigned random_number();
[[noreturn]] void die(const std::string& why);
void count_object(int change);

}  // namespace emulation
