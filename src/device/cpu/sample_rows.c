/* sample_rows.c - the rows of a batch from stored samples: found by id or by row, copied, converted from f32 to f64, or
 * transformed (device/sample_row.c). Rows run in parallel; bound by the bytes written. */
#include "device/batch.h"
#include "device/cpu/cpu.h"

typedef struct batch {
    const lk__kernel_call *call;
    const int64_t         *ids;
    lk__device_transform   transform;
    bool                   transformed; /* the first field */
    lk__random             random;
    int                    fields;
} batch;

/* One field of one row. */
static void write_field(const batch *b, int field, int64_t row)
{
    const lk__kernel_operand *from = &b->call->in[LK__ROWS_SAMPLES + field], *to = &b->call->out[LK__ROWS_OUT + field];
    int64_t                   n = lk__rows_elements(to), number = b->call->attrs->by_row ? row : b->ids[row];
    const char               *sample = (const char *)from->data + (size_t)(number * n) * lk_dtype_size(from->dtype);
    char                     *y = (char *)to->data + (size_t)(row * n) * lk_dtype_size(to->dtype);
    if (field == 0 && b->transformed)
        lk__row_transform(&b->transform, &b->random, b->ids[row], sample, y);
    else if (from->dtype == to->dtype)
        memcpy(y, sample, (size_t)n * lk_dtype_size(to->dtype));
    else
        for (int64_t i = 0; i < n; i++) ((double *)y)[i] = (double)((const float *)sample)[i];
}

static void write_row(void *argument, int64_t row, int worker)
{
    const batch *b = argument;
    (void)worker;
    for (int i = 0; i < b->fields; i++) write_field(b, i, row);
}

void KERNEL(sample_rows)(const lk__kernel_call *call)
{
    const lk__kernel_operand *headers = &call->in[LK__ROWS_HEADERS], *to = &call->out[LK__ROWS_HEADER];
    const int64_t            *slot = call->in[LK__ROWS_RING_SLOT].data;
    const char               *header = headers->data;
    int64_t                   rows = call->out[LK__ROWS_OUT].dims[0];
    batch                     b = {.call = call, .fields = call->outputs - LK__ROWS_OUT};
    if (slot) header += *slot % headers->dims[0] * headers->dims[1];
    const lk__kernel_step *step = (const lk__kernel_step *)(const void *)header;
    b.ids = (const int64_t *)(const void *)(header + LK__DEVICE_IDS);
    b.transformed = lk__rows_transform(call, &b.transform);
    b.random = lk__random_make(step->seed, LK__FOR_AUGMENT, (uint64_t)step->epoch);
    if (header != to->data) {
        memcpy(to->data, header, sizeof *step);
        memcpy((char *)to->data + LK__DEVICE_IDS, b.ids, (size_t)rows * sizeof *b.ids);
    }
    if (call->invalid) *call->invalid = (lk__kernel_invalid_id){.found = false};
    lk__pool_run(call->pool, rows, write_row, &b);
}
