/* tokenize.c - writes the tokens of texts to one file. Its header is written last, when the number of tokens is known;
 * until then, and after a failure, there is no file of that name. */
#define _GNU_SOURCE
#include "base/config.h"
#include "base/directories.h"
#include "data/text/corpus_encode.h"
#include "data/text/store.h"
#include "data/text/token_file.h"

#include <lockstep/data.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file that is written under another name. */
typedef struct output {
    lk_context *context;
    char        path[LK__PATH], temporary[LK__PATH];
    int         fd;
} output;

static lk_status fail_output(const output *o, const char *what)
{
    return lk__fail(o->context, LK_EIO, "%s: %s: %s", o->path, what, strerror(errno));
}

/* The directory of a file, as other options of the command that name files do. */
static lk_status make_parent(lk_context *context, const char *path)
{
    char        parent[LK__PATH];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path || !lk__path(parent, "%.*s", (int)(slash - path), path)) return LK_OK;
    return lk__make_directories(context, parent);
}

static lk_status create_output(output *o, lk_context *context, const char *path, const char *suffix)
{
    struct stat about;
    *o = (output){.context = context, .fd = -1};
    if (!lk__path(o->path, "%s%s", path, suffix) || !lk__path(o->temporary, "%s.tmp.%ld", o->path, (long)getpid()))
        return lk__fail(context, LK_EINVAL, "%.64s…: the path is longer than %d bytes", path, LK__PATH);
    if (stat(o->path, &about) == 0 && !S_ISREG(about.st_mode))
        return lk__fail(context, LK_EINVAL, "%s is %s, not a file that can be replaced", o->path,
                        S_ISDIR(about.st_mode) ? "a directory" : "a device or pipe");
    lk_status status = make_parent(context, o->path);
    if (status < 0) return status;
    o->fd = open(o->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (o->fd >= 0) return LK_OK;
    o->temporary[0] = 0;
    status = errno == ENOENT || errno == ENOTDIR ? LK_ENOENT : LK_EIO;
    return lk__fail(context, status, "%s: cannot create: %s", o->path, strerror(errno));
}

static lk_status write_bytes(const output *o, const void *bytes, size_t size, int64_t at)
{
    for (const char *from = bytes; size > 0;) {
        ssize_t n = pwrite(o->fd, from, size, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_output(o, "cannot write");
        from += n, size -= (size_t)n, at += n;
    }
    return LK_OK;
}

static lk_status commit_output(output *o)
{
    if (fsync(o->fd) != 0) return fail_output(o, "cannot flush to disk");
    int fd = o->fd;
    o->fd = -1;
    if (close(fd) != 0 && errno != EINTR) return fail_output(o, "cannot close");
    if (rename(o->temporary, o->path) != 0) return fail_output(o, "cannot rename the complete file");
    o->temporary[0] = 0;
    return LK_OK;
}

static void abandon_output(output *o)
{
    if (o->fd >= 0) close(o->fd);
    if (o->temporary[0]) unlink(o->temporary);
    o->fd = -1;
    o->temporary[0] = 0;
}

/* ---- tokens ---- */

enum { BUFFER = 1 << 20 };

typedef struct writing {
    const lk_data_tokenize_config *config;
    const lk__text_corpus         *corpus;
    output                         out;
    unsigned char                 *buffer; /* BUFFER bytes */
    size_t                         used;
    int64_t                        total; /* bytes of all texts, as stored */
    lk__text_token_file            file;
} writing;

static lk_status flush_tokens(writing *w)
{
    int64_t   before = w->file.ids.count * w->file.ids.width - (int64_t)w->used;
    lk_status status = write_bytes(&w->out, w->buffer, w->used, LK__TOKEN_HEADER + before);
    w->used = 0;
    return status;
}

static lk_status put_tokens(void *user, const lk__text_piece *piece, const int32_t *ids, size_t count)
{
    writing *w = user;
    size_t   width = (size_t)w->file.ids.width;
    (void)piece;
    while (count > 0) {
        size_t n = (BUFFER - w->used) / width;
        if (n > count) n = count;
        lk__text_pack(ids, n, w->file.ids.width, w->buffer + w->used);
        ids += n, count -= n;
        w->used += n * width;
        w->file.ids.count += (int64_t)n;
        lk_status status = w->used + width > BUFFER ? flush_tokens(w) : LK_OK;
        if (status < 0) return status;
    }
    if (!w->config->progress || !w->config->progress(w->config->user, lk__text_read(w->corpus), w->total)) return LK_OK;
    return lk__fail(w->out.context, LK_ECANCELED, "stopped: %s was not written", w->out.path);
}

/* A vocabulary of characters is that of these texts alone: it is kept beside the tokens. */
static lk_status write_tokenizer(lk_context *context, const char *path, const lk_tokenizer *tokenizer)
{
    int                      count = 0;
    const lk_tokenizer_file *files = lk_tokenizer_files(tokenizer, &count);
    output                   out = {.fd = -1};
    lk_status                status = LK_OK;
    for (int i = 0; i < count && status == LK_OK; i++) {
        if (strcmp(files[i].name, "tokenizer.json") != 0) continue;
        if ((status = create_output(&out, context, path, ".tokenizer.json")) == LK_OK &&
            (status = write_bytes(&out, files[i].text, files[i].bytes, 0)) == LK_OK)
            status = commit_output(&out);
        abandon_output(&out);
    }
    return status;
}

static lk_status choose_width(lk_context *context, const lk_data_tokenize_config *c, int64_t vocabulary, int *width)
{
    *width = c->token_bytes ? c->token_bytes : vocabulary <= 65536 ? 2 : 4;
    if (*width != 2 && *width != 4)
        return lk__fail(context, LK_EINVAL, "a token size of %d bytes is invalid: expected 2 or 4", *width);
    if (*width == 2 && vocabulary > 65536)
        return lk__fail(context, LK_EINVAL, "a vocabulary of %lld tokens does not fit into u16: use u32",
                        (long long)vocabulary);
    return LK_OK;
}

static lk_status write_tokens(lk__text_corpus *corpus, const lk_tokenizer *tokenizer, writing *w,
                              lk__text_totals *totals)
{
    unsigned char header[LK__TOKEN_HEADER];
    lk_context   *context = corpus->context;
    lk_status     status = create_output(&w->out, context, w->config->out, "");
    if (status < 0) return status;
    if (!(w->buffer = lk__alloc(context, LK_MEMORY_DATA, BUFFER))) return LK_ENOMEM;
    status = lk__text_encode(corpus, &(lk__text_encoding){tokenizer, true, w->file.end, put_tokens, w}, totals);
    if (status == LK_OK) status = flush_tokens(w);
    if (status < 0) return status;
    w->file.bytes = totals->bytes;
    lk__text_token_file_header(&w->file, header);
    if ((status = write_bytes(&w->out, header, sizeof header, 0)) < 0) return status;
    if (strcmp(w->config->tokenizer, "char") == 0 && (status = write_tokenizer(context, w->config->out, tokenizer)) < 0)
        return status;
    return commit_output(&w->out);
}

/* ---- the call ---- */

static lk_status check_tokenize(lk_context *context, const lk_data_tokenize_config *c)
{
    if (c->paths_count < 1 || !c->paths) return lk__fail(context, LK_EINVAL, "there are no texts to tokenize");
    if (!c->tokenizer)
        return lk__fail(context, LK_EINVAL,
                        "a tokenizer is required: byte, char, a tokenizer.json, or a directory that has one");
    if (!c->out) return lk__fail(context, LK_EINVAL, "an output file is required");
    return LK_OK;
}

/* Lists the texts. The output must be none of them. */
static lk_status list_texts(lk_context *context, const lk_data_tokenize_config *c, lk__text_files *files)
{
    struct stat out, about;
    lk_status   status = LK_OK;
    for (int i = 0; i < c->paths_count && status == LK_OK; i++)
        status = lk__text_files_add(context, files, c->paths[i], LK__TEXT_BY_NAME);
    if (status < 0 || stat(c->out, &out) != 0) return status;
    for (int i = 0; i < files->count; i++)
        if (stat(files->files[i].path, &about) == 0 && about.st_dev == out.st_dev && about.st_ino == out.st_ino)
            return lk__fail(context, LK_EINVAL, "%s is one of the texts: choose another file for the tokens", c->out);
    return LK_OK;
}

lk_status lk_data_tokenize(lk_context *context, const lk_data_tokenize_config *given, lk_data_tokenize_result *result)
{
    lk_data_tokenize_config config = LK_DATA_TOKENIZE_CONFIG_INIT;
    lk__text_files          files = {0};
    lk__text_totals         totals = {0};
    lk_tokenizer           *tokenizer = NULL;
    *result = (lk_data_tokenize_result){0};
    lk_status status = LK__CONFIG_READ(context, lk_data_tokenize_config, given, &config);
    if (status < 0 || (status = check_tokenize(context, &config)) < 0) return status;
    writing w = {.config = &config, .out = {.fd = -1}};
    status = list_texts(context, &config, &files);
    lk__text_corpus corpus = {.context = context,
                              .files = files.files,
                              .count = files.count,
                              .text_field = config.text_field,
                              .field_option = "--field"};
    corpus.expected = (size_t)files.bytes;
    w.corpus = &corpus;
    w.total = files.bytes;
    if (status == LK_OK) status = lk__text_tokenizer(&corpus, config.tokenizer, &tokenizer);
    if (status == LK_OK) {
        w.file.vocabulary = lk_tokenizer_vocabulary(tokenizer);
        w.file.end = lk_tokenizer_end(tokenizer);
        w.file.begin = lk_tokenizer_begin(tokenizer);
        status = choose_width(context, &config, w.file.vocabulary, &w.file.ids.width);
    }
    if (status == LK_OK) status = write_tokens(&corpus, tokenizer, &w, &totals);
    if (status == LK_OK)
        *result = (lk_data_tokenize_result){.tokens = w.file.ids.count,
                                            .documents = totals.documents,
                                            .bytes = totals.bytes,
                                            .invalid = totals.invalid,
                                            .token_bytes = w.file.ids.width};
    abandon_output(&w.out);
    lk__free(context, LK_MEMORY_DATA, w.buffer, BUFFER);
    lk_tokenizer_free(tokenizer);
    lk__text_files_free(&files);
    return status;
}
