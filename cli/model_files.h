/* model_files.h - writes the files that Hugging Face's transformers needs to open a checkpoint. */
#ifndef MODEL_FILES_H
#define MODEL_FILES_H

#include "setup.h"

/* After setup_make, for a transformer that is saved: sets config.files to config.json, generation_config.json and the
 * tokenizer's. 0, or the exit status after the error was printed. */
int  model_files_make(setup *s, const char *command_name);
void model_files_free(setup *s);

#endif
