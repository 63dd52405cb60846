/* run_hosts.h - what `lockstep run` is told about several hosts. */
#ifndef RUN_HOSTS_H
#define RUN_HOSTS_H

#include "options.h"

#include <lockstep/launch.h>

/* Who is which, where they meet, and how long they wait for each other. `host` has room for --rdzv-endpoint. 0, or the exit status
 * after saying what is wrong. */
int run_place(const options *given, lk_launch_config *config, char *host);
/* The hosts of a file as --hosts would name them; NULL after saying what is wrong. */
char *run_read_hostfile(const char *path);

#endif
