/* batch.c - rows of a batch. A worker's scratch holds, in this order: the buffers of the transform, the partner of a
 * mixed sample, samples that are converted, and what the data set itself needs to read one. */
#include "data/batch.h"

#include "data/augment/augment.h"

#include <string.h>

int lk__batch_fields(const lk_loader_config *c)
{
    return lk_dataset_fields(c->dataset) + (lk__transform_mixes(&c->transform) ? 2 : 0);
}

static lk__batch_conversion choose_conversion(const lk_loader_config *c, int i)
{
    if (i >= lk_dataset_fields(c->dataset)) return LK__BATCH_MIXED;
    lk_dtype in = lk_dataset_field(c->dataset, i)->dtype;
    if (i == 0 && lk__transform_used(c)) return LK__BATCH_TRANSFORMED;
    return in == LK_F32 && c->dtype == LK_F64 && !(i == 0 && c->transform.raw) ? LK__BATCH_WIDENED : LK__BATCH_COPIED;
}

lk_field lk__batch_field_of(const lk_loader_config *c, int i)
{
    lk__batch_conversion how = choose_conversion(c, i);
    bool                 mix = i > lk_dataset_fields(c->dataset);
    if (mix) return (lk_field){.name = "mix", .dtype = c->dtype};
    lk_field f = how == LK__BATCH_MIXED ? *lk_dataset_find(c->dataset, "label") : *lk_dataset_field(c->dataset, i);
    if (how == LK__BATCH_MIXED)
        f.name = "label_2";
    else if (how != LK__BATCH_COPIED)
        f.dtype = c->dtype;
    return f;
}

/* Whether the data set's `read` writes field i: it is not in memory. */
static bool is_read(const lk_dataset *d, int i) { return d->read && !d->columns[i]; }

static size_t sample_bytes(const lk_dataset *d, int i)
{
    return is_read(d, i) ? lk__round_up(lk_field_bytes(lk_dataset_field(d, i)), LK__ALIGN) : 0;
}

/* A sample is read into a worker's scratch where it is neither in memory nor written straight into the batch: its
 * bytes, or 0. */
static size_t field_scratch(const lk_loader_config *c, int i)
{
    lk__batch_conversion how = choose_conversion(c, i);
    return how == LK__BATCH_COPIED || how == LK__BATCH_MIXED ? 0 : sample_bytes(c->dataset, i);
}

/* For the partner of a mixed sample: its row of field 0, then its fields, where they are not in memory. */
static size_t partner_bytes(const lk_loader_config *c)
{
    lk_field input = lk__batch_field_of(c, 0);
    size_t   bytes = lk__round_up(lk_field_bytes(&input), LK__ALIGN);
    if (c->transform.mixup <= 0) return 0;
    for (int i = 0; i < lk_dataset_fields(c->dataset); i++) bytes += sample_bytes(c->dataset, i);
    return bytes;
}

size_t lk__batch_scratch(const lk_loader_config *c)
{
    size_t bytes = lk__transform_scratch(c) + partner_bytes(c) + lk__round_up(c->dataset->scratch, LK__ALIGN);
    for (int i = 0; i < lk_dataset_fields(c->dataset); i++) bytes += field_scratch(c, i);
    return bytes;
}

void lk__batch_init(lk__batch_maker *m, const lk_loader_config *c, void *table)
{
    *m = (lk__batch_maker){
        .config = c, .count = lk__batch_fields(c), .buffers = lk__transform_scratch(c), .partner = partner_bytes(c)};
    for (int i = 0; i < m->count; i++) {
        m->fields[i] = lk__batch_field_of(c, i);
        m->conversions[i] =
            (lk__batch_field){choose_conversion(c, i), lk_field_bytes(&m->fields[i]), field_scratch(c, i)};
        if (strcmp(m->fields[i].name, "label") == 0) m->label = i;
    }
    m->in_memory = m->count == lk_dataset_fields(c->dataset) && !c->dataset->read;
    for (int i = 0; i < lk_dataset_fields(c->dataset); i++) m->in_memory &= c->dataset->columns[i] != NULL;
    if (lk__transform_used(c)) lk__transform_init(&m->transform, c, table);
}

static void *row_of(const lk__batch_maker *m, void *const *fields, int field, int64_t row)
{
    return (char *)fields[field] + (size_t)row * m->conversions[field].row;
}

/* Where field i of the row is written. */
static void *field_of(const lk__batch_maker *m, const lk__batch_row *r, int i)
{
    return row_of(m, r->fields, i, r->row);
}

static void widen(const float *from, double *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) to[i] = (double)from[i];
}

/* Field i of the row's sample, as it is in a batch: written to `to`. */
static void convert_field(const lk__batch_maker *m, const lk__batch_row *r, int i, const void *sample, void *to)
{
    lk__transform_image image = {r->random, r->index, r->scratch};
    switch (m->conversions[i].how) {
    case LK__BATCH_COPIED:
        if (sample != to) memcpy(to, sample, m->conversions[i].row);
        break;
    case LK__BATCH_WIDENED: widen(sample, to, lk_field_elements(&m->fields[i])); break;
    case LK__BATCH_TRANSFORMED: lk__transform_apply(&m->transform, &image, sample, to); break;
    case LK__BATCH_MIXED: break;
    }
}

static void mix_rows(lk_dtype type, int64_t count, double mix, void *row, const void *other)
{
    float   narrow = (float)mix, *a = row;
    double *wide = row;
    if (type == LK_F32)
        for (int64_t i = 0; i < count; i++) a[i] = narrow * a[i] + (1 - narrow) * ((const float *)other)[i];
    else
        for (int64_t i = 0; i < count; i++) wide[i] = mix * wide[i] + (1 - mix) * ((const double *)other)[i];
}

/* Mixes the row of field 0 with that of another sample, and sets the row's second label to the other's. `rest`: of the
 * scratch, for the data set. */
static lk_status mix_with(const lk__batch_maker *m, const lk__batch_row *r, const lk__augment_mixup *drawn, void *rest)
{
    const lk_dataset *d = m->config->dataset;
    const void       *sample[LK_MAX_FIELDS];
    char             *room = r->scratch + m->buffers;
    void             *rooms[LK_MAX_FIELDS] = {0}, *other = room;
    lk__batch_row     partner = *r;
    partner.index = drawn->partner;
    room += lk__round_up(m->conversions[0].row, LK__ALIGN);
    for (int i = 0; i < lk_dataset_fields(d); room += sample_bytes(d, i++)) rooms[i] = room;
    lk_status status = lk__dataset_read(d, drawn->partner, (lk__dataset_room){rooms, rest}, sample, r->message);
    if (status < 0) return status;
    convert_field(m, &partner, 0, sample[0], other);
    mix_rows(m->fields[0].dtype, lk_field_elements(&m->fields[0]), drawn->mix, field_of(m, r, 0), other);
    *(int32_t *)field_of(m, r, lk_dataset_fields(d)) = *(const int32_t *)sample[m->label];
    return LK_OK;
}

/* Sets "label_2" and "mix". Without mixup a sample is its own partner. */
static lk_status mix_sample(const lk__batch_maker *m, const lk__batch_row *r, void *rest)
{
    const lk_loader_config *c = m->config;
    lk__augment_mixup       drawn = {r->index, 1};
    int                     second = lk_dataset_fields(c->dataset);
    void                   *mix = field_of(m, r, second + 1);
    *(int32_t *)field_of(m, r, second) = *(const int32_t *)field_of(m, r, m->label);
    if (c->transform.mixup > 0)
        drawn = lk__mixup_draw(c->seed, r->epoch, r->index, lk_dataset_count(c->dataset), c->transform.mixup);
    if (c->dtype == LK_F32)
        *(float *)mix = (float)drawn.mix;
    else
        *(double *)mix = drawn.mix;
    return drawn.partner != r->index ? mix_with(m, r, &drawn, rest) : LK_OK;
}

/* The usual case, with nothing that it does not need: for small samples it costs as much as their bytes. */
static lk_status put_from_memory(const lk__batch_maker *m, const lk__batch_row *r)
{
    const lk_dataset *d = m->config->dataset;
    size_t            stored = (size_t)lk__dataset_stored(d, r->index);
    for (int i = 0; i < m->count; i++) {
        const void *sample = d->columns[i] + stored * d->strides[i];
        void       *to = field_of(m, r, i);
        bool        scalar = d->fields[i].rank == 0;
        if (d->fields[i].classes && !(scalar && *(const uint32_t *)sample < (uint32_t)d->fields[i].classes)) {
            lk_status status = lk__dataset_check(d, r->index, i, sample, r->message);
            if (status < 0) return status;
        }
        if (m->conversions[i].how == LK__BATCH_COPIED && m->conversions[i].row == sizeof(int32_t))
            memcpy(to, sample, sizeof(int32_t)); /* a label */
        else
            convert_field(m, r, i, sample, to);
    }
    return LK_OK;
}

lk_status lk__batch_put(const lk__batch_maker *m, const lk__batch_row *r)
{
    const void *sample[LK_MAX_FIELDS];
    void       *room[LK_MAX_FIELDS];
    char       *rest = r->scratch + m->buffers + m->partner;
    int         count = lk_dataset_fields(m->config->dataset);
    if (m->in_memory) return put_from_memory(m, r);
    for (int i = 0; i < count; i++) { /* straight into the batch or, if it is converted, to the scratch */
        room[i] = m->conversions[i].scratch ? rest : field_of(m, r, i);
        rest += m->conversions[i].scratch;
    }
    lk_status status =
        lk__dataset_read(m->config->dataset, r->index, (lk__dataset_room){room, rest}, sample, r->message);
    if (status < 0) return status;
    for (int i = 0; i < count; i++) convert_field(m, r, i, sample[i], field_of(m, r, i));
    return m->count == count ? LK_OK : mix_sample(m, r, rest);
}

void lk__batch_clear(const lk__batch_maker *m, void *const *fields, int64_t count, int64_t capacity)
{
    for (int i = 0; i < m->count; i++)
        memset(row_of(m, fields, i, count), 0, (size_t)(capacity - count) * m->conversions[i].row);
}
