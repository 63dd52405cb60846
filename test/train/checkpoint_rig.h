/* checkpoint_rig.h - shared by tests of checkpoint directories: a small store, a temporary directory, and the logged
 * warnings. */
#ifndef CHECKPOINT_RIG_H
#define CHECKPOINT_RIG_H

#include "check.h"

#include <lockstep.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHARED __attribute__((unused)) static

static char root[64];

/* In memory if possible, since some hundred saves are flushed to disk. */
SHARED void make_root(void)
{
    static const char *const places[] = {"/dev/shm", "/tmp"};
    char                    *made = NULL;
    for (int i = 0; i < 2 && !made; i++) {
        snprintf(root, sizeof root, "%s/lockstep-checkpoint-XXXXXX", places[i]);
        made = mkdtemp(root);
    }
    REQUIRE(made != NULL);
}

/* ---- a small store, and the logged warnings ---- */

typedef struct rig {
    lk_context *context;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    int         warnings;
    char        warning[2048];
} rig;

SHARED void store_warning(void *user, lk_log_level level, const char *text)
{
    rig *r = user;
    if (level != LK_LOG_WARNING) return;
    r->warnings++;
    snprintf(r->warning, sizeof r->warning, "%s", text);
}

SHARED void open_rig(rig *r)
{
    lk_context_config   config = LK_CONTEXT_CONFIG_INIT;
    lk_plan_config      plan = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    int64_t             dims[] = {4, 6};
    *r = (rig){0};
    config.threads = 1;
    config.log = store_warning;
    config.log_user = r;
    REQUIRE(lk_context_create(&config, &r->context) == LK_OK);
    REQUIRE(lk_graph_create(r->context, LK_F32, &r->graph) == LK_OK);
    lk_tensor x = lk_input(r->graph, "features", LK_F32, 2, dims),
              labels = lk_input(r->graph, "labels", LK_I32, 1, dims);
    plan.loss = lk_cross_entropy(lk_linear(x, "fc", 3), labels);
    plan.optimizer = &optimizer;
    REQUIRE(lk_plan_create(r->graph, &plan, &r->plan) == LK_OK, "%s", lk_context_error(r->context));
    REQUIRE(lk_store_create(r->plan, 1, &r->store) == LK_OK);
}

SHARED void close_rig(rig *r)
{
    lk_store_free(r->store);
    lk_plan_free(r->plan);
    lk_graph_free(r->graph);
    lk_context_free(r->context);
}

SHARED const char *in_root(const char *name)
{
    static char paths[8][1024];
    static int  next;
    char       *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

SHARED void shell(const char *command)
{
    char line[1024];
    snprintf(line, sizeof line, "cd %s && %s", root, command);
    REQUIRE(system(line) == 0, "%s", line);
}

SHARED lk_status save_step(rig *r, const char *name, int64_t step, int keep)
{
    lk_progress progress = {step, step / 10, step * 4, 7};
    return lk_checkpoint_save(r->store, in_root(name), &progress, keep);
}

SHARED int64_t loaded_step(rig *r, const char *name)
{
    lk_progress progress;
    return lk_checkpoint_load(r->store, in_root(name), &progress) == LK_OK ? progress.step : -1;
}

/* ---- a kill at each system call of a save ---- */

/* Runs a save in a child and kills it when it enters its n-th system call. False: it finished before. */
SHARED bool killed_at(rig *r, int n, lk_status (*save)(rig *r, int64_t step), int64_t step)
{
    int   code;
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(SKIPPED);
        raise(SIGSTOP);
        _exit(save(r, step) == LK_OK ? 0 : 1);
    }
    waitpid(child, &code, 0);
    if (WIFEXITED(code)) {
        printf("skipped: tracing is not permitted\n");
        return false;
    }
    ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD));
    for (int stops = 0; stops < 2 * n - 1;) { /* a stop at entry, one at exit */
        ptrace(PTRACE_SYSCALL, child, NULL, NULL);
        waitpid(child, &code, 0);
        if (WIFEXITED(code)) {
            CHECK(WEXITSTATUS(code) == 0, "the save failed");
            return false;
        }
        if (WIFSTOPPED(code) && WSTOPSIG(code) == (SIGTRAP | 0x80)) stops++;
    }
    kill(child, SIGKILL);
    waitpid(child, &code, 0);
    return true;
}

SHARED void remove_root(void)
{
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    CHECK(system(command) == 0);
}

#endif
