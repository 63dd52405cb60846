/* test_trainer_options.c - the table of options of training: no field of lk_trainer_config is forgotten by the
 * comparison of ranks. */
#include "check.h"
#include "train/options.h"

#include <stddef.h>

/* Padding, which the compiler leaves between two fields: from the end of one to the other. */
typedef struct hole {
    size_t begin, end;
} hole;
#define HOLE(field, next)                                                                                             \
    {offsetof(lk_trainer_config, field) + sizeof((lk_trainer_config *)0)->field, offsetof(lk_trainer_config, next)}
static const hole holes[] = {
    HOLE(resume, resume_from),
    HOLE(sync_batch_norm, bucket_bytes),
    HOLE(gradient_dtype, batch),
    HOLE(schedule.kind, schedule.warmup),
    HOLE(transform.raw, transform.channels),
    HOLE(transform.mixup_fields, transform.reserved),
    HOLE(workers, eval_every),
    HOLE(transform.crop_padding, transform.flip),
    HOLE(record_count, files),
};

static bool is_hole(size_t byte)
{
    for (size_t i = 0; i < sizeof holes / sizeof *holes; i++)
        if (byte >= holes[i].begin && byte < holes[i].end) return true;
    return false;
}

static void every_field_is_in_the_table_once(void)
{
    static unsigned char covered[sizeof(lk_trainer_config)];
    for (size_t i = 0; i < lk__train_fields_count; i++) {
        const lk__train_field *f = &lk__train_fields[i];
        REQUIRE(f->offset + f->size <= sizeof covered, "%s", f->name);
        for (size_t byte = f->offset; byte < f->offset + f->size; byte++)
            CHECK(!covered[byte]++, "%s overlaps another row at byte %zu", f->name, byte);
    }
    const char *before = "its beginning";
    for (size_t byte = 0; byte < sizeof covered; byte++) {
        for (size_t i = 0; i < lk__train_fields_count; i++)
            if (lk__train_fields[i].offset == byte) before = lk__train_fields[i].name;
        if (covered[byte] || is_hole(byte)) continue;
        CHECK(false,
              "lk_trainer_config has a field behind %s, at byte %zu, that is neither in a list of options in "
              "lockstep/trainer.h nor in the table of src/train/options.c: ranks would not compare it",
              before, byte);
        while (byte + 1 < sizeof covered && !covered[byte + 1] && !is_hole(byte + 1)) byte++;
    }
}

/* Changes a field of each kind; the line that has it changes, and no other. */
static void lines_show_options_that_must_be_equal(void)
{
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    char              text[640];
    int               lists = 0;
    config.epochs = 3;
    config.steps = -12; /* invalid, and printed as it is */
    CHECK(lk__train_options_print(&config, 0, text, sizeof text) && strcmp(text, "epochs 3, steps -12") == 0, "%s",
          text);
    config.transform.resized_crop[0] = 0.25;
    config.transform.resized_crop[1] = 1;
    config.save = "/a";
    config.keep = 7;
    bool crop = false, save = false;
    for (; lk__train_options_print(&config, lists, text, sizeof text); lists++) {
        crop |= strstr(text, "random resized crop 0.25 1, rotate 0") != NULL;
        save |= strcmp(text, "save 1, save every 0") == 0; /* how many are kept may differ */
    }
    CHECK(crop && save && lists >= 9, "%d lists", lists);
    char small[16];
    CHECK(lk__train_options_print(&config, 3, small, sizeof small) && strlen(small) == 15);
}

int main(void)
{
    RUN(every_field_is_in_the_table_once);
    RUN(lines_show_options_that_must_be_equal);
    return check_result();
}
