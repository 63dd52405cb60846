/* test_checkpoint_ranks.c - checkpoints that several ranks write together: the files of one rank, byte for byte; a kill
 * at any system call of any rank, a disk that is full on one of them, and ranks that do not see the directory.
 * ctest: timeout 240, ranks 4 */
#include "checkpoint_rig.h"
#include "train/load_group.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { CHUNK = 64, RANKS = 4 };

/* ---- ranks that are processes ---- */

typedef struct rank_result {
    lk_status status[2]; /* of a first and a second save */
    char      text[2][1024];
    int64_t   step;
} rank_result;

typedef struct job {
    int         world;
    const char *name[RANKS]; /* of the directory, as each rank has it */
    int64_t     step;
    int         full;   /* this rank can write no file; -1: none */
    int         victim; /* this rank stops before the save, to be traced; -1: none */
    bool        again;  /* a second save, without hindrance */
    bool        loads;  /* instead of a save: the hash of what each rank has then is its text */
    bool  copied; /* as in the background: each rank copies its chunks, which are neighbours, and writes the copies */
    pid_t pids[RANKS];
} job;

static rank_result *results; /* shared with the ranks */

/* What a trainer does, in one thread, so that it can be traced. */
static lk_status save_copies(rig *r, lk_comm *comm, const char *directory, const lk_progress *progress)
{
    lk__train_saver saver;
    lk__lock        lock = LK__LOCK_INIT;
    lk_status       status = LK_OK;
    if (lk_comm_rank(comm) == 0)
        status = lk__checkpoint_open(r->context, &(lk__checkpoint_save){.directory = directory}, 10, &lock);
    REQUIRE(lk__saver_init_chunks(&saver, r->store, CHUNK, lk_comm_size(comm)) == LK_OK);
    if ((status = lk__group_agree(r->context, comm, status, NULL)) >= 0 &&
        (status = lk__writers_find(&saver.writers, r->context, comm, directory)) >= 0) {
        REQUIRE(lk__saver_background(&saver) == LK_OK);
        if ((status = lk__saver_copy(&saver)) >= 0) status = lk__saver_save(&saver, directory, progress, 2);
    }
    lk__saver_free(&saver);
    lk__lock_release(&lock);
    return status;
}

static void save_once(const job *j, rig *r, lk_comm *comm, int rank, int which)
{
    int64_t     step = j->step + which;
    lk_progress progress = {step, step / 10, step * 4, 7};
    const char *directory = in_root(j->name[rank]);
    lk_status   status;
    if (j->copied)
        status = save_copies(r, comm, directory, &progress);
    else
        status =
            lk__checkpoint_save_chunks(r->store, comm, &(lk__checkpoint_save){directory, &progress, 2, NULL, 0}, CHUNK);
    results[rank].status[which] = status;
    snprintf(results[rank].text[which], sizeof results[0].text[0], "%s",
             status < 0 ? lk_context_error(r->context) : "");
}

/* Into a store with other numbers. */
static void load_once(const job *j, rig *r, lk_comm *comm, int rank)
{
    float          zeros[18] = {0};
    lk_progress    progress = {0};
    lk__load_group group = {.store = r->store, .comm = comm};
    REQUIRE(lk_store_write(r->store, "fc.weight", LK_STATE_VALUE, 0, 18, zeros, sizeof zeros) == LK_OK);
    lk_status status = LK_OK;
    if (rank == 0) {
        status = lk__checkpoint_load_group(r->store, &group, in_root(j->name[0]), &progress);
        if (status >= 0) CHECK(group.loaded, "rank 0 loaded it alone");
        CHECK(lk__load_group_end(&group) == LK_OK);
    } else
        status = lk__load_group_serve(&group);
    results[rank].status[0] = status;
    results[rank].step = progress.step;
    snprintf(results[rank].text[0], sizeof results[0].text[0], "%016llx", (unsigned long long)lk_store_hash(r->store));
    snprintf(results[rank].text[1], sizeof results[0].text[1], "%.1000s", r->warning);
}

static void run_rank(const job *j, int rank)
{
    rig            r;
    lk_comm       *comm;
    lk_comm_config config = LK_COMM_CONFIG_INIT;
    struct rlimit  none = {0, RLIM_INFINITY}, before;
    config.rank = rank;
    config.world = j->world;
    config.timeout_ms = 60000;
    open_rig(&r);
    REQUIRE(lk_comm_create(r.context, &config, &comm) == LK_OK, "%s", lk_context_error(r.context));
    if (j->loads) {
        load_once(j, &r, comm, rank);
        lk_comm_free(comm);
        close_rig(&r);
        _exit(check_failures != 0);
    }
    if (rank == j->victim) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(SKIPPED);
        raise(SIGSTOP);
    }
    if (rank == j->full) { /* as a full disk: writing fails, after the file was opened */
        signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &before);
        none.rlim_max = before.rlim_max;
        setrlimit(RLIMIT_FSIZE, &none);
    }
    save_once(j, &r, comm, rank, 0);
    if (rank == j->full) setrlimit(RLIMIT_FSIZE, &before);
    if (j->again) save_once(j, &r, comm, rank, 1);
    lk_comm_free(comm);
    close_rig(&r);
    _exit(0);
}

static void start_ranks(job *j)
{
    static int jobs;
    char       name[64];
    check_ranks_announced(j->world);
    snprintf(name, sizeof name, "checkpoint-%ld-%d", (long)getpid(), jobs++);
    setenv("LOCKSTEP_JOB", name, 1);
    memset(results, 0, RANKS * sizeof *results);
    for (int i = 0; i < j->world; i++) {
        results[i].status[0] = results[i].status[1] = LK_END;
        REQUIRE((j->pids[i] = fork()) >= 0);
        if (j->pids[i] == 0) run_rank(j, i);
    }
}

static void wait_ranks(const job *j)
{
    for (int i = 0; i < j->world; i++) {
        int code;
        if (i == j->victim) continue;
        REQUIRE(waitpid(j->pids[i], &code, 0) == j->pids[i]);
        CHECK(WIFEXITED(code) && WEXITSTATUS(code) == 0, "rank %d ended with %d", i, code);
    }
}

static job make_job(int world, const char *name, int64_t step)
{
    job j = {.world = world, .step = step, .full = -1, .victim = -1};
    for (int i = 0; i < RANKS; i++) j.name[i] = name;
    return j;
}

static void check_all(const job *j, int which, lk_status status, const char *text)
{
    for (int i = 0; i < j->world; i++) {
        CHECK(results[i].status[which] == status, "rank %d of %d: %s: %s", i, j->world,
              lk_status_name(results[i].status[which]), results[i].text[which]);
        if (text && status < 0)
            CHECK(strstr(results[i].text[which], text), "rank %d: no \"%s\" in: %s", i, text, results[i].text[which]);
    }
}

/* ---- what they write ---- */

static void any_number_of_ranks_writes_the_files_of_one(void)
{
    rig r;
    open_rig(&r);
    REQUIRE(save_step(&r, "whole", 5, 1) == LK_OK, "%s", lk_context_error(r.context));
    for (int k = 0; k < 2 * RANKS; k++) {
        int world = 1 + k / 2;
        job j = make_job(world, "parts", 5);
        j.copied = k % 2;
        start_ranks(&j);
        wait_ranks(&j);
        check_all(&j, 0, LK_OK, NULL);
        shell("cmp whole/model.safetensors parts/model.safetensors && "
              "cmp whole/optimizer.safetensors parts/optimizer.safetensors");
        shell("for f in model optimizer; do grep -q \"$(sha256sum < parts/$f.safetensors | cut -c1-64)\" "
              "parts/state.json || exit 1; "
              "done");
        shell("grep -q '\"bytes\":64,' parts/state.json && test ! -e parts/.lockstep.probe");
        CHECK(loaded_step(&r, "parts") == 5, "%s", lk_context_error(r.context));
        shell("rm -rf parts");
    }
    close_rig(&r);
}

/* By another program: the digest over those of the chunks is SHA-256 of their texts. */
static void the_digest_over_chunks_agrees_with_sha256sum(void)
{
    rig r;
    open_rig(&r);
    job j = make_job(3, "digest", 5);
    start_ranks(&j);
    wait_ranks(&j);
    check_all(&j, 0, LK_OK, NULL);
    shell("own=$(sed 's/.*\"digest\":\"\\([0-9a-f]*\\)\".*/\\1/' digest/state.json) && "
          "[ \"$(sed 's/.*\"chunks\"://; s/\"digest\".*//' digest/state.json | grep -o '\"[0-9a-f]\\{16\\}\"' | tr -d "
          "'\"\\n' | sha256sum | "
          "cut -c1-64)\" = \"$own\" ]");
    close_rig(&r);
}

static void damage_is_found_in_its_chunk(void)
{
    static const char *const edits[] = {"printf X | dd of=model.safetensors bs=1 seek=130 conv=notrunc 2> /dev/null",
                                        "printf X | dd of=optimizer.safetensors bs=1 seek=70 conv=notrunc 2> /dev/null",
                                        "truncate -s -1 model.safetensors", "truncate -s 1000 model.safetensors"};
    static const char *const texts[] = {"model.safetensors is damaged: bytes 128 to 191 differ",
                                        "optimizer.safetensors is damaged: bytes 64 to 127 differ",
                                        "model.safetensors is damaged: bytes",
                                        "model.safetensors is damaged: its size of 1000 bytes"};
    rig                      r;
    open_rig(&r);
    for (int i = 0; i < 4; i++) {
        char command[256];
        job  j = make_job(2, "damaged", 5);
        j.again = true;
        shell("rm -rf damaged");
        start_ranks(&j);
        wait_ranks(&j);
        check_all(&j, 1, LK_OK, NULL);
        snprintf(command, sizeof command, "cd damaged/step-00000006 && %s", edits[i]);
        shell(command);
        r.warnings = 0;
        CHECK(loaded_step(&r, "damaged") == 5 && r.warnings == 1 && strstr(r.warning, texts[i]), "%s: %s", edits[i],
              r.warning);
    }
    close_rig(&r);
}

/* Each rank verifies and reads its chunks; of a damaged step, another one than rank 0 may find the damage. */
static void every_rank_gets_what_the_ranks_read_together(void)
{
    rig  r;
    char hash[32];
    open_rig(&r);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)lk_store_hash(r.store));
    for (int k = 0; k < 2 * (RANKS - 1); k++) {
        int  world = 2 + k / 2;
        bool damaged = k % 2;
        shell("rm -rf read");
        job j = make_job(3, "read", 5);
        j.again = true;
        start_ranks(&j);
        wait_ranks(&j);
        check_all(&j, 1, LK_OK, NULL);
        if (damaged)
            shell("printf X | dd of=read/step-00000006/optimizer.safetensors bs=1 seek=300 conv=notrunc 2> /dev/null");
        j = make_job(world, "read", 0);
        j.loads = true;
        start_ranks(&j);
        wait_ranks(&j);
        check_all(&j, 0, LK_OK, NULL);
        for (int i = 0; i < world; i++)
            CHECK(strcmp(results[i].text[0], hash) == 0, "rank %d of %d has %s, not %s", i, world, results[i].text[0],
                  hash);
        CHECK(results[0].step == (damaged ? 5 : 6), "step %lld", (long long)results[0].step);
        CHECK(!damaged || strstr(results[0].text[1], "optimizer.safetensors is damaged: bytes 256 to 319"), "%s",
              results[0].text[1]);
    }
    close_rig(&r);
}

/* ---- failures ---- */

static void a_full_disk_on_one_rank_is_named_and_the_old_checkpoint_stays(void)
{
    rig r;
    open_rig(&r);
    for (int k = 0; k < 6; k++) {
        char text[64];
        int  full = k / 2;
        job  j = make_job(3, "full", 7);
        j.copied = k % 2;
        shell("rm -rf full");
        REQUIRE(save_step(&r, "full", 3, 2) == LK_OK);
        j.full = full;
        j.again = true;
        start_ranks(&j);
        wait_ranks(&j);
        for (int i = 0; i < 3; i++) {
            CHECK(results[i].status[0] == LK_EIO && strstr(results[i].text[0], "cannot"), "rank %d: %s", i,
                  results[i].text[0]);
            snprintf(text, sizeof text, "rank %d: ", full);
            CHECK(i == full || strstr(results[i].text[0], text), "rank %d: no \"%s\" in: %s", i, text,
                  results[i].text[0]);
        }
        check_all(&j, 1, LK_OK, NULL); /* the group goes on */
        shell("test ! -e full/step-00000007 && test -z \"$(find full -name '*.tmp.*')\" && rm -rf full/step-00000008");
        CHECK(loaded_step(&r, "full") == 3, "%s", lk_context_error(r.context));
    }
    close_rig(&r);
}

static void ranks_that_do_not_see_the_directory_write_nothing(void)
{
    static const int blind[][3] = {{0, 1, 0}, {0, 0, 1}, {0, 1, 1}}; /* rank 0 always sees it */
    rig              r;
    open_rig(&r);
    REQUIRE(save_step(&r, "seen", 5, 1) == LK_OK);
    for (int k = 0; k < 3; k++) {
        job j = make_job(3, "visible", 5);
        j.copied = k == 0;
        shell("rm -rf visible elsewhere && mkdir elsewhere && printf stale > elsewhere/.lockstep.probe");
        for (int i = 0; i < 3; i++)
            if (blind[k][i]) j.name[i] = "elsewhere";
        start_ranks(&j);
        wait_ranks(&j);
        check_all(&j, 0, LK_OK, NULL);
        shell("cmp seen/model.safetensors visible/model.safetensors && "
              "cmp seen/optimizer.safetensors visible/optimizer.safetensors && test \"$(ls elsewhere)\" = ''");
        CHECK(loaded_step(&r, "visible") == 5);
    }
    close_rig(&r);
}

/* Starts a save of all ranks and kills one when it enters its n-th system call. False: it finished before. */
static bool kill_rank_at(job *j, int n)
{
    int  code;
    bool killed = true;
    start_ranks(j);
    pid_t victim = j->pids[j->victim];
    waitpid(victim, &code, 0);
    if (WIFEXITED(code)) {
        printf("skipped: tracing is not permitted\n");
        j->victim = -1;
        wait_ranks(j);
        return false;
    }
    ptrace(PTRACE_SETOPTIONS, victim, NULL, (void *)(PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD));
    for (int stops = 0; killed && stops < 2 * n - 1;) { /* a stop at entry, one at exit */
        ptrace(PTRACE_SYSCALL, victim, NULL, NULL);
        waitpid(victim, &code, 0);
        killed = WIFSTOPPED(code);
        if (killed && WSTOPSIG(code) == (SIGTRAP | 0x80)) stops++;
    }
    if (killed) {
        kill(victim, SIGKILL);
        waitpid(victim, &code, 0);
    }
    wait_ranks(j);
    return killed;
}

/* One step of `stride` system calls is tried, so that all ranks of several groups are tried in some seconds. */
static void kill_one_rank(rig *r, int world, int victim, int stride, bool copied)
{
    int     n = 1 + victim % stride, tried = 0;
    int64_t step = 2;
    shell("rm -rf kills");
    REQUIRE(save_step(r, "kills", 1, 3) == LK_OK && save_step(r, "kills", 2, 3) == LK_OK);
    for (;; n += stride, tried++) {
        char rank[32];
        job  j = make_job(world, "kills", step + 1);
        j.victim = victim;
        j.copied = copied;
        snprintf(rank, sizeof rank, "rank %d", victim);
        bool killed = kill_rank_at(&j, n);
        for (int i = 0; i < world && killed; i++) {
            lk_status status = results[i].status[0];
            if (i == victim) continue;
            CHECK(status == LK_OK || (status < 0 && strstr(results[i].text[0], rank)),
                  "rank %d of %d killed at system call %d: rank %d: %s: %s", victim, world, n, i,
                  lk_status_name(status), results[i].text[0]);
        }
        int64_t found = loaded_step(r, "kills");
        CHECK(found == step || found == step + 1,
              "rank %d of %d killed at system call %d: step %lld is resumed, of %lld: %s", victim, world, n,
              (long long)found, (long long)step, lk_context_error(r->context));
        if (!killed) break;
        CHECK(save_step(r, "kills", step + 2, 2) == LK_OK, "%s", lk_context_error(r->context));
        shell("test -z \"$(find kills -name '*.tmp.*' -o -name '*.old.*' -o -name '.link.*')\"");
        step += 2;
    }
    printf("     rank %d of %d%s: %d system calls tried of %d\n", victim, world, copied ? ", copied" : "", tried, n);
}

static void a_kill_at_any_system_call_of_any_rank_leaves_only_complete_checkpoints(void)
{
    rig r;
    open_rig(&r);
    for (int victim = 0; victim < 2; victim++) kill_one_rank(&r, 2, victim, 1, true);
    for (int victim = 0; victim < 2; victim++) kill_one_rank(&r, 2, victim, victim ? 1 : 3, false);
    for (int victim = 0; victim < 3; victim++) kill_one_rank(&r, 3, victim, 3, victim != 1);
    close_rig(&r);
}

int main(void)
{
    rig r;
    open_rig(&r); /* loads the driver, where the device has one */
    bool skips = skips_forks("checkpoints of several ranks");
    close_rig(&r);
    if (skips) return SKIPPED;
    make_root();
    results = mmap(NULL, RANKS * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(results != MAP_FAILED);
    RUN(any_number_of_ranks_writes_the_files_of_one);
    RUN(the_digest_over_chunks_agrees_with_sha256sum);
    RUN(damage_is_found_in_its_chunk);
    RUN(every_rank_gets_what_the_ranks_read_together);
    RUN(a_full_disk_on_one_rank_is_named_and_the_old_checkpoint_stays);
    RUN(ranks_that_do_not_see_the_directory_write_nothing);
    RUN(a_kill_at_any_system_call_of_any_rank_leaves_only_complete_checkpoints);
    remove_root();
    return check_result();
}
