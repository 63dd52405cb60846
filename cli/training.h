/* training.h - the options of training itself, shared by `train` and `plan`. */
#ifndef TRAINING_H
#define TRAINING_H

#include "setup.h"

#include <lockstep/optimizer.h>
#include <lockstep/trainer.h>

/* The options of optimizers, from their list. */
#define OPTIMIZER_NUMBER(field, name, value, low, high, doc) \
    NUMBER(name, "X", #value, low, high, doc, .of = "optimizer"),
#define OPTIMIZER_PAIR(id, first, second, name, argument, a, b, low, high, doc) \
    NUMBERS(name, argument, #a "," #b, low, high, doc, .of = "optimizer"),
#define OPTIMIZER_FLAG(field, name, doc) FLAG(name, doc, .of = "optimizer"),

/* The options of lockstep/trainer.h. */
#define TRAINING_FLAGS(traits)                                                                                         \
    (((traits) & LK_OPTION_RECORDED ? 0 : OPTION_LOCAL) | ((traits) & LK_OPTION_FIXED ? OPTION_FIXED : 0))
#define TRAINING_TRAITS(traits) .flags = TRAINING_FLAGS(traits), .axes = LK_OPTION_AXES_OF(traits)
#define TRAINING_INTEGER(field, name, argument, value, low, high, traits, of_, doc)                                    \
    INTEGER(name, argument, value, low, high, doc, TRAINING_TRAITS(traits), .of = of_),
#define TRAINING_NUMBER(field, name, argument, value, low, high, traits, of_, doc)                                     \
    NUMBER(name, argument, value, low, high, doc, TRAINING_TRAITS(traits), .of = of_),
#define TRAINING_NUMBERS(field, name, argument, low, high, traits, of_, doc)                                           \
    NUMBERS(name, argument, NULL, low, high, doc, TRAINING_TRAITS(traits), .of = of_),
#define TRAINING_FLAG(field, name, traits, of_, doc) FLAG(name, doc, TRAINING_TRAITS(traits), .of = of_),
#define TRAINING_TEXT(field, name, argument, traits, of_, doc)                                                         \
    TEXT(name, argument, NULL, doc, TRAINING_TRAITS(traits), .of = of_),
#define TRAINING_LIST(list) list(TRAINING_INTEGER, TRAINING_NUMBER, TRAINING_NUMBERS, TRAINING_FLAG, TRAINING_TEXT)

/* Ends with the heading of what follows in both commands. */
#define TRAINING_OPTIONS                                                                                               \
    DATA_ON_DEVICE_OPTION,                                                                                             \
    HEADING("Training"),                                                                                               \
    TRAINING_LIST(LK_TRAINER_LENGTH_OPTIONS)                                                                           \
    CHOICE_LISTED("optimizer", "NAME", "adam", training_optimizer, "Optimizer, as in PyTorch"),                        \
    NUMBER("lr", "X", "0.001", 0, 1e6, "Learning rate"),                                                               \
    LK_OPTIMIZER_OPTION_LIST(OPTIMIZER_NUMBER, OPTIMIZER_PAIR, OPTIMIZER_FLAG)                                         \
    NUMBER("weight-decay", "X", "0", 0, 1e3, "Weight decay; biases and norms are excluded unless --decay-all"),        \
    FLAG("decay-all", "Decay biases and norms too"),                                                                   \
    NUMBER("clip", "X", "0", 0, 1e12, "Maximum norm of the gradient of all parameters; 0: no clipping"),               \
    LIST("freeze", "PATTERN", "Do not train the parameters whose names match, such as 'conv*'; for several patterns, " \
         "repeat the option or separate them with ;"),                                                                 \
    LIST("group", "PATTERN:SETTINGS",                                                                                  \
         "Settings for the parameters whose names match: lr=FACTOR to scale the learning rate, decay=X, frozen, such " \
         "as 'fc2.*:lr=10,decay=0'; the first group that matches applies; for several groups, repeat the option or "   \
         "separate them with ;"),                                                                                      \
    TRAINING_LIST(LK_TRAINER_LOSS_OPTIONS)                                                                             \
    CHOICE("schedule", "NAME", "constant", "constant|step|cosine", "Learning-rate schedule"),                          \
    TRAINING_LIST(LK_TRAINER_SCHEDULE_OPTIONS)                                                                         \
    NUMBER("lr-min", "X", "0", 0, 1e6, "schedule cosine: the final learning rate", .of = "schedule"),                  \
    TRAINING_LIST(LK_TRAINER_AUGMENTATION_OPTIONS)                                                                     \
    TRAINING_LIST(LK_TRAINER_EVALUATION_OPTIONS)                                                                       \
    HEADING("Checkpoints"),                                                                                            \
    TRAINING_LIST(LK_TRAINER_CHECKPOINT_OPTIONS)                                                                       \
    TEXT("resume", "auto|DIR", NULL,                                                                                   \
         "auto: continue from --save if it has a checkpoint. DIR: continue from its newest checkpoint, or from DIR "   \
         "itself if it is a checkpoint, such as RUN/step-00000003", .flags = OPTION_LOCAL),                            \
    TRAINING_LIST(LK_TRAINER_WEIGHTS_OPTIONS)                                                                          \
    HEADING("Ranks")

const char *training_optimizer(int index); /* its name; NULL past the last */
/* Sets the rest of s->config. 0, or the exit status after the error was printed. */
int training_make(setup *s, const char *command_name, const options *given);
/* After training_make: multiplies the learning rate, and sets the schedule's final rate to --lr-min. The same
 * return. */
int training_scale_rate(setup *s, const char *command_name, const options *given, double factor);

#endif
