/* comm/rendezvous/token.h - the job's token: the shared secret by which ranks authenticate each other. The same rules
 * apply to every source. */
#ifndef LK__TOKEN_H
#define LK__TOKEN_H

#include "base/base.h"

enum { LK__TOKEN_LEAST = 16, LK__TOKEN_ROOM = 264 }; /* characters; bytes with the NUL */

/* How a user makes one; for messages. */
#define LK__TOKEN_RECIPE "openssl rand -hex 16 > ~/.lockstep-token && chmod 600 ~/.lockstep-token"

/* LK_EINVAL, with a message, for a token of the wrong length. from: its source, "LOCKSTEP_TOKEN". */
lk_status lk__token_check(lk_context *context, const char *from, const char *token);
/* One line of a regular file that this user owns and that no one else may read or write. */
lk_status lk__token_read(lk_context *context, const char *path, char token[LK__TOKEN_ROOM]);

#endif
