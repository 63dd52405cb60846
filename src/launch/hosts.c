#define _GNU_SOURCE
#include "launch/launch.h"
lk_status lk__launch_hosts(lk_context *context, const lk_launch_config *config, int *exit_code)
{ (void)config; (void)exit_code; return lk__fail(context, LK_EUNSUPPORTED, "no"); }
