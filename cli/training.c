/* training.c - from options to optimizer, schedule and checkpoints. */
#include "training.h"

#include <string.h>

static int optimizer(setup *s, const char *name, const options *given)
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
        complain(name, "--betas takes two numbers: --betas 0.9,0.999");
        return EXIT_MISTAKE;
    }
    o->beta1 = betas[0];
    o->beta2 = betas[1];
    if (o->kind != LK_SGD && (options_given(given, "momentum") || o->nesterov || options_given(given, "dampening"))) {
        complain(name, "--momentum, --dampening and --nesterov belong to --optimizer sgd");
        return EXIT_MISTAKE;
    }
    if (o->kind == LK_SGD && (options_given(given, "betas") || options_given(given, "epsilon"))) {
        complain(name, "--betas and --epsilon belong to --optimizer adam and adamw");
        return EXIT_MISTAKE;
    }
    return 0;
}

int training_make(setup *s, const char *name, const options *given)
{
    lk_trainer_config *f = &s->config;
    int                status = optimizer(s, name, given);
    if (status != 0) return status;
    f->epochs = options_integer(given, "epochs");
    f->steps = options_integer(given, "steps");
    f->label_smoothing = options_number(given, "label-smoothing");
    lk_schedule_parse(options_text(given, "schedule"), &f->schedule.kind);
    f->schedule.warmup = options_integer(given, "warmup");
    f->schedule.every = options_integer(given, "step-size");
    f->schedule.gamma = options_number(given, "gamma");
    f->transform.crop_padding = (int)options_integer(given, "crop-padding");
    f->transform.flip = options_number(given, "flip");
    f->eval_every = options_integer(given, "eval-every");
    f->save = options_text(given, "save");
    f->save_every = options_integer(given, "save-every");
    f->keep = (int)options_integer(given, "keep");
    f->init = options_text(given, "init");
    s->weights_option = "--init";
    const char *resume = options_text(given, "resume");
    if (resume && strcmp(resume, "auto") == 0) {
        f->resume = true;
        if (!f->save) {
            complain(name, "--resume auto needs --save DIR: where to look for a checkpoint");
            return EXIT_MISTAKE;
        }
    } else if (resume) {
        f->resume_from = resume;
    }
    return 0;
}
