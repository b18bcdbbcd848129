/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The hvd authors */
#include <stdio.h>

//! [trainer]
#include "data_parallel.h"

int main(void) {
    float w[2] = {0, 0}, gradient[2];
    data_parallel* all = data_parallel_begin();
    if (!all || data_parallel_broadcast(all, w, 2)) return fputs(data_parallel_error(), stderr), 1;
    for (int step = 0; step < 400; ++step) {
        const float x = (float)(data_parallel_rank(all) + 1); /* this rank's sample */
        const float error = w[0] + w[1] * x - (1 + 3 * x);
        gradient[0] = 2 * error;
        gradient[1] = 2 * error * x;
        if (data_parallel_average(all, gradient, 2)) return fputs(data_parallel_error(), stderr), 1;
        for (int i = 0; i < 2; ++i) w[i] -= 0.1f * gradient[i];
    }
    if (data_parallel_rank(all) == 0) printf("y = %.2f + %.2f x\n", w[0], w[1]);
    data_parallel_end(all);
}
//! [trainer]
