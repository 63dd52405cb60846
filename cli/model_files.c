/* model_files.c - config.json, generation_config.json and the tokenizer's files, which checkpoints of transformers hold. */
#include "model_files.h"

#include <stdlib.h>

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
    size_t config = write_config(s, NULL, 0), generation = write_generation(s, NULL, 0);
    if (config == 0) print_note(name, "warning: transformers has no such model, so no config.json is saved");
    if (config > 0) code = add_written(s, name, "config.json", config, write_config);
    if (code == 0 && generation > 0)
        code = add_written(s, name, "generation_config.json", generation, write_generation);
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
