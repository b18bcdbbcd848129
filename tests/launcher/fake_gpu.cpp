// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The parts of libcuda and libnccl that hvd-info opens. Variables of the test say what they answer.
#include <cstdio>
#include <cstdlib>

namespace {

int told(const char* variable, int otherwise) {
    const char* const value = std::getenv(variable);
    return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace

extern "C" {
int cuInit(unsigned);
int cuDriverGetVersion(int*);
int cuDeviceGetCount(int*);
int cuDeviceGet(int*, int);
int cuDeviceGetName(char*, int, int);
int cuDeviceGetPCIBusId(char*, int, int);
int cuDeviceCanAccessPeer(int*, int, int);
int ncclGetVersion(int*);

int cuInit(unsigned) { return told("HVD_TEST_CUDA_INIT", 0); }
int cuDriverGetVersion(int* version) {
    *version = told("HVD_TEST_CUDA_VERSION", 99000);
    return 0;
}
int cuDeviceGetCount(int* count) {
    *count = told("HVD_TEST_CUDA_DEVICES", 2);
    return 0;
}
int cuDeviceGet(int* device, int number) {
    *device = number;
    return 0;
}
int cuDeviceGetName(char* name, int bytes, int) {
    std::snprintf(name, std::size_t(bytes), "a fake GPU");
    return 0;
}
int cuDeviceGetPCIBusId(char* text, int bytes, int device) {
    std::snprintf(text, std::size_t(bytes), "0000:0%d:00.0", device);
    return 0;
}
int cuDeviceCanAccessPeer(int* can, int, int) {
    *can = told("HVD_TEST_CUDA_PEERS", 1);
    return 0;
}
int ncclGetVersion(int* version) {
    *version = told("HVD_TEST_NCCL_VERSION", 22809);
    return 0;
}
}
