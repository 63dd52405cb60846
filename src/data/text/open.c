/* open.c - opens text:, jsonl: and tokens:, the data of language models. */
#include "data/format.h"
#include "data/labels.h"
#include "data/text/text.h"
#include "data/text/token_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const double DEFAULT_HOLDOUT = 0.1; /* of text: and jsonl: */
enum { LARGEST_LENGTH = 1 << 24 };

static lk_status begin_request(lk_context *context, const char *kind, const lk__data_request *request,
                               lk__text_request *r)
{
    const lk_open_options *options = request->options;
    char                   example[32];
    *r = (lk__text_request){
        .context = context, .kind = kind, .split = request->split, .options = options, .probe = request->probe};
    snprintf(example, sizeof example, "%s:FILE", kind);
    r->length = options->context ? options->context : LK__TEXT_LENGTH;
    lk_status status = lk__path_pair(context, example, request->rest, r->paths);
    if (status < 0) return status;
    if (r->length < 1 || r->length > LARGEST_LENGTH)
        return lk__fail(context, LK_EINVAL, "a context of %lld tokens is invalid: expected 1 to %d",
                        (long long)r->length, LARGEST_LENGTH);
    if (options->packing < -1 || options->packing > 1)
        return lk__fail(context, LK_EINVAL, "packing %d is invalid: expected -1, 0 or 1", options->packing);
    if (!(options->holdout >= 0 && options->holdout < 1) && options->holdout != -1)
        return lk__fail(context, LK_EINVAL, "a hold-out fraction of %g is invalid: expected at least 0 and less than 1",
                        options->holdout);
    r->holdout = options->holdout > 0 ? options->holdout : 0;
    r->stride = options->stride ? options->stride : r->split == LK_SPLIT_TRAIN ? 0 : r->length;
    if (r->stride < 0 || r->stride > r->length)
        return lk__fail(context, LK_EINVAL, "a stride of %lld tokens is invalid: expected 1 to the context of %lld",
                        (long long)r->stride, (long long)r->length);
    if (r->paths[1][0] && options->holdout > 0)
        return lk__fail(context, LK_EINVAL,
                        "%s:%s has its own validation set: do not hold out part of the training set", kind,
                        request->rest);
    return LK_OK;
}

/* The end token that documents need where they are packed, unless where they end is known from their files. */
static lk_status set_packing(const lk__text_request *r, bool documents, int32_t begin, int32_t end, lk__text_source *s)
{
    s->packed = r->options->packing ? r->options->packing > 0 : documents;
    s->end = end;
    s->end_begins = end >= 0 && begin == end;
    if (!s->packed || end >= 0 || (documents && r->stride && r->holdout == 0)) return LK_OK;
    return lk__fail(r->context, LK_EINVAL,
                    "%s: packed documents need an end token, which %s does not have: --packing windows ignores where "
                    "documents end",
                    s->path,
                    !s->tokenizer           ? "a token file without a header"
                    : r->options->tokenizer ? r->options->tokenizer
                                            : "its tokenizer");
}

/* ---- text and JSONL ---- */

typedef struct filling {
    lk__text_store   store;
    lk__text_source *source;
    int              file;      /* of the latest piece; -1: none */
    bool             documents; /* where documents begin and end is kept */
    bool             begun;     /* the latest ids were a prefix, with which a document began */
} filling;

/* Of an evaluation: `count` tokens follow. The end token between documents is not part of one; those of a template
 * are. */
static lk_status keep_document(filling *f, const lk__text_piece *piece, size_t count)
{
    lk__text_source *s = f->source;
    bool begins = piece->part == LK__TEXT_PREFIX || (piece->part == LK__TEXT_BODY && !piece->continues && !f->begun);
    f->begun = piece->part == LK__TEXT_PREFIX;
    if (piece->part == LK__TEXT_SEPARATOR) return LK_OK;
    if (begins) {
        lk_status status = lk__grow(s->context, (void **)&s->documents, &s->documents_capacity, s->documents_count + 1,
                                    sizeof *s->documents);
        if (status < 0) return status;
        s->documents[s->documents_count++] = (lk__text_document){f->store.count, f->store.count};
    }
    s->documents[s->documents_count - 1].end = f->store.count + (int64_t)count;
    return LK_OK;
}

static lk_status keep_ids(void *user, const lk__text_piece *piece, const int32_t *ids, size_t count)
{
    filling  *f = user;
    lk_status status = f->documents ? keep_document(f, piece, count) : LK_OK;
    if (status < 0) return status;
    if (f->source->starts) /* files without text start where the next does */
        while (f->file < piece->file) f->source->starts[++f->file] = f->store.count;
    return lk__text_store_add(&f->store, ids, count);
}

static lk_status fill_source(const lk__text_request *r, int32_t end, lk__text_source *s)
{
    lk__text_corpus corpus = {.context = r->context, .files = s->files.files, .count = s->files.count};
    lk__text_totals totals;
    filling         f = {.source = s, .file = -1, .documents = s->packed && r->stride};
    size_t          starts = (size_t)s->files.count * sizeof *s->starts;
    corpus.text_field = r->options->text_field;
    corpus.expected = (size_t)s->files.bytes;
    corpus.quiet = lk__text_quiet(r);
    f.store =
        (lk__text_store){.context = r->context, .width = lk__text_width(s->info.vocabulary), .counting = r->probe};
    if (s->files.count > 1 && !(s->starts = lk__alloc(r->context, LK_MEMORY_OTHER, starts))) return LK_ENOMEM;
    lk_status status = lk__text_encode(&corpus, &(lk__text_encoding){s->tokenizer, true, end, keep_ids, &f}, &totals);
    if (status >= 0) status = lk__text_store_finish(&f.store, &s->ids, &s->map);
    if (status < 0) {
        lk__text_store_free(&f.store);
        return status;
    }
    while (s->starts && ++f.file < s->files.count) s->starts[f.file] = f.store.count;
    s->owned = f.store.bytes;
    s->owned_bytes = f.store.capacity;
    s->info.bytes = totals.bytes;
    return LK_OK;
}

/* The bytes of a file are the ids of its bytes: it is mapped, and may be larger than the memory. */
static lk_status map_bytes(const lk__text_request *r, lk__text_source *s, bool *mapped)
{
    lk_status status = LK_OK;
    *mapped = false;
    if (s->packed || s->files.count != 1 || s->files.files[0].jsonl ||
        strcmp(lk_tokenizer_kind(s->tokenizer), "byte") != 0)
        return LK_OK;
    if ((status = lk__map_open(r->context, s->path, &s->map)) < 0) return status;
    if (s->map.size >= 2 && s->map.bytes[0] == 0x1f && s->map.bytes[1] == 0x8b) { /* gzip */
        lk__map_close(&s->map);
        return LK_OK;
    }
    s->ids = (lk__text_ids){s->map.bytes, 1, (int64_t)s->map.size};
    s->info.bytes = s->ids.count;
    *mapped = true;
    return LK_OK;
}

static lk__text_jsonl which_jsonl(bool jsonl) { return jsonl ? LK__TEXT_ALL_JSONL : LK__TEXT_LISTED_BY_NAME; }

/* Of "char": the characters of both files, so that both sets have the same. */
static lk_status open_tokenizer(const lk__text_request *r, bool jsonl, lk_tokenizer **tokenizer)
{
    lk__text_files  files = {0};
    lk__text_corpus corpus = {.context = r->context, .text_field = r->options->text_field};
    lk_status       status = LK_OK;
    const char     *name = r->options->tokenizer ? r->options->tokenizer : "byte";
    if (!r->options->tokenizer && jsonl)
        return lk__fail(r->context, LK_EINVAL,
                        "jsonl:%s needs a tokenizer: byte, char, a tokenizer.json, or a directory that has one",
                        r->paths[0]);
    if (!r->options->tokenizer && !lk__text_quiet(r))
        lk__log(r->context, LK_LOG_INFO, "text:%s is read as bytes, because no tokenizer was chosen", r->paths[0]);
    for (int i = 0; i < 2 && r->paths[i][0] && status == LK_OK; i++)
        status = lk__text_files_add(r->context, &files, r->paths[i], which_jsonl(jsonl));
    corpus.files = files.files;
    corpus.count = files.count;
    if (status == LK_OK) status = lk__text_tokenizer(&corpus, name, tokenizer);
    lk__text_files_free(&files);
    return status;
}

/* Whether there are several documents: JSONL, or a directory for training. */
static lk_status check_directories(const lk__text_request *r, bool jsonl, bool *documents)
{
    struct stat about;
    *documents = jsonl;
    for (int i = 0; i < 2; i++) {
        if (stat(r->paths[i], &about) != 0 || !S_ISDIR(about.st_mode)) continue;
        if (jsonl)
            return lk__fail(r->context, LK_EINVAL, "jsonl:%s is a directory: use a file, or text:%s", r->paths[i],
                            r->paths[i]);
        if (i == 0) *documents = true;
    }
    return LK_OK;
}

static lk_status open_documents(lk_context *context, bool jsonl, const lk__data_request *request, lk_dataset **dataset)
{
    const lk_open_options *options = request->options;
    lk__text_request       r;
    lk__text_source        s = {.context = context};
    bool                   documents = false, mapped = false;
    *dataset = NULL;
    lk_status status = begin_request(context, jsonl ? "jsonl" : "text", request, &r);
    if (status < 0) return status;
    if (options->holdout == 0) r.holdout = DEFAULT_HOLDOUT;
    if (r.split == LK_SPLIT_TEST && !r.paths[1][0] && r.holdout == 0) return LK_END;
    if ((status = check_directories(&r, jsonl, &documents)) < 0) return status;
    if ((status = open_tokenizer(&r, jsonl, &s.tokenizer)) < 0) return status;
    snprintf(s.path, sizeof s.path, "%s", lk__text_path(&r));
    s.info.vocabulary = lk_tokenizer_vocabulary(s.tokenizer);
    if ((status = lk__text_files_add(context, &s.files, s.path, which_jsonl(jsonl))) < 0) goto fail;
    if (jsonl && (options->label || lk__expected_field(options, "length")))
        return lk__text_classification(&r, s.tokenizer, &s.files, dataset);
    if ((status = set_packing(&r, documents, lk_tokenizer_begin(s.tokenizer), lk_tokenizer_end(s.tokenizer), &s)) < 0)
        goto fail;
    if ((status = map_bytes(&r, &s, &mapped)) < 0) goto fail;
    if (!mapped && (status = fill_source(&r, documents || s.packed ? s.end : -1, &s)) < 0) goto fail;
    return lk__text_windows(&r, &s, dataset);
fail:
    lk__text_source_free(&s);
    return status;
}

static lk_status open_text(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    return open_documents(context, false, request, dataset);
}

static lk_status open_jsonl(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    return open_documents(context, true, request, dataset);
}

/* ---- token files ---- */

/* Bytes of a token where the file has no header; 0: token_bytes is invalid. */
static int plain_width(const lk_open_options *options, const char *path, int64_t vocabulary)
{
    if (options->token_bytes) return options->token_bytes == 2 || options->token_bytes == 4 ? options->token_bytes : 0;
    if (lk__text_named(path, ".u32")) return 4;
    return lk__text_named(path, ".u16") || vocabulary <= 65536 ? 2 : 4;
}

static lk_status read_token_file(const lk__text_request *r, lk__text_source *s, lk__text_token_file *file)
{
    int64_t vocabulary = s->tokenizer ? lk_tokenizer_vocabulary(s->tokenizer) : 0;
    int     width = plain_width(r->options, s->path, vocabulary ? vocabulary : r->options->vocabulary);
    if (!width)
        return lk__fail(r->context, LK_EINVAL, "a token size of %d bytes is invalid: expected 2 or 4",
                        r->options->token_bytes);
    lk_status status = lk__map_open(r->context, s->path, &s->map);
    if (status < 0 || (status = lk__text_token_file_read(
                           r->context, &(lk__text_token_bytes){s->path, s->map.bytes, s->map.size}, width, file)) < 0)
        return status;
    if (file->vocabulary && vocabulary && file->vocabulary != vocabulary)
        return lk__fail(r->context, LK_EMISMATCH,
                        "%s was tokenized with a vocabulary of %lld, but the tokenizer %s has one of %lld", s->path,
                        (long long)file->vocabulary, r->options->tokenizer, (long long)vocabulary);
    s->ids = file->ids;
    s->info.bytes = file->bytes;
    s->info.vocabulary = vocabulary ? vocabulary : file->vocabulary;
    return LK_OK;
}

static lk_status open_tokens(lk_context *context, const lk__data_request *request, lk_dataset **dataset)
{
    const lk_open_options *options = request->options;
    lk__text_request       r;
    lk__text_source        s = {.context = context};
    lk__text_token_file    file = {.begin = -1, .end = -1};
    *dataset = NULL;
    lk_status status = begin_request(context, "tokens", request, &r);
    if (status < 0) return status;
    if (r.split == LK_SPLIT_TEST && !r.paths[1][0] && r.holdout == 0) return LK_END;
    snprintf(s.path, sizeof s.path, "%s", lk__text_path(&r));
    if (options->tokenizer && strcmp(options->tokenizer, "char") == 0)
        return lk__fail(
            context, LK_EINVAL,
            "tokens:%s: the tokenizer char is built from a text; give the tokenizer.json that produced the tokens",
            s.path);
    if (options->tokenizer) status = lk_tokenizer_open(context, options->tokenizer, &s.tokenizer);
    if (status >= 0) status = read_token_file(&r, &s, &file);
    if (status >= 0)
        status = set_packing(&r, false, file.begin, s.tokenizer ? lk_tokenizer_end(s.tokenizer) : file.end, &s);
    if (status >= 0) return lk__text_windows(&r, &s, dataset);
    lk__text_source_free(&s);
    return status;
}

const lk__data_format lk__data_format_text = {
    .about = {.name = "text",
              .form = "text:FILE|DIR[,VALIDATION]",
              .doc = "text in UTF-8",
              .options = "tokenizer context packing holdout stride",
              .traits = LK_DATA_TEXT,
              .directory_options = "text-field",
              .holdout = DEFAULT_HOLDOUT},
    .open = open_text,
};

const lk__data_format lk__data_format_jsonl = {
    .about = {.name = "jsonl",
              .form = "jsonl:FILE[,VALIDATION]",
              .doc = "a JSON object on each line",
              .options = "label tokenizer context text-field packing holdout unknown-label stride",
              .traits = LK_DATA_TEXT,
              .holdout = DEFAULT_HOLDOUT},
    .open = open_jsonl,
};

const lk__data_format lk__data_format_tokens = {
    .about = {.name = "tokens",
              .form = "tokens:FILE[,VALIDATION]",
              .doc = "token ids",
              .options = "tokenizer context packing token-type holdout stride",
              .traits = LK_DATA_TEXT | LK_DATA_TOKENIZED},
    .open = open_tokens,
};
