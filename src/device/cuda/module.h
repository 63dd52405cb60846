/* device/cuda/module.h - the interface between liblockstep and its CUDA module, liblockstep-cuda.so. The module is
 * loaded at run time and links nothing of the library: the library passes the functions that it needs. */
#ifndef LK__CUDA_MODULE_H
#define LK__CUDA_MODULE_H

#include "base/environment.h"
#include "device/device.h"

/* The version of the structs that both use, which changes with their sizes. Raise it with any other change of the
 * headers in src/device or of this file. */
enum { LK__CUDA_VERSION = 7 + (int)(sizeof(lk__device_backend) << 16) + (int)sizeof(lk__kernel_call) };

/* What the module calls in the library (base/base.h, base/hash.h, base/environment.h, device/device.h). */
typedef struct lk__cuda_library {
    void *(*alloc)(lk_context *context, lk_memory kind, size_t bytes);
    void (*free)(lk_context *context, lk_memory kind, void *memory, size_t bytes);
    void (*account)(lk_context *context, lk_memory kind, ptrdiff_t bytes);
    void (*account_allocation)(lk_context *context, lk_memory kind, size_t bytes);
    lk_status (*fail)(lk_context *context, lk_status status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
    void (*log)(lk_context *context, lk_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));
    uint64_t (*hash64)(const void *data, size_t bytes, uint64_t seed);
    const char *(*memory_name)(lk_memory kind);
    const char *(*op_name)(lk__op op);
    const char *(*uuid_text)(const unsigned char uuid[LK__DEVICE_UUID], char text[LK__DEVICE_UUID_TEXT]);
    const char *(*environment)(const lk_context *context, lk__environment_id id); /* base/environment.h */
    bool (*mps)(const lk_context *context);
} lk__cuda_library;

typedef struct lk__cuda_module {
    int                       version;  /* LK__CUDA_VERSION */
    size_t                    op_count; /* LK__OP_COUNT, as the module was compiled */
    const lk__device_backend *backend;
    void (*start)(const lk__cuda_library *library); /* before anything else; may be called again */
    int (*devices)(char *why, size_t bytes);        /* usable GPUs; 0: why says the reason */
    /* One line about GPU `i`; then lines about the driver and the libraries, until NULL. For `lockstep info`. */
    const char *(*line)(int i, char *text, size_t bytes);
    /* What a context on a GPU and the libraries hold of its memory, measured by making them; false: that cannot be
     * measured. */
    bool (*overhead)(int number, size_t *context, size_t *libraries);
} lk__cuda_module;

typedef const lk__cuda_module *(*lk__cuda_entry)(void);
#define LK__CUDA_SYMBOL "lk__cuda_module_entry"

#endif
