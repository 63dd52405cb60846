/* comm/token.h - the job's token: the secret that ranks prove to each other to know. The same rules hold wherever it comes from. */
#ifndef LK__TOKEN_H
#define LK__TOKEN_H

#include "base/base.h"

enum { LK__TOKEN_LEAST = 16, LK__TOKEN_ROOM = 264 }; /* characters; bytes with the NUL */

/* How a user makes one; for messages. */
#define LK__TOKEN_RECIPE "openssl rand -hex 16 > ~/.lockstep-token && chmod 600 ~/.lockstep-token"

/* LK_EINVAL, with a sentence, for a token of the wrong length. from: who gave it, "LOCKSTEP_TOKEN". */
lk_status lk__token_check(lk_context *context, const char *from, const char *token);
/* One line of an ordinary file that belongs to this user and that nobody else may read or write. */
lk_status lk__token_read(lk_context *context, const char *path, char token[LK__TOKEN_ROOM]);

#endif
