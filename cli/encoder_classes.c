/* encoder_classes.c - reads the data of an encoder with the classes of its config.json. The order of names there is the
 * model's, not alphabetical, and labels may be numbers, as in data sets of Hugging Face. */
#include "encoder_classes.h"

#include "command.h"

#include <stdlib.h>
#include <string.h>

/* Whether they are more than transformers' names of classes that have none. */
static bool are_named(const lk_hf_labels *labels)
{
    char name[32];
    for (int64_t i = 0; i < lk_hf_labels_count(labels); i++) {
        snprintf(name, sizeof name, "LABEL_%lld", (long long)i);
        if (strcmp(lk_hf_labels_at(labels, i), name) != 0) return true;
    }
    return false;
}

/* The fields of samples with these classes. */
static int expect_classes(setup *s, const char *name, bool named)
{
    int64_t      count = lk_hf_labels_count(s->labels);
    size_t       fields = 3, bytes = fields * sizeof(lk_field) + (size_t)count * sizeof(char *);
    lk_field    *f = s->expected_fields = calloc(1, bytes);
    const char **names = f ? (const char **)(f + fields) : NULL;
    if (!f) {
        print_error(name, "out of memory");
        return EXIT_FAILED;
    }
    for (int64_t i = 0; i < count; i++) names[i] = lk_hf_labels_at(s->labels, i);
    f[0] = (lk_field){.name = "tokens", .dtype = LK_I32, .rank = 1, .dims = {s->transformer.length}};
    f[1] = (lk_field){.name = "length", .dtype = LK_I32};
    f[2] = (lk_field){.name = "label", .dtype = LK_I32, .classes = (int)count, .class_names = named ? names : NULL};
    s->expected = f;
    s->expected_count = (int)fields;
    return 0;
}

int encoder_classes_set(setup *s, const char *name, const options *given, bool any)
{
    const transformer *t = &s->transformer;
    bool               labelled = data_has(s->data, LK_DATA_TEXT) && data_uses(s->data, "label");
    if (!t->used || t->config.kind != LK_TRANSFORMER_ENCODER || !labelled) return 0;
    if (!s->open_options.label) s->open_options.label = "label";
    if (s->expected || s->described || !t->source || transformer_new_head(given)) return 0;
    lk_status status = lk_hf_labels_read(s->context, t->source, &s->labels);
    if (status < 0) return report_as(name, "--model: ", s->context, status);
    bool named = are_named(s->labels);
    if (!named && !any) return 0; /* the data may have names */
    if (!named && !options_chosen(given, "label")) s->open_options.label = "";
    s->open_options.label_numbers = true;
    return expect_classes(s, name, named);
}

void encoder_classes_free(setup *s) { lk_hf_labels_free(s->labels); }
