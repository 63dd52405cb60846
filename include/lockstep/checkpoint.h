/* checkpoint.h - a store on disk. A checkpoint directory holds
 *
 *   step-00000938/model.safetensors      parameters and buffers, PyTorch's names and layouts; bytes depend on the weights alone
 *   step-00000938/optimizer.safetensors  NAME.exp_avg, NAME.exp_avg_sq or NAME.momentum_buffer
 *   step-00000938/state.json             step, epoch, position in the data, seed, and the SHA-256 of all three files
 *   model.safetensors → the newest one's, and so for the other two
 *   .lockstep.lock                       locked while somebody saves here, and says who
 *
 * A step's directory is written aside, flushed and renamed, so it is whole or not there; the links move last. */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/store.h>

LK_BEGIN_DECLS

typedef struct lk_progress {
    int64_t  step;     /* updates done */
    int64_t  epoch;    /* from 0 */
    int64_t  position; /* samples of this epoch that were used */
    uint64_t seed;
} lk_progress;

/* Writes step-N and removes older ones until `keep` (at least 1) are left. What was there stays until the new one is whole.
 * Waits up to 10 s for another save into the directory. LK_EINVAL: a trainer saves there (it has the directory to itself, and is
 * named); or a model.safetensors, optimizer.safetensors or state.json there is not a link that a save made. */
LK_API lk_status lk_checkpoint_save(lk_store *store, const char *directory, const lk_progress *progress, int keep);
/* Whether a run could save into the directory, which need not exist; changes nothing. LK_EINVAL: another run saves there, which is
 * named (a restart, by TORCHELASTIC_RESTART_COUNT or SLURM_RESTART_COUNT, waits up to 10 s for it), or a file of the user's is in the way, as above.
 * LK_EIO: it cannot be written to. To be asked before the ranks of a run are started: then rank 0 has the lock. */
LK_API lk_status lk_checkpoint_check(lk_context *context, const char *directory);
/* Loads the newest checkpoint that is whole: one whose digests do not fit, or whose state is not of the step that its directory is
 * named for, is skipped, with a warning to the log. LK_EFORMAT: none is whole. LK_ENOENT: the directory holds none. LK_EMISMATCH: it is of another model; the first difference is named. */
LK_API lk_status lk_checkpoint_load(lk_store *store, const char *directory, lk_progress *progress);
/* Whether the directory holds a checkpoint, and of which step; LK_ENOENT if none. Reads no weights. */
LK_API lk_status lk_checkpoint_find(lk_context *context, const char *directory, int64_t *step);
/* Bytes of LK_MEMORY_CHECKPOINT that saving takes for a while. */
LK_API size_t lk_checkpoint_bytes(const lk_plan *plan);

/* The weights alone, to and from one safetensors file, or the newest in a checkpoint directory. Loading is strict: the names
 * and shapes must be the model's, no more, no fewer; f16, bf16, f32 and f64 are converted. */
LK_API lk_status lk_weights_save(lk_store *store, const char *file);
LK_API lk_status lk_weights_load(lk_store *store, const char *path);

LK_END_DECLS
#endif
