/* training.c - reads the options of optimizer, schedule and checkpoints. */
#include "training.h"

#include "groups.h"

#include <string.h>

static int read_optimizer(setup *s, const char *name, const options *given)
{
    lk_optimizer_config *o = &s->config.optimizer;
    double               betas[2];
    lk_optimizer_parse(options_text(given, "optimizer"), &o->kind);
    o->lr = options_number(given, "lr");
    o->momentum = options_number(given, "momentum");
    o->dampening = options_number(given, "dampening");
    o->nesterov = options_flag(given, "nesterov");
    o->epsilon = options_number(given, "epsilon");
    o->weight_decay = options_number(given, "weight-decay");
    o->decay_all = options_flag(given, "decay-all");
    o->clip = options_number(given, "clip");
    if (options_numbers(given, "betas", betas, 2) != 2) {
        print_error(name, "--betas takes two numbers: --betas 0.9,0.999");
        return EXIT_USER_ERROR;
    }
    o->beta1 = betas[0];
    o->beta2 = betas[1];
    if (o->kind != LK_SGD && (options_given(given, "momentum") || o->nesterov || options_given(given, "dampening"))) {
        print_error(name, "--momentum, --dampening and --nesterov belong to --optimizer sgd");
        return EXIT_USER_ERROR;
    }
    if (o->kind == LK_SGD && (options_given(given, "betas") || options_given(given, "epsilon"))) {
        print_error(name, "--betas and --epsilon belong to --optimizer adam and adamw");
        return EXIT_USER_ERROR;
    }
    return 0;
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
        print_error(name, "--init and --init-partial exclude each other");
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
