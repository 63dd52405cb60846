/* zip.c - the directory of a zip archive. Sizes and offsets come from the central directory, which is right also where
 * a local header leaves them out (data descriptors). */
#include "data/array/zip.h"

#include <string.h>

enum { END_BYTES = 22, LOCATOR_BYTES = 20, END64_BYTES = 56, ENTRY_BYTES = 46, LOCAL_BYTES = 30, COMMENT = 65535 };

static uint64_t number(const unsigned char *bytes, int size)
{
    uint64_t n = 0;
    for (int i = size - 1; i >= 0; i--) n = n << 8 | bytes[i];
    return n;
}

/* 4.3.16: at the very end, before a comment. */
static bool find_end(const lk__map *map, uint64_t *at)
{
    if (map->size < END_BYTES) return false;
    uint64_t last = map->size - END_BYTES, first = last > COMMENT ? last - COMMENT : 0;
    for (uint64_t i = last + 1; i-- > first;) {
        if (memcmp(map->bytes + i, "PK\005\006", 4) != 0) continue;
        if (number(map->bytes + i + 20, 2) != map->size - i - END_BYTES) continue; /* the length of the comment */
        *at = i;
        return true;
    }
    return false;
}

lk_status lk__zip_open(lk_context *context, const char *label, const lk__map *map, lk__zip *zip)
{
    uint64_t             end, disk, disks;
    const unsigned char *b = map->bytes;
    *zip = (lk__zip){.context = context, .label = label, .map = map};
    if (!find_end(map, &end))
        return lk__fail(context, LK_EFORMAT, "%s is %s", label,
                        map->size >= 4 && memcmp(b, "PK\003\004", 4) == 0
                            ? "truncated: the directory at the end of a zip archive is missing"
                            : "not a zip archive, so it is not a .npz file");
    disk = number(b + end + 4, 2), disks = number(b + end + 6, 2);
    zip->left = number(b + end + 10, 2);
    uint64_t bytes = number(b + end + 12, 4);
    zip->at = number(b + end + 16, 4);
    if ((zip->left == 0xffff || bytes == 0xffffffff || zip->at == 0xffffffff) && end >= LOCATOR_BYTES &&
        memcmp(b + end - LOCATOR_BYTES, "PK\006\007", 4) == 0) { /* 4.3.14, 4.3.15: zip64 */
        uint64_t at = number(b + end - LOCATOR_BYTES + 8, 8);
        if (at > end - LOCATOR_BYTES || end - LOCATOR_BYTES - at < END64_BYTES || memcmp(b + at, "PK\006\006", 4) != 0)
            return lk__fail(context, LK_EFORMAT, "%s is damaged: its zip64 directory is not at byte %llu", label,
                            (unsigned long long)at);
        disk = number(b + at + 16, 4), disks = number(b + at + 20, 4);
        zip->left = number(b + at + 32, 8);
        bytes = number(b + at + 40, 8);
        zip->at = number(b + at + 48, 8);
    }
    if (disk != 0 || disks != 0)
        return lk__fail(context, LK_EFORMAT, "%s is part of a multi-file archive, which is not supported", label);
    if (zip->at > end || bytes > end - zip->at)
        return lk__fail(
            context, LK_EFORMAT,
            "%s is truncated or damaged: its directory of %llu bytes at byte %llu extends past the end of the file",
            label, (unsigned long long)bytes, (unsigned long long)zip->at);
    zip->end = zip->at + bytes;
    return LK_OK;
}

/* 4.5.3: the extra field 1 holds, in this order, those numbers that do not fit in 32 bits. */
static bool read_zip64(const unsigned char *extra, size_t bytes, uint64_t *values[3])
{
    while (bytes >= 4) {
        size_t id = number(extra, 2), size = number(extra + 2, 2);
        if (size > bytes - 4) return false;
        extra += 4, bytes -= 4;
        if (id == 1) {
            for (int i = 0; i < 3; i++) {
                if (*values[i] != 0xffffffff) continue;
                if (size < 8) return false;
                *values[i] = number(extra, 8);
                extra += 8, size -= 8;
            }
            return true;
        }
        extra += size, bytes -= size;
    }
    return *values[0] != 0xffffffff && *values[1] != 0xffffffff && *values[2] != 0xffffffff;
}

static lk_status report_damage(const lk__zip *z)
{
    return lk__fail(z->context, LK_EFORMAT, "%s is damaged: its zip directory at byte %llu is invalid", z->label,
                    (unsigned long long)z->at);
}

lk_status lk__zip_next(lk__zip *z, lk__zip_member *m)
{
    const unsigned char *b = z->map->bytes, *e = b + z->at;
    if (z->left == 0) return LK_END;
    if (z->end - z->at < ENTRY_BYTES || memcmp(e, "PK\001\002", 4) != 0) return report_damage(z);
    uint64_t flags = number(e + 8, 2), method = number(e + 10, 2), name = number(e + 28, 2), extra = number(e + 30, 2),
             comment = number(e + 32, 2), offset = number(e + 42, 4);
    *m = (lk__zip_member){.stored = number(e + 20, 4), .size = number(e + 24, 4), .crc = (uint32_t)number(e + 16, 4)};
    if (z->end - z->at - ENTRY_BYTES < name + extra + comment) return report_damage(z);
    m->name = (const char *)e + ENTRY_BYTES;
    m->name_length = (size_t)name;
    if (!read_zip64(e + ENTRY_BYTES + name, (size_t)extra, (uint64_t *[]){&m->size, &m->stored, &offset}))
        return report_damage(z);
    if (flags & 1)
        return lk__fail(z->context, LK_EFORMAT, "%s: '%.*s' is encrypted, which is not supported", z->label, (int)name,
                        m->name);
    if (method != 0 && method != 8)
        return lk__fail(z->context, LK_EFORMAT, "%s: '%.*s' is compressed with method %d: only deflate is supported",
                        z->label, (int)name, m->name, (int)method);
    m->deflated = method == 8;
    if (offset > z->map->size || z->map->size - offset < LOCAL_BYTES || memcmp(b + offset, "PK\003\004", 4) != 0)
        return report_damage(z);
    uint64_t skip = LOCAL_BYTES + number(b + offset + 26, 2) + number(b + offset + 28, 2);
    if (skip > z->map->size - offset || m->stored > z->map->size - offset - skip ||
        (!m->deflated && m->stored != m->size))
        return report_damage(z);
    m->data = b + offset + skip;
    z->at += ENTRY_BYTES + name + extra + comment;
    z->left--;
    return LK_OK;
}
