/* fingerprint.c - a hash that tells whether a data set has the same samples as before. Small data sets are read whole
 * and large ones in places only, because it must take little time compared with opening them. */
#include "data/dataset.h"

#include <string.h>

/* Bytes that are read: of samples in memory, and of those in files, which may be on slow disks. Beyond, FEW samples
 * are. */
static const double IN_MEMORY = 256e6, IN_FILES = 64e6;
enum { FEW = 256 };

uint64_t lk__fingerprint_add(uint64_t value, const void *data, size_t bytes)
{
    const uint64_t       multiplier = 0x9E3779B97F4A7C15u;
    const unsigned char *at = data;
    for (uint64_t word; bytes >= 8; at += 8, bytes -= 8) {
        memcpy(&word, at, 8);
        value = (value ^ word) * multiplier;
        value ^= value >> 29;
    }
    for (; bytes; at++, bytes--) value = (value ^ *at) * multiplier, value ^= value >> 29;
    return value;
}

/* Windows at every offset of a text overlap: those that begin where another ends have all of it. */
static int64_t window_step(const lk_dataset *d)
{
    const lk_field *label = lk_dataset_find(d, "label");
    int64_t         length = label && label->rank == 1 ? label->dims[0] : 1;
    return d->count > 2 * (d->text->tokens / length + 1) ? length : 1;
}

/* The distance between samples that are read; 0: the data set is not one to read here. */
static int64_t choose_step(const lk_dataset *d)
{
    double sample = 0;
    bool   columns = true, owned = true;
    for (int i = 0; i < d->fields_count; i++) {
        sample += (double)lk_field_bytes(&d->fields[i]);
        columns = columns && d->columns[i];
        owned = owned && d->owned[i];
    }
    if (d->count < 1 || (!columns && !d->text)) return 0; /* a user's callbacks may take long, or draw random numbers */
    double limit = owned ? IN_MEMORY : IN_FILES;
    if (sample * (double)d->count <= limit) return 1;
    if (d->text && 4.0 * (double)d->text->tokens <= limit) return window_step(d);
    return d->count / FEW > 1 ? d->count / FEW : 1;
}

lk_status lk__dataset_fingerprint(const lk_dataset *d, uint64_t *fingerprint)
{
    char        message[LK__DATASET_MESSAGE];
    const void *sample[LK_MAX_FIELDS];
    void       *room[LK_MAX_FIELDS] = {0};
    int64_t     step = d->fingerprint ? 0 : choose_step(d);
    size_t      bytes = lk__round_up(d->scratch, LK__ALIGN);
    *fingerprint = d->fingerprint ? d->fingerprint(d) : 0;
    if (step == 0) return LK_OK;
    for (int i = 0; i < d->fields_count; i++) bytes += lk__round_up(lk_field_bytes(&d->fields[i]), LK__ALIGN);
    char *memory = lk__alloc(d->context, LK_MEMORY_OTHER, bytes), *at = memory;
    if (!memory) return LK_ENOMEM;
    for (int i = 0; i < d->fields_count; i++) {
        room[i] = at;
        at += lk__round_up(lk_field_bytes(&d->fields[i]), LK__ALIGN);
    }
    uint64_t  value = lk__fingerprint_add(1, &d->count, sizeof d->count);
    lk_status status = LK_OK;
    for (int64_t i = 0, last = d->count - 1; status >= 0; i = i + step < last ? i + step : last) {
        status = lk__dataset_read(d, i, (lk__dataset_room){room, at}, sample, message);
        for (int k = 0; status >= 0 && k < d->fields_count; k++)
            value = lk__fingerprint_add(value, sample[k], lk_field_bytes(&d->fields[k]));
        if (i == last) break;
    }
    lk__free(d->context, LK_MEMORY_OTHER, memory, bytes);
    *fingerprint = status < 0 ? 0 : value ? value : 1; /* training reports a sample that cannot be read */
    return LK_OK;
}
