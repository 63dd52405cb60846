/* plan/tactics.h - states that are placed as a user says (lk_plan_config.tactics): for placement.c. */
#ifndef LK__PLAN_TACTICS_H
#define LK__PLAN_TACTICS_H

#include "plan/placement_finder.h"

lk_status lk__tactics_check(lk_context *context, const char *text); /* checks only its form; NULL is fine */
/* Holds the states that it names as it says; what follows from them is found afterwards. */
lk_status lk__tactics_place(lk__placement_finder *finder, const char *text, unsigned axis);

#endif
