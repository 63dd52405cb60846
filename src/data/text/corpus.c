/* corpus.c - reads text and JSONL files. Only one piece is in memory; a long text is cut where no token crosses the
 * cut. */
#define _GNU_SOURCE
#include "data/text/corpus.h"

#include "data/text/encoder.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum {
    PIECE = 1 << 20,         /* bytes of a part of a long text, about */
    LONGEST_PIECE = 1 << 28, /* where there is no such place, a text is cut anywhere: it is one word */
    LONGEST_LINE = 1 << 28,
    LONGEST_ARRAY = 1 << 30,
    LOOKED_AT = 8192, /* bytes in which a zero byte tells that a file is no text, as git decides it */
};

/* ---- which files ---- */

bool lk__text_named(const char *path, const char *suffix)
{
    size_t a = strlen(path), b = strlen(suffix);
    return a >= b && strcasecmp(path + a - b, suffix) == 0;
}

lk_status lk__text_files_add(lk_context *context, lk__text_files *f, const char *path, lk__text_jsonl jsonl)
{
    struct stat about;
    size_t      first = f->list.count;
    bool        directory = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    f->list.context = context;
    f->list.any_name = true;
    lk_status status = lk__data_folder_list_path(&f->list, path);
    if (status < 0) return status;
    if (f->list.count == first) return lk__fail(context, LK_EFORMAT, "%s: the directory has no files", path);
    if ((status = lk__grow(context, (void **)&f->files, &f->capacity, f->list.count, sizeof *f->files)) < 0)
        return status;
    f->count = (int)f->list.count;
    for (size_t i = 0; i < f->list.count; i++)
        f->files[i].path = f->list.text + f->list.files[i].path; /* it may have moved */
    for (size_t i = first; i < f->list.count; i++) {
        const char *name = f->files[i].path;
        f->files[i].listed = directory;
        bool named = lk__text_named(name, ".jsonl") || lk__text_named(name, ".jsonl.gz") ||
                     (!directory && (lk__text_named(name, ".json") || lk__text_named(name, ".json.gz")));
        f->files[i].jsonl = jsonl == LK__TEXT_ALL_JSONL || (named && (directory || jsonl == LK__TEXT_BY_NAME));
        f->bytes += f->list.files[i].bytes;
    }
    return LK_OK;
}

void lk__text_files_free(lk__text_files *f)
{
    if (!f->list.context) return;
    lk__free(f->list.context, LK_MEMORY_OTHER, f->files, f->capacity * sizeof *f->files);
    lk__data_folder_list_free(&f->list);
    *f = (lk__text_files){0};
}

/* ---- pieces ---- */

void lk__text_begin(lk__text_corpus *c)
{
    lk__text_end(c);
    c->file = -1;
    c->read_before = 0;
}

int64_t lk__text_read(const lk__text_corpus *c) { return c->read_before + (c->open ? (int64_t)c->stream.consumed : 0); }

static void close_file(lk__text_corpus *c)
{
    if (!c->open) return;
    c->read_before += (int64_t)c->stream.consumed;
    lk__stream_close(&c->stream);
    c->open = false;
    c->buffer.begin = c->buffer.end = 0;
    c->buffer.ended = false;
    c->array = false;
}

void lk__text_end(lk__text_corpus *c)
{
    close_file(c);
    lk__stream_buffer_free(c->context, &c->buffer);
    lk__free(c->context, LK_MEMORY_OTHER, c->decoded, c->decoded_capacity);
    c->decoded = NULL;
    c->decoded_capacity = 0;
}

static lk_status open_file(lk__text_corpus *c)
{
    const lk__text_file *f = &c->files[++c->file];
    lk_status            status = f->bytes ? lk__stream_memory(c->context, f->path, f->bytes, f->size, &c->stream)
                                           : lk__stream_open(c->context, f->path, &c->stream);
    c->open = true;
    c->within = false;
    c->line = 0;
    return status;
}

static const char *line_word(const lk__text_corpus *c) { return c->array ? "element" : "line"; }

const char *lk__text_place(const lk__text_corpus *c, const lk__text_piece *piece, char out[LK__TEXT_PLACE])
{
    const char *path = c->files[piece->file].path;
    if (piece->line > 0)
        snprintf(out, LK__TEXT_PLACE, "%.*s: %s %lld", LK__PATH, path, line_word(c), (long long)piece->line);
    else
        snprintf(out, LK__TEXT_PLACE, "%.*s", LK__PATH, path);
    return out;
}

static bool is_ascii_space(unsigned char byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

/* Where a piece may end: so that the tokens of the pieces are those of the whole, or between characters where there is
 * no tokenizer yet. */
static size_t find_cut(const lk_tokenizer *tokenizer, const char *text, size_t bytes)
{
    if (tokenizer) return lk__text_encoder_cut(tokenizer, text, bytes);
    while (--bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80) {}
    return bytes;
}

static lk_status next_of_text(lk__text_corpus *c, lk__text_piece *piece)
{
    lk__stream_buffer *b = &c->buffer;
    size_t             wanted = c->piece ? c->piece : PIECE, cut = 0;
    while (!cut) {
        while (b->end - b->begin < wanted && !b->ended) {
            lk_status status = lk__stream_refill(&c->stream, b, SIZE_MAX);
            if (status < 0) return status;
        }
        const char *text = b->bytes + b->begin;
        size_t      have = b->end - b->begin;
        if (have <= wanted && b->ended) {
            cut = have;
            break;
        }
        if (have > wanted) have = wanted;
        cut = find_cut(c->tokenizer, text, have);
        if (!cut && wanted >= LONGEST_PIECE) cut = find_cut(NULL, text, have);
        wanted *= 2;
    }
    piece->text = b->bytes + b->begin;
    piece->bytes = cut;
    if (!c->within && c->files[c->file].listed && memchr(piece->text, 0, cut < LOOKED_AT ? cut : LOOKED_AT))
        return lk__fail(c->context, LK_EFORMAT,
                        "%s contains a NUL byte, so it is not text: the directory may contain only text files",
                        c->files[c->file].path);
    piece->continues = c->within;
    c->within = true;
    b->begin += cut;
    piece->ends = b->begin == b->end && b->ended;
    return LK_OK;
}

/* ---- JSONL ---- */

/* The next line without its end; LK_END after the last. */
static lk_status next_line(lk__text_corpus *c, const char **line, size_t *bytes)
{
    lk__stream_buffer *b = &c->buffer;
    size_t             searched = 0;
    const char        *newline = NULL;
    for (;;) {
        size_t left = b->end - b->begin;
        if (left > searched) newline = memchr(b->bytes + b->begin + searched, '\n', left - searched);
        if (newline || b->ended) break;
        searched = left;
        lk_status status = lk__stream_refill(&c->stream, b, LONGEST_LINE);
        if (status == LK_END)
            return lk__fail(c->context, LK_EFORMAT, "%s: line %lld is longer than %d bytes", c->files[c->file].path,
                            (long long)c->line + 1, LONGEST_LINE);
        if (status < 0) return status;
    }
    if (b->begin == b->end) return LK_END;
    *line = b->bytes + b->begin;
    *bytes = newline ? (size_t)(newline - *line) : b->end - b->begin;
    b->begin += *bytes + (newline != NULL);
    c->line++;
    return LK_OK;
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!is_ascii_space((unsigned char)text[i])) return false;
    return true;
}

/* "it has 'title', 'body' and others" */
static void list_keys(const lk__json *object, char *out, size_t size)
{
    enum { MOST = 4 };
    lk__json      key, value;
    lk__json_walk walk = lk__json_begin(object);
    size_t        used = 0;
    int           count = 0;
    snprintf(out, size, "it is empty");
    for (; lk__json_next(&walk, &key, &value) && used < size; count++) {
        char name[48], shown[LK__SHOWN];
        if (count < MOST && lk__json_string(&key, name, sizeof name) < sizeof name)
            used +=
                (size_t)snprintf(out + used, size - used, "%s'%s'", count ? ", " : "it has ", lk__shown(name, shown));
        else if (count == MOST)
            used += (size_t)snprintf(out + used, size - used, " and others");
    }
}

/* The member `name` of the line's object. */
static lk_status find_member(const lk__text_corpus *c, const lk__json *object, const char *name, const char *option,
                             lk__json *value)
{
    char keys[320];
    bool found = lk__json_get(object, name, value);
    if (found && value->kind != LK__JSON_NULL) return LK_OK;
    if (found)
        return lk__fail(c->context, LK_EFORMAT, "%s: %s %lld: the field '%s' is null: remove it, or give it a value",
                        c->files[c->file].path, line_word(c), (long long)c->line, name);
    list_keys(object, keys, sizeof keys);
    return lk__fail(c->context, LK_EFORMAT, "%s: %s %lld has no field '%s': %s; choose the field with %s",
                    c->files[c->file].path, line_word(c), (long long)c->line, name, keys, option);
}

/* A document and its label. */
static lk_status read_object(lk__text_corpus *c, const lk__json *object, lk__text_piece *piece)
{
    const char *path = c->files[c->file].path, *name = c->text_field ? c->text_field : "text", *word = line_word(c);
    lk__json    text;
    if (object->kind != LK__JSON_OBJECT)
        return lk__fail(c->context, LK_EFORMAT,
                        "%s: %s %lld is not a JSON object: each %s must be one, such as {\"%s\": \"…\"}", path, word,
                        (long long)c->line, word, name);
    lk_status status = find_member(c, object, name, c->field_option ? c->field_option : "--text-field", &text);
    if (status < 0) return status;
    if (text.kind != LK__JSON_STRING)
        return lk__fail(c->context, LK_EFORMAT, "%s: %s %lld: the field '%s' is not a string", path, word,
                        (long long)c->line, name);
    bool found = c->label_field && lk__json_get(object, c->label_field, &piece->label);
    if (!found) piece->label = (lk__json){.kind = LK__JSON_NULL};
    if (c->label_field && !c->label_optional &&
        (status = find_member(c, object, c->label_field, "--label", &piece->label)) < 0)
        return status;
    status = lk__grow(c->context, (void **)&c->decoded, &c->decoded_capacity, text.length, 1);
    if (status < 0) return status;
    piece->text = c->decoded;
    piece->bytes = lk__json_string(&text, c->decoded, c->decoded_capacity);
    piece->ends = true;
    piece->line = c->line;
    return LK_OK;
}

static lk_status read_line(lk__text_corpus *c, const char *line, size_t bytes, lk__text_piece *piece)
{
    lk__json       object;
    lk__json_error error;
    if (!lk__json_parse(line, bytes, &object, &error))
        return lk__fail(c->context, LK_EFORMAT, "%s: line %lld, byte %zu: %s%s", c->files[c->file].path,
                        (long long)c->line, error.offset + 1, error.what,
                        lk__text_named(c->files[c->file].path, ".json")
                            ? "; expected an object on each line, or an array of them"
                            : "");
    return read_object(c, &object, piece);
}

/* Whether the file is an array: its first character, behind a byte order mark. */
static lk_status begin_array(lk__text_corpus *c)
{
    lk__stream_buffer *b = &c->buffer;
    lk_status          status = LK_OK;
    lk__json           array;
    lk__json_error     error;
    size_t             at = 0;
    while (status == LK_OK && !b->ended && b->end - b->begin < LOOKED_AT)
        status = lk__stream_refill(&c->stream, b, SIZE_MAX);
    if (status < 0) return status;
    const char *text = b->bytes + b->begin;
    size_t      bytes = b->end - b->begin;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) at = 3;
    while (at < bytes && is_ascii_space((unsigned char)text[at])) at++;
    if (at == bytes || text[at] != '[') return LK_OK;
    while (status == LK_OK && !b->ended) status = lk__stream_refill(&c->stream, b, LONGEST_ARRAY);
    const char *path = c->files[c->file].path;
    if (status == LK_END)
        return lk__fail(c->context, LK_EFORMAT,
                        "%s: the array is larger than %d bytes: write one element per line, as JSONL", path,
                        LONGEST_ARRAY);
    if (status < 0) return status;
    if (!lk__json_parse(b->bytes + b->begin + at, b->end - b->begin - at, &array, &error))
        return lk__fail(c->context, LK_EFORMAT, "%s: byte %zu: %s", path, at + error.offset + 1, error.what);
    c->array = true;
    c->elements = lk__json_begin(&array);
    return LK_OK;
}

static lk_status next_of_jsonl(lk__text_corpus *c, lk__text_piece *piece)
{
    const char *line = NULL;
    size_t      bytes = 0;
    lk_status   status = c->line == 0 && !c->array ? begin_array(c) : LK_OK;
    lk__json    element;
    if (status < 0) return status;
    if (c->array && !lk__json_next(&c->elements, NULL, &element)) return LK_END;
    if (c->array) {
        c->line++;
        return read_object(c, &element, piece);
    }
    while ((status = next_line(c, &line, &bytes)) == LK_OK) {
        if (c->line == 1 && bytes >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) line += 3, bytes -= 3;
        if (is_blank(line, bytes)) continue;
        return read_line(c, line, bytes, piece);
    }
    return status;
}

lk_status lk__text_next(lk__text_corpus *c, lk__text_piece *piece)
{
    for (;;) {
        lk_status status = LK_OK;
        if (!c->open) {
            if (c->file + 1 >= c->count) return LK_END;
            if ((status = open_file(c)) < 0) return status;
        }
        *piece = (lk__text_piece){.file = c->file};
        status = (c->files[c->file].jsonl ? next_of_jsonl : next_of_text)(c, piece);
        if (status < 0) return status;
        bool over = status == LK_END || (!c->files[c->file].jsonl && piece->bytes == 0);
        if (over) {
            close_file(c);
            continue;
        }
        return LK_OK;
    }
}
