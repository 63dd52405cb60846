/* training.h - the options of training itself, shared by `train` and `plan`. */
#ifndef TRAINING_H
#define TRAINING_H

#include "setup.h"

#include <lockstep/optimizer.h>

/* The options of optimizers, from their list. */
#define OPTIMIZER_NUMBER(field, name, value, low, high, doc) NUMBER(name, "X", #value, low, high, doc),
#define OPTIMIZER_PAIR(id, first, second, name, argument, a, b, low, high, doc) NUMBERS(name, argument, #a "," #b, low, high, doc),
#define OPTIMIZER_FLAG(field, name, doc) FLAG(name, doc),

#define TRAINING_OPTIONS                                                                                                 \
    DATA_ON_DEVICE_OPTION,                                                                                               \
    HEADING("Training"),                                                                                                 \
        INTEGER("epochs", "N", "3", 1, 1e9, "Passes over the training set (default 3). Text in windows has a sample for each token: use --steps"), \
        INTEGER("steps", "N", "0", 0, 1e15, "Stop after N steps instead; 0: by epochs"),                                 \
        CHOICE_LISTED("optimizer", "NAME", "adam", training_optimizer, "Rule that updates the parameters, as PyTorch's"), \
        NUMBER("lr", "X", "0.001", 0, 1e6, "Learning rate"),                                                             \
        LK_OPTIMIZER_OPTION_LIST(OPTIMIZER_NUMBER, OPTIMIZER_PAIR, OPTIMIZER_FLAG)                                       \
        NUMBER("weight-decay", "X", "0", 0, 1e3, "Weight decay; biases and norms are excluded unless --decay-all"),      \
        FLAG("decay-all", "Decay biases and norms too"),                                                                 \
        NUMBER("clip", "X", "0", 0, 1e12, "Largest norm of the whole gradient; 0: no clipping"),                         \
        LIST("freeze", "PATTERN", "Do not train the parameters whose names match, such as 'conv*'; several: repeat it, or separate by ;"), \
        LIST("group", "PATTERN:SETTINGS",                                                                                \
             "Settings for the parameters whose names match: lr=FACTOR on the learning rate, decay=X, frozen, such as "  \
             "'fc2.*:lr=10,decay=0'; the first group that matches applies; several as --freeze"),                        \
        NUMBER("label-smoothing", "X", "0", 0, 0.999, "Share of each label spread over all classes"),                    \
        CHOICE("schedule", "NAME", "constant", "constant|step|cosine", "Learning-rate schedule"),                   \
        INTEGER("warmup", "N", "0", 0, 1e12, "Steps of linear warmup before any schedule"),                           \
        INTEGER("step-size", "N", "1000", 1, 1e12, "schedule step: multiply by --gamma every N steps"),                   \
        NUMBER("gamma", "X", "0.1", 0, 10, "schedule step: the factor"),                                                 \
        NUMBER("lr-min", "X", "0", 0, 1e6, "schedule cosine: the final learning rate"),                                  \
        INTEGER("crop-padding", "N", "0", 0, 64, "Augmentation: random crops of the image padded by N pixels"),          \
        NUMBER("flip", "P", "0", 0, 1, "Augmentation: probability of a horizontal flip"),                                \
        NUMBERS("random-resized-crop", "S[,S]", NULL, 1e-6, 1,                                                           \
                "Augmentation: boxes of S to S (default 1) of the image's area, resized to its size, as RandomResizedCrop"), \
        NUMBER("rotate", "D", "0", 0, 180, "Augmentation: rotation by up to D degrees in either direction"),             \
        NUMBERS("color-jitter", "B,C,S,H", NULL, 0, 1000,                                                                \
                "Augmentation: strength of random brightness, contrast, saturation and hue (at most 0.5), as ColorJitter"), \
        INTEGER("cutout", "N", "0", 0, 4096, "Augmentation: a random square of N by N pixels is set to the mean"),       \
        NUMBER("mixup", "A", "0", 0, 1000, "Augmentation: each sample is mixed with another; the weight is Beta(A, A)"), \
        INTEGER("eval-every", "N", "0", -1, 1e12, "Evaluate every N steps; 0: after each epoch; -1: never"),              \
        HEADING("Checkpoints"),                                                                                          \
        TEXT("save", "DIR", NULL, "Save checkpoints in DIR; DIR/model.safetensors is the newest, readable by PyTorch"),  \
        INTEGER("save-every", "N", "0", 0, 1e12, "Save every N steps; 0: after each epoch. Always at the end"),           \
        INTEGER("keep", "K", "2", 1, 200, "Number of checkpoints to keep"),                                                  \
        TEXT("resume", "auto|DIR", NULL, "auto: continue from --save if it has a checkpoint. DIR: continue from its newest one, or from the one that is DIR, as RUN/step-00000003 is"), \
        TEXT("init", "FILE", NULL, "Start from these weights: a .safetensors file, a checkpoint or a directory of Hugging Face. Without --tokenizer, a "                 \
             "directory's tokenizer is used"),            \
        TEXT("init-partial", "FILE", NULL,                                                                               \
             "Start from the tensors of FILE whose names and shapes the model has, and print which were loaded; ignored when resuming")

const char *training_optimizer(int index); /* its name; NULL past the last */
/* Sets the rest of s->config. 0, or the exit status after the error was printed. */
int training_make(setup *s, const char *command_name, const options *given);
/* After training_make: multiplies the learning rate, and sets the schedule's final rate to --lr-min. The same return. */
int training_scale_rate(setup *s, const char *command_name, const options *given, double factor);

#endif
