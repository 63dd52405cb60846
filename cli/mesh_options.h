/* mesh_options.h - the options of a mesh's axes: the rows of option tables in which `axes` is set. */
#ifndef LK_CLI_MESH_OPTIONS_H
#define LK_CLI_MESH_OPTIONS_H

#include "setup.h"
#include "training.h"

#define TACTICS_OPTION                                                                                                 \
    TEXT("tactics", "FILE", NULL, "How states are split over the tensor axis, instead of the plan's own choice: " \
         "lines of PATTERN: FACTOR@AXIS, such as blocks.*.mlp.up.weight: out@tensor; `lockstep plan --tactics` "       \
         "prints them", .of = "mesh", .axes = LK_AXIS_TENSOR)

/* Sets what the options of axes set in s->config, whose mesh is set. One of an axis that the mesh does not have is a
 * user error, unless it is of a checkpoint's record. 0, or the exit status after the error was printed. */
int mesh_options_make(setup *s, const char *command_name, const options *given);

const char *mesh_options_schedule(int index); /* the name of a schedule of the pipeline axis; NULL past the last */

/* Into how many parts the ranks of s->config split every batch. */
int mesh_options_parts(const setup *s);

#endif
