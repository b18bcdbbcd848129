// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The part of the CUDA runtime and of NCCL that hvd uses, linked instead of the real libraries and
// compiled against their real headers. Ranks are threads of one process, or without NCCL processes;
// each stream is a thread whose pauses are random (HVD_EMULATION_SEED repeats a run). Device memory
// is mapped twice: without access at the address that the host gets, so that the host faults where
// it would on a GPU, and a second time for what runs on "the device". It is poisoned with 0xff,
// which is NaN in every float.

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace emulation {

// The k-th call of a function from now on, by any thread, does nothing and returns `code`; 1 is the
// next.
void fail(const std::string& function, int k, int code);

// The rank of this communicator is dead: whoever waits for it gets ncclRemoteError.
void kill(ncclComm_t comm);

// What ranks of one communicator did differently at the same place of their order of calls.
std::vector<std::string> disagreements();

// What the device says of itself from now on: "cudaDevAttrIpcEventSupport",
// "cudaDeviceCanAccessPeer"; 1 unless it was told.
void answer(const std::string& question, int value);

// How often a function was called.
int calls_of(const std::string& function);

// No faults, no answers, no disagreements, counts from 0.
void reset();

// Allocations, streams, events and communicators that nobody has freed.
std::size_t live_objects();

// Where what runs on the device sees `bytes` of memory at `address`; ends the program if they do
// not lie in one allocation. Host memory is seen where it is.
std::byte* seen_by_device(const void* address, std::size_t bytes);

// A kernel launch: `body(block, thread)` for each of them, in a random order of blocks.
void launch(cudaStream_t stream, int blocks, int threads,
            std::function<void(int block, int thread)> body);

// For the parts of the emulation. The code that the call shall fail with, or 0.
int faulted(const char* function);
int answer_of(const std::string& question);
int open_of_another_process(pid_t process, int file);  // -1 where it is this one, as CUDA has it
void enqueue(cudaStream_t stream, std::function<void()> task);
void finish_all_work();  // of this rank's streams, as freeing memory does
bool is_capturing(cudaStream_t stream);
unsigned random_number();
[[noreturn]] void die(const std::string& why);
void count_object(int change);

}  // namespace emulation
