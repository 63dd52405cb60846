/* tokenizer.c - how fast one thread encodes a text file, and how fast it finds the words alone. Usage: tokenizer
 * TOKENIZER FILE [TIMES]; TOKENIZER is byte, char, or as lk_tokenizer_open takes it. Prints the best of TIMES. */
#include "data/array/map.h"
#include "data/text/encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int report_failure(lk_context *context)
{
    fprintf(stderr, "%s\n", lk_context_error(context));
    return 1;
}

static double time_words(const lk_tokenizer *t, const lk__map *map, size_t *words)
{
    double               begun = lk__now();
    const unsigned char *at = map->bytes, *end = at + map->size;
    for (*words = 0; at < end; ++*words) at = lk__pretokenize(t->pretokenizer, at, end);
    return lk__now() - begun;
}

int main(int count, char **arguments)
{
    lk_context       *context;
    lk_tokenizer     *t;
    lk__text_encoder *encoder;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk__map           map;
    int               times = count > 3 ? atoi(arguments[3]) : 5;
    double            encoding = 1e30, splitting = 1e30;
    size_t            words = 0;
    lk__text_encoded  encoded = {0};
    config.threads = 1;
    if (count < 3 || lk_context_create(&config, &context) < 0) {
        fprintf(stderr, "usage: tokenizer TOKENIZER FILE [TIMES]\n");
        return 2;
    }
    if (lk__map_open(context, arguments[2], &map) < 0) return report_failure(context);
    double    begun = lk__now();
    lk_status status = strcmp(arguments[1], "char") == 0
                           ? lk_tokenizer_from_text(context, (const char *)map.bytes, map.size, &t)
                           : lk_tokenizer_open(context, arguments[1], &t);
    if (status < 0) return report_failure(context);
    printf("opened %s with %lld tokens in %.3f s\n", lk_tokenizer_kind(t), (long long)lk_tokenizer_vocabulary(t),
           lk__now() - begun);
    for (int i = 0; i < times; i++) {
        if (lk__text_encoder_create(t, map.size, &encoder) < 0) return report_failure(context);
        begun = lk__now();
        lk__text_span span = {(const char *)map.bytes, map.size, false};
        if (lk__text_encoder_encode(encoder, span, &encoded) < 0) return report_failure(context);
        double seconds = lk__now() - begun;
        if (seconds < encoding) encoding = seconds;
        lk__text_encoder_free(encoder);
        seconds = t->kind == LK__TEXT_BPE && encoded.invalid == 0 ? time_words(t, &map, &words) : 0;
        if (seconds < splitting) splitting = seconds;
    }
    printf("%zu bytes, %zu tokens: %.1f MB/s", map.size, encoded.count, (double)map.size / encoding / 1e6);
    if (words) printf("; %zu words alone: %.1f MB/s", words, (double)map.size / splitting / 1e6);
    printf("\n");
    lk__map_close(&map);
    lk_tokenizer_free(t);
    lk_context_free(context);
    return 0;
}
