/* train/checkpoint.h - saving with memory that was allocated beforehand, so that a save cannot run out of it. */
#ifndef LK__CHECKPOINT_H
#define LK__CHECKPOINT_H

#include "run/exchange.h"
#include "train/chunks.h"
#include "train/lock.h"
#include "train/safetensors_write.h"
#include "train/state.h"
#include "train/writers.h"

#include <lockstep/checkpoint.h>

enum { LK__FILE_MODEL, LK__FILE_OPTIMIZER }; /* indices of lk__checkpoint_files */

typedef struct lk__train_saver {
    lk_context             *context;
    lk_store               *store;
    void                   *staging; /* lk__safetensors_staging_bytes */
    lk__safetensors_tensor *tensors; /* room for the larger of the two files' tables */
    char (*names)[256];              /* of optimizer tensors, and of lists */
    size_t               bytes;      /* of all three, the digests and exchange */
    lk__safetensors_pair metadata[1];

    lk__writers writers;     /* the ranks that save together; alone by default */
    lk_comm    *group;       /* their comm, where it belongs to the saver; NULL: it does not */
    uint64_t    chunk_bytes; /* LK__CHUNK; tests have smaller ones */
    lk__chunks  cut[2];      /* of the save in progress */
    uint64_t   *digests[2];  /* of the chunks, followed by the file's SHA-256: of this rank's, then of all */
    lk__sha256  sha;
    char       *exchange; /* memory for gathering chunks from other ranks; NULL: each rank has what it writes */
    char       *chunk;    /* room for one; NULL: all are copied before */
    size_t      chunk_room;
    const char *copied[2]; /* this rank's chunks, where background.c copied them; NULL: they are read from the store */
    char       *record;    /* of the run, as JSON; NULL: none */
    size_t      record_bytes;
    char        writer[LK__STATE_WRITER]; /* host and user, as JSON */
    char       *algorithms; /* of the plan, as JSON; NULL: none. Their number is not planned: LK_MEMORY_OTHER */
    size_t      algorithms_bytes;

    lk_checkpoint_file *files; /* of the caller, with their texts; one block of files_memory bytes */
    int                 files_count;
    size_t              files_memory;
    const char         *digests_text; /* of the files, as state.json has them */
    size_t              digests_bytes;

    lk__lock *lock;           /* of the directory that is saved into; NULL: the caller of each save holds it */
    bool      links_reported; /* that a file of the user's has the name of a link */

    struct lk__train_background *background; /* NULL: the caller waits for each save */
} lk__train_saver;

lk_status lk__saver_init(lk__train_saver *saver, lk_store *store);
/* With chunks of another size; for saves by a group of this many ranks. */
lk_status lk__saver_init_chunks(lk__train_saver *saver, lk_store *store, uint64_t chunk_bytes, int ranks);
size_t    lk__saver_bytes(const lk_plan *plan, uint64_t chunk_bytes, int ranks); /* of LK_MEMORY_CHECKPOINT, for that */
lk_status lk__saver_buffer(lk__train_saver *saver); /* memory for one chunk, for saves that are not in the background */
/* The record that each save will hold: `bytes` of uninitialised memory for it. */
lk_status lk__saver_record(lk__train_saver *saver, size_t bytes);
void      lk__saver_free(lk__train_saver *saver); /* waits for a save in progress */
/* Collective where the saver has a group: a failure of one rank is one of all. */
lk_status lk__saver_save(lk__train_saver *saver, const char *directory, const lk_progress *progress, int keep);

/* What lk_checkpoint_save_group is given. */
typedef struct lk__checkpoint_save {
    const char               *directory;
    const lk_progress        *progress;
    int                       keep;
    const lk_checkpoint_file *files;
    int                       files_count;
} lk__checkpoint_save;
/* The same with chunks of another size. */
lk_status lk__checkpoint_save_chunks(lk_store *store, lk_comm *comm, const lk__checkpoint_save *save,
                                     uint64_t chunk_bytes);

/* ---- checkpoint_image.c: the bytes of the two large files ---- */
void   lk__image_bounds(const lk_plan *plan, uint64_t bytes[2]); /* how many they are at most */
size_t lk__image_entries(const lk_plan *plan);                   /* of saver->tensors and names */
/* fills saver->tensors with the tensors of the model */
lk_status lk__image_model(lk__train_saver *saver, size_t *count);
lk_status lk__image_make(lk__train_saver *saver, int file, lk__safetensors_image *image); /* sets saver->cut too */
size_t    lk__image_exchange_bytes(const lk_plan *plan, int ranks, size_t entries);       /* of saver->exchange */
/* In a round of a file every writer has one chunk at most. */
typedef struct lk__checkpoint_round {
    const lk__safetensors_image *image;
    int                          file;
    size_t                       number;
} lk__checkpoint_round;
/* Where the data of every rank's chunk of the round is. lists has one for each rank; ranges has room for one more than
 * tensors and ranks. */
void lk__image_lists(const lk__train_saver *saver, lk__checkpoint_round round, lk__exchange_list *lists,
                     lk__exchange_range *ranges);
/* Copies this rank's chunk of the round, if it has one. Collective. */
lk_status lk__image_gather(lk__train_saver *saver, lk__checkpoint_round round, void *out);

/* ---- save_chunks.c ---- */
size_t lk__saver_digests(const uint64_t bytes[2],
                         uint64_t       chunk_bytes); /* words of the digests of files of these sizes */
/* This rank's turn among the writers of a file. They are reversed for the second, so that not rank 0 writes both of a
 * small model. */
int       lk__saver_turn(const lk__train_saver *saver, int file);
int       lk__saver_writer(const lk__train_saver *saver, int file, size_t index); /* the rank that has a chunk */
lk_status lk__saver_measure(lk__train_saver *saver);                              /* sets saver->cut */
/* empty, of their sizes: rank 0 */
lk_status lk__saver_create_files(const lk__train_saver *saver, const char *directory);
/* Writes and flushes the chunks of all ranks into these files. Collective; the digests are then known to all. */
lk_status lk__saver_write_chunks(lk__train_saver *saver, const char *directory, char sha[2][65]);

/* Prepares the directory for saves: creates it, checks that a save with its files would replace no file of the user,
 * locks it and removes what a crash has left. */
lk_status lk__checkpoint_open(lk_context *context, const lk__checkpoint_save *save, double timeout, lk__lock *lock);
bool      lk__checkpoint_newest(lk_context *context, const char *directory, int64_t *step); /* false: there is none */

/* ---- checkpoint_files.c: the files that the caller adds to every checkpoint ---- */
lk_status lk__checkpoint_files_check(lk_context *context, const lk_checkpoint_file *files, int count);
lk_status lk__saver_files(lk__train_saver *saver, const lk_checkpoint_file *files, int count); /* copies them */
size_t    lk__saver_files_bytes(const lk_checkpoint_file *files, int count); /* of LK_MEMORY_CHECKPOINT, for that */
lk_status lk__saver_write_files(const lk__train_saver *saver, const char *directory);

/* ---- checkpoint_links.c: links beside the steps, to the files of the newest ---- */
/* LK_EINVAL if a save with these files would replace something that is not one of these links. */
lk_status lk__links_check(lk_context *context, const char *directory, const lk_checkpoint_file *files, int count);
/* Call it after the step was written. Anything that is not one of these links is kept, with a warning. */
lk_status lk__links_make(lk__train_saver *saver, const char *directory, int64_t step);
bool      lk__links_is_temporary(int directory, const char *entry); /* a link to a step's file, of whatever name */

/* ---- checkpoint_read.c ---- */

enum { LK__CHECKPOINT_FILES = 3, LK__CHECKPOINT_STEPS = 256 };
extern const char *const    lk__checkpoint_files[LK__CHECKPOINT_FILES]; /* model, optimizer, state */
extern const lk__file_names lk__checkpoint_names;                       /* these, and what the state lists */

lk_status lk__checkpoint_join(lk_context *context, char *out, const char *directory,
                              const char *name);                 /* PATH_MAX bytes */
void      lk__checkpoint_name(int64_t step, char name[64]);      /* "step-00000938" */
bool      lk__checkpoint_parse(const char *name, int64_t *step); /* false for names that only resemble a checkpoint's */
/* Steps of the checkpoints in a directory, newest first, at most `room`; returns how many there are in total. */
size_t lk__checkpoint_list(const char *directory, int64_t *steps, size_t room);
/* Removes what a crash may have left: partly written or removed directories, and links that were not renamed yet. Only
 * while no other process can write: with the directory's lock held, or between lk__lock_idle_begin and
 * lk__lock_idle_end. */
void lk__checkpoint_recover(lk_context *context, const char *directory);
/* Whether this is the directory of one step, wherever it is, not one that holds steps. *step: by its name; -1: it has
 * another name. */
bool      lk__checkpoint_is_step(const char *directory, int64_t *step);
lk_status lk__checkpoint_missing(lk_context *context, const char *directory); /* LK_ENOENT, with a message */
/* checkpoint_verify.c: compares the model's and the optimizer's file of a step's directory with the digests of its
 * state: the digests of chunks, which are quick, or the SHA-256 of a state without them. `all`: with both, and also the
 * caller's files, which loading does not read and which a user may edit. staging has LK__FILE_STAGING bytes. */
lk_status lk__checkpoint_verify(lk_context *context, const char *directory, const lk__state *state, bool all,
                                void *staging);
/* The chunks of this rank among several readers, every n-th of each file. */
lk_status lk__checkpoint_verify_part(lk_context *context, const char *directory, const lk__state *state,
                                     const lk__writers *readers, void *staging);
/* Reads the state of the directory of `step` (-1: any), and checks the model and the optimizer against it; staging has
 * LK__FILE_STAGING bytes. The state's numbers stay valid. */
lk_status lk__checkpoint_verify_step(lk_context *context, const char *directory, int64_t step, void *staging,
                                     lk__state *state);
/* The precision of a run as --dtype names it. Weights are saved in f32 or f64 whatever it is. */
const char *lk__checkpoint_precision(const lk_store *store);
/* checkpoint_isa.c: the instruction set of its kernels; "": the device has none. And whether the run
 * computes by other kernels than one whose checkpoint names `saved`. */
const char *lk__checkpoint_isa(const lk_store *store);
bool        lk__checkpoint_isa_differs(const lk_store *store, const char *saved);

/* ---- background.c: each rank copies the chunks that it writes, and a thread writes them while training continues ----
 */
lk_status lk__saver_background(lk__train_saver *saver); /* allocates the memory for it */
/* Of LK_MEMORY_CHECKPOINT, for the writer at `turn` of this many. */
size_t lk__saver_background_bytes(const lk_plan *plan, uint64_t chunk_bytes, int writers, int turn);
/* what lk__saver_begin does first; lk__saver_save then writes the copies */
lk_status lk__saver_copy(lk__train_saver *saver);
/* One save at a time: finish the previous one first. directory is borrowed until then. Collective where the saver has a
 * group, and so is what the thread does. */
lk_status lk__saver_begin(lk__train_saver *saver, const char *directory, const lk_progress *progress, int keep);
/* Waits. LK_OK: it is on disk; LK_END: no save was in progress. */
lk_status lk__saver_finish(lk__train_saver *saver, lk_progress *progress, double *seconds);
bool      lk__saver_done(const lk__train_saver *saver);   /* a save has ended, and finish would not wait */
bool      lk__saver_failed(const lk__train_saver *saver); /* that save failed: finish sets the message */
void      lk__saver_background_free(lk__train_saver *saver);

#endif
