/* base/memory_node.h - the memory nodes (NUMA) of a host: finds the node of a core, and places memory on a node. */
#ifndef LK__MEMORY_NODE_H
#define LK__MEMORY_NODE_H

#include <lockstep/context.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LK__CPU_WORDS = 16 }; /* of a set of 1,024 cores, one bit each */

/* The kernel's number of the node that has most of the cores, the lowest of several; -1: the kernel lists none. root:
 * prefix of every path, "". */
int lk__memory_node(const char *root, const uint64_t cpus[LK__CPU_WORDS]);

/* LOCKSTEP_MEMORY_NODES: this many nodes each have an equal run of a host's ranks, whatever their cores are. 0: the
 * cores decide. */
int lk__memory_nodes_given(const lk_context *context);

/* Asks the kernel to take pages of this range from the node from now on; pages that exist stay where they are. The
 * range is reduced to the pages that begin in it. False: the kernel does not, or may not, do that. */
bool lk__memory_prefer_node(void *memory, size_t bytes, int node);

#endif
