/* data/gather.h - batches that a device makes itself (device/batch.h): which batches it can make, and what it needs in
 * its memory: the samples of the whole set, or the table with which it converts bytes. */
#ifndef LK__GATHER_H
#define LK__GATHER_H

#include "data/dataset.h"
#include "device/batch.h"
#include "device/device.h"

/* Why the device cannot make a loader's batches from the whole set in its memory: a clause; NULL: it can. config is
 * valid. */
const char *lk__gather_refused(lk__device *device, const lk_loader_config *config);
/* Whether it can make them from samples that the host sends, and that is worth it: they are bytes, and become
 * floats. */
bool lk__gather_sends_bytes(lk__device *device, const lk_loader_config *config);
/* The loader whose batches hold field 0 as it is stored. */
lk_loader_config lk__gather_stored(const lk_loader_config *config);

/* What the device is told, without addresses. by_row: the host sends the samples of a batch; else they are there. */
void   lk__gather_describe(const lk_loader_config *config, bool by_row, lk__device_gather *gather);
size_t lk__gather_bytes(const lk_loader_config *config, bool by_row); /* of the device's memory: LK_MEMORY_DATA */

typedef struct lk__gather_memory {
    lk__device       *device;
    char             *memory; /* by field: all samples, one after the other; then the table */
    size_t            bytes;
    lk__device_gather gather;
} lk__gather_memory;

/* Copies what is needed to the device. LK_EINVAL: a class number is out of range. Free it also after a failure. */
lk_status lk__gather_create(lk__device *device, const lk_loader_config *config, bool by_row, lk__gather_memory *memory);
void      lk__gather_free(lk__gather_memory *memory);

/* Whether all numbers of these samples, which are in the host's memory, are finite. */
bool lk__gather_finite(const lk_dataset *dataset, const int64_t *indices, int64_t count);

#endif
