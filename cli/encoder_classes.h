/* encoder_classes.h - the classes of an encoder that is read from a config.json: the names in "id2label", which give
 * labels their numbers. */
#ifndef ENCODER_CLASSES_H
#define ENCODER_CLASSES_H

#include "setup.h"

/* After s->open_options was set from options: sets by which field and which classes the labels of JSONL are read,
 * unless a record has decided that. any: samples to predict, which need no labels. 0, or the exit status after the
 * error was printed. */
int  encoder_classes_set(setup *s, const char *command_name, const options *given, bool any);
void encoder_classes_free(setup *s);

#endif
