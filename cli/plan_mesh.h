/* plan_mesh.h - the part of `lockstep plan` about a mesh with axes other than data: the bytes of each rank, and what
 * ranks send along each axis. */
#ifndef LK_CLI_PLAN_MESH_H
#define LK_CLI_PLAN_MESH_H

#include "json.h"
#include "setup.h"

/* Plans the ranks one after the other, of many those at the ends of the axes, and prints their bytes. Nothing for a
 * mesh of one axis, data, whose ranks have the same plan. */
void plan_mesh_print(const setup *s);
/* The same as members of an object; `plan` is that of rank 0. */
void plan_mesh_json(const setup *s, const lk_plan *plan, json *j);

/* The stages of the pipeline axis, with estimated seconds of a micro-batch; nothing without that axis. */
void plan_mesh_stages_json(const lk_plan *plan, const lk_rates *rates, json *j);

/* "data", "data and shard" */
enum { PLAN_AXES_TEXT = 64 };
const char *plan_axes_text(unsigned axes, char text[PLAN_AXES_TEXT]);

#endif
