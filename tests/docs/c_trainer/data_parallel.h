/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The hvd authors */

//! [header]
/* data_parallel.h: what the trainer in C includes. A function that returns an int returns 0, or 1
 * after an error, whose text is data_parallel_error(). */
#pragma once
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
typedef struct data_parallel data_parallel;
data_parallel* data_parallel_begin(void); /* NULL after an error */
int data_parallel_rank(const data_parallel*);
int data_parallel_size(const data_parallel*);
int data_parallel_broadcast(data_parallel*, float* parameters, size_t count);
int data_parallel_average(data_parallel*, float* gradients, size_t count);
void data_parallel_end(data_parallel*);
const char* data_parallel_error(void);
#ifdef __cplusplus
}
#endif
//! [header]
