/* train/record.h - the description of a run in its checkpoints: the caller's options, the fields of its samples with
 * their classes, the normalisation, and the mesh of its ranks. */
#ifndef LK__RECORD_H
#define LK__RECORD_H

#include "base/base.h"
#include "base/json.h"

#include <lockstep/trainer.h>

/* Writes the record of a run as a JSON object; returns its bytes, also past `size`, which do not depend on
 * `fingerprint`, the fingerprint of the training set (lk__dataset_fingerprint). */
size_t lk__record_write(const lk_trainer_config *config, uint64_t fingerprint, char *out, size_t size);

/* A record that was read. */
typedef struct lk__record {
    lk_context  *context;
    char        *strings; /* the text of all others */
    size_t       strings_bytes, strings_used;
    lk_record   *options;
    size_t       options_count, options_room;
    lk_field     fields[LK_MAX_FIELDS];
    int          fields_count;
    const char **names; /* of the classes of all fields */
    size_t       names_count, names_used;
    bool         normalised; /* mean and std of transform are set */
    lk_transform transform;
    int64_t      samples;     /* of the training set; 0: not known */
    uint64_t     fingerprint; /* of it; 0: not known */
    const char  *mesh;        /* of the ranks that wrote it; NULL: not known */
} lk__record;

/* LK_EFORMAT if it is not a record; `path` starts the message. Free it in either case. */
lk_status lk__record_read(lk_context *context, const char *path, const lk__json *object, lk__record *record);
void      lk__record_free(lk__record *record);

#endif
