/* data/text/pretokenize.h - splits text into the words within which BPE merges. */
#ifndef LK__PRETOKENIZE_H
#define LK__PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

/* The regular expressions of these models; the source has their text. */
typedef enum lk__pretokenizer {
    LK__SPLIT_NOTHING, /* the whole text is one word */
    LK__SPLIT_GPT2,
    /* each digit is a word first, and the text between them is split as in GPT-2: SmolLM, StarCoder */
    LK__SPLIT_GPT2_DIGITS,
    LK__SPLIT_LLAMA3,
    LK__SPLIT_QWEN2
} lk__pretokenizer;

/* The rule of a regular expression as it stands in a tokenizer.json; false: it is not known. */
bool lk__pretokenizer_find(const char *pattern, size_t bytes, lk__pretokenizer *rule);

/* The end of the word at `at`, which is before end, in valid UTF-8. */
const unsigned char *lk__pretokenize(lk__pretokenizer rule, const unsigned char *at, const unsigned char *end);

#endif
