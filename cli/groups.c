/* groups.c - parses --freeze and --group. A list is separated by ';' and looks like
 * --group 'backbone.*:lr=0.1,decay=0;*.bias:decay=0'. */
#define _GNU_SOURCE
#include "groups.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int count_items(const char *list)
{
    int count = list ? 1 : 0;
    for (; list && *list; list++) count += *list == ';';
    return count;
}

/* A number of 0 or more. */
static bool parse_setting(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out) && *out >= 0;
}

/* One of "lr=X", "decay=X", "frozen"; NULL, or what is wrong with it. */
static const char *apply_setting(lk_parameter_group *group, const char *setting)
{
    if (strcmp(setting, "frozen") == 0) {
        group->frozen = true;
        return NULL;
    }
    if (strncmp(setting, "lr=", 3) == 0) {
        if (!parse_setting(setting + 3, &group->lr_scale))
            return "lr multiplies the learning rate: expected a number above 0";
        return group->lr_scale > 0 ? NULL : "with lr=0 nothing is trained: use frozen instead";
    }
    if (strncmp(setting, "decay=", 6) == 0)
        return parse_setting(setting + 6, &group->weight_decay)
                   ? NULL
                   : "decay is the weight decay: expected a number of at least 0";
    return "expected lr=FACTOR, decay=X or frozen, separated by commas";
}

/* "PATTERN:SETTING,…". */
static int read_group(const char *name, char *item, lk_parameter_group *group)
{
    char *colon = strchr(item, ':'), *settings = colon ? colon + 1 : NULL;
    if (!colon || colon == item || !*settings) {
        print_error(name, "--group '%s': expected PATTERN:SETTINGS, such as 'backbone.*:lr=0.1'", item);
        return EXIT_USER_ERROR;
    }
    *colon = 0;
    group->match = item;
    for (char *setting; (setting = strsep(&settings, ","));) {
        const char *wrong = apply_setting(group, setting);
        if (!wrong) continue;
        print_error(name, "--group '%s:…': '%s': %s", item, setting, wrong);
        return EXIT_USER_ERROR;
    }
    return 0;
}

/* Parses the items of one option and appends them. text is changed, and patterns point into it. */
static int read_list(setup *s, const char *name, bool freeze, char *text)
{
    for (char *item; (item = strsep(&text, ";"));) {
        lk_parameter_group *group = &s->groups[s->config.optimizer.groups_count];
        *group = (lk_parameter_group)LK_PARAMETER_GROUP_INIT;
        group->must_match = true;
        group->match = item;
        group->frozen = freeze;
        if (!*item) {
            print_error(name, "--%s: a pattern is empty", freeze ? "freeze" : "group");
            return EXIT_USER_ERROR;
        }
        int code = freeze ? 0 : read_group(name, item, group);
        if (code != 0) return code;
        s->config.optimizer.groups_count++;
    }
    return 0;
}

int groups_make(setup *s, const char *name, const options *given)
{
    static const char *const lists[] = {"freeze", "group"};
    const char              *text[] = {options_text(given, "freeze"), options_text(given, "group")};
    int                      count = count_items(text[0]) + count_items(text[1]), code = 0;
    if (count == 0) return 0;
    s->groups = calloc((size_t)count, sizeof *s->groups);
    s->config.optimizer.groups = s->groups;
    s->config.optimizer.groups_count = 0;
    for (int i = 0; i < 2 && code == 0; i++) {
        if (!text[i]) continue;
        s->group_text[i] = strdup(text[i]);
        if (!s->groups || !s->group_text[i]) {
            print_error(name, "--%s: out of memory", lists[i]);
            return EXIT_FAILED;
        }
        code = read_list(s, name, i == 0, s->group_text[i]);
    }
    return code;
}
