/* comm/process.h - whether a process of this host is still there. */
#ifndef LK__PROCESS_H
#define LK__PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* The letter of its state and its start time, as /proc/PID/stat gives them; false: they cannot be read. */
bool     lk__process_look(int64_t pid, char *state, uint64_t *started);
uint64_t lk__process_started(int64_t pid); /* 0: it cannot be read */
bool     lk__process_gone(int64_t pid);    /* it does not exist, or is a zombie */

#endif
