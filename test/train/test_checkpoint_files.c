/* test_checkpoint_files.c - files of the caller in every checkpoint: written, linked, listed in the state, verified,
 * pruned and replaced with it, and never at the cost of a file of the user.
 *
 * ctest: timeout 240 */
#include "checkpoint_rig.h"

#include <dirent.h>

static const lk_checkpoint_file files[] = {
    {"config.json", "{\"model_type\": \"gpt2\"}\n", 23},
    {"tokenizer.json", "\0with any bytes\xff", 16},
    {"empty.txt", NULL, 0},
};
enum { FILES = 3 };

static lk_status save_with(rig *r, const char *name, int64_t step, int keep, const lk_checkpoint_file *list, int count)
{
    lk_progress progress = {step, step / 10, step * 4, 7};
    return lk_checkpoint_save_files(r->store, in_root(name), &progress, keep, list, count);
}

static bool file_holds(const char *path, const char *text, size_t bytes)
{
    char   got[256];
    FILE  *file = fopen(in_root(path), "rb");
    size_t n = file ? fread(got, 1, sizeof got, file) : SIZE_MAX;
    if (file) fclose(file);
    return n == bytes && (!n || memcmp(got, text, n) == 0);
}

static void every_checkpoint_holds_the_files_and_the_newest_is_linked(void)
{
    rig             r;
    lk_description *d;
    open_rig(&r);
    REQUIRE(save_with(&r, "plain", 4, 2, files, FILES) == LK_OK && save_with(&r, "plain", 8, 2, files, FILES) == LK_OK,
            "%s", lk_context_error(r.context));
    for (int i = 0; i < FILES; i++) {
        char path[128];
        for (int step = 4; step <= 8; step += 4) {
            snprintf(path, sizeof path, "plain/step-%08d/%s", step, files[i].name);
            CHECK(file_holds(path, files[i].text, files[i].bytes), "%s", path);
        }
        snprintf(path, sizeof path, "[ $(readlink plain/%s) = step-00000008/%s ]", files[i].name, files[i].name);
        shell(path);
    }
    REQUIRE(lk_checkpoint_describe(r.context, in_root("plain"), &d) == LK_OK, "%s", lk_context_error(r.context));
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                        "config.json",       "tokenizer.json",        "empty.txt"};
    for (int i = 0; i < 6; i++)
        CHECK(strcmp(lk_description_file(d, i), names[i]) == 0, "%s", lk_description_file(d, i));
    CHECK(!lk_description_file(d, 6) && !lk_description_file(d, -1));
    /* of no bytes, as everybody knows */
    CHECK(strcmp(lk_description_text(d, "empty.txt"),
                 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855") == 0);
    CHECK(lk_description_verify(d) == LK_OK, "%s", lk_context_error(r.context));
    shell("own=$(sha256sum < plain/config.json | cut -c1-64) && grep -q '\"config.json\":\"'$own'\"' plain/state.json");
    lk_description_free(d);
    close_rig(&r);
}

static void a_changed_file_is_found_but_does_not_prevent_loading(void)
{
    rig             r;
    lk_description *d;
    open_rig(&r);
    REQUIRE(save_with(&r, "changed", 4, 2, files, FILES) == LK_OK);
    shell("echo '{}' > changed/config.json");
    REQUIRE(lk_checkpoint_describe(r.context, in_root("changed"), &d) == LK_OK);
    CHECK(lk_description_verify(d) == LK_EFORMAT && strstr(lk_context_error(r.context), "config.json is damaged"), "%s",
          lk_context_error(r.context));
    lk_description_free(d);
    CHECK(loaded_step(&r, "changed") == 4 && r.warnings == 0, "%s", r.warning);
    shell("rm changed/step-00000004/config.json");
    CHECK(loaded_step(&r, "changed") == 4 && r.warnings == 0, "%s", r.warning);
    CHECK(save_with(&r, "changed", 4, 2, files, FILES) == LK_OK, "%s", lk_context_error(r.context));
    CHECK(file_holds("changed/config.json", files[0].text, files[0].bytes), "the step was not replaced");
    close_rig(&r);
}

static void files_of_the_user_are_refused_and_stay(void)
{
    static const char *const commands[] = {
        "echo mine > user/config.json",
        "mkdir user/tokenizer.json",
        "ln -s step-00000001/config.json user/tokenizer.json",
        "echo '{}' > mine && ln -s ../mine user/config.json",
    };
    rig r;
    open_rig(&r);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        shell("rm -rf user && mkdir user");
        shell(commands[i]);
        shell("ls -lAR user > before");
        CHECK(lk_checkpoint_check_files(r.context, in_root("user"), files, FILES) == LK_EINVAL &&
                  strstr(lk_context_error(r.context), "not a link created by a save"),
              "%s: %s", commands[i], lk_context_error(r.context));
        CHECK(save_with(&r, "user", 4, 2, files, FILES) == LK_EINVAL, "%s", commands[i]);
        shell("ls -lAR user > after && cmp before after");
        CHECK(lk_checkpoint_check(r.context, in_root("user")) == LK_OK, "a save without files replaces none: %s",
              lk_context_error(r.context));
    }
    close_rig(&r);
}

/* A file in a step that its state does not list is the user's, whatever its name. */
static void a_file_that_the_state_does_not_list_is_never_deleted(void)
{
    rig r;
    open_rig(&r);
    REQUIRE(save_step(&r, "own", 1, 3) == LK_OK);
    shell("echo mine > own/step-00000001/config.json");
    CHECK(save_with(&r, "own", 2, 1, files, FILES) == LK_OK && r.warnings == 1 && strstr(r.warning, "'config.json'"),
          "%s", r.warning);
    shell("[ \"$(cat own/step-00000001/config.json)\" = mine ]");
    CHECK(save_with(&r, "own", 1, 2, files, FILES) == LK_EINVAL && strstr(lk_context_error(r.context), "'config.json'"),
          "%s", lk_context_error(r.context));
    shell("[ \"$(cat own/step-00000001/config.json)\" = mine ]");
    close_rig(&r);
}

static void checkpoints_with_other_files_follow_each_other(void)
{
    static const lk_checkpoint_file other[] = {{"config.json", "{}", 2}, {"vocab.json", "[]", 2}};
    rig                             r;
    open_rig(&r);
    REQUIRE(save_step(&r, "mixed", 1, 3) == LK_OK && save_with(&r, "mixed", 2, 3, files, FILES) == LK_OK &&
                save_with(&r, "mixed", 3, 3, other, 2) == LK_OK,
            "%s", lk_context_error(r.context));
    shell("cd mixed && [ $(readlink config.json) = step-00000003/config.json ] && [ -e vocab.json ] && "
          "[ ! -L tokenizer.json ] && [ ! -L empty.txt ] && [ -e step-00000002/tokenizer.json ]");
    CHECK(loaded_step(&r, "mixed") == 3);
    CHECK(save_with(&r, "mixed", 2, 3, other, 2) == LK_OK, "an older step is replaced: %s",
          lk_context_error(r.context));
    shell(
        "cd mixed && [ ! -e step-00000002/tokenizer.json ] && [ $(readlink config.json) = step-00000002/config.json ]");
    shell("cd mixed && echo mine > step-00000001/notes && ln -s step-00000001/notes notes && ln -s step-00000009/gone "
          "gone");
    CHECK(save_with(&r, "mixed", 3, 4, other, 2) == LK_OK, "%s", lk_context_error(r.context));
    shell("cd mixed && [ \"$(cat notes)\" = mine ] && [ ! -L gone ] && rm notes step-00000001/notes");
    CHECK(save_step(&r, "mixed", 4, 1) == LK_OK && r.warnings == 0, "%s", r.warning);
    shell("cd mixed && [ \"$(ls)\" = \"$(printf 'model.safetensors\\noptimizer.safetensors\\nstate.json\\n"
          "step-00000004')\" ]");
    close_rig(&r);
}

/* ---- kills ---- */

static lk_status save_for_kill(rig *r, int64_t step) { return save_with(r, "kills", step, 1, files, FILES); }

static void check_complete(int n)
{
    struct dirent *entry;
    DIR           *dir = opendir(in_root("kills"));
    int            steps = 0;
    REQUIRE(dir != NULL);
    while ((entry = readdir(dir))) {
        char path[600];
        if (strncmp(entry->d_name, "step-", 5) != 0 || strchr(entry->d_name, '.')) continue;
        for (int i = 0; i < FILES; i++) {
            snprintf(path, sizeof path, "kills/%s/%s", entry->d_name, files[i].name);
            CHECK(file_holds(path, files[i].text, files[i].bytes), "killed at system call %d: %s", n, path);
        }
        steps++;
    }
    closedir(dir);
    CHECK(steps >= 1, "killed at system call %d: no checkpoint is left", n);
}

static void a_kill_at_any_system_call_leaves_only_complete_checkpoints(void)
{
    rig     r;
    int64_t step = 3;
    int     n = 1;
    open_rig(&r);
    if (skips_forks("a kill at a system call of a save")) {
        close_rig(&r);
        return;
    }
    REQUIRE(save_with(&r, "kills", 1, 3, files, FILES) == LK_OK && save_with(&r, "kills", 2, 3, files, FILES) == LK_OK);
    /* every second time the step exists already, so that the save exchanges two directories */
    for (; killed_at(&r, n, save_for_kill, n % 2 ? step + 1 : step - 1); n++) {
        check_complete(n);
        int64_t found = loaded_step(&r, "kills");
        CHECK(found >= step - 1 && found <= step + 1, "killed at system call %d: step %lld is resumed, of %lld", n,
              (long long)found, (long long)step);
        /* a reader that knows no names has removed the leftovers */
        shell("test -z \"$(find kills -name '*.tmp.*' -o -name '*.old.*' -o -name '.link.*')\"");
        CHECK(save_with(&r, "kills", step + 2, 3, files, FILES) == LK_OK &&
                  save_with(&r, "kills", step + 3, 2, files, FILES) == LK_OK && r.warnings == 0,
              "%s, %s", lk_context_error(r.context), r.warning);
        step += 3;
    }
    CHECK(n == 1 || n > 80, "a save of %d system calls", n);
    close_rig(&r);
}

/* ---- what is refused ---- */

static void invalid_names_are_refused(void)
{
    static const char *const names[] = {"",
                                        ".hidden",
                                        "..",
                                        "a/b",
                                        "/etc/passwd",
                                        "a b",
                                        "a\"b",
                                        "caf\xc3\xa9",
                                        "model.safetensors",
                                        "state.json",
                                        "step-00000001",
                                        "config.json.tmp.7",
                                        "a.old.1",
                                        "a123456789012345678901234567890123456789012345678901234567890123"};
    rig                      r;
    open_rig(&r);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        lk_checkpoint_file one = {names[i], "x", 1};
        CHECK(save_with(&r, "invalid", 1, 1, &one, 1) == LK_EINVAL &&
                  strstr(lk_context_error(r.context), "is not a valid name"),
              "%s: %s", names[i], lk_context_error(r.context));
        CHECK(lk_checkpoint_check_files(r.context, in_root("invalid"), &one, 1) == LK_EINVAL);
    }
    lk_checkpoint_file twice[] = {files[0], files[0]}, none = {NULL, "x", 1}, textless = {"a", NULL, 1};
    CHECK(save_with(&r, "invalid", 1, 1, twice, 2) == LK_EINVAL &&
          strstr(lk_context_error(r.context), "two additional files"));
    CHECK(save_with(&r, "invalid", 1, 1, &none, 1) == LK_EINVAL &&
          save_with(&r, "invalid", 1, 1, &textless, 1) == LK_EINVAL);
    CHECK(save_with(&r, "invalid", 1, 1, files, 17) == LK_EINVAL && strstr(lk_context_error(r.context), "at most 16"));
    shell("test ! -e invalid");
    close_rig(&r);
}

int main(void)
{
    make_root();
    RUN(every_checkpoint_holds_the_files_and_the_newest_is_linked);
    RUN(a_changed_file_is_found_but_does_not_prevent_loading);
    RUN(files_of_the_user_are_refused_and_stay);
    RUN(a_file_that_the_state_does_not_list_is_never_deleted);
    RUN(checkpoints_with_other_files_follow_each_other);
    RUN(a_kill_at_any_system_call_leaves_only_complete_checkpoints);
    RUN(invalid_names_are_refused);
    remove_root();
    return check_result();
}
