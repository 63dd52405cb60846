/* data.h - data sets (samples by index), loaders (batches prefetched by threads), and downloads of public data sets. */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/base.h>
#include <lockstep/context.h>
#include <lockstep/tokenizer.h>

LK_BEGIN_DECLS

typedef struct lk_dataset lk_dataset; /* read-only: threads and loaders may share one; must outlive its loaders */
typedef struct lk_loader  lk_loader;  /* use from one thread */

/* LK_SPLIT_ALL: every sample once, training samples first; text is read as for evaluation, see lk_text_info. */
typedef enum lk_split { LK_SPLIT_TRAIN, LK_SPLIT_TEST, LK_SPLIT_ALL } lk_split;

/* ---- Data sets. A sample is a set of named fields; all samples of a data set have the same fields. ---- */

#define LK_MAX_FIELDS 16

/* A field of a sample, for example image u8 (3, 32, 32), label i32 (), tokens i32 (1024), target f32 (2), weight f32
 * (). Models with one input read field 0. These names have a special meaning: "label" (i32, the class number), "target"
 * (f32, for regression), "weight" (f32 (), the sample's weight in the loss). */
typedef struct lk_field {
    const char *name LK_ZERO;  /* the same as the name of the program's input */
    lk_dtype    dtype LK_ZERO; /* LK_F32, LK_U8, LK_I32 or LK_I64 */
    int         rank LK_ZERO;  /* axes of one sample; 0: a scalar */
    int64_t     dims[LK_MAX_RANK] LK_ZERO;
    /* for i32: the number of classes; values are then checked to be 0 … classes-1. 0: any numbers */
    int                classes LK_ZERO;
    const char *const *class_names LK_ZERO; /* `classes` of them; NULL: none */
    /* names of table columns: dims[0] of them for rank 1, one for a scalar; NULL: none. A model is used with the
     * columns on which it was trained. */
    const char *const *column_names LK_ZERO;
    int                reserved[6] LK_ZERO;
} lk_field;

LK_API int64_t     lk_field_elements(const lk_field *field); /* the product of its dims; 1 for a scalar */
LK_API size_t      lk_field_bytes(const lk_field *field);    /* of one sample */
LK_API const char *lk_field_class_name(const lk_field *field, int64_t label); /* NULL if there is none */

/* How lk_dataset_open reads the user's own files; zero means the default. */
typedef struct lk_open_options {
    size_t size LK_ZERO; /* sizeof this struct; set by LK_OPEN_OPTIONS_INIT */
    /* folder: images are resized to this size; 0: all images must have the same size */
    int64_t height LK_ZERO, width LK_ZERO;
    int     channels LK_ZERO; /* folder: 1 grey, 3 RGB; 0: as in the first image */
    /* the fraction of samples that form the test set, chosen by a hash of the file name or row number; 0: files that
     * come without a test set have none. For text, the test set is the last part of the tokens, and 0 means a tenth for
     * text: and jsonl:, and none for tokens:. -1: no test set, for any data */
    double holdout LK_ZERO;
    /* csv: the label's column, as a name or a number from 1; npz, safetensors: the label array's name. NULL: "label" or
     * "target" or, for csv without these, the last column; "": there is no label, as in rows to predict. jsonl: the
     * field with a text's class; NULL: there is none, and the texts are for a language model */
    const char *label LK_ZERO;
    /* csv: whether the first line contains names. 1: yes; -1: no; 0: yes if none of its fields is a number */
    int         header LK_ZERO;
    const char *cache LK_ZERO;       /* folder: a directory in which to cache decoded samples; NULL: none */
    bool        skip_broken LK_ZERO; /* folder: files that cannot be decoded are skipped and listed in the log */
    bool        regression LK_ZERO;  /* labels are numbers to predict, in the field "target" (f32) */
    /* text, jsonl, tokens: "byte", "char" (each character of the text is a token), a tokenizer.json, or a directory
     * that contains one, such as a checkpoint; NULL: "byte" for text:, none for tokens:, an error for jsonl: */
    const char *tokenizer LK_ZERO;
    int64_t     context LK_ZERO;    /* text, jsonl, tokens: tokens per sample; 0 means 256 */
    const char *text_field LK_ZERO; /* jsonl: the field with the text; NULL: "text" */
    /* 1: documents are packed one after the other, without attention across documents; -1: windows of the whole
     * text, across documents; 0: jsonl and directories are packed, a single text and token files use windows */
    int packing LK_ZERO;
    /* tokens: bytes per token in a file without a header, 2 or 4; 0: determined by the file name (.u16, .u32) or,
     * failing that, 4 if the tokenizer (without one: `vocabulary`) has more than 65536 tokens, and otherwise 2 */
    int     token_bytes LK_ZERO;
    int64_t vocabulary LK_ZERO; /* tokens: the model's vocabulary; 0: unknown */
    /* text, jsonl, tokens for a language model: above 0, every split is read for evaluation (see lk_text_info), with
     * windows that begin every `stride` tokens (1 to `context`). 0: the training set is read for training, and other
     * splits for evaluation with a stride of `context` */
    int64_t stride LK_ZERO;
    /* csv: integers in the label's column are classes, even if the rule in docs/data.md would treat them as numbers to
     * predict */
    bool classification LK_ZERO;
    /* The fields of the samples that a model was trained on, as lk_description_field(description, 0) returns them. They
     * determine the feature columns, the label, its classes and their numbers, and all types; nothing is inferred from
     * the file, which need not contain every class. Borrowed during the call; NULL: none */
    const lk_field *expected LK_ZERO;
    int             expected_count LK_ZERO;
    /* With `expected`, for rows to predict: the label's column, array or field may be missing, and then there is no
     * field "label" or "target". In csv and jsonl it may also be missing in some rows; their label is LK_NO_LABEL, or
     * their target NaN */
    bool label_optional LK_ZERO;
    /* Samples whose label is not a class in `expected` (or, in the test set of a folder or jsonl file, not a class of
     * the training set) are skipped, and the log says how many; false: they cause an error (LK_EFORMAT or, for a
     * directory, LK_EINVAL) whose message names the first */
    bool skip_unknown LK_ZERO;
    /* jsonl, with `expected`: a label that is an integer is a class number, unless a class has that name */
    bool label_numbers LK_ZERO;
} lk_open_options;
#define LK_NO_LABEL (-100) /* the label of samples without one, see label_optional */
#define LK_OPEN_OPTIONS_INIT {.size = sizeof(lk_open_options)}

/* Opens a data set by name.
 *   cifar10, fashion-mnist, mnist, each optionally followed by ":DIR"; without DIR, searches $LOCKSTEP_DATA/NAME,
 *     $XDG_CACHE_HOME/lockstep/NAME, ~/.cache/lockstep/NAME and the directory of Debian's package. Fields: image u8,
 *     label
 *   synthetic, synthetic:3x32x32,classes=10,count=5000,seed=1 (each part is optional). Fields: image u8 or features
 *     f32, label
 *   synthetic-tokens:256,vocabulary=65,count=5000,seed=1 (each part is optional). Fields: tokens and label i32 (256)
 *   folder:DIR          PNG and JPEG files, a subdirectory for each class; if DIR contains train/ and test/, those are
 *                       the two sets. Fields: image u8, label
 *   npy:X.npy,Y.npy     two NumPy arrays with the same number of rows. Fields: image u8 or features, label or target
 *   npz:FILE            NumPy arrays by name, compressed or not; each is a field
 *   safetensors:FILE    tensors by name; each is a field
 *   csv:FILE            rows of numbers and a label. Fields: features f32, with the names of its columns; label or
 *                       target
 *   idx:IMAGES,LABELS   IDX files of unsigned bytes, plain or gzip. Fields: image u8 or features, label
 *   text:FILE|DIR[,VALIDATION]  text in UTF-8, plain or gzip, or the files below a directory, each a document. See
 *                               lk_text_info
 *   jsonl:FILE[,VALIDATION]     a JSON object on each line, whose field "text" is a document; plain or gzip
 *   tokens:FILE[,VALIDATION]    token ids, little-endian u16 or u32: plain, or with the header of llm.c or of
 *                               lk_data_tokenize. Memory-mapped
 * options may be NULL. LK_ENOENT: the message names the missing files and says how to get them. LK_EFORMAT: the message
 * names the file and the invalid byte or line. LK_EINVAL: the message shows the unknown name and the most similar known
 * one. LK_END: there is no test set; LK_SPLIT_ALL is then the same as LK_SPLIT_TRAIN with a holdout of -1. */
LK_API lk_status lk_dataset_open(lk_context *context, const char *name, lk_split split, const lk_open_options *options,
                                 lk_dataset **dataset);
/* The same, but reads only the names, sizes and headers of the files, quickly and without allocating memory for
 * samples. The data set then has its count, fields and classes, for checking or planning, but its samples cannot be
 * read. Fails as lk_dataset_open does, except for errors that appear only when samples are read. */
LK_API lk_status lk_dataset_probe(lk_context *context, const char *name, lk_split split, const lk_open_options *options,
                                  lk_dataset **dataset);

/* PNG and JPEG files without classes, including those in directories and their subdirectories, in the order of `paths`.
 * Field: image u8. Only the options height, width, channels and skip_broken are used. LK_ENOENT: a file does not exist;
 * LK_EFORMAT: a file cannot be decoded. */
LK_API lk_status lk_dataset_images(lk_context *context, const char *const *paths, int count,
                                   const lk_open_options *options, lk_dataset **dataset);

/* The binary version of CIFAR-10: data_batch_1.bin … data_batch_5.bin or test_batch.bin in `directory` or its
 * subdirectory cifar-10-batches-bin. Each file may contain any number of whole records. Kept in memory
 * (LK_MEMORY_DATA). */
LK_API lk_status lk_dataset_cifar10(lk_context *context, const char *directory, lk_split split, lk_dataset **dataset);

/* A pair of IDX files of unsigned bytes, plain or gzip (each path is also tried with .gz added or removed). Images are
 * (count, height, width), (count, channels, height, width) or (count, features); labels are (count). If `classes` is 0,
 * the number of classes is the largest label + 1. Kept in memory, uncompressed. */
LK_API lk_status lk_dataset_idx(lk_context *context, const char *images, const char *labels, int classes,
                                lk_dataset **dataset);

/* Generated data that a model can learn: the mean of the sample's class plus noise. Sample i is a function of (seed, i,
 * shape, classes). */
typedef struct lk_dataset_synthetic_config {
    size_t  size LK_ZERO;  /* sizeof this struct; set by LK_DATASET_SYNTHETIC_CONFIG_INIT */
    int64_t count LK_ZERO; /* samples */
    /* number of the first sample: a test set that starts where the training set ends shares no samples with it */
    int64_t  first LK_ZERO;
    int      rank LK_ZERO;              /* axes of one sample */
    int64_t  dims[LK_MAX_RANK] LK_ZERO; /* for example {64} or {3, 32, 32} */
    lk_dtype dtype LK_ZERO;             /* LK_F32, or LK_U8 for images */
    int      classes LK_ZERO;
    uint64_t seed LK_ZERO;
} lk_dataset_synthetic_config;
#define LK_DATASET_SYNTHETIC_CONFIG_INIT                                                                   \
    {.size = sizeof(lk_dataset_synthetic_config), .count = 4096, .rank = 1, .dims = {64}, .dtype = LK_F32, \
     .classes = 10}

/* config may be NULL to use all defaults. Kept in memory. */
LK_API lk_status lk_dataset_synthetic(lk_context *context, const lk_dataset_synthetic_config *config,
                                      lk_dataset **dataset);

typedef struct lk_dataset_arrays_config {
    size_t             size LK_ZERO; /* sizeof this struct; set by LK_DATASET_ARRAYS_CONFIG_INIT */
    int64_t            count LK_ZERO;
    const lk_field    *fields LK_ZERO; /* copied, with their names */
    int                fields_count LK_ZERO;
    const void *const *data LK_ZERO; /* for each field, count samples, one after the other */
    bool               copy LK_ZERO; /* true: copied now (LK_MEMORY_DATA); false: borrowed until lk_dataset_free */
} lk_dataset_arrays_config;
#define LK_DATASET_ARRAYS_CONFIG_INIT {.size = sizeof(lk_dataset_arrays_config)}

LK_API lk_status lk_dataset_from_arrays(lk_context *context, const lk_dataset_arrays_config *config,
                                        lk_dataset **dataset);

/* Writes one sample: fields[i] points to the bytes of field i (lk_field_bytes), initially zero. If the callback returns
 * a negative status, the batch fails, and lk_loader_next returns that status. The loader's workers call it,
 * concurrently if there are several, but never after lk_loader_free has returned. */
typedef lk_status (*lk_dataset_get_callback)(void *user, int64_t index, void *const *fields);

typedef struct lk_dataset_callbacks_config {
    size_t                  size LK_ZERO; /* sizeof this struct; set by LK_DATASET_CALLBACKS_CONFIG_INIT */
    int64_t                 count LK_ZERO;
    const lk_field         *fields LK_ZERO; /* copied, with their names */
    int                     fields_count LK_ZERO;
    lk_dataset_get_callback get LK_ZERO;
    void                   *user LK_ZERO; /* passed to get; borrowed until lk_dataset_free */
} lk_dataset_callbacks_config;
#define LK_DATASET_CALLBACKS_CONFIG_INIT {.size = sizeof(lk_dataset_callbacks_config)}

LK_API lk_status lk_dataset_from_callbacks(lk_context *context, const lk_dataset_callbacks_config *config,
                                           lk_dataset **dataset);

LK_API void lk_dataset_free(lk_dataset *dataset); /* NULL is fine; free its loaders first */

LK_API const char *lk_dataset_name(const lk_dataset *dataset); /* "cifar10", "idx", "arrays", … */
LK_API int64_t     lk_dataset_count(const lk_dataset *dataset);
LK_API int         lk_dataset_fields(const lk_dataset *dataset); /* number of fields of a sample */
/* Field i, valid while the data set exists; NULL past the last. */
LK_API const lk_field *lk_dataset_field(const lk_dataset *dataset, int i);
LK_API const lk_field *lk_dataset_find(const lk_dataset *dataset, const char *name); /* NULL if it has no such field */
/* The file of sample `index`, for messages; "" if a sample is known only by its index. */
LK_API const char *lk_dataset_sample_name(const lk_dataset *dataset, int64_t index);

/* Copies sample `index` as stored: fields[i] receives the bytes of field i (lk_field_bytes), and may be NULL if that
 * field is not needed. May be called from any thread. */
LK_API lk_status lk_dataset_get(const lk_dataset *dataset, int64_t index, void *const *fields);

/* ---- Text. ----
 *
 * A sample for a language model is `context` consecutive tokens (T) and the token after each of them. Fields: tokens
 * i32 (T), whose classes are the vocabulary; label i32 (T), -100 where there is no next token. Without packing, the
 * training set has a sample at every offset: tokens - T of them. If documents are packed, windows do not overlap, no
 * token of a document is predicted from another document, and there are two more fields: positions i32 (T), which start
 * again at 0 with each document, and first i32 (T), the index in the window of the first token of the same document. A
 * document ends with the tokenizer's end token; if a window starts within a document, the rest of that document counts
 * as a document.
 *
 * For evaluation, every token of a document except the first is a label exactly once, regardless of the other
 * documents: each document has its own windows, the first at its beginning, then one every `stride` tokens, in which
 * only the last `stride` labels are set; the last window may be shorter. Without packing, the whole text is one
 * document. If documents are packed, parts shorter than T share windows, and the end tokens between documents are not
 * labels; if the tokenizer has no end token, documents can be evaluated only if nothing is held out.
 *
 * A sample for classification (jsonl: with a label) has the fields tokens i32 (T), the first T tokens of a text, padded
 * with zeros; length i32 (), their number without padding; and label i32 (), with classes and their names. */
typedef struct lk_text_info {
    int64_t tokens;     /* of this split */
    int64_t bytes;      /* of the text that these tokens encode (estimated for part of a token file); 0: unknown */
    int64_t vocabulary; /* all ids are below it; 0: unknown */
    /* number of tokens in the longest sample; for classification, in the longest text before truncation to T */
    int64_t             longest;
    const lk_tokenizer *tokenizer;    /* borrowed from the data set; NULL for tokens: without a tokenizer */
    int64_t             scored;       /* evaluation of a language model: number of labels in all samples; otherwise 0 */
    int64_t             scored_bytes; /* bytes of text that these labels encode; 0: unknown */
    int                 reserved[4];
} lk_text_info;

/* false: the data set is not text, and info is zeroed */
LK_API bool lk_dataset_text(const lk_dataset *dataset, lk_text_info *info);

/* ---- Transforms of a sample. ---- */

#define LK_MAX_CHANNELS 16

/* Transforms apply to field 0, which is u8 or f32. A u8 value v becomes v / 255; then every value becomes (v - mean) /
 * std of its channel, rounded as in PyTorch's ToTensor and Normalize. All other transforms except mixup require samples
 * of shape (channels, height, width); their random numbers depend only on (seed, epoch, sample index). */
typedef struct lk_transform {
    size_t size LK_ZERO; /* sizeof this struct; set by LK_TRANSFORM_INIT */
    bool   raw LK_ZERO;  /* field 0 stays as stored, whatever its type; nothing else may be set here */
    /* number of entries of mean and std: 1 for all channels, or dims[0] for samples of shape (channels, height, width);
     * 0: mean 0.5 and std 0.5 for u8, while f32 is not normalised */
    int    channels LK_ZERO;
    double mean[LK_MAX_CHANNELS] LK_ZERO;
    double std[LK_MAX_CHANNELS] LK_ZERO; /* above 0 */
    int    crop_padding LK_ZERO;         /* zeros added on each side, before normalising, for a random crop; 0: none */
    double flip LK_ZERO;                 /* probability of a horizontal flip; 0: never */
    /* Crops a box whose fraction of the image's area and whose aspect ratio (width / height; 0, 0: 3/4 to 4/3) are
     * drawn from these ranges, and resizes it to the image's size, like torchvision's RandomResizedCrop; applied before
     * the crop of crop_padding. 0, 0: none. */
    double resized_crop[2] LK_ZERO, resized_ratio[2] LK_ZERO;
    /* rotation by up to this many degrees in either direction, with bilinear interpolation and 0 outside the image;
     * applied after the flip. 0: none */
    double rotate LK_ZERO;
    /* brightness, contrast, saturation, hue, like torchvision's ColorJitter; for u8, or f32 from 0 to 1 */
    double color_jitter[4] LK_ZERO;
    /* Each sample becomes mix × itself + (1 - mix) × another sample, whose label is the field "label_2" (i32); the
     * field "mix", in the loader's dtype, is drawn from Beta(mixup, mixup). Field 0 must be f32 or u8, and there must
     * be a field "label". 0: none. See lk_mixup_loss. */
    double mixup LK_ZERO;
    int    cutout LK_ZERO;       /* side length of a square that is set to 0 after normalising; 0: none */
    bool   mixup_fields LK_ZERO; /* add "label_2" and "mix" (always 1) without mixup, for a test set */
    int    reserved[24] LK_ZERO; /* for new fields, because other structs contain this one */
} lk_transform;
#define LK_TRANSFORM_INIT {.size = sizeof(lk_transform)}

/* ---- Batches. ---- */

typedef struct lk_loader_config {
    size_t            size LK_ZERO; /* sizeof this struct; set by LK_LOADER_CONFIG_INIT */
    const lk_dataset *dataset LK_ZERO;
    int64_t           batch LK_ZERO;      /* samples of a full batch, over all ranks */
    bool              shuffle LK_ZERO;    /* a new order each epoch, from (seed, epoch) */
    uint64_t          seed LK_ZERO;       /* of shuffling and augmentation */
    bool              drop_last LK_ZERO;  /* skip the last batch if it is not full */
    int               workers LK_ZERO;    /* threads that prepare batches; 0: lk_loader_next prepares them */
    int               prefetch LK_ZERO;   /* batches prepared ahead of time by workers; 0: two per worker */
    lk_dtype          dtype LK_ZERO;      /* of floating-point fields in a batch: LK_F32 or LK_F64 */
    int64_t           timeout_ms LK_ZERO; /* lk_loader_next fails if no batch is ready within this time */
    lk_transform      transform LK_ZERO;
    /* The share of each batch that this loader prepares: a batch of n samples is split into `parts` parts, where part q
     * is rows n*q/parts to n*(q+1)/parts - 1 (quotients are rounded down), and the loader prepares only parts
     * first_part to last_part - 1. 0, 0, 0: the whole batch. */
    int parts LK_ZERO, first_part LK_ZERO, last_part LK_ZERO;
    int unused LK_ZERO; /* ignored: padding in older versions, which left it undefined */
    /* If not 0, a batch that is not full is divided at the same rows as a full one; its last parts then have fewer
     * samples or none. */
    int fixed_parts LK_ZERO, reserved LK_ZERO;
} lk_loader_config;
#define LK_LOADER_CONFIG_INIT \
    {.size = sizeof(lk_loader_config), .batch = 64, .timeout_ms = 600000, .transform = LK_TRANSFORM_INIT}

/* Borrowed until the next lk_loader_next, lk_loader_seek or lk_loader_free. Arrays hold `capacity` samples
 * (lk_loader_capacity: config.batch, unless the loader prepares only a share) and are aligned to 64 bytes; samples past
 * `count` are padding: fields 0, index -1. The samples and their order do not depend on the share. */
typedef struct lk_batch {
    const void *const *fields; /* by field: (capacity, dims…) in the type of lk_loader_field */
    const lk_field    *about;  /* by field: its name, type and shape, as in lk_loader_field */
    int                fields_count;
    const int64_t     *indices; /* (capacity): the indices of these samples in the data set */
    int64_t            count;   /* number of samples here: 1 … capacity; 0 is possible in a share */
    int64_t            epoch;
    int64_t            position; /* of the whole batch's first sample, in the epoch's order */
    int64_t            total;    /* samples of the whole batch, 1 … config.batch */
    int64_t            offset;   /* of the first sample here within the whole batch */
} lk_batch;

/* The largest number of samples that this config's share of a batch can have (a seek may shift where batches start), at
 * least 1; 0 for an invalid config. */
LK_API int64_t lk_loader_capacity(const lk_loader_config *config);

/* Field i of the batches: the data set's field, with the dtype that it has in a batch. f32 fields, and field 0 if it is
 * transformed, have config.dtype; the others are as stored. false: there is no such field, or config is invalid. */
LK_API bool lk_loader_field(const lk_loader_config *config, int i, lk_field *field);

/* Copies config; borrows its dataset. Allocates all memory that the loader will use. */
LK_API lk_status lk_loader_create(lk_context *context, const lk_loader_config *config, lk_loader **loader);

/* Waits for workers to finish the current sample, not the batch. NULL is fine. */
LK_API void lk_loader_free(lk_loader *loader);

/* Returns the next batch; LK_END after the last batch of an epoch (the next call starts the next epoch). The batches
 * and their order do not depend on workers or prefetch. If a sample cannot be read, the message names its index, and
 * every call fails the same way until lk_loader_seek. LK_ETIMEOUT if no batch is ready within timeout_ms; another call
 * waits again. */
LK_API lk_status lk_loader_next(lk_loader *loader, lk_batch *batch);

/* The position of the next batch: save both values, and seek to them later to continue as if the run had not stopped.
 * They refer to whole batches, so they are the same for every share. */
LK_API int64_t lk_loader_epoch(const lk_loader *loader);
LK_API int64_t lk_loader_position(const lk_loader *loader); /* samples of this epoch already returned, 0 … count */
/* Waits, like lk_loader_free, for workers to finish the current sample. */
LK_API lk_status lk_loader_seek(lk_loader *loader, int64_t epoch, int64_t position);

/* The exact number of bytes of LK_MEMORY_LOADER that a loader of this config will use; 0 for an invalid config. */
LK_API size_t lk_loader_bytes(const lk_loader_config *config);

/* ---- Downloads of public data sets. ---- */

/* Called regularly with the bytes downloaded and the total, over all files; a nonzero result cancels the download
 * (LK_ECANCELED). */
typedef int (*lk_data_progress)(void *user, int64_t done, int64_t total);

/* Downloads "cifar10", "fashion-mnist" or "mnist" into directory (NULL: lk_data_directory), which is created if
 * necessary. url replaces the default URL of the directory that holds the files (NULL: the default). Files that are
 * already correct are kept, partial downloads are resumed, and a file gets its final name only once its SHA-256 is
 * verified. LK_EUNSUPPORTED: there is no libcurl; LK_EIO: there is no connection; the messages say what to do. */
LK_API lk_status lk_data_get(lk_context *context, const char *name, const char *directory, const char *url,
                             lk_data_progress progress, void *user);

/* The directory to which lk_data_get writes and which lk_dataset_open searches first: $LOCKSTEP_DATA/NAME, or else
 * $XDG_CACHE_HOME/lockstep/NAME, or else ~/.cache/lockstep/NAME. */
LK_API lk_status lk_data_directory(lk_context *context, const char *name, char *path, size_t bytes);

/* ---- Tokenizing text into files. ---- */

typedef struct lk_data_tokenize_config {
    size_t             size LK_ZERO;  /* sizeof this struct; set by LK_DATA_TOKENIZE_CONFIG_INIT */
    const char *const *paths LK_ZERO; /* texts or directories of texts; names ending in .jsonl or .jsonl.gz are JSONL */
    int                paths_count LK_ZERO;
    const char        *tokenizer LK_ZERO;   /* as in lk_open_options */
    const char        *text_field LK_ZERO;  /* of JSONL; NULL: "text" */
    const char        *out LK_ZERO;         /* the file to write, OUT; "char" also writes OUT.tokenizer.json */
    int                token_bytes LK_ZERO; /* 2, 4; 0: 2 if the vocabulary has at most 65536 tokens */
    lk_data_progress   progress LK_ZERO;    /* in bytes of the input files; NULL: not reported */
    void              *user LK_ZERO;
} lk_data_tokenize_config;
#define LK_DATA_TOKENIZE_CONFIG_INIT {.size = sizeof(lk_data_tokenize_config)}

typedef struct lk_data_tokenize_result {
    int64_t tokens, documents;
    int64_t bytes;       /* of text */
    int64_t invalid;     /* number of invalid UTF-8 sequences, each replaced by U+FFFD */
    int     token_bytes; /* 2 or 4 */
    int     reserved[8];
} lk_data_tokenize_result;

/* Writes the tokens of texts to one file, for tokens:OUT; each document is followed by the tokenizer's end token, if it
 * has one. The header is llm.c's (256 i32: 20240520, 1, count for u16; 20240801, 7, count for u32); header words that
 * llm.c leaves 0 hold the vocabulary size, the end token, and the number of bytes of text. The memory needed does not
 * depend on the size of the texts. OUT appears only when it is complete: it is written under a temporary name, which is
 * removed after a failure. */
LK_API lk_status lk_data_tokenize(lk_context *context, const lk_data_tokenize_config *config,
                                  lk_data_tokenize_result *result);

LK_END_DECLS
#endif
