/* environment.c - checks and describes environment variables, from the library's table. */
#include "environment.h"

#include "command.h"
#include "terminal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool parse_number(const char *text, long low, long high, char **end)
{
    errno = 0;
    long value = strtol(text, end, 10);
    return *text >= '0' && *text <= '9' && !errno && value >= low && value <= high;
}

/* Text in a number would count as 0. Variables of launchers are checked where they are used. */
static bool is_checked(const lk_environment_variable *v)
{
    bool number =
        v->type == LK_ENVIRONMENT_INTEGER || v->type == LK_ENVIRONMENT_FLAG || v->type == LK_ENVIRONMENT_PORTS;
    return number && v->low < v->high;
}

int environment_check(const char *command_name)
{
    for (int i = 0; lk_environment_at(i); i++) {
        const lk_environment_variable *v = lk_environment_at(i);
        const char                    *text = lk_environment_get(NULL, v->name);
        long                           low = (long)v->low, high = (long)v->high;
        bool                           range = v->type == LK_ENVIRONMENT_PORTS;
        char                          *end;
        if (!is_checked(v) || !text || !*text) continue;
        bool good = parse_number(text, low, high, &end);
        if (good && range && *end == '-') good = parse_number(end + 1, low, high, &end);
        if (good && !*end) continue;
        print_error(command_name, "%s is '%.40s' in the environment: expected a number from %ld to %ld%s", v->name,
                    text, low, high, range ? ", or a range such as 4000-4100" : "");
        return EXIT_USER_ERROR;
    }
    return 0;
}

/* ---- help ---- */

const char *environment_heading(lk_environment_group group)
{
    static const char *const headings[] = {
        [LK_ENVIRONMENT_SETTINGS] = "Settings",
        [LK_ENVIRONMENT_JOB] = "Set by launchers: lockstep run, torchrun, mpirun and srun",
        [LK_ENVIRONMENT_SYSTEM] = "Set by the system and by other programs",
        [LK_ENVIRONMENT_CHECKS] = "For tests, comparisons and debugging",
    };
    return headings[group];
}

void environment_describe(const lk_environment_variable *v, char *out, size_t size)
{
    static const char *const types[] = {
        [LK_ENVIRONMENT_TEXT] = "text",     [LK_ENVIRONMENT_PATH] = "path",
        [LK_ENVIRONMENT_FLAG] = "0 or 1",   [LK_ENVIRONMENT_INTEGER] = "number",
        [LK_ENVIRONMENT_NUMBER] = "number", [LK_ENVIRONMENT_PORTS] = "port or range",
    };
    char range[64] = "";
    if (v->low < v->high && v->type != LK_ENVIRONMENT_FLAG)
        snprintf(range, sizeof range, " from %.15g to %.15g", v->low, v->high);
    snprintf(out, size, "%s%s: %s", types[v->type], range, v->doc);
}

void environment_print_help(FILE *out, int width)
{
    enum { COLUMN = 28 };
    fprintf(out, "Environment variables that lockstep and its library read.\n");
    for (int group = 0; group < LK_ENVIRONMENT_GROUPS; group++) {
        fprintf(out, "\n%s\n", environment_heading((lk_environment_group)group));
        for (int i = 0; lk_environment_at(i); i++) {
            const lk_environment_variable *v = lk_environment_at(i);
            char                           text[512];
            if ((int)v->group != group) continue;
            environment_describe(v, text, sizeof text);
            int used = fprintf(out, "  %s", v->name);
            if (used >= COLUMN) used = fprintf(out, "\n") - 1;
            terminal_wrap(out, text, used, COLUMN, width);
        }
    }
    fprintf(out, "\n");
    terminal_wrap(out, "`lockstep run` also takes its options from PET_NAME, such as PET_NNODES, as torchrun does.", 0,
                  0, width);
}

int environment_rank(void)
{
    static const char *const names[][2] = {{"WORLD_SIZE", "RANK"},
                                           {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                           {"PMI_SIZE", "PMI_RANK"},
                                           {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *size = lk_environment_get(NULL, names[i][0]), *rank = lk_environment_get(NULL, names[i][1]);
        if (size && atoi(size) > 1) return rank ? atoi(rank) : 0;
    }
    return -1;
}
