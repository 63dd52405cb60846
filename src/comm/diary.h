/* comm/diary.h - what a rank did last, in a file that outlives it: whoever started the rank can read it there after any death. */
#ifndef LK__DIARY_H
#define LK__DIARY_H

#include "comm/comm.h"

typedef struct lk__diary {
    uint64_t              magic;
    _Atomic uint64_t      begun, ended; /* operations of any group of the process */
    _Atomic uint64_t      failed;       /* the latest that ended with a failure; 0: none */
    _Atomic uint64_t      blame;        /* kind << 32 | rank: of the first failure of a group; 0: none */
    int64_t               pid;          /* of the rank, which the launcher may have started through others */
    uint64_t              started;      /* when that process did, as the kernel counts it */
    _Atomic int32_t       kind, type, reduce, root, tag, line;
    _Atomic uint64_t      count, bytes;
    _Atomic(const char *) site; /* of `file`: only the rank itself looks at it */
    char                  file[112];
} lk__diary;

/* In the file that LOCKSTEP_DIARY names; NULL: nobody asked for one, or it cannot be had. Every group of a process opens the same one. */
lk__diary *lk__diary_open(void);
void       lk__diary_close(lk__diary *diary); /* what is written stays; NULL is fine */
void       lk__diary_name(lk__diary *diary, const char *file);

/* From any thread; what two write at once is a mixture of both, which does no harm. */
static inline void lk__diary_begin(lk__diary *d, const lk__operation *o)
{
    if (!d) return;
#define LK__DIARY_SET(field, value) atomic_store_explicit(&d->field, value, memory_order_relaxed)
    if (atomic_load_explicit(&d->site, memory_order_relaxed) != o->site.file) lk__diary_name(d, o->site.file);
    LK__DIARY_SET(kind, (int32_t)o->kind);
    LK__DIARY_SET(type, (int32_t)o->type);
    LK__DIARY_SET(reduce, (int32_t)o->reduce);
    LK__DIARY_SET(root, o->root);
    LK__DIARY_SET(tag, o->tag);
    LK__DIARY_SET(line, o->site.line);
    LK__DIARY_SET(count, o->count);
    LK__DIARY_SET(bytes, o->bytes);
#undef LK__DIARY_SET
    atomic_store_explicit(&d->begun, atomic_load_explicit(&d->begun, memory_order_relaxed) + 1, memory_order_relaxed);
}

static inline void lk__diary_end(lk__diary *d, lk_status status)
{
    if (!d) return;
    uint64_t begun = atomic_load_explicit(&d->begun, memory_order_relaxed);
    if (status < 0) atomic_store_explicit(&d->failed, begun, memory_order_relaxed);
    atomic_store_explicit(&d->ended, begun, memory_order_relaxed);
}

/* Whom a group's failure is due to; the first counts, until a group is joined after it. */
void lk__diary_blame(lk__diary *diary, lk__blame blame);
/* This rank cannot go on for a reason of its own: that counts, even if the group failed for another rank's before. */
void lk__diary_blame_own(lk__diary *diary, lk__blame blame);
void lk__diary_joined(lk__diary *diary);

/* What it says about the rank: whom its failure is due to, and its process. False: there is none. */
bool lk__diary_look(const char *path, lk__blame *blame, int64_t *pid, uint64_t *started);
/* "in all_reduce f32 × 1000 sum at train.c:55, its 17th" or "none since …"; false: the file says nothing. */
bool lk__diary_read(const char *path, char *out, size_t size);

#endif
