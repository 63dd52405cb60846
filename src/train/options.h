/* train/options.h - the fields of lk_trainer_config as a table: those that are options, by the lists in
 * lockstep/trainer.h, and the others. */
#ifndef LK__TRAIN_OPTIONS_H
#define LK__TRAIN_OPTIONS_H

#include <lockstep/trainer.h>

typedef enum lk__train_field_use {
    LK__FIELD_OPTION,   /* of a list of options: ranks compare it if it has LK_OPTION_EQUAL */
    LK__FIELD_COMPARED, /* ranks compare it: compare_options.c describes it by hand */
    LK__FIELD_LOCAL     /* ranks may have different ones */
} lk__train_field_use;

typedef struct lk__train_field {
    const char         *name; /* of the option, or of the field */
    size_t              offset, size;
    lk__train_field_use use;
} lk__train_field;

/* Every field of lk_trainer_config is in the table once: test_trainer_options.c. */
extern const lk__train_field lk__train_fields[];
extern const size_t          lk__train_fields_count;

/* The options of list `line` that must be equal on all ranks, as "epochs 3, steps 12"; "" where it has none. False:
 * past the last list. */
bool lk__train_options_print(const lk_trainer_config *config, int line, char *out, size_t size);

#endif
