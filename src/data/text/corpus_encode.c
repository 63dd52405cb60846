/* corpus_encode.c - encodes the documents of a corpus, and opens the tokenizer for them. */
#include "data/text/corpus_encode.h"

#include "data/text/encoder.h"

#include <string.h>

/* ---- encoding ---- */

static lk_status encode_piece(const lk__text_corpus *c, lk__text_encoder *encoder, const lk__text_piece *piece,
                              int32_t end, lk__text_sink sink, void *user, lk__text_totals *totals)
{
    char           place[LK__TEXT_PLACE];
    const int32_t *ids;
    size_t         count, invalid = 0;
    lk_status      status =
        lk__text_encoder_encode(encoder, piece->text, piece->bytes, piece->continues, &ids, &count, &invalid);
    if (status < 0) return lk__fail_prefix(c->context, status, "%s: ", lk__text_place(c, piece, place));
    if (invalid && !totals->invalid) totals->invalid_file = piece->file;
    totals->invalid += (int64_t)invalid;
    totals->bytes += (int64_t)piece->bytes;
    totals->documents += piece->ends;
    status = sink(user, piece, ids, count);
    return status >= 0 && piece->ends && end >= 0 ? sink(user, piece, &end, 1) : status;
}

lk_status lk__text_encode(lk__text_corpus *c, const lk_tokenizer *tokenizer, int32_t end, lk__text_sink sink,
                          void *user, lk__text_totals *totals)
{
    lk__text_piece    piece;
    lk__text_encoder *encoder = NULL;
    *totals = (lk__text_totals){0};
    lk_status status = lk__text_encoder_create(tokenizer, c->expected ? c->expected : SIZE_MAX, &encoder);
    if (status < 0) return status;
    c->tokenizer = tokenizer;
    lk__text_begin(c);
    while ((status = lk__text_next(c, &piece)) == LK_OK)
        if ((status = encode_piece(c, encoder, &piece, end, sink, user, totals)) < 0) break;
    lk__text_end(c);
    lk__text_encoder_free(encoder);
    if (status < 0) return status;
    if (totals->invalid && !c->quiet)
        lk__log(c->context, LK_LOG_WARNING, "%s: %lld sequences of bytes are not UTF-8; each became U+FFFD",
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
    return strcmp(name, "char") == 0 ? make_of_characters(c, tokenizer) : lk_tokenizer_open(c->context, name, tokenizer);
}
