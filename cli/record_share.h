/* record_share.h - sends what rank 0 reads of a checkpoint to all ranks, so that only its host needs the files. Without
 * a group, this process reads it. */
#ifndef RECORD_SHARE_H
#define RECORD_SHARE_H

#include "setup.h"

/* The options of s->description, which rank 0 has or not, become s->record_text, and s->described is set. status: that
 * of reading it on rank 0, and the result of all; ranks other than 0 have printed its message. */
lk_status record_share_options(setup *s, const char *command_name, lk_status status);
/* The fields of its samples become s->expected. */
lk_status record_share_fields(setup *s);
/* And how field 0 is normalised, s->normalisation. */
lk_status record_share_normalisation(setup *s);

#endif
