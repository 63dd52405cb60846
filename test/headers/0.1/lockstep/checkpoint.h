/* checkpoint.h - a store on disk. A checkpoint directory holds
 *
 *   step-00000938/model.safetensors      parameters and buffers, PyTorch's names and layouts; bytes depend on the weights alone
 *   step-00000938/optimizer.safetensors  NAME.exp_avg, NAME.exp_avg_sq or NAME.momentum_buffer
 *   step-00000938/state.json             step, epoch, position in the data, seed, and the SHA-256 of all three files
 *   model.safetensors                    a link to the newest step's file; so are optimizer.safetensors and state.json
 *   .lockstep.lock                       locked by the process that saves here; its content identifies that process
 *
 * A step's directory is written under a temporary name, flushed and renamed, so it is complete or absent; links change last. */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/store.h>

LK_BEGIN_DECLS

typedef struct lk_progress {
    int64_t  step;     /* updates done */
    int64_t  epoch;    /* from 0 */
    int64_t  position; /* samples of this epoch already used */
    uint64_t seed;
} lk_progress;

/* Writes step-N and removes older ones until `keep` (at least 1) are left. Old checkpoints stay until the new one is complete.
 * Waits up to 10 s for another save into the directory. LK_EINVAL: a trainer holds the lock of the directory (the message names
 * it); or model.safetensors, optimizer.safetensors or state.json there is not a link that a save made. */
LK_API lk_status lk_checkpoint_save(lk_store *store, const char *directory, const lk_progress *progress, int keep);
/* Checks whether a run could save into the directory, which need not exist; changes nothing. LK_EINVAL: another run saves there
 * (the message names it; a restart, known by TORCHELASTIC_RESTART_COUNT or SLURM_RESTART_COUNT, first waits up to 10 s for it),
 * or a file there is not a link that a save made, as above. LK_EIO: it is not writable. Call it before the ranks of the run
 * start, because rank 0 then holds the lock. */
LK_API lk_status lk_checkpoint_check(lk_context *context, const char *directory);
/* Loads the newest intact checkpoint. One whose digests do not match, or whose state is of another step than its directory's
 * name, is skipped with a warning in the log. LK_EFORMAT: none is intact. LK_ENOENT: the directory holds none. LK_EMISMATCH: it
 * is of another model; the message names the first difference. */
LK_API lk_status lk_checkpoint_load(lk_store *store, const char *directory, lk_progress *progress);
/* Finds the newest checkpoint in the directory and gives its step; LK_ENOENT if there is none. Reads no weights. */
LK_API lk_status lk_checkpoint_find(lk_context *context, const char *directory, int64_t *step);
/* Bytes of LK_MEMORY_CHECKPOINT that a save holds while it runs. */
LK_API size_t lk_checkpoint_bytes(const lk_plan *plan);

/* The weights alone: one safetensors file, or (loading) the newest checkpoint of a directory. Loading is strict: names and
 * shapes must be exactly the model's; f16, bf16, f32 and f64 are converted. */
LK_API lk_status lk_weights_save(lk_store *store, const char *file);
LK_API lk_status lk_weights_load(lk_store *store, const char *path);

LK_END_DECLS
#endif
