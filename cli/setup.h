/* setup.h - shared by train, eval, predict, plan and bench: the options for a model and its data, and the objects they
 * create. */
#ifndef SETUP_H
#define SETUP_H

#include "device.h"
#include "loss.h"
#include "open_options.h"
#include "precision.h"
#include "progress.h"
#include "transformer.h"

/* Rows of an option table. */
#define MODEL_OPTIONS                                                                                                  \
    HEADING("Model"),                                                                                                  \
        CHOICE_OR_FILE(                                                                                                \
            "model", "NAME", "cnn", "mlp|cnn|resnet18|resnet20|" TRANSFORMER_NAMES,                                    \
            "mlp: fc1, relu, fc2. cnn: SimpleCNN of the PyTorch tutorials. resnet18: torchvision's. resnet20: for "    \
            "small images. gpt, llama, encoder: GPT-2, Llama and BERT with the sizes below; gpt2 and so on: with the " \
            "published sizes. A file: a Hugging Face config.json, or your own model, a shared object with "            \
            "LK_EXPORT_MODEL of lockstep/model.h. Default: the model of the checkpoint, or of config.json in the "     \
            "directory with the weights, else cnn",                                                                    \
            .flags = OPTION_FIXED),                                                                                    \
        TRANSFORMER_OPTIONS,                                                                                           \
        INTEGER("hidden", "N", "128", 1, 1e6,                                                                          \
                "mlp: width of the hidden layer; transformers: of the feed-forward "                                   \
                "layers (default: mlp 128; transformers 4 times --width, llama 8/3 times)",                            \
                .flags = OPTION_FIXED),                                                                                \
        CHOICE("stem", "WHICH", "torchvision", "torchvision|cifar",                                                    \
               "resnet18: torchvision's 7x7 stride-2 stem with max pool, or a 3x3 one for small images",               \
               .flags = OPTION_FIXED),                                                                                 \
        FLAG("recompute", "resnets, transformers: keep only the inputs of blocks and recompute the blocks in the "     \
                          "backward pass: less memory, more time"),                                                    \
        CHOICE("loss", "NAME", "auto", "auto|cross_entropy|mse|l1|bce",                                                \
               "Loss. auto: cross_entropy for class labels, mse for numbers to predict; whole numbers in a "           \
               "table are classes with cross_entropy, numbers with mse and l1, and auto reports its choice. bce: "     \
               "binary cross-entropy of each output"),                                                                 \
        CHOICE("dtype", "TYPE", "f32", PRECISION_CHOICES,                                                              \
               "Precision. Types narrower than f32 mean mixed precision: weights and activations in that type; "       \
               "master weights, optimizer, gradients and sums in f32. f64 is for numerical checks"),                   \
        CHOICE_LISTED("matmul-precision", "WHICH", "highest", precision_of_products,                                   \
                      "Precision of f32 matrix products on CPUs, in linear layers, matmul and experts. bf16: "         \
                      "operands are rounded to bf16, but sums and results are f32, as with PyTorch's "                 \
                      "set_float32_matmul_precision(\"medium\"); convolutions and attention stay in f32")

#define DATA_OPTIONS                                                                                                  \
    HEADING("Data"),                                                                                                  \
        TEXT("data", "NAME[:FILES]", NULL, "The data set", .listed = data_names_at, .describe = data_names_describe), \
        TABLE_OPTIONS, FOLDER_OPTIONS, TEXT_OPTIONS,                                                                  \
        INTEGER("features", "N", "64", 1, 1e6, "synthetic data for mlp: features per sample", .of = "data"),          \
        INTEGER("classes", "N", "10", 1, 1e6, "synthetic data: number of classes; other data sets have their own",    \
                .of = "data"),                                                                                        \
        INTEGER("batch", "N", "64", 1, 1e7, "Samples per batch"),                                                     \
        INTEGER("workers", "N", NULL, 0, 64,                                                                          \
                "Threads that prepare batches; they never change the order (default 1; for decoding images the "      \
                "number of compute threads, at most 4)"),                                                             \
        NUMBERS("mean", "M[,M...]", NULL, -1e6, 1e6,                                                                  \
                "Normalisation: the mean to subtract; one number or one per channel (default 0.5 for images)"),       \
        NUMBERS("std", "S[,S...]", NULL, 1e-6, 1e6, "Normalisation: the divisor; like --mean (default 0.5 for images)")

#define MACHINE_OPTIONS                                                                \
    INTEGER("threads", "N", "0", 0, 256,                                               \
            "Compute threads; 0: one per core that this process may use. The number "  \
            "does not affect results",                                                 \
            .flags = OPTION_LOCAL),                                                    \
        DEVICE_OPTIONS, OVERCOMMIT_OPTION,                                             \
        INTEGER("seed", "N", "0", 0, 9e15, "Seed for initial weights, order of samples, augmentation and dropout")

typedef struct setup {
    lk_context       *context;
    lk_dataset       *train, *test;
    lk_split          split;  /* of `test`, where only that was opened */
    lk_trainer_config config; /* model, data and batch are set; the rest is as in LK_TRAINER_CONFIG_INIT */
    lk_model_function model;
    transformer       transformer;   /* where it is used, instead of model */
    void             *model_library; /* of a model from a file; NULL: it is built in */
    lk_model_options  model_options; /* classes: the number of outputs */
    lk_open_options   open_options;
    loss_kind         loss;
    char              data[4096]; /* the data's full name */
    const char       *command;    /* for messages of the log */
    progress          work;       /* of long work within a call */
    bool              quiet;      /* what is logged is not shown */
    const char       *model_name;
    bool              model_failed;   /* while its graph was recorded */
    const char       *weights_option; /* the option that set config.init: "--init" or "--load" */

    lk_mesh    *mesh;       /* of --mesh; NULL: it is not given */
    char       *tactics;    /* config.tactics, of --tactics */
    const char *checkpoint; /* the directory that is loaded or resumed; NULL: none */
    /* of it; NULL: none, or rank 0 has it, which sends what follows from it: record_share.c */
    lk_description *description;
    bool            described;     /* there is one, of this rank or of rank 0 */
    bool            normalised;    /* it says how field 0 of samples was normalised: */
    lk_transform    normalisation; /* channels, mean and std */
    lk_hf_labels   *labels;        /* the classes of a config.json, see encoder_classes.h */
    const lk_field *expected;      /* fields of its samples, by which new data is read; NULL: not known */
    int             expected_count;
    lk_field       *expected_fields; /* where `expected` is own memory, with … */
    char           *expected_bytes;  /* … these names */
    lk_record      *record;          /* config.record */
    char           *record_text;     /* options of the description: name and value of each, with their NULs */
    size_t          record_bytes;

    lk_checkpoint_file *files;        /* config.files */
    char               *file_text[2]; /* of those that were written here */

    lk_parameter_group *groups;        /* of --freeze and --group; patterns point into … */
    char               *group_text[2]; /* … these */
} setup;

typedef enum setup_data {
    SETUP_BOTH,
    SETUP_PROBE,      /* both, without their samples: lk_dataset_probe */
    SETUP_TEST,       /* the samples of --split, as `test`: split.h */
    SETUP_PROBE_TEST, /* the same without the samples */
    SETUP_ANY,        /* the same, or all samples where there is no test set */
    SETUP_OPENED,     /* s->test was opened by the caller, and s->data names it */
    SETUP_SIZES,      /* missing files are allowed: then a known data set's published size is used */
    SETUP_SHAPES      /* files are not searched */
} setup_data;

/* 0, or the exit status after the error was printed. Call setup_free in either case. */
int         setup_begin(setup *s, const char *command_name, const options *given,
                        int threads); /* only the context; setup_make continues from there */
int         setup_make(setup *s, const char *command_name, const options *given, setup_data what);
lk_tensor   setup_model(setup *s, lk_tensor x);                      /* records the model */
const char *setup_default_data(const char *model, bool transformer); /* the data of a model without --data */
/* The field of that name of the samples that the model was trained on, by its checkpoint's record, or of those here;
 * NULL: none. */
const lk_field *setup_field(const setup *s, const char *field_name);
void            setup_image_size(const lk_field  *image,
                                 lk_open_options *open); /* as the field (channels, height, width), where not set */
/* As report(), with the options that caused the failure as a prefix: a model that does not fit the data, weights of
 * another model. */
int setup_report(const setup *s, const char *command_name, lk_status status);
/* What the speed counts: "tokens", "images" or, of tables, "samples"; and how many of them a sample has. */
const char *setup_unit(const setup *s);
int64_t     setup_units(const setup *s);
void        setup_free(setup *s);

#endif
