/* options.c - the options of training as ranks compare them, from the lists in lockstep/trainer.h, and what each
 * field of the config is. */
#include "train/options.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef enum storage { INT, INT64, UINT64, BOOL, DOUBLE, TEXT } storage;

/* A row of the lists; without a name: the end of one. */
typedef struct row {
    const char *name;
    size_t      offset, count; /* of an array */
    storage     type;
    unsigned    traits;
} row;

#define OF(field) ((lk_trainer_config *)0)->field
#define STORAGE(field)                                                                                                 \
    _Generic(OF(field),                                                                                                \
        int: INT,                                                                                                      \
        int64_t: INT64,                                                                                                \
        uint64_t: UINT64,                                                                                              \
        bool: BOOL,                                                                                                    \
        double: DOUBLE,                                                                                                \
        double *: DOUBLE,                                                                                              \
        const char *: TEXT)
#define ROW(field, name, count, traits) {name, offsetof(lk_trainer_config, field), count, STORAGE(field), traits},
#define ROW_INTEGER(field, name, argument, value, low, high, traits, of, doc) ROW(field, name, 1, traits)
#define ROW_NUMBER(field, name, argument, value, low, high, traits, of, doc) ROW(field, name, 1, traits)
#define ROW_NUMBERS(field, name, argument, low, high, traits, of, doc)                                                 \
    ROW(field, name, sizeof OF(field) / sizeof *OF(field), traits)
#define ROW_FLAG(field, name, traits, of, doc) ROW(field, name, 1, traits)
#define ROW_TEXT(field, name, argument, traits, of, doc) ROW(field, name, 1, traits)
#define NOTHING(name)
#define LIST_END(name) {NULL, 0, 0, INT, 0},

static const row rows[] = {
    LK_TRAINER_OPTIONS(NOTHING, LIST_END, ROW_INTEGER, ROW_NUMBER, ROW_NUMBERS, ROW_FLAG, ROW_TEXT)};
enum { ROWS = sizeof rows / sizeof *rows };

static int print_value(const lk_trainer_config *config, const row *r, size_t i, char *out, size_t size)
{
    const char *at = (const char *)config + r->offset;
    switch (r->type) {
    case INT: return snprintf(out, size, " %d", ((const int *)(const void *)at)[i]);
    case INT64: return snprintf(out, size, " %lld", (long long)((const int64_t *)(const void *)at)[i]);
    case UINT64: return snprintf(out, size, " %llu", (unsigned long long)((const uint64_t *)(const void *)at)[i]);
    case BOOL: return snprintf(out, size, " %d", ((const bool *)(const void *)at)[i]);
    case DOUBLE: return snprintf(out, size, " %.17g", ((const double *)(const void *)at)[i]);
    case TEXT: return snprintf(out, size, " %d", ((const char *const *)(const void *)at)[i] != NULL);
    }
    return 0;
}

bool lk__train_options_print(const lk_trainer_config *config, int line, char *out, size_t size)
{
    size_t     used = 0;
    const row *r = rows, *end = rows + ROWS;
    for (; line > 0 && r < end; r++) line -= !r->name;
    out[0] = 0;
    if (r == end) return false;
    for (; r->name; r++) {
        if (!(r->traits & LK_OPTION_EQUAL)) continue;
        if (used < size) used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", r->name);
        for (size_t i = 0; i < r->count && used < size; i++)
            used += (size_t)print_value(config, r, i, out + used, size - used);
    }
    for (char *c = out; *c; c++)
        if (*c == '-' && c > out && c[-1] >= 'a' && c[-1] <= 'z' && c[1] >= 'a' && c[1] <= 'z') *c = ' ';
    return true;
}

/* ---- all fields ---- */

#define FIELD(use, field) {#field, offsetof(lk_trainer_config, field), sizeof OF(field), LK__FIELD_##use}
#define FIELD_INTEGER(field, name, argument, value, low, high, traits, of, doc) FIELD(OPTION, field),
#define FIELD_NUMBER(field, name, argument, value, low, high, traits, of, doc) FIELD(OPTION, field),
#define FIELD_NUMBERS(field, name, argument, low, high, traits, of, doc) FIELD(OPTION, field),
#define FIELD_FLAG(field, name, traits, of, doc) FIELD(OPTION, field),
#define FIELD_TEXT(field, name, argument, traits, of, doc) FIELD(OPTION, field),

const lk__train_field lk__train_fields[] = {
    LK_TRAINER_OPTIONS(NOTHING, NOTHING, FIELD_INTEGER, FIELD_NUMBER, FIELD_NUMBERS, FIELD_FLAG, FIELD_TEXT)
    /* The plan of the ranks is compared as a whole, and with it the model. */
    FIELD(COMPARED, train),
    FIELD(COMPARED, test),
    FIELD(COMPARED, dtype),
    FIELD(COMPARED, policy),
    FIELD(COMPARED, gradient_dtype),
    FIELD(COMPARED, matmul_precision),
    FIELD(COMPARED, batch),
    FIELD(COMPARED, optimizer),
    FIELD(COMPARED, schedule.kind),
    FIELD(COMPARED, schedule.total),
    FIELD(COMPARED, schedule.minimum),
    FIELD(COMPARED, seed),
    FIELD(COMPARED, transform.raw),
    FIELD(COMPARED, transform.channels),
    FIELD(COMPARED, transform.mean),
    FIELD(COMPARED, transform.std),
    FIELD(COMPARED, transform.resized_ratio),
    FIELD(COMPARED, transform.mixup_fields),
    FIELD(COMPARED, accumulate),
    FIELD(COMPARED, leaves),
    FIELD(COMPARED, reproducible_layout),
    FIELD(COMPARED, sync_batch_norm),
    FIELD(COMPARED, bucket_bytes),
    FIELD(COMPARED, keep_cores),
    FIELD(COMPARED, whole_batches),
    FIELD(COMPARED, mesh),
    FIELD(COMPARED, tactics),
    FIELD(COMPARED, stages),
    FIELD(COMPARED, pipeline_schedule),
    FIELD(COMPARED, schedule_callback),
    FIELD(COMPARED, schedule_user),
    /* Rank 0 decides what is resumed and writes the record and the files; the mode of the state is compared where it is
     * chosen. */
    FIELD(LOCAL, size),
    FIELD(LOCAL, model),
    FIELD(LOCAL, model_with),
    FIELD(LOCAL, loss),
    FIELD(LOCAL, model_user),
    FIELD(LOCAL, workers),
    FIELD(LOCAL, resume),
    FIELD(LOCAL, resume_from),
    FIELD(LOCAL, comm),
    FIELD(LOCAL, plan_world),
    FIELD(LOCAL, event),
    FIELD(LOCAL, event_user),
    FIELD(LOCAL, record),
    FIELD(LOCAL, record_count),
    FIELD(LOCAL, files),
    FIELD(LOCAL, files_count),
    FIELD(LOCAL, unused),
    FIELD(LOCAL, reserved),
    FIELD(LOCAL, data_on_device),
    FIELD(LOCAL, state),
    FIELD(LOCAL, plan_hosts),
    FIELD(LOCAL, schedule.reserved),
    FIELD(LOCAL, transform.size),
    FIELD(LOCAL, transform.reserved),
};
const size_t lk__train_fields_count = sizeof lk__train_fields / sizeof *lk__train_fields;
