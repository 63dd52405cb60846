/* model_files.c - config.json, generation_config.json and the tokenizer's files, which checkpoints of transformers
 * hold. */
#include "model_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add_written(setup *s, const char *name, const char *file, size_t bytes,
                       size_t (*write)(const setup *s, char *out, size_t size))
{
    char *text = malloc(bytes + 1);
    if (!text) {
        print_error(name, "out of memory");
        return EXIT_FAILED;
    }
    write(s, text, bytes + 1);
    s->file_text[s->config.files_count] = text;
    s->files[s->config.files_count++] = (lk_checkpoint_file){.name = file, .text = text, .bytes = bytes};
    return 0;
}

static size_t write_config(const setup *s, char *out, size_t size)
{
    const lk_field *label = setup_field(s, "label");
    return lk_hf_config_write(&s->transformer.config, out, size, .dtype = s->config.dtype,
                              .class_names = label ? label->class_names : NULL);
}

static size_t write_generation(const setup *s, char *out, size_t size)
{
    return lk_hf_generation_config_write(&s->transformer.config, out, size);
}

enum { MOST_BYTES = 1 << 20 };

/* The generation_config.json beside the config.json that the model was read from: it has more than this program knows,
 * and stays as it is. NULL: there is none. */
static char *read_generation(const setup *s, size_t *bytes)
{
    char        path[4096];
    const char *source = s->transformer.source, *slash = source ? strrchr(source, '/') : NULL;
    const char *base = slash ? slash + 1 : source;
    if (!source) return NULL;
    bool file = strcmp(base, "config.json") == 0; /* or a directory */
    if (!file && strlen(base) > 5 && strcmp(base + strlen(base) - 5, ".json") == 0) return NULL;
    if (snprintf(path, sizeof path, "%.*s%sgeneration_config.json", file ? (int)(base - source) : (int)strlen(source),
                 source, file ? "" : "/") >= (int)sizeof path)
        return NULL;
    FILE *stream = fopen(path, "rb");
    char *text = stream ? malloc(MOST_BYTES + 1) : NULL;
    *bytes = text ? fread(text, 1, MOST_BYTES + 1, stream) : 0;
    if (stream) fclose(stream);
    if (*bytes > 0 && *bytes <= MOST_BYTES) return text;
    free(text);
    return NULL;
}

/* Encoders have none. */
static int add_generation(setup *s, const char *name)
{
    size_t bytes, written = write_generation(s, NULL, 0);
    if (written == 0) return 0;
    char *text = read_generation(s, &bytes);
    if (!text) return add_written(s, name, "generation_config.json", written, write_generation);
    s->file_text[s->config.files_count] = text;
    s->files[s->config.files_count++] =
        (lk_checkpoint_file){.name = "generation_config.json", .text = text, .bytes = bytes};
    return 0;
}

int model_files_make(setup *s, const char *name)
{
    lk_text_info             info = {0};
    const lk_tokenizer_file *tokenizer = NULL;
    int                      count = 0, code = 0;
    if (!s->transformer.used || !s->config.save) return 0;
    if (lk_dataset_text(s->train, &info) && info.tokenizer) tokenizer = lk_tokenizer_files(info.tokenizer, &count);
    if (!(s->files = calloc((size_t)count + 2, sizeof *s->files))) {
        print_error(name, "out of memory");
        return EXIT_FAILED;
    }
    s->config.files = s->files;
    size_t config = write_config(s, NULL, 0);
    if (config == 0)
        print_note(name, "warning: Hugging Face transformers has no model of this kind, so no config.json is saved");
    if (config > 0) code = add_written(s, name, "config.json", config, write_config);
    if (code == 0) code = add_generation(s, name);
    for (int i = 0; i < count; i++)
        s->files[s->config.files_count++] =
            (lk_checkpoint_file){.name = tokenizer[i].name, .text = tokenizer[i].text, .bytes = tokenizer[i].bytes};
    return code;
}

void model_files_free(setup *s)
{
    for (int i = 0; i < 2; i++) free(s->file_text[i]);
    free(s->files);
}
