/* foreign.c - recognises weight files of other formats by their first bytes, and says how to convert them in Python. */
#define _GNU_SOURCE
#include "data/safetensors.h"
#include "data/safetensors_inside.h"

#include <string.h>

typedef enum kind { UNKNOWN, TORCH, TORCH_LEGACY, ZIP, PICKLE } kind;

static bool begins_with(const unsigned char *first, size_t bytes, const char *magic, size_t length)
{
    return bytes >= length && memcmp(first, magic, length) == 0;
}

/* The name of a zip's first entry is at byte 30 (APPNOTE 4.3.7): torch.save writes NAME/data.pkl first. Older versions
 * wrote a pickle of a magic number. Any pickle since protocol 2 begins with PROTO and a version. */
static kind recognise_kind(const unsigned char *first, size_t bytes)
{
    static const char magic[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    if (bytes > 8 && first[8] == '{') return UNKNOWN; /* a header of 640 bytes begins with 80 02, as a pickle may */
    if (begins_with(first, bytes, "PK\003\004", 4)) return memmem(first, bytes, "data.pkl", 8) ? TORCH : ZIP;
    if (begins_with(first, bytes, "PK\005\006", 4)) return ZIP;
    if (begins_with(first, bytes, magic, sizeof magic - 1)) return TORCH_LEGACY;
    return bytes >= 2 && first[0] == 0x80 && first[1] >= 2 && first[1] <= 5 ? PICKLE : UNKNOWN;
}

lk_status lk__safetensors_foreign(lk_context *context, const char *path, const unsigned char *first, size_t bytes)
{
    static const char *const what[] = {"", "a PyTorch file (a zip with a pickle)",
                                       "a PyTorch file in the legacy format", "a zip archive", "a Python pickle"};
    kind                     k = recognise_kind(first, bytes);
    const char              *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    int stem = dot && (!slash || dot > slash + 1) && dot > path ? (int)(dot - path) : (int)strlen(path);
    if (k == UNKNOWN) return LK_OK;
    if (k == PICKLE)
        return lk__fail(context, LK_EFORMAT,
                        "%s is %s, not safetensors; if you trust it (a pickle runs code), convert it in Python:\n"
                        "  import pickle, torch, safetensors.torch\n"
                        "  safetensors.torch.save_file({k: torch.as_tensor(v).contiguous() for k, v in "
                        "pickle.load(open(\"%s\", \"rb\")).items()}, \"%.*s.safetensors\")",
                        path, what[k], path, stem, path);
    return lk__fail(context, LK_EFORMAT,
                    "%s is %s, not safetensors; convert it in Python%s:\n"
                    "  import torch, safetensors.torch\n"
                    "  safetensors.torch.save_file({k: v.clone().contiguous() for k, v in torch.load(\"%s\", "
                    "map_location=\"cpu\").items()}, \"%.*s.safetensors\")",
                    path, what[k], k == ZIP ? ", if torch.save wrote it" : "", path, stem, path);
}
