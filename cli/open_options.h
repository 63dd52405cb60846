/* open_options.h - options for the user's own files, as lk_dataset_open takes them. */
#ifndef OPEN_OPTIONS_H
#define OPEN_OPTIONS_H

#include "options.h"

#include <lockstep/data.h>
#include <lockstep/data_format.h>

/* For the row of --data: the forms of names, and the help. */
const char *data_names_at(int index);
void        data_names_describe(char *out, size_t size);

/* Rows of an option table. */
#define TABLE_OPTIONS                                                                                                 \
    TEXT("label", "COLUMN", NULL,                                                                                     \
         "csv: the label column, by name or by number from 1; npz, safetensors: the label array. Default: label or "  \
         "target; for csv without these, the last column. jsonl: the field with the class of each text (encoder: "    \
         "label)",                                                                                                    \
         .of = "data", .flags = OPTION_CONTENTS),                                                                     \
        CHOICE("header", "WHEN", "auto", "auto|yes|no",                                                               \
               "csv: whether the first line has column names; auto: yes if none of its fields is a "                  \
               "number", .of = "data"),                                                                               \
        CHOICE("unknown-label", "WHAT", "refuse", "refuse|skip",                                                      \
               "your own files: if samples have a class that the training data does not have, refuse the data, "      \
               "or skip and count these samples", .of = "data")

#define FOLDER_OPTIONS                                                                                                \
    TEXT("size", "H,W", NULL, "folder: resize images to height H and width W, bilinear with antialiasing",            \
         .of = "data"),                                                                                               \
        CHOICE("channels", "N", NULL, "1|3", "folder: 1 for grey, 3 for RGB (default: as in the first image)",         \
               .of = "data"),                                                                                         \
        NUMBER("holdout", "F", "0", 0, 0.99,                                                                          \
               "your own files: the fraction of samples that form the test set, chosen by a hash of the file's name " \
               "or the row's number, so that adding samples does not move others between the sets. text, jsonl, "     \
               "tokens: the last part of the tokens (default 0; text and jsonl 0.1; 0 for files that `eval` and "     \
               "`predict --data` name)",                                                                              \
               .of = "data"),                                                                                         \
        TEXT("cache", "DIR", NULL, "folder: cache decoded images in DIR for later runs and other ranks",              \
             .of = "data"),                                                                                           \
        FLAG("skip-broken", "folder: leave out images that cannot be decoded, and list them. All images are "         \
                            "decoded first", .of = "data")

#define TEXT_OPTIONS                                                                                                   \
    TEXT_SUGGESTED("tokenizer", "NAME|FILE|DIR", NULL, "byte|char",                                                    \
         "text, jsonl, tokens: byte, char (one token per character of the text), a tokenizer.json, or a directory "    \
         "that has one, such as a checkpoint or a Hugging Face model (default for text: byte)"),                       \
        INTEGER("context", "N", "256", 1, 1 << 24,                                                                     \
                "text, jsonl, tokens, transformers: tokens in a sequence (default 256; gpt2 and other published "      \
                "models, config.json: all positions of the model)"),                                                   \
        TEXT("text-field", "NAME", "text", "jsonl, and JSONL files in a directory of texts: name of the text field",   \
             .of = "data", .flags = OPTION_CONTENTS),                                                                  \
        CHOICE("packing", "HOW", "auto", "auto|documents|windows",                                                     \
               "text, jsonl, tokens: documents: packed one after another, without attention across documents; "        \
               "windows: any stretch of the whole text. auto: documents for jsonl and directories", .of = "data"),     \
        CHOICE("token-type", "TYPE", NULL, "u16|u32",                                                                  \
               "tokens: type of the tokens in a file without a header (default: from the extension .u16 or .u32, "     \
               "otherwise from the size of the vocabulary)", .of = "data", .flags = OPTION_CONTENTS)

/* Sets `open` for the data set `data`. 0, or the exit status after the error was printed: an invalid value, or an
 * option that this data set does not use. */
void data_names_public(char *out, size_t size); /* "cifar10, fashion-mnist and mnist" */
/* Whether a data set's format has these traits; of an unknown format it has none. */
bool data_has(const char *data, unsigned traits);
/* Whether the format uses that option. */
bool data_uses(const char *data, const char *option);
int  open_options_set(const char *command_name, const options *given, const char *data, lk_open_options *open);

#endif
