/* train/state.h - state.json of a checkpoint. */
#ifndef LK__STATE_H
#define LK__STATE_H

#include "base/base.h"
#include "base/json.h"
#include "train/file.h"

#include <lockstep/checkpoint.h>

/* LK_EINVAL if the numbers are inconsistent; `what` starts the message. */
lk_status lk__progress_check(lk_context *context, const char *what, const lk_progress *progress);

enum {
    LK__STATE_DTYPE = 8,            /* bytes of the precision's name: "f32", "f64", "bf16" */
    LK__STATE_ISA = 32,             /* bytes of the name of an instruction set */
    LK__STATE_WRITER = 1024,        /* bytes of lk__state_writer's text */
    LK__STATE_RECORD = 8 << 20,     /* the longest record of a run, in bytes: class names can be many */
    LK__STATE_ALGORITHMS = 4 << 20, /* the longest list of algorithms, in bytes */
    LK__STATE_CHUNKS = 3 << 20      /* the most chunks: of 8 MiB, those of 25 TB */
};

/* What a state.json holds. Texts are borrowed and are parts of the JSON text, made before training: a save allocates
 * nothing. */
typedef struct lk__state_content {
    const lk_progress *progress;
    const char        *dtype;             /* the precision of the run */
    const char        *isa;               /* the instruction set of its kernels; "": they have none */
    int64_t            parameters;        /* trained and frozen elements */
    const char        *model, *optimizer; /* SHA-256 of the files */
    uint64_t           chunk_bytes;
    const uint64_t    *chunks[2]; /* digests (XXH64) of the chunks of these files */
    size_t             chunks_count[2];
    /* members "NAME":"SHA-256", of the caller's files, each followed by a comma */
    const char *files;
    size_t      files_bytes;
    const char *writer; /* lk__state_writer */
    const char *record; /* an object; NULL: none */
    size_t      record_bytes;
    const char *algorithms; /* lk__state_algorithms; NULL: none */
    size_t      algorithms_bytes;
} lk__state_content;

/* The list of a plan's algorithms as a member of an object with a comma before it: ,"algorithms":["LINE",…]. Its
 * length; out NULL: only measures. */
size_t lk__state_algorithms(const char *lines, char *out, size_t size);

/* Host and user of this process, as members of an object. */
void      lk__state_writer(char out[LK__STATE_WRITER]);
lk_status lk__state_write(lk_context *context, const char *path, void *staging, size_t staging_bytes,
                          const lk__state_content *content);

/* A file of the caller that a checkpoint holds beside its own three, see lk_checkpoint_file. */
typedef struct lk__state_file {
    lk__file_name name;
    char          sha[65];
} lk__state_file;

/* A state.json that was read and verified. */
typedef struct lk__state {
    lk_context *context;
    char       *text;
    size_t      length;
    lk__json    root; /* within text */
    lk_progress progress;
    char        dtype[LK__STATE_DTYPE]; /* "" where an older version wrote the file */
    char        isa[LK__STATE_ISA];     /* the same, and where there is none */
    char        sha[3][65];             /* of the model, the optimizer, and itself */

    lk__state_file files[LK__LISTED_FILES];
    size_t         files_count;

    /* Digests of the model's and the optimizer's chunks, until it is closed; NULL where an older version wrote the
     * file. */
    uint64_t *chunks[2];
    size_t    chunks_count[2];
    uint64_t  chunk_bytes;
} lk__state;

/* LK_EFORMAT if it is damaged, inconsistent, or of a step other than `step`; below 0: any step. Close it if it was
 * opened. */
lk_status lk__state_open(lk_context *context, const char *path, int64_t step, lk__state *state);
void      lk__state_close(lk__state *state);
/* The lines of its list of algorithms, for lk__plan_set_algorithms. NULL and LK_OK: it has none. lk__text_free frees
 * them; length: of the allocation, less one. */
lk_status lk__state_get_algorithms(const lk__state *state, char **lines, size_t *length);

/* Whether a checkpoint may hold a file of the caller of that name. */
bool lk__state_file_name(const char *name);
/* The caller's files that the state.json of a directory lists, for lk__file_names. It reads only the end of the file,
 * allocates nothing, and finds none in a state that Lockstep did not write. */
size_t lk__state_list(int directory, lk__file_name names[LK__LISTED_FILES]);

#endif
