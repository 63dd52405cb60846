/* environment.c - checks our numeric environment variables: text in them is a user error, and would otherwise count as 0. */
#include "environment.h"

#include "command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    long        low, high;
    bool        range; /* FIRST-LAST too */
} numbers[] = {
    {"LOCKSTEP_THREADS", 1, 256, false},
    {"LOCKSTEP_PORT", 1, 65535, true},
    {"LOCKSTEP_NO_DEADLINES", 0, 1, false},
    {"LOCKSTEP_CHECK_OPERATIONS", 0, 1, false},
    {"LOCKSTEP_MEMORY_NODES", 1, 1024, false},
    {"LOCKSTEP_TERMINAL", 1, 1000000, false}, /* columns; from the launcher */
};

static bool parse_number(const char *text, long low, long high, char **end)
{
    errno = 0;
    long value = strtol(text, end, 10);
    return *text >= '0' && *text <= '9' && !errno && value >= low && value <= high;
}

int environment_check(const char *command_name)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *text = getenv(numbers[i].name);
        char       *end;
        if (!text || !*text) continue;
        bool good = parse_number(text, numbers[i].low, numbers[i].high, &end);
        if (good && numbers[i].range && *end == '-')
            good = parse_number(end + 1, numbers[i].low, numbers[i].high, &end);
        if (good && !*end) continue;
        print_error(command_name, "%s is '%.40s' in the environment: expected a number from %ld to %ld%s",
                    numbers[i].name, text, numbers[i].low, numbers[i].high,
                    numbers[i].range ? ", or a range such as 4000-4100" : "");
        return EXIT_USER_ERROR;
    }
    return 0;
}

int environment_rank(void)
{
    static const char *const names[][2] = {{"WORLD_SIZE", "RANK"},
                                           {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                           {"PMI_SIZE", "PMI_RANK"},
                                           {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *size = getenv(names[i][0]), *rank = getenv(names[i][1]);
        if (size && atoi(size) > 1) return rank ? atoi(rank) : 0;
    }
    return -1;
}
