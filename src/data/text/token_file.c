/* token_file.c - the header of a token file. llm.c (dev/data/data_common.py) writes 256 words of 4 bytes: a magic
 * number that says how wide tokens are, a version, the number of tokens, zeros. Our header uses some of these zeros for
 * further values, so llm.c can read it too. */
#include "data/text/token_file.h"

#include <string.h>

enum {
    MAGIC,
    VERSION,
    COUNT, /* of llm.c */
    OWN = 8,
    OWN_VERSION, /* of Lockstep: OWN_MAGIC, 1 */
    VOCABULARY,
    END, /* END: the token + 1; 0: none */
    COUNT_LOW,
    COUNT_HIGH, /* the number of tokens in 64 bits; COUNT is INT32_MAX at most */
    TEXT_LOW,
    TEXT_HIGH,              /* bytes of text */
    BEGIN,                  /* as END; 0 in files of older versions, which had none */
    OWN_MAGIC = 0x4b544b4c, /* "LKTK" */
};

static const struct {
    uint32_t magic, version;
    int      width;
} kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static uint32_t get_word(const unsigned char *bytes, int i)
{
    const unsigned char *at = bytes + 4 * i;
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_two(const unsigned char *bytes, int i)
{
    return (uint64_t)get_word(bytes, i + 1) << 32 | get_word(bytes, i);
}

static void put_word(unsigned char *bytes, int i, uint32_t value)
{
    for (int k = 0; k < 4; k++) bytes[4 * i + k] = (unsigned char)(value >> 8 * k);
}

static void put_two(unsigned char *bytes, int i, uint64_t value)
{
    put_word(bytes, i, (uint32_t)value);
    put_word(bytes, i + 1, (uint32_t)(value >> 32));
}

/* What is recognised, and is not a file of tokens; NULL: nothing is. */
static const char *find_foreign(const unsigned char *bytes, size_t size)
{
    if (size >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0)
        return "is a NumPy file: write only the tokens, x.astype(np.uint16).tofile(FILE)";
    if (size >= 4 && get_word(bytes, MAGIC) == 20240522) return "contains llm.c multiple-choice examples, not tokens";
    if (size >= 4 && get_word(bytes, MAGIC) == 20240326) return "contains an llm.c model, not tokens";
    if (size >= 4 && get_word(bytes, MAGIC) == 20240328) return "contains an llm.c tokenizer, not tokens";
    return NULL;
}

static lk_status read_own(lk_context *context, const char *label, const unsigned char *bytes, lk__text_token_file *f)
{
    if (get_word(bytes, OWN) != OWN_MAGIC) return LK_OK;
    uint32_t vocabulary = get_word(bytes, VOCABULARY), end = get_word(bytes, END), begin = get_word(bytes, BEGIN);
    uint64_t count = get_two(bytes, COUNT_LOW), text = get_two(bytes, TEXT_LOW);
    if (get_word(bytes, OWN_VERSION) != 1)
        return lk__fail(context, LK_EFORMAT,
                        "%s has a header of format version %u: this version of Lockstep reads version 1", label,
                        get_word(bytes, OWN_VERSION));
    if (vocabulary > INT32_MAX || end > vocabulary || begin > vocabulary || count > INT64_MAX || text > INT64_MAX)
        return lk__fail(context, LK_EFORMAT, "%s has a damaged header: write it again with `lockstep data tokenize`",
                        label);
    f->vocabulary = vocabulary;
    f->end = (int32_t)end - 1;
    f->begin = (int32_t)begin - 1;
    f->bytes = (int64_t)text;
    f->ids.count = (int64_t)count;
    return LK_OK;
}

static lk_status read_header(lk_context *context, const lk__text_token_bytes *from, int kind, lk__text_token_file *f)
{
    const char          *label = from->label;
    const unsigned char *bytes = from->bytes;
    size_t               size = from->size;
    if (size < LK__TOKEN_HEADER)
        return lk__fail(context, LK_EFORMAT, "%s is truncated: its header takes %d bytes, but the file has %zu", label,
                        LK__TOKEN_HEADER, size);
    uint32_t version = get_word(bytes, VERSION);
    if (version != kinds[kind].version)
        return lk__fail(context, LK_EFORMAT, "%s has an llm.c header %u of version %u: only version %u is supported",
                        label, kinds[kind].magic, version, kinds[kind].version);
    f->ids.width = kinds[kind].width;
    f->ids.bytes = bytes + LK__TOKEN_HEADER;
    f->ids.count = get_word(bytes, COUNT);
    lk_status status = read_own(context, label, bytes, f);
    if (status < 0) return status;
    size_t  body = size - LK__TOKEN_HEADER, width = (size_t)f->ids.width;
    int64_t have = (int64_t)(body / width);
    if (f->ids.count == have && body % width == 0) return LK_OK;
    return lk__fail(context, LK_EFORMAT,
                    "%s is truncated or damaged: its header declares %lld tokens of %zu bytes, but %zu bytes follow it",
                    label, (long long)f->ids.count, width, body);
}

lk_status lk__text_token_file_read(lk_context *context, const lk__text_token_bytes *from, int width,
                                   lk__text_token_file *f)
{
    const char          *label = from->label;
    const unsigned char *bytes = from->bytes;
    size_t               size = from->size;
    const char          *foreign = find_foreign(bytes, size);
    *f = (lk__text_token_file){.ids = {bytes, width, (int64_t)(size / (size_t)width)}, .end = -1, .begin = -1};
    if (size == 0) return lk__fail(context, LK_EFORMAT, "%s is empty", label);
    if (foreign) return lk__fail(context, LK_EFORMAT, "%s %s", label, foreign);
    for (int i = 0; i < KINDS; i++)
        if (size >= 4 && get_word(bytes, MAGIC) == kinds[i].magic) return read_header(context, from, i, f);
    if (size % (size_t)width == 0) return LK_OK;
    return lk__fail(context, LK_EFORMAT,
                    "%s has %zu bytes, which is not a whole number of %d-byte tokens: is it truncated, or of a "
                    "different type (--token-type)?",
                    label, size, width);
}

void lk__text_token_file_header(const lk__text_token_file *f, unsigned char header[LK__TOKEN_HEADER])
{
    int kind = f->ids.width == 4;
    memset(header, 0, LK__TOKEN_HEADER);
    put_word(header, MAGIC, kinds[kind].magic);
    put_word(header, VERSION, kinds[kind].version);
    put_word(header, COUNT, f->ids.count < INT32_MAX ? (uint32_t)f->ids.count : INT32_MAX);
    put_word(header, OWN, OWN_MAGIC);
    put_word(header, OWN_VERSION, 1);
    put_word(header, VOCABULARY, (uint32_t)f->vocabulary);
    put_word(header, END, (uint32_t)(f->end + 1));
    put_word(header, BEGIN, (uint32_t)(f->begin + 1));
    put_two(header, COUNT_LOW, (uint64_t)f->ids.count);
    put_two(header, TEXT_LOW, (uint64_t)f->bytes);
}
