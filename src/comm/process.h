/* comm/process.h - reads /proc for a process: its state, when it started, and this process's namespaces. */
#ifndef LK__PROCESS_H
#define LK__PROCESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct lk__process {
    char     state;   /* R, S, D, T, Z, … as proc(5) lists them */
    bool     exiting; /* it has been killed or has called exit: its files are being closed, and its memory given back */
    uint64_t started; /* in ticks since boot: with the pid it identifies one process */
} lk__process;

bool     lk__process_look(int64_t pid, lk__process *process); /* false: no such process, or not readable */
uint64_t lk__process_started(int64_t pid);                    /* 0: unknown */
bool     lk__process_gone(int64_t pid);                       /* it does not exist, is exiting or a zombie */
uint64_t lk__process_namespace(const char *kind); /* the number of this process's "net", "pid", …; 0: unknown */

static inline bool lk__process_stopped(const lk__process *p) { return p->state == 'T' || p->state == 't'; }
static inline bool lk__process_over(const lk__process *p) { return p->state == 'Z' || p->state == 'X' || p->exiting; }

#endif
