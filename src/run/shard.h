/* run/shard.h - programs whose ranks have slices of the state (plan/shard.h). */
#ifndef LK__RUN_SHARD_H
#define LK__RUN_SHARD_H

#include "run/program.h"

/* When a program is created: the operands of a kernel that runs on this rank's part of a state. */
void lk__shard_cut_operands(const lk_plan *plan, const lk_graph *graph, const lk__graph_node *node,
                            lk__kernel_call *call);
/* shard_host.c: the memory of what the ranks of a host gather once. Collective. */
lk_status lk__host_create(lk_program *program);
void      lk__host_free(lk_program *program);
/* shard_norm.c: with leaves, what the norm of the gradient needs. Once the instructions are there. */
lk_status                      lk__norm_create(lk_program *program);
void                           lk__norm_free(lk_program *program);
extern const lk__run_gradients lk__gradients_of_shards;

#endif
