/* all_to_allv.c - parts of different sizes. No rank knows the largest part, which determines the chunks, so an arrival
 * contains the counts that its rank sends to and expects from every other rank, followed by the parts themselves if
 * they fit: rows of few tokens take one exchange. All ranks compare all counts, so all of them report the same
 * mismatch. */
#include "comm/shm/job.h"

#include <stdio.h>
#include <string.h>

enum { RANKS_MOST = LK__SMALL / (2 * sizeof(size_t)) };

/* What a rank sends, then what it expects, by rank. */
static const size_t *counts_of(const lk__shm *s, int rank, uint32_t number)
{
    return (const size_t *)(const void *)s->rank_slots[rank].arrivals[number & 1].payload;
}

/* Where the part of rank `to` begins in the arrival of rank `from`, which has no part for itself; to == ranks: where
 * the last one ends. LK__SMALL + 1: they do not fit. */
static size_t part_at(const lk__shm_job *j, const size_t *counts, int from, int to)
{
    size_t at = 2 * (size_t)j->s->size * sizeof *counts;
    for (int i = 0; i < to; i++) {
        if (i == from) continue;
        if (counts[i] > LK__SMALL / j->size || at + counts[i] * j->size > LK__SMALL) return LK__SMALL + 1;
        at += counts[i] * j->size;
    }
    return at;
}

static bool parts_fit(const lk__shm_job *j, const size_t *counts, int from)
{
    return part_at(j, counts, from, j->s->size) <= LK__SMALL;
}

static lk_status write_arrival(const lk__shm_job *j, uint32_t number)
{
    lk__shm             *s = j->s;
    const lk__comm_call *o = j->o;
    char                *payload = s->me->arrivals[number & 1].payload;
    size_t               each = (size_t)s->size * sizeof(size_t), at = 2 * each;
    if (s->size > RANKS_MOST) {
        char text[96];
        snprintf(text, sizeof text, "all_to_allv supports at most %d ranks on one host", RANKS_MOST);
        return lk__shm_raise(s, LK_EUNSUPPORTED, text);
    }
    memcpy(payload, o->send_counts, each);
    memcpy(payload + each, o->recv_counts, each);
    if (!parts_fit(j, o->send_counts, s->rank)) return LK_OK;
    for (int i = 0; i < s->size; i++) {
        size_t bytes = i == s->rank ? 0 : o->send_counts[i] * j->size;
        if (bytes) memcpy(payload + at, lk__call_send_part(o, s->rank, i, j->size), bytes);
        at += bytes;
        s->sent += bytes;
    }
    return LK_OK;
}

static lk_status raise_mismatch(const lk__shm_job *j, int from, int to, size_t sent, size_t expected)
{
    char text[512], call[256];
    lk__call_describe(j->o, j->s->number, call, sizeof call);
    snprintf(text, sizeof text, "rank %d sends %zu elements to rank %d, which expects %zu, in %s", from, sent, to,
             expected, call);
    return lk__shm_raise(j->s, LK_EMISMATCH, text);
}

/* Sets job->most. *all_fit: the parts of all ranks are in their arrivals. */
static lk_status compare_counts(lk__shm_job *j, uint32_t number, bool *all_fit)
{
    const lk__shm *s = j->s;
    *all_fit = true;
    j->most = 0;
    for (int from = 0; from < s->size; from++) {
        const size_t *sent = counts_of(s, from, number);
        *all_fit = *all_fit && parts_fit(j, sent, from);
        for (int to = 0; to < s->size; to++) {
            size_t expected = counts_of(s, to, number)[s->size + from];
            if (sent[to] != expected) return raise_mismatch(j, from, to, sent[to], expected);
            if (sent[to] > j->most) j->most = sent[to];
        }
    }
    return LK_OK;
}

lk_status lk__shm_all_to_allv(lk__shm_job *j, uint32_t number)
{
    lk__shm  *s = j->s;
    bool      all_fit;
    lk_status status = write_arrival(j, number);
    if (status >= 0) status = lk__shm_publish_and_await(s, j->o, number);
    if (status >= 0) status = compare_counts(j, number, &all_fit);
    if (status < 0 || j->most == 0) return status;
    j->base = s->progress;
    if (!all_fit) return lk__shm_run_staged(j);
    for (int i = 0; i < s->size; i++) {
        const size_t *counts = counts_of(s, i, number);
        j->from[i] = i == s->rank ? lk__call_send_part(j->o, i, i, j->size)
                                  : (const char *)counts + part_at(j, counts, i, s->rank);
    }
    lk__shm_take_parts(j, 0, j->most);
    return LK_OK;
}
