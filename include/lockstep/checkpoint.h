/* checkpoint.h - a store on disk. A checkpoint directory holds
 *
 *   step-00000938/model.safetensors      parameters and buffers, with PyTorch's names and layouts; the bytes depend
 *                                        only on the values
 *   step-00000938/optimizer.safetensors  the optimizer's state, under PyTorch's names: NAME.exp_avg, NAME.sum, …
 *   step-00000938/state.json             step, epoch, position in the data, seed, the run's record (model,
 *                                        options, fields, classes, normalisation), who wrote it and when, and the
 *                                        SHA-256 of each file
 *   step-00000938/…                      the caller's files, such as config.json
 *   model.safetensors                    a link to the newest step's file; so are optimizer.safetensors, state.json
 *                                        and the caller's files
 *   .lockstep.lock                       locked by the process that saves here; its contents identify that process
 *
 * A step's directory is written under a temporary name, flushed to disk and renamed, so it is either complete or
 * absent; the links are updated last.
 *
 * The two large files are divided into chunks of 8 MiB. Each chunk is written by one of the ranks that save together
 * and can access the directory; the files' bytes do not depend on the number of these ranks. state.json has a digest of
 * every chunk (XXH64), a digest of all these digests (the SHA-256 of their text), and the SHA-256 of each file. Loading
 * verifies the chunks, or the files' SHA-256 if the checkpoint was written by an older version, without chunk
 * digests. */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/comm.h>
#include <lockstep/data.h>
#include <lockstep/store.h>

LK_BEGIN_DECLS

typedef struct lk_progress {
    int64_t  step;     /* updates completed */
    int64_t  epoch;    /* from 0 */
    int64_t  position; /* samples of this epoch already used */
    uint64_t seed;
} lk_progress;

/* Writes step-N, then removes the oldest checkpoints until `keep` (at least 1) are left. Old checkpoints stay until the
 * new one is complete. If another save into the directory is running, waits up to 10 s for it. LK_EINVAL: a trainer
 * holds the directory's lock (the message names it); model.safetensors, optimizer.safetensors or state.json there is
 * not a link made by a save; or step-N exists, is intact and contains files that are not part of a checkpoint. If a
 * step-N with such files is damaged, it is renamed to step-N.damaged, with a warning. */
LK_API lk_status lk_checkpoint_save(lk_store *store, const char *directory, const lk_progress *progress, int keep);

/* A file that the caller adds to checkpoints. state.json has its digest; loading does not read the file. */
typedef struct lk_checkpoint_file {
    /* at most 63 letters, digits, '.', '_' and '-'; must not begin with "." or "step-", contain ".tmp." or ".old.", or
     * be model.safetensors, optimizer.safetensors or state.json */
    const char *name;
    const char *text; /* any bytes */
    size_t      bytes;
} lk_checkpoint_file;
/* The same with the caller's files, at most 16. LK_EINVAL also means that a name is invalid, or that a file in the
 * directory has one of these names but is not a link made by a save. */
LK_API lk_status lk_checkpoint_save_files(lk_store *store, const char *directory, const lk_progress *progress, int keep,
                                          const lk_checkpoint_file *files, int count);
/* The same, saved by all ranks of a group, each of which writes a part. Collective: all ranks must pass the same
 * arguments, except for the directory, which need not exist on hosts other than rank 0's, and the files, of which only
 * rank 0's are used. If one rank fails, all do, and the message names the rank; the previous checkpoint is kept. If
 * comm is NULL, this process saves alone. */
LK_API lk_status lk_checkpoint_save_group(lk_store *store, lk_comm *comm, const char *directory,
                                          const lk_progress *progress, int keep, const lk_checkpoint_file *files,
                                          int count);
/* Checks whether a run could save into the directory, which need not exist; changes nothing. LK_EINVAL: another run
 * saves there (the message names it; a restarted run, recognised by TORCHELASTIC_RESTART_COUNT or SLURM_RESTART_COUNT,
 * first waits up to 10 s for it), or a file there is not a link made by a save, as above. LK_EIO: the directory is not
 * writable. Call this before the ranks of the run start, because from then on rank 0 holds the lock. */
LK_API lk_status lk_checkpoint_check(lk_context *context, const char *directory);
/* The same for saves with these files; only their names matter. */
LK_API lk_status lk_checkpoint_check_files(lk_context *context, const char *directory, const lk_checkpoint_file *files,
                                           int count);
/* Loads the newest intact checkpoint. A checkpoint whose digests do not match, or whose state belongs to a different
 * step than its directory's name, is skipped with a warning in the log. If `directory` is a single step's directory,
 * only that checkpoint is tried. LK_EFORMAT: no checkpoint is intact. LK_ENOENT: the directory contains no checkpoint.
 * LK_EMISMATCH: the checkpoint belongs to a different model; the message names the first difference. */
LK_API lk_status lk_checkpoint_load(lk_store *store, const char *directory, lk_progress *progress);
/* Finds the newest checkpoint in the directory and returns its step; LK_ENOENT if there is none. Reads no weights. */
LK_API lk_status lk_checkpoint_find(lk_context *context, const char *directory, int64_t *step);
/* The bytes of LK_MEMORY_CHECKPOINT that a save uses while it runs, including one chunk but not the caller's files. */
LK_API size_t lk_checkpoint_bytes(const lk_plan *plan);

/* The weights alone: one safetensors file. Loading also accepts a checkpoint directory, from which it takes the newest
 * checkpoint, and a directory written by Hugging Face's libraries: model.safetensors, or model.safetensors.index.json
 * with its shards. Loading is strict: names and shapes must be exactly the model's; f16, bf16, f32 and f64 are
 * converted. Names may lack the prefix "transformer.", "model." or "bert."; buffers derived from the architecture
 * (*.attn.bias, *.rotary_emb.inv_freq, …) are ignored, and so is an lm_head.weight that equals the embedding to which
 * the model's head is tied. */
LK_API lk_status lk_weights_save(lk_store *store, const char *file);
LK_API lk_status lk_weights_load(lk_store *store, const char *path);

/* ---- partial loading ---- */

typedef enum lk_load_result {
    LK_LOAD_LOADED,     /* name and shape match, and both types are floating-point or equal */
    LK_LOAD_MISSING,    /* in the model but not in the file; the model's tensor keeps its value */
    LK_LOAD_UNEXPECTED, /* in the file but not in the model */
    LK_LOAD_MISMATCHED  /* in both, but shape or type differ; the model's tensor keeps its value */
} lk_load_result;

typedef struct lk_load_entry {
    const char    *name;
    lk_load_result result;
    /* MISMATCHED: the difference, such as "(1000, 512) in the file and (10, 512) in the model"; otherwise "" */
    const char *text;
} lk_load_entry;

typedef struct lk_load_report lk_load_report; /* the model's tensors, in order, then those only in the file */

/* Loads the tensors that the file (or the newest checkpoint in the directory) and the model share; the others keep
 * their values. LK_EMISMATCH: they have no tensor in common. report may be NULL; *report is set on LK_EMISMATCH too,
 * and is NULL after other failures. */
LK_API lk_status            lk_weights_load_partial(lk_store *store, const char *path, lk_load_report **report);
LK_API size_t               lk_load_report_count(const lk_load_report *report);
LK_API const lk_load_entry *lk_load_report_at(const lk_load_report *report, size_t index); /* NULL past the last */
LK_API void                 lk_load_report_free(lk_load_report *report);                   /* NULL is fine */

/* ---- describing a checkpoint ---- */

/* An option of the run that wrote a checkpoint, such as {"model", "cnn"}. */
typedef struct lk_record {
    const char *name, *value;
} lk_record;

/* A tensor of model.safetensors. */
typedef struct lk_saved_tensor {
    const char *name;
    lk_dtype    dtype;
    int         rank;
    int64_t     dims[LK_MAX_RANK];
} lk_saved_tensor;

typedef struct lk_description lk_description; /* describes one checkpoint; read-only */

/* Describes the newest checkpoint in the directory, or the one in a step's directory, without reading weights. Only
 * state.json and the header of the weights are verified; checkpoints in which these are damaged are skipped. LK_ENOENT:
 * the directory contains no checkpoint. LK_EFORMAT: all checkpoints are damaged, as far as this call verifies them. */
LK_API lk_status lk_checkpoint_describe(lk_context *context, const char *directory, lk_description **description);
LK_API void      lk_description_free(lk_description *description); /* NULL is fine; before its context */

LK_API const lk_progress *lk_description_progress(const lk_description *description);
LK_API const char        *lk_description_path(const lk_description *description); /* DIR/step-00000938 */
/* `what` is "version", "dtype", "isa" (the instruction set of the kernels), "host", "user", "date" (UTC), "mesh" (of
 * the ranks that wrote it), or the name of a file, whose SHA-256 is then returned. NULL: it was not saved. */
LK_API const char *lk_description_text(const lk_description *description, const char *what);
LK_API const char *lk_description_file(const lk_description *description, int index); /* its name; NULL past the last */
LK_API int64_t     lk_description_parameters(const lk_description *description); /* trained and frozen; -1: not saved */
/* Verifies the digests of all files. LK_EFORMAT: a file is damaged; the message names it. */
LK_API lk_status lk_description_verify(const lk_description *description);

/* Whether the checkpoint has a record of the run. Older versions and lk_checkpoint_save do not write one; the functions
 * below then find nothing. */
LK_API bool             lk_description_recorded(const lk_description *description);
LK_API int              lk_description_options(const lk_description *description);           /* number of options */
LK_API const lk_record *lk_description_option(const lk_description *description, int index); /* NULL past the last */
/* the value of the option with that name; NULL if there is none */
LK_API const char     *lk_description_find(const lk_description *description, const char *name);
LK_API int             lk_description_fields(const lk_description *description); /* number of fields of a sample */
LK_API const lk_field *lk_description_field(const lk_description *description, int index); /* NULL past the last */
/* Sets the mean, std and number of channels of a transform. Returns false and changes nothing if field 0 was not
 * normalised. */
LK_API bool lk_description_normalisation(const lk_description *description, lk_transform *transform);
/* LK_EMISMATCH if the data set does not match the model: field 0 has a different shape, there are more classes, a class
 * has a different name, or "target" has a different number of elements. The message shows both sides. LK_OK if there is
 * no record. */
LK_API lk_status lk_description_check(const lk_description *description, const lk_dataset *dataset);

LK_API size_t          lk_description_tensors(const lk_description *description); /* in model.safetensors */
LK_API lk_saved_tensor lk_description_tensor(const lk_description *description, size_t index); /* all 0 past the last */

LK_END_DECLS
#endif
