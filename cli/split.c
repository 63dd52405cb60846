/* split.c - which samples of the data `eval` and `predict` read. Files that the user names are read whole, unless
 * they have a test set of their own; the data of the record keep what training held out. */
#include "split.h"

#include "environment.h"
#include "record.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the data of training ---- */

/* The first path of "KIND:PATH,PATH", which is that of training; false: it has none. */
static bool first_path(const char *data, char path[4096])
{
    const char *colon = strchr(data, ':');
    if (!colon) return false;
    snprintf(path, 4096, "%.*s", (int)strcspn(colon + 1, ","), colon + 1);
    return path[0] != 0;
}

/* Whether both are the same file or directory, whatever they are called. */
static bool same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

/* Whether s->data names what the model was trained on: the recorded data, or of them the file or the folder for
 * training. */
static bool is_training_data(const setup *s)
{
    const char *recorded = record_option(s, "data");
    char        own[4096], theirs[4096], train[4096 + 8];
    if (!recorded) return false;
    if (strcmp(recorded, s->data) == 0) return true;
    if (strncmp(recorded, s->data, strcspn(recorded, ":") + 1) != 0) return false;
    if (!first_path(s->data, own) || !first_path(recorded, theirs)) return false;
    snprintf(train, sizeof train, "%s/train", theirs);
    return same_file(own, theirs) || (data_has(recorded, LK_DATA_SUBFOLDERS) && same_file(own, train));
}

/* Whether training left out samples of the recorded data. */
static bool held_out(const setup *s)
{
    const char *recorded = record_option(s, "data"), *holdout = record_option(s, "holdout");
    if (holdout) return atof(holdout) > 0;
    const lk_data_format *format = recorded ? lk_data_format_find(recorded) : NULL;
    return format && format->holdout > 0 && !strchr(recorded, ',');
}

/* ---- opening ---- */

static lk_status open_part(setup *s, lk_split part, bool probe)
{
    lk_open_options options = s->open_options;
    bool            text = s->transformer.used && s->transformer.config.kind != LK_TRANSFORMER_ENCODER;
    if (text && options.stride == 0) options.stride = options.context; /* also of a training set each token once */
    s->split = part;
    return probe ? lk_dataset_probe(s->context, s->data, part, &options, &s->test)
                 : lk_dataset_open(s->context, s->data, part, &options, &s->test);
}

/* Whether samples of training were packed documents, of which none sees another. */
static bool is_packed(const setup *s)
{
    for (int i = 0; i < s->expected_count; i++)
        if (strcmp(s->expected[i].name, "positions") == 0) return true;
    return false;
}

/* A token file is one text by default. A model that was trained on documents is used with documents. */
static void use_recorded_packing(setup *s, const options *given)
{
    if (data_has(s->data, LK_DATA_TOKENIZED) && !options_given(given, "packing") && is_packed(s))
        s->open_options.packing = 1;
}

/* The test set that the data have by themselves; otherwise all samples. */
static lk_status open_named(setup *s, bool probe)
{
    s->open_options.holdout = -1;
    lk_status status = open_part(s, LK_SPLIT_TEST, probe);
    return status == LK_END ? open_part(s, LK_SPLIT_ALL, probe) : status;
}

lk_status split_open(setup *s, const options *given, bool any, bool probe)
{
    const char *part = options_known(given, "split") ? options_text(given, "split") : NULL;
    bool        named = options_chosen(given, "data"), divided = options_chosen(given, "holdout");
    if (named) use_recorded_packing(s, given);
    if (part && strcmp(part, "all") == 0) return open_part(s, LK_SPLIT_ALL, probe);
    if (!part && (divided ? s->open_options.holdout <= 0 : named)) return open_named(s, probe);
    const char *holdout = record_option(s, "holdout");
    if (named && !divided && holdout && is_training_data(s))
        s->open_options.holdout = atof(holdout) > 0 ? atof(holdout) : -1;
    if (part && strcmp(part, "train") == 0) return open_part(s, LK_SPLIT_TRAIN, probe);
    lk_status status = open_part(s, LK_SPLIT_TEST, probe);
    return status == LK_END && any && !part ? open_part(s, LK_SPLIT_ALL, probe) : status;
}

/* ---- what is said ---- */

int split_report_none(const setup *s, const char *name)
{
    print_error(name,
                "%s has no test set: --holdout 0.1 holds out a tenth of the samples, and --split all selects all "
                "samples",
                s->data);
    return EXIT_USER_ERROR;
}

void split_note_training(const setup *s, const char *name)
{
    if (s->split == LK_SPLIT_TEST || environment_rank() > 0 || !is_training_data(s)) return;
    bool part = held_out(s) && s->split == LK_SPLIT_ALL;
    print_note(name, "the model was trained on %s%s", s->data,
               part ? ", except for the part that was held out, which --split test selects" : "");
}

const char *split_name(const setup *s)
{
    return s->split == LK_SPLIT_TRAIN ? "train" : s->split == LK_SPLIT_TEST ? "test" : "all";
}

const char *split_set(const setup *s)
{
    static const char *const sets[] = {" of the training set", " of the test set", ""};
    return sets[s->split];
}

const char *split_describe(const setup *s, int64_t used, char *text, size_t size)
{
    long long all = lk_dataset_count(s->test);
    if (used < all)
        snprintf(text, size, "%lld of the %lld samples%s", (long long)used, all, split_set(s));
    else
        snprintf(text, size, "%s%lld sample%s%s", s->split == LK_SPLIT_ALL && all > 1 ? "all " : "", all,
                 all == 1 ? "" : "s", split_set(s));
    return text;
}
