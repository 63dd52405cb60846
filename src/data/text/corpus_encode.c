/* corpus_encode.c - encodes the documents of a corpus, and opens the tokenizer for them. */
#include "data/text/corpus_encode.h"

#include "data/text/encoder.h"

#include <string.h>

/* ---- encoding ---- */

typedef struct encoding {
    const lk__text_corpus   *corpus;
    lk__text_encoder        *encoder;
    const lk__text_encoding *how;
} encoding;

bool lk__text_has_prefix(const lk_tokenizer *tokenizer, const int32_t *ids, size_t count)
{
    int            prefix_count;
    const int32_t *prefix = lk_tokenizer_prefix(tokenizer, &prefix_count);
    return count >= (size_t)prefix_count && memcmp(ids, prefix, (size_t)prefix_count * sizeof *ids) == 0;
}

static lk_status pass_part(const encoding *e, const lk__text_piece *piece, lk__text_part part, const int32_t *ids,
                           size_t count)
{
    lk__text_piece own = *piece;
    own.part = part;
    return e->how->sink(e->how->user, &own, ids, count);
}

/* The ids of a piece, with what stands before and after its document. */
static lk_status pass_ids(const encoding *e, const lk__text_piece *piece, const int32_t *ids, size_t count)
{
    int            prefix_count, suffix_count;
    const int32_t *prefix = lk_tokenizer_prefix(e->how->tokenizer, &prefix_count),
                  *suffix = lk_tokenizer_suffix(e->how->tokenizer, &suffix_count);
    lk_status status = LK_OK;
    if (!e->how->around) prefix_count = suffix_count = 0;
    if (!piece->continues && prefix_count && !lk__text_has_prefix(e->how->tokenizer, ids, count))
        status = pass_part(e, piece, LK__TEXT_PREFIX, prefix, (size_t)prefix_count);
    if (status >= 0) status = e->how->sink(e->how->user, piece, ids, count);
    if (status < 0 || !piece->ends) return status;
    if (suffix_count && (status = pass_part(e, piece, LK__TEXT_SUFFIX, suffix, (size_t)suffix_count)) < 0)
        return status;
    bool ended = suffix_count && suffix[suffix_count - 1] == e->how->end;
    return e->how->end >= 0 && !ended ? pass_part(e, piece, LK__TEXT_SEPARATOR, &e->how->end, 1) : LK_OK;
}

static lk_status encode_piece(const encoding *e, const lk__text_piece *piece, lk__text_totals *totals)
{
    char             place[LK__TEXT_PLACE];
    lk__text_encoded encoded;
    lk_status        status =
        lk__text_encoder_encode(e->encoder, (lk__text_span){piece->text, piece->bytes, piece->continues}, &encoded);
    if (status < 0) return lk__fail_prefix(e->corpus->context, status, "%s: ", lk__text_place(e->corpus, piece, place));
    if (encoded.invalid && !totals->invalid) totals->invalid_file = piece->file;
    totals->invalid += (int64_t)encoded.invalid;
    totals->bytes += (int64_t)piece->bytes;
    totals->documents += piece->ends;
    return pass_ids(e, piece, encoded.ids, encoded.count);
}

lk_status lk__text_encode(lk__text_corpus *c, const lk__text_encoding *how, lk__text_totals *totals)
{
    lk__text_piece piece;
    encoding       e = {c, NULL, how};
    *totals = (lk__text_totals){0};
    lk_status status = lk__text_encoder_create(how->tokenizer, c->expected ? c->expected : SIZE_MAX, &e.encoder);
    if (status < 0) return status;
    c->tokenizer = how->tokenizer;
    lk__text_begin(c);
    while ((status = lk__text_next(c, &piece)) == LK_OK)
        if ((status = encode_piece(&e, &piece, totals)) < 0) break;
    lk__text_end(c);
    lk__text_encoder_free(e.encoder);
    if (status < 0) return status;
    if (totals->invalid && !c->quiet)
        lk__log(c->context, LK_LOG_WARNING, "%s: %lld invalid UTF-8 sequences were each replaced with U+FFFD",
                c->files[totals->invalid_file].path, (long long)totals->invalid);
    if (totals->bytes == 0) return lk__fail(c->context, LK_EFORMAT, "%s is empty", c->files[0].path);
    return LK_OK;
}

/* ---- the tokenizer ---- */

/* "char": of the characters of all pieces. */
static lk_status make_of_characters(lk__text_corpus *c, lk_tokenizer **tokenizer)
{
    lk__text_piece       piece;
    bool                 any = false;
    lk__text_characters *characters = lk__alloc(c->context, LK_MEMORY_OTHER, sizeof *characters);
    lk_status            status = LK_ENOMEM;
    lk__text_begin(c);
    while (characters && (status = lk__text_next(c, &piece)) == LK_OK) {
        lk__characters_add(characters, piece.text, piece.bytes);
        any |= piece.bytes > 0;
    }
    lk__text_end(c);
    if (status == LK_END)
        status = any ? lk__characters_tokenizer(c->context, characters, tokenizer)
                     : lk__fail(c->context, LK_EFORMAT, "%s is empty", c->files[0].path);
    lk__free(c->context, LK_MEMORY_OTHER, characters, sizeof *characters);
    return status;
}

lk_status lk__text_tokenizer(lk__text_corpus *c, const char *name, lk_tokenizer **tokenizer)
{
    *tokenizer = NULL;
    return strcmp(name, "char") == 0 ? make_of_characters(c, tokenizer)
                                     : lk_tokenizer_open(c->context, name, tokenizer);
}
