/* record.c - writes and reads the options of a run that its checkpoints hold. */
#define _GNU_SOURCE
#include "record.h"

#include "environment.h"
#include "record_share.h"

#include <errno.h>
#include <lockstep/environment.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- writing ---- */

static void count_option(void *user, const char *name, const char *value)
{
    (void)name, (void)value;
    ++*(int *)user;
}

/* Options of train: plan, which counts the bytes of a record, has others too. */
static bool is_recorded(const char *name)
{
    const option *row = option_find(command_train.options, name);
    return row && !(row->flags & OPTION_UNRECORDED);
}

static void add_option(void *user, const char *name, const char *value)
{
    setup *s = user;
    if (!is_recorded(name)) return;
    s->record[s->config.record_count++] = (lk_record){name, value};
}

int record_make(setup *s, const char *name, const options *given)
{
    int count = 3;
    options_each(given, count_option, &count);
    if (!(s->record = calloc((size_t)count, sizeof *s->record))) {
        print_error(name, "out of memory");
        return EXIT_FAILED;
    }
    s->config.record = s->record;
    s->config.record_count = 0;
    if (!options_given(given, "model")) add_option(s, "model", options_text(given, "model"));
    if (!options_given(given, "data")) add_option(s, "data", s->data);
    options_each(given, add_option, s);
    bool chosen = strcmp(options_text(given, "loss"), "auto") == 0 && !s->transformer.used;
    if (chosen && options_given(given, "loss"))
        for (int i = 0; i < s->config.record_count; i++)
            if (strcmp(s->record[i].name, "loss") == 0) s->record[i].value = loss_name(s->loss);
    if (chosen && !options_given(given, "loss")) add_option(s, "loss", loss_name(s->loss));
    return 0;
}

/* ---- reading ---- */

typedef enum required {
    NOTHING,   /* --resume auto: a run that starts has no checkpoint yet */
    LOADABLE,  /* --load with --model and --data: anything that exists; loading reports what it lacks */
    PATH,      /* --load: also a file, or a directory with weights alone */
    CHECKPOINT /* --resume DIR */
} required;

static bool has_file(const char *directory, const char *name)
{
    char path[4096];
    return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path && access(path, R_OK) == 0;
}

/* Reads the description. It may be missing where no checkpoint is required: s->description stays NULL. */
static lk_status describe(setup *s, const char *directory, required what)
{
    struct stat info;
    bool        missing = stat(directory, &info) != 0;
    if (missing ? what == NOTHING || errno != ENOENT : !S_ISDIR(info.st_mode) && what != CHECKPOINT) return LK_OK;
    lk_status status = lk_checkpoint_describe(s->context, directory, &s->description);
    if (status != LK_ENOENT || missing || what == CHECKPOINT) return status;
    bool weights = has_file(directory, "model.safetensors") || has_file(directory, "model.safetensors.index.json");
    return what != PATH || weights ? LK_OK : status;
}

/* Train has the options and the fields of it, in memory of their own. */
static void forget_description(setup *s)
{
    lk_description_free(s->description);
    s->description = NULL;
    s->described = false;
}

static int read_options(setup *s, const char *name, const char *directory, required what)
{
    bool      first = !s->config.comm || lk_comm_rank(s->config.comm) == 0;
    lk_status status = record_share_options(s, name, first ? describe(s, directory, what) : LK_OK);
    if (status >= 0) return 0;
    return first ? report(name, s->context, status) : EXIT_USER_ERROR;
}

/* ---- applying it ---- */

const char *record_option(const setup *s, const char *name)
{
    for (size_t at = 0; at < s->record_bytes;) {
        const char *key = s->record_text + at, *value = key + strlen(key) + 1;
        if (strcmp(key, name) == 0) return value;
        at += strlen(key) + strlen(value) + 2;
    }
    return NULL;
}

static bool is_same_kind(const char *data, const char *recorded)
{
    size_t kind = strcspn(data, ":");
    return recorded && kind == strcspn(recorded, ":") && strncmp(data, recorded, kind) == 0;
}

/* Whether the user's own options make this one of the record meaningless. */
static bool is_replaced(const options *given, const char *name, const char *recorded_data)
{
    const option *row = option_find(command_train.options, name);
    if (!row || !row->of || !options_chosen(given, row->of)) return false;
    bool contents = (row->flags & OPTION_CONTENTS) && is_same_kind(options_text(given, "data"), recorded_data);
    return !contents;
}

/* The same, or the option's default. */
static const char *recorded_value(const setup *s, const options *given, const char *name)
{
    const char *found = record_option(s, name);
    if (found) return found;
    const option *row = option_find(given->table, name);
    return row ? row->value : NULL;
}

/* Ranks that this command started, and all but the first, do not repeat its notes. */
static bool is_quiet(void) { return lk_environment_get(NULL, "LOCKSTEP_STARTED_RANKS") || environment_rank() > 0; }

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A model of the user's that is not the recorded one. Of files the weights decide, which may fit although names
 * differ; a note names both for the case that they do not. They also decide where another program than `lockstep
 * train` made the record. */
static int check_model(const setup *s, const char *name, const options *given, const char *directory)
{
    if (!record_option(s, "model")) return 0;
    for (const option *row = command_train.options; row->name || row->doc; row++) {
        if (!row->name || !(row->flags & OPTION_FIXED) || !options_chosen(given, row->name)) continue;
        const char *recorded = recorded_value(s, given, row->name), *own = options_find(given, row->name);
        if (!recorded || !own || strcmp(recorded, own) == 0) continue;
        if (strchr(recorded, '/') || strchr(own, '/')) {
            if (strcmp(file_name(recorded), file_name(own)) != 0 && !is_quiet())
                print_note(name, "--%s %s, but %s was written with --%s %s: the shapes of the weights depend on it",
                           row->name, own, directory, row->name, recorded);
            continue;
        }
        print_error(name, "--%s %s: %s holds a different model (--%s %s); omit --%s, or name another directory",
                    row->name, own, directory, row->name, recorded, row->name);
        return EXIT_USER_ERROR;
    }
    return 0;
}

/* One result in every layout is a promise for the whole run. */
static void note_layout(const setup *s, const char *name, const options *given, const char *directory)
{
    static const char *const promised[] = {"reproducible", "leaves", "sum-part-minimum"};
    const char              *mode = recorded_value(s, given, promised[0]), *own = options_find(given, promised[0]);
    bool                     layout = (mode && strcmp(mode, "layout") == 0) || (own && strcmp(own, "layout") == 0);
    for (int i = 0; i < 3 && layout && !is_quiet(); i++) {
        const char *recorded = recorded_value(s, given, promised[i]);
        own = options_find(given, promised[i]);
        if (options_chosen(given, promised[i]) && recorded && own && strcmp(recorded, own) != 0)
            print_note(name,
                       "--%s %s, but %s was trained with --%s %s: the result will not match that of a complete run "
                       "with either value",
                       promised[i], own, directory, promised[i], recorded);
    }
}

/* How many ranks there are, and their mesh, are of the run that is resumed, not of another that loads its weights.
 * Those of the record are used by a process that starts the ranks, and kept by those that it started. */
static bool is_own(const char *name, bool resumes)
{
    const option *row = option_find(command_train.options, name); /* whose record it is */
    bool          ranks = strcmp(name, "ranks") == 0 || strcmp(name, "mesh") == 0;
    bool          started = (lk_environment_get(NULL, "WORLD_SIZE") || environment_rank() >= 0) &&
                   !lk_environment_get(NULL, "LOCKSTEP_STARTED_RANKS");
    return (row && (row->flags & OPTION_LOCAL)) || (ranks && (!resumes || started));
}

static int apply_options(setup *s, const char *name, options *given, const char *directory, bool resumes)
{
    char        list[1024] = "", where[128];
    const char *data = record_option(s, "data");
    size_t      used = 0;
    for (size_t at = 0; at < s->record_bytes;) {
        const char *key = s->record_text + at, *value = key + strlen(key) + 1;
        at += strlen(key) + strlen(value) + 2;
        if (is_own(key, resumes) || !options_known(given, key) || options_chosen(given, key) ||
            is_replaced(given, key, data))
            continue;
        snprintf(where, sizeof where, "the record of the checkpoint: --%.60s", key);
        if (!options_set(given, key, value, where)) {
            print_error(name, "%s: %s; give --%s explicitly", directory, given->error, key);
            return EXIT_USER_ERROR;
        }
        if (used + 1 < sizeof list) {
            list[used++] = ' ';
            used += options_typed(given->table, key, value, list + used, sizeof list - used);
        }
    }
    if (list[0] && !is_quiet())
        print_note(name, "options from the record of %s:%s%s", directory, list, used >= sizeof list ? " …" : "");
    return 0;
}

static int read_record(setup *s, const char *name, options *given, const char *directory, required what)
{
    bool resumes = what == NOTHING || what == CHECKPOINT;
    int  code = read_options(s, name, directory, what);
    s->checkpoint = directory;
    if (code == 0) code = check_model(s, name, given, directory);
    if (code == 0 && resumes) note_layout(s, name, given, directory);
    if (code == 0) code = apply_options(s, name, given, directory, resumes);
    if (code == 0 && s->description && !record_option(s, "model") && !options_given(given, "model") && !is_quiet())
        print_note(name,
                   "%s has no record of its model and data: using --model %s; if that is wrong, set --model and --data",
                   directory, options_text(given, "model"));
    return code;
}

int record_read(setup *s, const char *name, options *given, const char *directory)
{
    bool told = options_chosen(given, "model") && options_chosen(given, "data");
    int  code = read_record(s, name, given, directory, told ? LOADABLE : PATH);
    if (code != 0) return code;
    lk_status status = record_share_fields(s);
    if (status >= 0) status = record_share_normalisation(s);
    return status < 0 ? report(name, s->context, status) : 0;
}

/* The directory of a file of weights, if it is that of a checkpoint; "": it is not. */
static void find_checkpoint_of(const char *path, char *directory, size_t size)
{
    const char *slash = strrchr(path, '/');
    int         length = slash ? (int)(slash - path) : 1;
    struct stat info;
    bool        file = stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
    bool        fits = snprintf(directory, size, "%.*s", length ? length : 1, slash ? path : ".") < (int)size;
    if (!file || !fits || !has_file(directory, "state.json")) directory[0] = 0;
}

int record_require(const setup *s, const char *name, const options *given, const char *path)
{
    char directory[4096], hint[4200] = "";
    bool model = !options_given(given, "model"), data = !options_given(given, "data");
    if (s->described || (!model && !data)) return 0;
    find_checkpoint_of(path, directory, sizeof directory);
    if (directory[0]) snprintf(hint, sizeof hint, "; use --load %s, the checkpoint, which records both", directory);
    print_error(name, "--load %s contains only weights: %s missing%s", path,
                !data    ? "--model is"
                : !model ? "--data is"
                         : "--model and --data are",
                hint);
    return EXIT_USER_ERROR;
}

const char *record_directory(const options *given)
{
    const char *resume = options_text(given, "resume");
    return resume && strcmp(resume, "auto") == 0 ? options_text(given, "save") : resume;
}

int record_resume(setup *s, const char *name, options *given)
{
    const char *directory = record_directory(given);
    bool        automatic = directory && strcmp(options_text(given, "resume"), "auto") == 0;
    int         code = directory ? read_record(s, name, given, directory, automatic ? NOTHING : CHECKPOINT) : 0;
    forget_description(s);
    return code;
}

int record_fields(setup *s, const char *name, const options *given)
{
    const char *directory = record_directory(given);
    if (!directory) return 0;
    if (!s->config.comm || lk_comm_rank(s->config.comm) == 0)
        (void)describe(s, directory, NOTHING); /* damaged or missing: resuming says so */
    lk_status status = record_share_fields(s);
    forget_description(s);
    return status < 0 ? report(name, s->context, status) : 0;
}

int record_check(setup *s, const char *name, const options *given)
{
    /* A language model reads windows of any length that its weights allow. */
    bool      windows = s->transformer.used && s->transformer.config.kind != LK_TRANSFORMER_ENCODER;
    bool      other = !s->description || (windows && options_chosen(given, "context"));
    lk_status status = other ? LK_OK : lk_description_check(s->description, s->test ? s->test : s->train);
    if (status < 0) return report(name, s->context, status);
    if (!s->normalised || options_chosen(given, "mean") || options_chosen(given, "std")) return 0;
    lk_transform *transform = &s->config.transform;
    transform->channels = s->normalisation.channels;
    memcpy(transform->mean, s->normalisation.mean, sizeof transform->mean);
    memcpy(transform->std, s->normalisation.std, sizeof transform->std);
    return 0;
}
