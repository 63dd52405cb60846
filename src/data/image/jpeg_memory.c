/* jpeg_memory.c - the methods of libjpeg's memory manager (jpeglib.h, struct jpeg_memory_mgr) over an arena: objects
 * and rows from one block, virtual arrays wholly in memory, nothing freed before the image is done. */
#ifdef LK_JPEG
#include "data/image/jpeg_memory.h"

#include <jerror.h>
#include <string.h>

/* What libjpeg calls a virtual array: a handle to rows. */
typedef struct array {
    JDIMENSION height;
    void      *rows; /* a JSAMPARRAY or a JBLOCKARRAY */
} array;

static void *allocate(j_common_ptr object, int pool, size_t bytes)
{
    lk__image_jpeg_memory *m = (lk__image_jpeg_memory *)object->mem;
    void                  *memory = lk__arena_take(m->arena, bytes);
    (void)pool; /* all pools live as long as the image */
    if (!memory) ERREXIT1(object, JERR_OUT_OF_MEMORY, 0);
    return memory;
}

/* Rows of `bytes` each, in one block; vector code may write up to the next multiple of 2 vectors of 32 bytes. */
static void *allocate_rows(j_common_ptr object, int pool, size_t bytes, JDIMENSION rows)
{
    size_t          stride = lk__round_up(bytes, 64);
    unsigned char **pointers = allocate(object, pool, (size_t)rows * sizeof *pointers);
    unsigned char  *block = allocate(object, pool, stride * rows);
    for (JDIMENSION i = 0; i < rows; i++) pointers[i] = block + (size_t)i * stride;
    return pointers;
}

static JSAMPARRAY allocate_samples(j_common_ptr object, int pool, JDIMENSION width, JDIMENSION rows)
{
    return allocate_rows(object, pool, (size_t)width * sizeof(JSAMPLE), rows);
}

static JBLOCKARRAY allocate_blocks(j_common_ptr object, int pool, JDIMENSION width, JDIMENSION rows)
{
    return allocate_rows(object, pool, (size_t)width * sizeof(JBLOCK), rows);
}

static array *request_array(j_common_ptr object, int pool, boolean zeroed, size_t bytes, JDIMENSION height)
{
    array *a = allocate(object, pool, sizeof *a);
    *a = (array){height, allocate_rows(object, pool, bytes, height)};
    if (zeroed && height) memset(((unsigned char **)a->rows)[0], 0, lk__round_up(bytes, 64) * height);
    return a;
}

/* `most` is how many rows are accessed at once; here all are in memory. */
static jvirt_sarray_ptr request_samples(j_common_ptr object, int pool, boolean zeroed, JDIMENSION width,
                                        JDIMENSION height, JDIMENSION most)
{
    (void)most;
    return (jvirt_sarray_ptr)request_array(object, pool, zeroed, (size_t)width * sizeof(JSAMPLE), height);
}

static jvirt_barray_ptr request_blocks(j_common_ptr object, int pool, boolean zeroed, JDIMENSION width,
                                       JDIMENSION height, JDIMENSION most)
{
    (void)most;
    return (jvirt_barray_ptr)request_array(object, pool, zeroed, (size_t)width * sizeof(JBLOCK), height);
}

static void realize_arrays(j_common_ptr object) { (void)object; }

static void check_rows(j_common_ptr object, const array *a, JDIMENSION first, JDIMENSION rows)
{
    if (first > a->height || rows > a->height - first) ERREXIT(object, JERR_BAD_VIRTUAL_ACCESS);
}

static JSAMPARRAY access_samples(j_common_ptr object, jvirt_sarray_ptr handle, JDIMENSION first, JDIMENSION rows,
                                 boolean writable)
{
    (void)writable;
    check_rows(object, (const array *)handle, first, rows);
    return (JSAMPARRAY)((const array *)handle)->rows + first;
}

static JBLOCKARRAY access_blocks(j_common_ptr object, jvirt_barray_ptr handle, JDIMENSION first, JDIMENSION rows,
                                 boolean writable)
{
    (void)writable;
    check_rows(object, (const array *)handle, first, rows);
    return (JBLOCKARRAY)((const array *)handle)->rows + first;
}

static void free_pool(j_common_ptr object, int pool) { (void)object, (void)pool; }
static void destroy_nothing(j_common_ptr object) { (void)object; }

void lk__jpeg_memory_install(j_common_ptr object, lk__image_jpeg_memory *memory, lk__image_arena *arena)
{
    *memory = (lk__image_jpeg_memory){.methods = {.alloc_small = allocate,
                                                  .alloc_large = allocate,
                                                  .alloc_sarray = allocate_samples,
                                                  .alloc_barray = allocate_blocks,
                                                  .request_virt_sarray = request_samples,
                                                  .request_virt_barray = request_blocks,
                                                  .realize_virt_arrays = realize_arrays,
                                                  .access_virt_sarray = access_samples,
                                                  .access_virt_barray = access_blocks,
                                                  .free_pool = free_pool,
                                                  .self_destruct = destroy_nothing,
                                                  .max_memory_to_use = object->mem->max_memory_to_use,
                                                  .max_alloc_chunk = object->mem->max_alloc_chunk},
                                      .original = object->mem,
                                      .arena = arena};
    object->mem = &memory->methods;
}

void lk__jpeg_memory_remove(j_common_ptr object, const lk__image_jpeg_memory *memory)
{
    object->mem = memory->original;
}

#endif
