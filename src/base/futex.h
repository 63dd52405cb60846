/* base/futex.h - sleeping until a word of shared memory changes, also between processes. */
#ifndef LK__FUTEX_H
#define LK__FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps while *word is `value`, for at most that many milliseconds; may return earlier. */
static inline void lk__futex_wait(_Atomic uint32_t *word, uint32_t value, int milliseconds)
{
    struct timespec limit = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

static inline void lk__futex_wake(_Atomic uint32_t *word) /* all threads that sleep on it */
{
    syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

#endif
