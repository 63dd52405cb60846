/* run_hosts.h - the options of `lockstep run` for several hosts. */
#ifndef RUN_HOSTS_H
#define RUN_HOSTS_H

#include "options.h"

#include <lockstep/launch.h>

/* The index of this host, where ranks join, and the timeout. `host` has space for --rdzv-endpoint. 0, or the exit
 * status after the error was printed. */
int run_read_hosts(const options *given, lk_launch_config *config, char *host);
/* The hosts of a file in the form of --hosts; NULL after the error was printed. */
char *run_read_hostfile(const char *path);

#endif
