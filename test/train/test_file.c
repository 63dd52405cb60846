/* test_file.c - files and directories are replaced atomically: with kills at random times, stale temporaries, files of
 * others, and running writers. */
#define _GNU_SOURCE
#include "check.h"

#include "base/base.h"
#include "base/directories.h"
#include "train/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static lk_context       *context;
static char              folder[] = "/tmp/lockstep-file-XXXXXX";
static char              staging[4096];
static const char *const names[] = {"model", "state", "manifest"};
enum { NAMES = 3 };
static const lk__file_names known = {.names = names, .count = NAMES};

static const char *in_folder(const char *name)
{
    static char paths[8][512];
    static int  next;
    char       *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static bool exists(const char *name) { return access(in_folder(name), F_OK) == 0; }

static void shell(const char *format, const char *argument)
{
    char command[1200];
    snprintf(command, sizeof command, "cd %s && ", folder);
    snprintf(command + strlen(command), sizeof command - strlen(command), format, argument);
    REQUIRE(system(command) == 0, "%s", command);
}

static bool holds(const char *name, const char *expected)
{
    char  *text;
    size_t length;
    if (lk__read_text(context, in_folder(name), 1 << 20, &text, &length) < 0) return false;
    bool same = length == strlen(expected) && strcmp(text, expected) == 0;
    lk__text_free(context, text, length);
    return same;
}

static lk_status write_text(const char *path, const char *text)
{
    lk__file  file;
    lk_status status = lk__file_create(&file, context, path, staging, sizeof staging);
    if (status < 0) return status;
    (void)lk__file_write(&file, text, strlen(text));
    return lk__file_commit(&file, NULL);
}

static void an_abandoned_file_leaves_the_old_file(void)
{
    lk__file file;
    REQUIRE(write_text(in_folder("a"), "old") == LK_OK);
    REQUIRE(lk__file_create(&file, context, in_folder("a"), staging, sizeof staging) == LK_OK);
    CHECK(lk__file_write(&file, "new", 3) == LK_OK);
    CHECK(holds("a", "old"), "until commit");
    char temporary[64];
    snprintf(temporary, sizeof temporary, "a.tmp.%ld", (long)getpid());
    CHECK(exists(temporary));
    lk__file_abandon(&file);
    CHECK(holds("a", "old") && !exists(temporary));
    CHECK(lk__file_write(&file, "x", 1) < 0 && lk__file_commit(&file, NULL) < 0, "after abandon");
    lk__file_abandon(&file);
    REQUIRE(write_text(in_folder("a"), "new") == LK_OK);
    CHECK(holds("a", "new"));
}

static void small_and_large_writes_are_in_order(void)
{
    enum { TOTAL = 50000 };
    static char expected[TOTAL + 1];
    for (int i = 0; i < TOTAL; i++) expected[i] = (char)('a' + i % 26);
    static const size_t sizes[] = {1, 0, 7, 4095, 4096, 4097, 13, 9000, 3, 1};
    lk__file            file;
    REQUIRE(lk__file_create(&file, context, in_folder("b"), staging, sizeof staging) == LK_OK);
    for (size_t at = 0, i = 0; at < TOTAL; i++) {
        size_t n = sizes[i % 10] < TOTAL - at ? sizes[i % 10] : TOTAL - at;
        CHECK(lk__file_write(&file, expected + at, n) == LK_OK);
        at += n;
    }
    CHECK(lk__file_commit(&file, NULL) == LK_OK);
    CHECK(holds("b", expected));
}

static void text_files_are_checked(void)
{
    char  *text;
    size_t length;
    shell("printf 'a\\0b' > nul; : > empty; printf %s > ten", "0123456789");
    CHECK(lk__read_text(context, in_folder("nul"), 100, &text, &length) == LK_EFORMAT && !text);
    CHECK(lk__read_text(context, in_folder("absent"), 100, &text, &length) == LK_ENOENT);
    CHECK(lk__read_text(context, in_folder("ten/x"), 100, &text, &length) == LK_ENOENT);
    CHECK(lk__read_text(context, folder, 100, &text, &length) == LK_EIO);
    CHECK(lk__read_text(context, in_folder("ten"), 9, &text, &length) == LK_EFORMAT);
    CHECK(lk__read_text(context, "/dev/zero", 100000, &text, &length) == LK_EFORMAT);
    CHECK(holds("empty", "") && holds("ten", "0123456789"));
    REQUIRE(lk__read_text(context, in_folder("ten"), 10, &text, &length) == LK_OK);
    lk__text_free(context, text, length);
}

static lk_status save(const char *name, const char *contents, size_t files)
{
    lk__train_directory directory;
    lk_status           status = lk__directory_create(&directory, context, in_folder(name), &known);
    for (size_t i = 0; i < files && status == LK_OK; i++) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%s", directory.temporary, names[i]);
        status = write_text(path, contents);
    }
    if (status == LK_OK) return lk__directory_commit(&directory);
    lk__directory_abandon(&directory);
    return status;
}

static void a_directory_is_replaced_as_a_whole(void)
{
    REQUIRE(save("d", "one", 3) == LK_OK, "%s", lk_context_error(context));
    CHECK(holds("d/model", "one") && holds("d/manifest", "one"));
    REQUIRE(save("d/", "two", 2) == LK_OK, "%s", lk_context_error(context));
    CHECK(holds("d/model", "two") && holds("d/state", "two") && !exists("d/manifest"),
          "no file of the old directory is left");
    shell("test $(ls -d d* | wc -l) = 1 %s", "");

    lk__train_directory directory;
    REQUIRE(lk__directory_create(&directory, context, in_folder("d"), &known) == LK_OK);
    lk__directory_abandon(&directory);
    CHECK(holds("d/model", "two"));
    shell("test $(ls -d d* | wc -l) = 1; mkdir made_empty %s", "");
    CHECK(save("made_empty", "x", 1) == LK_OK && holds("made_empty/model", "x"));
}

static void a_directory_that_holds_something_else_is_refused(void)
{
    shell("mkdir -p home && echo precious > home/%s", "letter");
    CHECK(save("home", "x", 3) == LK_EINVAL && strstr(lk_context_error(context), "'letter'"), "%s",
          lk_context_error(context));
    CHECK(holds("home/letter", "precious\n") && !exists("home/model"));
    CHECK(lk__directory_remove(context, in_folder("home"), &known) == LK_EINVAL && exists("home/letter"));
    shell("mkdir -p nested/%s", "model"); /* the right name, but a directory */
    CHECK(save("nested", "x", 1) == LK_EINVAL);
    shell("echo > plain%s", "");
    CHECK(save("plain", "x", 1) == LK_EINVAL, "a file where a directory should be");
    CHECK(save("no/such/parent", "x", 1) == LK_EIO);
    CHECK(save("", "x", 1) == LK_EINVAL, "the test's folder itself");
    CHECK(lk__directory_remove(context, in_folder("absent"), &known) == LK_ENOENT);

    lk__train_directory directory;
    REQUIRE(save("late", "old", 1) == LK_OK);
    REQUIRE(lk__directory_create(&directory, context, in_folder("late"), &known) == LK_OK);
    shell("echo precious > late/%s", "note"); /* while the new one is being written */
    CHECK(lk__directory_commit(&directory) == LK_EINVAL && holds("late/note", "precious\n") &&
          holds("late/model", "old"));
}

/* A user's copies have names that no writer would make. */
static bool is_own(const char *name) { return strncmp(name, "copy", 4) != 0; }

static lk_status recover(const char *name) { return lk__directory_recover(context, in_folder(name), &known, is_own); }

static void copies_that_end_like_temporaries_stay(void)
{
    shell("mkdir own && cd own && mkdir copy.tmp.1 copy.old.2 copy copy2.old.3 && for d in *; do echo x > $d/model; "
          "done%s",
          "");
    CHECK(recover("own") == LK_OK);
    CHECK(holds("own/copy.tmp.1/model", "x\n") && holds("own/copy.old.2/model", "x\n"), "removed");
    CHECK(holds("own/copy2.old.3/model", "x\n") && !exists("own/copy2"), "renamed");
}

static void temporaries_of_ended_writers_are_removed_and_others_stay(void)
{
    shell("mkdir r && cd r && mkdir s.tmp.1 t.tmp.2 u.old.3 v.old.4 v foreign.tmp.5 && echo x > s.tmp.1/model && echo "
          "x > "
          "t.tmp.2/state.tmp.9 && echo saved > u.old.3/model && echo old > v.old.4/model && echo new > v/model && echo "
          "x > "
          "foreign.tmp.5/letter && echo x > model.tmp.77 && echo x > letter.tmp.77 && echo x > model.tmp.x && mkdir "
          "live.tmp.6 && echo x "
          "> state.tmp.88%s",
          "");
    int directory = open(in_folder("r/live.tmp.6"), O_RDONLY | O_DIRECTORY),
        file = open(in_folder("r/state.tmp.88"), O_RDONLY);
    REQUIRE(directory >= 0 && file >= 0 && flock(directory, LOCK_EX) == 0 && flock(file, LOCK_EX) == 0);
    CHECK(recover("r") == LK_OK);
    CHECK(!exists("r/s.tmp.1") && !exists("r/t.tmp.2") && !exists("r/model.tmp.77"), "ended writers");
    CHECK(holds("r/u/model", "saved\n") && !exists("r/u.old.3"), "renamed and not replaced: restored");
    CHECK(holds("r/v/model", "new\n") && !exists("r/v.old.4"), "replaced: removed");
    CHECK(exists("r/foreign.tmp.5/letter") && exists("r/letter.tmp.77") && exists("r/model.tmp.x"),
          "not of a checkpoint");
    CHECK(exists("r/live.tmp.6") && exists("r/state.tmp.88"), "running writers");
    close(directory), close(file);
    CHECK(recover("r") == LK_OK);
    CHECK(!exists("r/live.tmp.6") && !exists("r/state.tmp.88"));
    CHECK(recover("absent") == LK_OK);
}

static void a_kill_at_any_time_leaves_a_complete_directory(void)
{
    REQUIRE(save("k", "0", 3) == LK_OK);
    unsigned seed = 7;
    int      saves_seen = 0;
    for (int round = 0; round < 50; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0;; i++) {
                char text[16];
                snprintf(text, sizeof text, "%d.%d", round, i);
                if (save("k", text, 3) < 0) _exit(1);
            }
        }
        struct timespec pause = {0, (long)(rand_r(&seed) % 6000) * 1000};
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        int result;
        REQUIRE(waitpid(child, &result, 0) == child && WIFSIGNALED(result), "the save failed: %d", result);
        REQUIRE(recover("") == LK_OK);
        char  *first;
        size_t length;
        REQUIRE(lk__read_text(context, in_folder("k/model"), 100, &first, &length) == LK_OK, "%s",
                lk_context_error(context));
        CHECK(holds("k/state", first) && holds("k/manifest", first), "round %d: files of different saves", round);
        saves_seen += atoi(first) == round;
        lk__text_free(context, first, length);
    }
    CHECK(saves_seen > 0, "no save completed, so nothing was tested");
    shell("test $(ls -d k* | wc -l) = 1 %s", "");
}

/* Makes RENAME_EXCHANGE fail in this process, as on filesystems without it, such as NFS; and locks, too, as on
 * filesystems without those, such as Lustre with its usual options. */
static bool forbid_exchange(bool locks_too)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, locks_too ? SYS_flock : ~0u, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[4])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, RENAME_EXCHANGE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* In a process of its own, whose filter stays. */
static void run_without_exchange(bool locks_too)
{
    pid_t child = fork();
    if (child == 0) {
        if (!forbid_exchange(locks_too)) _exit(SKIPPED);
        shell("mkdir -p x y && rm -rf d k made_empty%s", "");
        bool forbidden = renameat2(AT_FDCWD, in_folder("x"), AT_FDCWD, in_folder("y"), RENAME_EXCHANGE) < 0;
        int  before = check_failures, directory = open(in_folder("x"), O_RDONLY | O_DIRECTORY);
        CHECK(forbidden && (flock(directory, LOCK_EX) == 0) == !locks_too);
        a_directory_is_replaced_as_a_whole();
        if (!locks_too) a_kill_at_any_time_leaves_a_complete_directory();
        _exit(check_failures != before);
    }
    int result;
    REQUIRE(child > 0 && waitpid(child, &result, 0) == child && WIFEXITED(result));
    if (WEXITSTATUS(result) == SKIPPED)
        printf("     (skipped: no seccomp)\n");
    else
        CHECK(WEXITSTATUS(result) == 0);
}

static void the_same_holds_without_rename_exchange(void) { run_without_exchange(false); }
static void directories_are_replaced_without_locks(void) { run_without_exchange(true); }

static void directories_are_created_with_their_parents(void)
{
    CHECK(lk__make_directories(context, in_folder("p/q//r/")) == LK_OK && exists("p/q/r"));
    CHECK(lk__make_directories(context, in_folder("p/q")) == LK_OK);
    shell("echo > p/%s", "file");
    CHECK(lk__make_directories(context, in_folder("p/file/x")) == LK_EINVAL);
    CHECK(lk__make_directories(context, in_folder("p/file")) == LK_EINVAL);
    CHECK(lk__make_directories(context, "") == LK_EINVAL);
    CHECK(lk__make_directories(context, "/proc/none") == LK_EINVAL); /* where nobody may create one */
}

int main(void)
{
    REQUIRE(mkdtemp(folder) && lk_context_create(NULL, &context) == LK_OK);
    size_t held = lk_context_memory(context, LK_MEMORY_OTHER);
    RUN(an_abandoned_file_leaves_the_old_file);
    RUN(small_and_large_writes_are_in_order);
    RUN(text_files_are_checked);
    RUN(a_directory_is_replaced_as_a_whole);
    RUN(a_directory_that_holds_something_else_is_refused);
    RUN(temporaries_of_ended_writers_are_removed_and_others_stay);
    RUN(a_kill_at_any_time_leaves_a_complete_directory);
    RUN(the_same_holds_without_rename_exchange);
    RUN(directories_are_replaced_without_locks);
    RUN(copies_that_end_like_temporaries_stay);
    RUN(directories_are_created_with_their_parents);
    CHECK(lk_context_memory(context, LK_MEMORY_OTHER) == held, "leaks");
    lk_context_free(context);
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(system(command) == 0);
    return check_result();
}
