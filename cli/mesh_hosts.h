/* mesh_hosts.h - finds the axes of a mesh that cross hosts. */
#ifndef LK_CLI_MESH_HOSTS_H
#define LK_CLI_MESH_HOSTS_H

#include "setup.h"

/* Prints a note where the axis along which ranks send most in a step joins ranks of different hosts, of which each has
 * `per_host`, numbered host by host: the link between hosts is the slow one. Nothing where
 * data or shard is the only axis. */
void mesh_hosts_note(const setup *s, const char *command_name, const lk_plan *plan, int per_host);
/* The same of a rank that has joined: rank 0 plans again, if the ranks are on several hosts. */
void mesh_hosts_note_joined(const setup *s, const char *command_name);

#endif
