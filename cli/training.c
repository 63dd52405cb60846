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

/* Sets the options that the user, or the record of a checkpoint, has set; the others have the defaults of the optimizer. */
static int read_optimizer_option(const char *name, const options *given, lk_optimizer_kind kind, const char *option,
                                 bool set, double *fields, int count)
{
    char owners[256];
    if (!set) return 0;
    if (!lk_optimizer_has(kind, option)) {
        list_optimizers(option, owners, sizeof owners);
        print_error(name, "--%s belongs to --optimizer %s", option, owners);
        return EXIT_USER_ERROR;
    }
    if (count == 1) fields[0] = options_number(given, option);
    if (count == 2 && options_numbers(given, option, fields, 2) != 2) {
        print_error(name, "--%s takes two numbers: --%s 0.9,0.999", option, option);
        return EXIT_USER_ERROR;
    }
    return 0;
}

static int read_optimizer(setup *s, const char *name, const options *given)
{
    lk_optimizer_config *o = &s->config.optimizer;
    lk_optimizer_kind    kind = o->kind;
    int                  code = 0;
    lk_optimizer_parse(options_text(given, "optimizer"), &kind);
    lk_optimizer_defaults(kind, o);
    o->lr = options_number(given, "lr");
    o->weight_decay = options_number(given, "weight-decay");
    o->decay_all = options_flag(given, "decay-all");
    o->clip = options_number(given, "clip");
#define READ_NUMBER(field, option, value, low, high, doc) \
    if (code == 0) code = read_optimizer_option(name, given, kind, option, options_given(given, option), &o->field, 1);
#define READ_PAIR(id, first, second, option, argument, a, b, low, high, doc)                                     \
    double id[2] = {o->first, o->second};                                                                        \
    if (code == 0) code = read_optimizer_option(name, given, kind, option, options_given(given, option), id, 2); \
    o->first = id[0], o->second = id[1];
#define READ_FLAG(field, option, doc)          \
    o->field = options_flag(given, option); \
    if (code == 0) code = read_optimizer_option(name, given, kind, option, o->field, NULL, 0);
    LK_OPTIMIZER_OPTION_LIST(READ_NUMBER, READ_PAIR, READ_FLAG)
#undef READ_NUMBER
#undef READ_PAIR
#undef READ_FLAG
    return code;
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

/* Changes of images beyond crop and flip. */
static int set_augmentation(lk_transform *t, const char *name, const options *given)
{
    int scales = 0, strengths = 0;
    t->rotate = options_number(given, "rotate");
    t->cutout = (int)options_integer(given, "cutout");
    t->mixup = options_number(given, "mixup");
    if (options_given(given, "random-resized-crop"))
        scales = options_numbers(given, "random-resized-crop", t->resized_crop, 2);
    if (scales == 1) t->resized_crop[1] = 1;
    if (options_given(given, "color-jitter")) strengths = options_numbers(given, "color-jitter", t->color_jitter, 4);
    if (scales > 2 || (scales && t->resized_crop[0] > t->resized_crop[1])) {
        print_error(name,
                    "--random-resized-crop takes the smallest part of the image's area, and the largest (default 1)");
        return EXIT_USER_ERROR;
    }
    if (strengths > 4) {
        print_error(name, "--color-jitter has %d numbers: expected brightness, contrast, saturation and hue", strengths);
        return EXIT_USER_ERROR;
    }
    return 0;
}

/* An option without the one that it belongs to is a user error, instead of being ignored. Those of a checkpoint's record are allowed:
 * it may be resumed without --save. */
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
                 {"keep", saves, "--save DIR"},           {"base-batch", scales, "--lr-scale linear and sqrt"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!table[i].used && options_chosen(given, table[i].option)) {
            print_error(name, "--%s belongs to %s", table[i].option, table[i].owner);
            return EXIT_USER_ERROR;
        }
    return 0;
}

int training_make(setup *s, const char *name, const options *given)
{
    lk_trainer_config *config = &s->config;
    int                status = read_optimizer(s, name, given);
    if (status != 0 || (status = groups_make(s, name, given)) != 0) return status;
    config->epochs = options_integer(given, "epochs");
    config->steps = options_integer(given, "steps");
    s->label_smoothing = options_number(given, "label-smoothing");
    lk_schedule_parse(options_text(given, "schedule"), &config->schedule.kind);
    config->schedule.warmup = options_integer(given, "warmup");
    config->schedule.every = options_integer(given, "step-size");
    config->schedule.gamma = options_number(given, "gamma");
    if ((status = check_dependent(name, given)) != 0) return status;
    config->transform.crop_padding = (int)options_integer(given, "crop-padding");
    config->transform.flip = options_number(given, "flip");
    if ((status = set_augmentation(&config->transform, name, given)) != 0) return status;
    config->data_on_device = device_data_place(given);
    config->eval_every = options_integer(given, "eval-every");
    config->save = options_text(given, "save");
    config->save_every = options_integer(given, "save-every");
    config->keep = (int)options_integer(given, "keep");
    config->init = options_text(given, "init");
    config->init_partial = options_text(given, "init-partial");
    s->weights_option = "--init";
    if (config->init && config->init_partial) {
        print_error(name, "--init and --init-partial are mutually exclusive");
        return EXIT_USER_ERROR;
    }
    const char *resume = options_text(given, "resume");
    if (resume && strcmp(resume, "auto") == 0) {
        config->resume = true;
        if (!config->save) {
            print_error(name, "--resume auto needs --save DIR: the directory of the checkpoint");
            return EXIT_USER_ERROR;
        }
    } else if (resume) {
        config->resume_from = resume;
    }
    return 0;
}
