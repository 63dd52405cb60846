/* bench_device.h - `lockstep bench comm --device cuda`: collectives that the ranks' GPUs run by themselves. */
#ifndef CLI_BENCH_DEVICE_H
#define CLI_BENCH_DEVICE_H

#include <lockstep/collective.h>

typedef struct bench_device {
    lk_comm             *comm;
    const lk_collective *collective;
    const char          *memory; /* of --memory */
    bool                 json;
    bool                 has_head; /* the head was printed; false at first */
} bench_device;

/* Rank 0 prints a row with nccl-tests' columns, before the first one the table's head, or objects of JSON. */
lk_status bench_device_measure(bench_device *b, size_t bytes);
void      bench_device_legend(void);

/* Bytes on the bus per byte of the buffer, as in nccl-tests, which makes different numbers of ranks comparable. */
double bench_bus_factor(const lk_collective *collective, int ranks);

#endif
