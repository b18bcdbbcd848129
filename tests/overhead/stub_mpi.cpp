// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// An MPI of two ranks that only counts its calls. It has Open MPI's binary interface and is linked
// instead of it. It does not include <mpi.h>, whose handles are addresses of objects that are
// defined here.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" {

#define HANDLE(name) char name[1024]
HANDLE(ompi_mpi_comm_world);
HANDLE(ompi_mpi_comm_self);
HANDLE(ompi_mpi_comm_null);
HANDLE(ompi_mpi_group_null);
HANDLE(ompi_mpi_info_null);
HANDLE(ompi_mpi_errors_return);
HANDLE(ompi_request_null);
HANDLE(ompi_mpi_datatype_null);
HANDLE(ompi_mpi_byte);
HANDLE(ompi_mpi_char);
HANDLE(ompi_mpi_int);
HANDLE(ompi_mpi_float);
HANDLE(ompi_mpi_double);
HANDLE(ompi_mpi_int8_t);
HANDLE(ompi_mpi_int16_t);
HANDLE(ompi_mpi_int32_t);
HANDLE(ompi_mpi_int64_t);
HANDLE(ompi_mpi_uint8_t);
HANDLE(ompi_mpi_uint16_t);
HANDLE(ompi_mpi_uint32_t);
HANDLE(ompi_mpi_uint64_t);
HANDLE(ompi_mpi_c_bool);
HANDLE(ompi_mpi_c_float_complex);
HANDLE(ompi_mpi_c_double_complex);
HANDLE(ompi_mpi_op_null);
HANDLE(ompi_mpi_op_sum);
HANDLE(ompi_mpi_op_min);
HANDLE(ompi_mpi_op_max);
HANDLE(ompi_mpi_op_prod);
HANDLE(ompi_mpi_op_band);
HANDLE(ompi_mpi_op_bor);
HANDLE(ompi_mpi_op_bxor);
HANDLE(ompi_mpi_op_land);
HANDLE(ompi_mpi_op_lor);

std::size_t stub_mpi_calls = 0;
std::size_t stub_mpi_elements = 0;  // the sum of the counts passed

int counted(int count) {
    ++stub_mpi_calls;
    stub_mpi_elements += std::size_t(count);
    return 0;
}

// These calls set MPI up.
int MPI_Initialized(int* flag) { return *flag = 1, 0; }
int MPI_Finalized(int* flag) { return *flag = 0, 0; }
int MPI_Query_thread(int* level) { return *level = 3, 0; }
int MPI_Comm_test_inter(void*, int* flag) { return *flag = 0, 0; }
int MPI_Comm_idup(void* comm, void** copy, void**) { return *copy = comm, 0; }
int MPI_Iallreduce(const void* mine, void* all, int, void*, void*, void*, void**) {
    return *static_cast<int*>(all) = *static_cast<const int*>(mine), 0;
}
int MPI_Iallgather(const void* mine, int bytes, void*, void* all, int, void*, void*, void**) {
    for (int rank = 0; rank < 2; ++rank)
        std::memcpy(static_cast<char*>(all) + rank * bytes, mine, std::size_t(bytes));
    return 0;
}
int MPI_Ibcast(void*, int, void*, int, void*, void**) { return 0; }
int MPI_Test(void**, int* flag, void*) { return *flag = 1, 0; }
int MPI_Alloc_mem(std::intptr_t bytes, void*, void* memory) {
    return *static_cast<void**>(memory) = std::malloc(std::size_t(bytes)), 0;
}
int MPI_Free_mem(void* memory) { return std::free(memory), 0; }
int MPI_Comm_free(void**) { return 0; }
int MPI_Comm_rank(void*, int* rank) { return *rank = 0, 0; }
int MPI_Comm_size(void*, int* size) { return *size = 2, 0; }
int MPI_Comm_set_errhandler(void*, void*) { return 0; }
int MPI_Comm_split(void* comm, int, int, void** part) { return *part = comm, 0; }
int MPI_Comm_split_type(void* comm, int, int, void*, void** node) { return *node = comm, 0; }
int MPI_Comm_group(void*, void**) { return 0; }
int MPI_Group_incl(void*, int, const int*, void**) { return 0; }
int MPI_Group_translate_ranks(void*, int, const int*, void*, int* rank) { return *rank = 0, 0; }
int MPI_Group_free(void**) { return 0; }
int MPI_Comm_create_group(void* comm, void*, int, void** some) { return *some = comm, 0; }
int OMPI_C_MPI_COMM_NULL_COPY_FN(void*, int, void*, void*, void*, int* flag) {
    return *flag = 0, 0;
}
int MPI_Comm_create_keyval(void*, void*, int* key, void*) { return *key = 0, 0; }
int OMPI_C_MPI_COMM_NULL_DELETE_FN(void*, int, void*, void*) { return 0; }
int MPI_Comm_set_attr(void*, int, void*) { return 0; }
int MPI_Comm_get_attr(void*, int, void*, int* flag) { return *flag = 0, 0; }
int MPI_Comm_delete_attr(void*, int) { return 0; }
int MPI_Comm_free_keyval(int*) { return 0; }
int MPI_Iprobe(int, int, void*, int* flag, void*) { return *flag = 0, 0; }
int MPI_Recv(void*, int, void*, int, int, void*, void*) { return 0; }
int MPI_Error_string(int, char* text, int* length) { return *text = 0, *length = 0, 0; }

// These calls are counted.
int MPI_Allreduce(const void*, void*, int count, void*, void*, void*) { return counted(count); }
int MPI_Bcast(void*, int count, void*, int, void*) { return counted(count); }
int MPI_Reduce(const void*, void*, int count, void*, void*, int, void*) { return counted(count); }
int MPI_Scan(const void*, void*, int count, void*, void*, void*) { return counted(count); }
int MPI_Exscan(const void*, void*, int count, void*, void*, void*) { return counted(count); }
int MPI_Allgather(const void*, int count, void*, void*, int, void*, void*) {
    return counted(count);
}
int MPI_Barrier(void*) { return counted(0); }
int MPI_Reduce_scatter(const void*, void*, const int*, void*, void*, void*) { return counted(0); }
int MPI_Allgatherv(const void*, int count, void*, void*, const int*, const int*, void*, void*) {
    return counted(count);
}
int MPI_Gatherv(const void*, int count, void*, void*, const int*, const int*, void*, int, void*) {
    return counted(count);
}
int MPI_Alltoall(const void*, int count, void*, void*, int, void*, void*) { return counted(count); }
int MPI_Alltoallv(const void*, const int*, const int*, void*, void*, const int*, const int*, void*,
                  void*) {
    return counted(0);
}
int MPI_Isend(const void*, int count, void*, int, int, void*, void**) { return counted(count); }
int MPI_Irecv(void*, int count, void*, int, int, void*, void**) { return counted(count); }
int MPI_Testsome(int n, void**, int* done, int* indices, void*) {
    for (*done = 0; *done < n; ++*done) indices[*done] = *done;
    return 0;
}
int MPI_Testall(int, void**, int* flag, void*) { return *flag = 1, 0; }
int MPI_Get_library_version(char* text, int* length) { return text[0] = 0, *length = 0; }
int MPI_Request_get_status(void*, int* flag, void*) { return *flag = 1, 0; }
}
