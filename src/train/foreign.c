/* foreign.c - weights of another format, known by their first bytes: what they are, and how Python converts them. */
#define _GNU_SOURCE
#include "train/safetensors.h"
#include "train/safetensors_inside.h"

#include <stdio.h>
#include <string.h>

typedef enum kind { UNKNOWN, TORCH, TORCH_LEGACY, ZIP, PICKLE } kind;

static bool begins(const unsigned char *first, size_t bytes, const char *magic, size_t length)
{
    return bytes >= length && memcmp(first, magic, length) == 0;
}

/* A zip's first entry is named at byte 30 (APPNOTE 4.3.7): torch.save writes NAME/data.pkl first. Before that it wrote a pickle
 * of its magic number, and any pickle since protocol 2 begins with PROTO and a version. */
static kind kind_of(const unsigned char *first, size_t bytes)
{
    static const char magic[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    if (bytes > 8 && first[8] == '{') return UNKNOWN; /* a header of 640 bytes begins with 80 02, as a pickle may */
    if (begins(first, bytes, "PK\003\004", 4)) return memmem(first, bytes, "data.pkl", 8) ? TORCH : ZIP;
    if (begins(first, bytes, "PK\005\006", 4)) return ZIP;
    if (begins(first, bytes, magic, sizeof magic - 1)) return TORCH_LEGACY;
    return bytes >= 2 && first[0] == 0x80 && first[1] >= 2 && first[1] <= 5 ? PICKLE : UNKNOWN;
}

lk_status lk__safetensors_foreign(lk_context *context, const char *path, const unsigned char *first, size_t bytes)
{
    static const char *const what[] = {"", "a PyTorch file (a zip with a pickle)", "a PyTorch file of the old format",
                                       "a zip archive", "a Python pickle"};
    kind                     k = kind_of(first, bytes);
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
