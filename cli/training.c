/* training.c - reads the options of optimizer, schedule and checkpoints. */
#include "training.h"

#include "groups.h"

#include <string.h>

const char *training_optimizer(int index) { return lk_optimizer_name((lk_optimizer_kind)index); }

/* "sgd, rmsprop": the optimizers that have an option. */
static void list_optimizers(const char *option, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; lk_optimizer_name((lk_optimizer_kind)i) && used < size; i++)
        if (lk_optimizer_has((lk_optimizer_kind)i, option))
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "",
                                     lk_optimizer_name((lk_optimizer_kind)i));
}

typedef struct optimizer_options {
    const char       *name; /* of the command */
    const options    *given;
    lk_optimizer_kind kind;
    int               code; /* 0, or the exit status of the first mistake */
} optimizer_options;

/* Sets one or two fields, or of a flag none, if the user or the record of a checkpoint has set the option; else they
 * keep the defaults of the optimizer. */
static void read_optimizer_option(optimizer_options *o, const char *option, bool set, double *fields, int count)
{
    char owners[256];
    if (!set || o->code != 0) return;
    if (!lk_optimizer_has(o->kind, option)) {
        list_optimizers(option, owners, sizeof owners);
        print_error(o->name, "--%s applies only to --optimizer %s", option, owners);
        o->code = EXIT_USER_ERROR;
    } else if (count == 1) {
        fields[0] = options_number(o->given, option);
    } else if (count == 2 && options_numbers(o->given, option, fields, 2) != 2) {
        print_error(o->name, "--%s takes two numbers: --%s 0.9,0.999", option, option);
        o->code = EXIT_USER_ERROR;
    }
}

static int read_optimizer(setup *s, const char *name, const options *given)
{
    lk_optimizer_config *o = &s->config.optimizer;
    optimizer_options    reader = {.name = name, .given = given, .kind = o->kind};
    lk_optimizer_parse(options_text(given, "optimizer"), &reader.kind);
    lk_optimizer_defaults(reader.kind, o);
    o->lr = options_number(given, "lr");
    o->weight_decay = options_number(given, "weight-decay");
    o->decay_all = options_flag(given, "decay-all");
    o->clip = options_number(given, "clip");
#define READ_NUMBER(field, option, value, low, high, doc) \
    read_optimizer_option(&reader, option, options_given(given, option), &o->field, 1);
#define READ_PAIR(id, first, second, option, argument, a, b, low, high, doc)       \
    double id[2] = {o->first, o->second};                                          \
    read_optimizer_option(&reader, option, options_given(given, option), id, 2); \
    o->first = id[0], o->second = id[1];
#define READ_FLAG(field, option, doc)       \
    o->field = options_flag(given, option); \
    read_optimizer_option(&reader, option, o->field, NULL, 0);
    LK_OPTIMIZER_OPTION_LIST(READ_NUMBER, READ_PAIR, READ_FLAG)
#undef READ_NUMBER
#undef READ_PAIR
#undef READ_FLAG
    return reader.code;
}

int training_scale_rate(setup *s, const char *name, const options *given, double factor)
{
    double lr = s->config.optimizer.lr *= factor, last = options_number(given, "lr-min");
    if (last > lr) {
        print_error(name, "--lr-min %g is above the learning rate %g that the schedule starts from", last, lr);
        return EXIT_USER_ERROR;
    }
    s->config.schedule.minimum = lr > 0 ? last / lr : 0;
    return 0;
}

/* Sets the fields of all options in the lists of lockstep/trainer.h that the command has. */
static void set_fields(lk_trainer_config *config, const options *given)
{
#define SET_INTEGER(field, name, argument, value, low, high, traits, of, doc) \
    if (options_known(given, name)) config->field = (__typeof__(config->field))options_integer(given, name);
#define SET_NUMBER(field, name, argument, value, low, high, traits, of, doc) \
    if (options_known(given, name)) config->field = options_number(given, name);
#define SET_NUMBERS(field, name, argument, low, high, traits, of, doc) \
    if (options_known(given, name) && options_given(given, name))      \
        (void)options_numbers(given, name, config->field, (int)(sizeof config->field / sizeof *config->field));
#define SET_FLAG(field, name, traits, of, doc) \
    if (options_known(given, name)) config->field = options_flag(given, name);
#define SET_TEXT(field, name, argument, traits, of, doc) \
    if (options_known(given, name)) config->field = options_text(given, name);
#define NOTHING(list)
    LK_TRAINER_OPTIONS(NOTHING, NOTHING, SET_INTEGER, SET_NUMBER, SET_NUMBERS, SET_FLAG, SET_TEXT)
#undef SET_INTEGER
#undef SET_NUMBER
#undef SET_NUMBERS
#undef SET_FLAG
#undef SET_TEXT
#undef NOTHING
}

/* Lists of numbers have as many as they need. */
static int check_augmentation(lk_transform *t, const char *name, const options *given)
{
    double all[8];
    int    scales =
        options_given(given, "random-resized-crop") ? options_numbers(given, "random-resized-crop", all, 8) : 0;
    int strengths = options_given(given, "color-jitter") ? options_numbers(given, "color-jitter", all, 8) : 0;
    if (scales == 1) t->resized_crop[1] = 1;
    if (scales > 2 || (scales && t->resized_crop[0] > t->resized_crop[1])) {
        print_error(name, "--random-resized-crop takes the smallest share of the image's area and, optionally, the "
                          "largest (default 1)");
        return EXIT_USER_ERROR;
    }
    if (strengths > 4) {
        print_error(name, "--color-jitter has %d numbers: expected brightness, contrast, saturation and hue",
                    strengths);
        return EXIT_USER_ERROR;
    }
    return 0;
}

/* An option without the one that it belongs to is a user error, instead of being ignored. Those of a checkpoint's
 * record are allowed: it may be resumed without --save. */
static int check_dependent(const char *name, const options *given)
{
    const char *schedule = options_text(given, "schedule");
    bool        step = strcmp(schedule, "step") == 0, cosine = strcmp(schedule, "cosine") == 0;
    bool        saves = options_text(given, "save") != NULL;
    bool        scales = options_known(given, "lr-scale") && strcmp(options_text(given, "lr-scale"), "none") != 0;
    const struct {
        const char *option;
        bool        used;
        const char *owner;
    } table[] = {{"lr-min", cosine, "--schedule cosine"}, {"gamma", step, "--schedule step"},
                 {"step-size", step, "--schedule step"},  {"save-every", saves, "--save DIR"},
                 {"keep", saves, "--save DIR"},           {"base-batch", scales, "--lr-scale linear or sqrt"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!table[i].used && options_chosen(given, table[i].option)) {
            print_error(name, "--%s requires %s", table[i].option, table[i].owner);
            return EXIT_USER_ERROR;
        }
    return 0;
}

int training_make(setup *s, const char *name, const options *given)
{
    lk_trainer_config *config = &s->config;
    int                status = read_optimizer(s, name, given);
    if (status != 0 || (status = groups_make(s, name, given)) != 0) return status;
    set_fields(config, given);
    lk_schedule_parse(options_text(given, "schedule"), &config->schedule.kind);
    if ((status = check_dependent(name, given)) != 0) return status;
    if ((status = check_augmentation(&config->transform, name, given)) != 0) return status;
    config->data_on_device = device_data_place(given);
    s->weights_option = "--init";
    if (config->init && config->init_partial) {
        print_error(name, "--init and --init-partial are mutually exclusive");
        return EXIT_USER_ERROR;
    }
    const char *resume = options_text(given, "resume");
    if (resume && strcmp(resume, "auto") == 0) {
        config->resume = true;
        if (!config->save) {
            print_error(name, "--resume auto requires --save DIR, the directory of the checkpoint");
            return EXIT_USER_ERROR;
        }
    } else if (resume) {
        config->resume_from = resume;
    }
    return 0;
}
