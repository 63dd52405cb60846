/* test_environment.c - environment variables: one table, read once by each context. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "check.h"

#include <lockstep/data.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static lk_context *create_context(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    config.threads = 1;
    config.device = "cpu";
    REQUIRE(lk_context_create(&config, &context) == LK_OK, "%s", lk_context_error(NULL));
    return context;
}

static void a_context_keeps_the_values_of_its_creation(void)
{
    setenv("LOCKSTEP_DATA", "/first", 1);
    unsetenv("LOCKSTEP_HOST_ID");
    lk_context *context = create_context();
    setenv("LOCKSTEP_DATA", "/second", 1);
    setenv("LOCKSTEP_HOST_ID", "later", 1);
    CHECK(strcmp(lk_environment_get(context, "LOCKSTEP_DATA"), "/first") == 0);
    CHECK(!lk_environment_get(context, "LOCKSTEP_HOST_ID"));
    CHECK(strcmp(lk_environment_get(NULL, "LOCKSTEP_DATA"), "/second") == 0);
    char path[64];
    CHECK(lk_data_directory(context, "mnist", path, sizeof path) == LK_OK && strcmp(path, "/first/mnist") == 0, "%s",
          path);
    REQUIRE(lk__context_read_environment(context) == LK_OK);
    CHECK(strcmp(lk_environment_get(context, "LOCKSTEP_DATA"), "/second") == 0);
    unsetenv("LOCKSTEP_DATA");
    unsetenv("LOCKSTEP_HOST_ID");
    lk_context_free(context);
}

/* lk_spawn tells ranks who they are in the environment of their processes, which may have inherited a context. */
static void a_forked_process_reads_its_own(void)
{
    lk_context *context = create_context();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("RANK", "3", 1);
        const char *rank = lk_environment_get(context, "RANK");
        _exit(rank && strcmp(rank, "3") == 0 ? 0 : 1);
    }
    int status = 0;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "%d", status);
    lk_context_free(context);
}

static void flags_and_empty_texts_are_off(void)
{
    static const struct {
        const char *value;
        bool        text, flag;
    } cases[] = {{NULL, false, false}, {"", false, false}, {"0", true, false}, {"1", true, true}, {"yes", true, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cases[i].value ? setenv("LOCKSTEP_TF32", cases[i].value, 1) : unsetenv("LOCKSTEP_TF32");
        CHECK((lk__environment_text(NULL, LK__ENV_LOCKSTEP_TF32) != NULL) == cases[i].text, "case %zu", i);
        CHECK(lk__environment_flag(NULL, LK__ENV_LOCKSTEP_TF32) == cases[i].flag, "case %zu", i);
    }
    unsetenv("LOCKSTEP_TF32");
}

static void every_variable_has_a_name_of_its_own_and_a_meaning(void)
{
    int count = 0;
    for (; lk_environment_at(count); count++) {
        const lk_environment_variable *v = lk_environment_at(count);
        CHECK(v->name[0] && v->doc[0] && v->low <= v->high, "%s", v->name);
        for (int i = 0; i < count; i++) CHECK(strcmp(v->name, lk_environment_at(i)->name) != 0, "%s", v->name);
    }
    CHECK(count == LK__ENV_COUNT && !lk_environment_at(-1));
    CHECK(!lk_environment_get(NULL, "NO_SUCH_VARIABLE_OF_LOCKSTEP"));
}

int main(void)
{
    RUN(a_context_keeps_the_values_of_its_creation);
    RUN(a_forked_process_reads_its_own);
    RUN(flags_and_empty_texts_are_off);
    RUN(every_variable_has_a_name_of_its_own_and_a_meaning);
    return check_result();
}
