/* record.h - the record of a run: train saves its options with every checkpoint, and train --resume, eval and predict
 * take the options that their command line does not set from there. */
#ifndef RECORD_H
#define RECORD_H

#include "setup.h"

/* After setup_make: the options that are set, and model and data in any case, become s->config.record. Memory belongs
 * to s. 0, or the exit status after the error was printed. */
int record_make(setup *s, const char *command_name, const options *given);

/* Reads what the checkpoint in `directory` is into s->description, and sets the options that the user has not set from
 * its record; their values are valid as s is. Ranks get the record of rank 0. A file, a directory without a checkpoint
 * and a checkpoint without a record leave the options as they are. 0, or the exit status after the error was printed:
 * also if there is nothing of that name, or the command line names another model. */
int record_read(setup *s, const char *command_name, options *given, const char *directory);
/* Then, with the model of the directory: an error where the weights are no checkpoint, and --model or --data is
 * missing. */
int record_require(const setup *s, const char *command_name, const options *given, const char *path);

const char *record_option(const setup *s, const char *option); /* its value in that record; NULL: it has none */

const char *record_directory(const options *given); /* that --resume of train names; NULL: none */
/* The same for train: that directory, if there is one; without --resume auto it must hold a
 * checkpoint. A process that is no rank yet reads it before -n is used. */
int record_resume(setup *s, const char *command_name, options *given);

/* Before setup_make, for train: the fields of the samples of the checkpoint that is resumed, on all ranks; setup_make
 * reads new data by them. */
int record_fields(setup *s, const char *command_name, const options *given);

/* After setup_make: checks that the data set fits, and takes the normalisation of the checkpoint unless --mean or --std
 * is given. */
int record_check(setup *s, const char *command_name, const options *given);

#endif
