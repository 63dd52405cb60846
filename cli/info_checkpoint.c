/* info_checkpoint.c - `lockstep info DIR`: describes a checkpoint. Names come from files, so they are printed through
 * the terminal's filter. */
#include "info_checkpoint.h"

#include "json.h"
#include "terminal.h"

#include <lockstep/checkpoint.h>
#include <string.h>

enum { NAMES_SHOWN = 20 };

/* "(3, 32, 32)" */
static const char *format_dims(int rank, const int64_t *dims, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "(");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)dims[i]);
    if (used < size) snprintf(out + used, size - used, ")");
    return out;
}

/* ---- text ---- */

static void print_writer(const lk_description *d)
{
    const char *date = lk_description_text(d, "date"), *user = lk_description_text(d, "user"),
               *host = lk_description_text(d, "host"), *version = lk_description_text(d, "version");
    terminal_print(stdout, "%-18s %s by %s on %s, Lockstep %s\n", "written", date ? date : "at an unknown time",
                   user ? user : "an unknown user", host ? host : "an unknown host", version ? version : "unknown");
}

static void print_options(const lk_description *d)
{
    const lk_record *pair;
    char             typed[4096];
    for (int i = 0; (pair = lk_description_option(d, i)); i++) {
        options_typed(command_train.options, pair->name, pair->value, typed, sizeof typed);
        terminal_print(stdout, "%-18s %s\n", i ? "" : "options", typed);
    }
    if (!lk_description_recorded(d))
        printf("%-18s none: written by an older version, or by a program without a trainer\n", "record");
}

static void print_names(const char *const *names, int64_t count)
{
    char shown[512];
    for (int64_t i = 0; names && i < count && i < NAMES_SHOWN; i++) {
        lk_printable(names[i], shown, sizeof shown); /* newlines, too */
        printf("%s%s", i ? ", " : ": ", shown);
    }
    if (names && count > NAMES_SHOWN) printf(", …");
}

static void print_field(const lk_field *field, bool first)
{
    char dims[128];
    terminal_print(stdout, "%-18s %s %s %s", first ? "samples" : "", field->name, lk_dtype_name(field->dtype),
                   format_dims(field->rank, field->dims, dims, sizeof dims));
    if (field->classes > 0) printf(", %d class%s", field->classes, field->classes == 1 ? "" : "es");
    print_names(field->class_names, field->classes);
    if (field->rank == 1) print_names(field->column_names, field->dims[0]);
    if (field->rank == 0 && field->column_names) terminal_print(stdout, "; column %s", field->column_names[0]);
    printf("\n");
}

static void print_normalisation(const lk_description *d)
{
    lk_transform t = LK_TRANSFORM_INIT;
    if (!lk_description_recorded(d)) return;
    printf("%-18s ", "normalisation");
    if (!lk_description_normalisation(d, &t)) {
        printf("none\n");
        return;
    }
    printf("mean");
    for (int i = 0; i < t.channels; i++) printf("%s%g", i ? "," : " ", t.mean[i]);
    printf(", std");
    for (int i = 0; i < t.channels; i++) printf("%s%g", i ? "," : " ", t.std[i]);
    printf("\n");
}

static void print_tensors(const lk_description *d)
{
    int64_t values = 0;
    char    dims[128];
    for (size_t i = 0; i < lk_description_tensors(d); i++) {
        lk_saved_tensor t = lk_description_tensor(d, i);
        int64_t         elements = 1;
        for (int k = 0; k < t.rank; k++) elements *= t.dims[k];
        values += elements;
        terminal_print(stdout, "%-18s %s %s %s\n", i ? "" : "tensors", t.name, lk_dtype_name(t.dtype),
                       format_dims(t.rank, t.dims, dims, sizeof dims));
    }
    if (lk_description_parameters(d) >= 0)
        printf("%-18s %lld, of %lld values in %zu tensors\n", "parameters", (long long)lk_description_parameters(d),
               (long long)values, lk_description_tensors(d));
    else
        printf("%-18s %lld in %zu tensors, buffers included\n", "values", (long long)values, lk_description_tensors(d));
}

static void print_text(const lk_description *d, bool intact)
{
    const lk_progress *p = lk_description_progress(d);
    const lk_field    *field;
    const char        *type = lk_description_text(d, "dtype"), *mesh = lk_description_text(d, "mesh");
    const char        *isa = lk_description_text(d, "isa");
    terminal_print(stdout, "%-18s %s\n", "checkpoint", lk_description_path(d));
    printf("%-18s %lld\n%-18s %lld, %lld of its samples used\n%-18s %llu\n", "step", (long long)p->step, "epoch",
           (long long)p->epoch + 1, (long long)p->position, "seed", (unsigned long long)p->seed);
    print_writer(d);
    if (type) printf("%-18s %s\n", "precision", type);
    if (isa) terminal_print(stdout, "%-18s %s\n", "instruction set", isa);
    if (mesh) terminal_print(stdout, "%-18s %s\n", "mesh", mesh);
    print_options(d);
    for (int i = 0; (field = lk_description_field(d, i)); i++) print_field(field, i == 0);
    print_normalisation(d);
    print_tensors(d);
    const char *file;
    for (int i = 0; (file = lk_description_file(d, i)); i++)
        printf("%-18s %s %s\n", i ? "" : "SHA-256", lk_description_text(d, file), file);
    printf("%-18s %s\n", "digests", intact ? "match the files" : "do not match");
}

/* ---- JSON ---- */

static void json_dims(json *j, const char *key, int rank, const int64_t *dims)
{
    json_open(j, key, '[');
    for (int i = 0; i < rank; i++) json_integer(j, NULL, dims[i]);
    json_close(j, ']');
}

static void json_names(json *j, const char *key, const char *const *names, int64_t count)
{
    if (!names) return;
    json_open(j, key, '[');
    for (int64_t i = 0; i < count; i++) json_text(j, NULL, names[i]);
    json_close(j, ']');
}

static void json_field(json *j, const lk_field *field)
{
    json_open(j, NULL, '{');
    json_text(j, "name", field->name);
    json_text(j, "dtype", lk_dtype_name(field->dtype));
    json_dims(j, "shape", field->rank, field->dims);
    if (field->classes > 0) json_integer(j, "classes", field->classes);
    json_names(j, "class_names", field->class_names, field->classes);
    if (field->rank == 1) json_names(j, "column_names", field->column_names, field->dims[0]);
    if (field->rank == 0 && field->column_names) json_text(j, "column_name", field->column_names[0]);
    json_close(j, '}');
}

static void json_numbers(json *j, const char *key, const double *numbers, int count)
{
    json_open(j, key, '[');
    for (int i = 0; i < count; i++) json_number(j, NULL, numbers[i]);
    json_close(j, ']');
}

static void json_record(json *j, const lk_description *d)
{
    const lk_record *pair;
    const lk_field  *field;
    lk_transform     t = LK_TRANSFORM_INIT;
    json_open(j, "options", '{');
    for (int i = 0; (pair = lk_description_option(d, i)); i++) json_text(j, pair->name, pair->value);
    json_close(j, '}');
    json_open(j, "fields", '[');
    for (int i = 0; (field = lk_description_field(d, i)); i++) json_field(j, field);
    json_close(j, ']');
    if (!lk_description_normalisation(d, &t)) {
        json_text(j, "normalisation", NULL);
        return;
    }
    json_open(j, "normalisation", '{');
    json_numbers(j, "mean", t.mean, t.channels);
    json_numbers(j, "std", t.std, t.channels);
    json_close(j, '}');
}

static void json_tensors(json *j, const lk_description *d)
{
    json_open(j, "tensors", '[');
    for (size_t i = 0; i < lk_description_tensors(d); i++) {
        lk_saved_tensor t = lk_description_tensor(d, i);
        json_open(j, NULL, '{');
        json_text(j, "name", t.name);
        json_text(j, "dtype", lk_dtype_name(t.dtype));
        json_dims(j, "shape", t.rank, t.dims);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void print_json(const lk_description *d, bool intact)
{
    static const char *const texts[] = {"version", "dtype", "isa", "host", "user", "date", "mesh"};
    const lk_progress       *p = lk_description_progress(d);
    char                     seed[32];
    json                     j = json_to(stdout);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)p->seed); /* 64 bits: too long for JSON's numbers */
    json_open(&j, NULL, '{');
    json_text(&j, "checkpoint", lk_description_path(d));
    json_integer(&j, "step", p->step);
    json_integer(&j, "epoch", p->epoch + 1);
    json_integer(&j, "position", p->position);
    json_text(&j, "seed", seed);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) json_text(&j, texts[i], lk_description_text(d, texts[i]));
    json_bool(&j, "recorded", lk_description_recorded(d));
    json_record(&j, d);
    if (lk_description_parameters(d) >= 0)
        json_integer(&j, "parameters", lk_description_parameters(d));
    else
        json_text(&j, "parameters", NULL);
    json_tensors(&j, d);
    json_open(&j, "sha256", '{');
    const char *file;
    for (int i = 0; (file = lk_description_file(d, i)); i++) json_text(&j, file, lk_description_text(d, file));
    json_close(&j, '}');
    json_bool(&j, "intact", intact);
    json_close(&j, '}');
    json_line(&j);
}

/* What describes a directory skips steps that are damaged. `newest` was there before. */
static int check_newest(const lk_description *d, const char *directory, int64_t newest)
{
    if (newest <= lk_description_progress(d)->step) return 0;
    print_error("info", "step %lld of %s is damaged: the newest intact step is shown", (long long)newest, directory);
    return EXIT_USER_ERROR;
}

int info_checkpoint(const char *directory, bool as_json)
{
    lk_context       *context;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_description   *d = NULL;
    config.threads = 1;
    lk_status status = lk_context_create(&config, &context);
    if (status < 0) return report("info", NULL, status);
    int     code = 0;
    int64_t newest = -1;
    if (lk_checkpoint_find(context, directory, &newest) < 0) newest = -1; /* that of one step: describing it says so */
    if ((status = lk_checkpoint_describe(context, directory, &d)) < 0) {
        code = report("info", context, status);
    } else {
        status = lk_description_verify(d);
        (as_json ? print_json : print_text)(d, status >= 0);
        code = status < 0 ? report("info", context, status) : check_newest(d, directory, newest);
    }
    lk_description_free(d);
    lk_context_free(context);
    return code;
}
