/* optimizer.h - optimizers and learning-rate schedules, with PyTorch's semantics. */
#ifndef LOCKSTEP_OPTIMIZER_H
#define LOCKSTEP_OPTIMIZER_H

#include <lockstep/base.h>

LK_BEGIN_DECLS

/* X(constant, name): the optimizers. For each, the library has a descriptor with its options from the list below, its
 * state and its kernels (in src/graph/op/). */
#define LK_OPTIMIZER_LIST(X) \
    X(LK_SGD, sgd)           \
    X(LK_ADAM, adam)         \
    X(LK_ADAMW, adamw)       \
    X(LK_LION, lion)         \
    X(LK_RMSPROP, rmsprop)   \
    X(LK_ADAGRAD, adagrad)

typedef enum lk_optimizer_kind {
#define LK_OPTIMIZER_ENUM(constant, name) constant,
    LK_OPTIMIZER_LIST(LK_OPTIMIZER_ENUM)
#undef LK_OPTIMIZER_ENUM
} lk_optimizer_kind;

/* The options that only some optimizers have. Each corresponds to one or two fields of lk_optimizer_config and to a
 * command-line option. Range checks, help, configuration files, the record in a checkpoint and the comparison between
 * ranks use this list.
 *   NUMBER(field, name, default, lowest, highest, help)
 *   PAIR(id, field, field, name, argument, default, default, lowest, highest, help)
 *   FLAG(field, name, help)
 * The help must begin with the optimizers that have the option. */
#define LK_OPTIMIZER_OPTION_LIST(NUMBER, PAIR, FLAG)                                                          \
    NUMBER(momentum, "momentum", 0, 0, 1, "sgd, rmsprop: momentum")                                           \
    NUMBER(dampening, "dampening", 0, 0, 1, "sgd: dampening of the momentum")                                 \
    FLAG(nesterov, "nesterov", "sgd: Nesterov's momentum")                                                    \
    PAIR(betas, beta1, beta2, "betas", "B1,B2", 0.9, 0.999, 0, 0.9999999,                                     \
         "adam, adamw, lion: decay of the moments; with lion, B1 weights the moment in the step and B2 is "   \
         "the moment's decay (default 0.9,0.999; lion: 0.9,0.99)")                                            \
    NUMBER(epsilon, "epsilon", 1e-8, 0, 1,                                                                    \
           "adam, adamw, rmsprop, adagrad: added to the denominator (default 1e-8; adagrad: 1e-10)")          \
    NUMBER(alpha, "alpha", 0.99, 0, 0.9999999, "rmsprop: decay of the mean of squares")                       \
    FLAG(centered, "centered",                                                                                \
         "rmsprop: divide by the standard deviation of the gradients, not by the root of their mean square")  \
    NUMBER(lr_decay, "lr-decay", 0, 0, 1e6, "adagrad: the rate of step t is divided by 1 + (t - 1) X")        \
    NUMBER(initial_accumulator_value, "initial-accumulator-value", 0, 0, 1e12,                                \
           "adagrad: initial value of the sums of squares")

/* The maximum number of arrays of optimizer state per parameter. */
enum { LK_MAX_MOMENTS = 4 };

/* Settings for the parameters whose names match a pattern. The first matching group applies. Start from
 * LK_PARAMETER_GROUP_INIT, which changes nothing. */
typedef struct lk_parameter_group {
    const char *match LK_ZERO;        /* a shell pattern: "*.bias", "layer1.*" */
    double      lr_scale LK_ZERO;     /* multiplies the learning rate; 0 means 1 */
    double      weight_decay LK_ZERO; /* 0: none; negative: the optimizer's */
    bool        frozen LK_ZERO;       /* no gradient, no update */
    int         must_match LK_ZERO;   /* if not 0, it is an error if the pattern matches no parameter */
    int         reserved[6] LK_ZERO;
} lk_parameter_group;
#define LK_PARAMETER_GROUP_INIT {.lr_scale = 1.0, .weight_decay = -1.0}

typedef struct lk_optimizer_config {
    size_t            size LK_ZERO; /* sizeof this struct; set by LK_OPTIMIZER_CONFIG_INIT */
    lk_optimizer_kind kind LK_ZERO;
    double            lr LK_ZERO;
    double            momentum LK_ZERO, dampening LK_ZERO; /* SGD; RMSprop: momentum */
    bool              nesterov LK_ZERO;                    /* SGD */
    double            beta1 LK_ZERO, beta2 LK_ZERO;        /* Adam, AdamW, Lion */
    double            epsilon LK_ZERO;                     /* Adam, AdamW, RMSprop, Adagrad */
    double            weight_decay LK_ZERO;
    bool              decay_all LK_ZERO; /* decay biases and norms too, as PyTorch does without parameter groups */
    double            clip LK_ZERO;      /* maximum norm of the whole gradient; 0: no clipping */
    const lk_parameter_group *groups LK_ZERO;
    int                       groups_count LK_ZERO;
    bool                      centered LK_ZERO;                                    /* RMSprop */
    double                    alpha LK_ZERO;                                       /* RMSprop */
    double                    lr_decay LK_ZERO, initial_accumulator_value LK_ZERO; /* Adagrad */
    int                       reserved[8] LK_ZERO; /* for new fields, because lk_trainer_config contains this struct */
} lk_optimizer_config;
#define LK_OPTIMIZER_CONFIG_INIT                                                                                     \
    {.size = sizeof(lk_optimizer_config), .kind = LK_ADAM, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, \
     .alpha = 0.99}

LK_API bool        lk_optimizer_parse(const char *name, lk_optimizer_kind *kind); /* "sgd", "adam", "adamw", … */
LK_API const char *lk_optimizer_name(lk_optimizer_kind kind); /* NULL if there is none; kinds are numbered from 0 */
/* Whether an optimizer has the option with this name in the list above, for example "betas". */
LK_API bool lk_optimizer_has(lk_optimizer_kind kind, const char *option);
/* Sets the kind, and sets the fields of all these options to that optimizer's defaults; changes nothing else. */
LK_API void lk_optimizer_defaults(lk_optimizer_kind kind, lk_optimizer_config *config);

typedef enum lk_schedule_kind { LK_SCHEDULE_CONSTANT, LK_SCHEDULE_STEP, LK_SCHEDULE_COSINE } lk_schedule_kind;

typedef struct lk_schedule {
    lk_schedule_kind kind LK_ZERO;
    int64_t          warmup LK_ZERO; /* number of steps of linear increase from lr/warmup to lr, before any schedule */
    int64_t          total LK_ZERO;  /* cosine: total number of steps, including the warm-up */
    int64_t          every LK_ZERO;  /* step: number of steps after which the rate is multiplied by gamma each time */
    double           gamma LK_ZERO;
    double           minimum LK_ZERO; /* cosine: final rate, as a fraction of lr */
    int64_t          reserved[4] LK_ZERO;
} lk_schedule;

LK_API bool lk_schedule_parse(const char *name, lk_schedule_kind *kind); /* "constant", "step", "cosine" */
/* The learning rate of step `step`, counted from 0: `step` is the number of updates before it. */
LK_API double lk_schedule_rate(const lk_schedule *schedule, double lr, int64_t step);

LK_END_DECLS
#endif
