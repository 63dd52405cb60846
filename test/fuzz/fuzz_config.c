/* fuzz_config.c - any configuration file is either rejected with an error that names the file and a line, or every
 * value it sets is one that its option allows. */
#include "cli/command.h"

#include <lockstep/base.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const option table[] = {
    HEADING("A heading"),
    CHOICE("model", "NAME", "cnn", "mlp|cnn|resnet18", "The model"),
    INTEGER("batch", "N", "64", 1, 65536, "Samples"),
    NUMBER("lr", "RATE", "0.001", 0, 1e3, "The rate"),
    NUMBERS("betas", "B1,B2", "0.9,0.999", 0, 1, "Two numbers"),
    TEXT("data", "NAME", NULL, "The data"),
    FLAG("json", "Machine-readable"),
    CONFIG,
    OPTIONS_END,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static options given;
    if (size > OPTIONS_CONFIG_BYTES) return 0;
    char *text = malloc(size + 1);
    if (!text) abort();
    memcpy(text, data, size);
    text[size] = 0;
    options_init(&given, table);
    if (!options_parse_config(&given, "file", text, size)) {
        if (strncmp(given.error, "file", 4) != 0 || strchr(given.error, '\n')) abort();
    } else {
        double  betas[4], lr = options_number(&given, "lr");
        int64_t batch = options_integer(&given, "batch");
        int     count = options_numbers(&given, "betas", betas, 4);
        if (batch < 1 || batch > 65536 || !(lr >= 0 && lr <= 1e3) || count < 1) abort();
        for (int i = 0; i < count && i < 4; i++)
            if (!(betas[i] >= 0 && betas[i] <= 1)) abort();
        const char *model = options_text(&given, "model"), *name = options_text(&given, "data");
        if (strcmp(model, "mlp") != 0 && strcmp(model, "cnn") != 0 && strcmp(model, "resnet18") != 0) abort();
        if (name && !*name) abort();
        (void)options_flag(&given, "json");
        if (options_given(&given, "config")) abort();
    }
    options_free(&given);
    free(text);
    return 0;
}
