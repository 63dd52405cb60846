/* test_checkpoint.c - saving changes no file of the user; a kill at any system call of a save leaves only complete
 * checkpoints; and modified checkpoints are skipped.
 *
 * ctest: timeout 240 */
#include "checkpoint_rig.h"

#include "base/hash.h"

#include <dirent.h>

/* ---- files of the user ---- */

static void files_of_the_user_are_refused_and_stay(void)
{
    static const char *const commands[] = {
        "echo mine > user/model.safetensors",
        "echo mine > user/state.json",
        "mkdir user/optimizer.safetensors",
        "echo mine > target && ln -s ../target user/model.safetensors",
        "ln -s step-00000001/state.json user/model.safetensors",
        "ln -s step-1/model.safetensors user/model.safetensors",
        "ln -s nowhere user/state.json",
    };
    rig r;
    open_rig(&r);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        shell("rm -rf user before after && mkdir user");
        shell(commands[i]);
        shell("ls -lAR user > before");
        CHECK(lk_checkpoint_check(r.context, in_root("user")) == LK_EINVAL &&
                  strstr(lk_context_error(r.context), "not a link created by a save"),
              "%s: %s", commands[i], lk_context_error(r.context));
        CHECK(save_step(&r, "user", 4, 2) == LK_EINVAL && strstr(lk_context_error(r.context), in_root("user")),
              "%s: %s", commands[i], lk_context_error(r.context));
        shell("ls -lAR user > after && cmp before after");
    }
    shell("rm -rf user && mkdir user");
    CHECK(save_step(&r, "user", 4, 2) == LK_OK && save_step(&r, "user", 8, 2) == LK_OK, "our own links: %s",
          lk_context_error(r.context));
    close_rig(&r);
}

/* It is skipped at every start, and the run comes to its step again. */
static void a_damaged_step_with_a_file_of_the_user_is_set_aside(void)
{
    static const char *const damages[] = {
        "truncate -s 100 aside/step-00000008/state.json", "echo x >> aside/step-00000008/model.safetensors",
        "rm aside/step-00000008/state.json", "rm -r aside/step-00000008 && echo mine > aside/step-00000008"};
    rig  r;
    char command[256];
    open_rig(&r);
    for (int i = 0; i < 4; i++) {
        const char *last = i == 3 ? "aside/step-00000008.damaged" : "aside/step-00000008.damaged/notes.txt";
        shell("rm -rf aside");
        REQUIRE(save_step(&r, "aside", 4, 3) == LK_OK && save_step(&r, "aside", 8, 3) == LK_OK);
        shell("echo mine > aside/step-00000008/notes.txt");
        CHECK(save_step(&r, "aside", 8, 3) == LK_EINVAL && strstr(lk_context_error(r.context), "notes.txt"),
              "an intact step with a file of the user is refused: %s", lk_context_error(r.context));
        shell(damages[i]);
        r.warnings = 0;
        CHECK(save_step(&r, "aside", 8, 3) == LK_OK, "%s: %s", damages[i], lk_context_error(r.context));
        CHECK(r.warnings == 1 && strstr(r.warning, "step-00000008.damaged"), "%s: %d warnings, \"%s\"", damages[i],
              r.warnings, r.warning);
        CHECK(loaded_step(&r, "aside") == 8, "%s: %s", damages[i], lk_context_error(r.context));
        snprintf(command, sizeof command, "grep -q mine %s", last);
        shell(command);
    }
    shell("echo x > aside/step-00000008/notes.txt && echo x >> aside/step-00000008/model.safetensors");
    CHECK(save_step(&r, "aside", 8, 3) == LK_OK, "once more: %s", lk_context_error(r.context));
    shell("grep -q mine aside/step-00000008.damaged && test -e aside/step-00000008.damaged.2/notes.txt");
    close_rig(&r);
}

static void pruning_keeps_links_to_checkpoints_elsewhere(void)
{
    rig r;
    open_rig(&r);
    REQUIRE(save_step(&r, "linked", 1, 3) == LK_OK && save_step(&r, "linked", 2, 3) == LK_OK);
    shell("mkdir away && mv linked/step-00000001 away/ && ln -s ../away/step-00000001 linked/step-00000001");
    CHECK(loaded_step(&r, "linked") == 2);
    CHECK(save_step(&r, "linked", 3, 1) == LK_OK, "%s", lk_context_error(r.context));
    shell("test -e away/step-00000001/model.safetensors && test -e away/step-00000001/optimizer.safetensors && test -e "
          "away/step-00000001/state.json && test -L linked/step-00000001 && test ! -e linked/step-00000002");
    /* A step that is saved again replaces the link, and the link's target stays. */
    CHECK(save_step(&r, "linked", 1, 3) == LK_OK, "%s", lk_context_error(r.context));
    shell("test ! -L linked/step-00000001 && test -e linked/step-00000001/state.json && test -e "
          "away/step-00000001/state.json "
          "&& test $(ls away/step-00000001 | wc -l) = 3");
    shell("ln -s linked run");
    CHECK(save_step(&r, "run", 5, 1) == LK_OK && loaded_step(&r, "run") == 5, "the directory itself may be a link");
    shell("test ! -e linked/step-00000001");
    close_rig(&r);
}

/* ---- a kill at each system call of a save ---- */

static lk_status save_for_kill(rig *r, int64_t step) { return save_step(r, "kills", step, 1); }

static void check_complete(int n)
{
    struct dirent *entry;
    DIR           *dir = opendir(in_root("kills"));
    int            steps = 0;
    REQUIRE(dir != NULL);
    while ((entry = readdir(dir))) {
        char path[600];
        if (strncmp(entry->d_name, "step-", 5) != 0 || strchr(entry->d_name, '.')) continue;
        static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "%s/%s/%s", in_root("kills"), entry->d_name, files[i]);
            CHECK(access(path, F_OK) == 0, "killed at system call %d: %s is missing", n, path);
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
    REQUIRE(save_step(&r, "kills", 1, 3) == LK_OK && save_step(&r, "kills", 2, 3) == LK_OK);
    for (; killed_at(&r, n, save_for_kill, step + 1); n++) {
        check_complete(n);
        int64_t found = loaded_step(&r, "kills");
        CHECK(found >= step - 1 && found <= step + 1, "killed at system call %d: step %lld is resumed, of %lld", n,
              (long long)found, (long long)step);
        /* two complete ones for the next save to remove, and no leftovers of the killed one */
        CHECK(save_step(&r, "kills", step + 2, 3) == LK_OK && save_step(&r, "kills", step + 3, 2) == LK_OK, "%s",
              lk_context_error(r.context));
        shell("test -z \"$(find kills -name '*.tmp.*' -o -name '*.old.*' -o -name '.link.*')\"");
        step += 3;
    }
    CHECK(n == 1 || n > 50, "a save of %d system calls", n);
    close_rig(&r);
}

/* ---- modified checkpoints ---- */

/* Replaces the first `from` in a state.json; with `sign`, updates its own digest. */
static void edit_state(const char *path, const char *from, const char *to, bool sign)
{
    char  text[2048], edited[4096];
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL, "%s", path);
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *at = strstr(text, from);
    REQUIRE(at != NULL, "%s is not in %s", from, text);
    snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    char *own = strstr(edited, "\"state.json\":\"");
    if (sign && own) {
        unsigned char raw[32];
        char          hex[65];
        lk__sha256    sha;
        own += strlen("\"state.json\":\"");
        memset(own, '0', 64);
        lk__sha256_init(&sha);
        lk__sha256_update(&sha, edited, strlen(edited));
        lk__sha256_final(&sha, raw);
        lk__sha256_hex(raw, hex);
        memcpy(own, hex, 64);
    }
    file = fopen(path, "w");
    REQUIRE(file && fputs(edited, file) >= 0 && fclose(file) == 0);
}

static void a_modified_state_is_skipped(void)
{
    static const struct {
        const char *from, *to;
        bool        sign;
        const char *text;
    } cases[] = {
        {"\"position\":80", "\"position\":76", false, "state.json is damaged: its SHA-256"},
        {"\"seed\":\"7\"", "\"seed\":\"8\"", false, "state.json is damaged: its SHA-256"},
        {"\"epoch\":2", "\"epoch\":1", false, "state.json is damaged: its SHA-256"},
        {"\"step\":20", "\"step\":21", false, "state.json is damaged: its SHA-256"},
        {"}}\n", "}} \n", false, "state.json is damaged: its SHA-256"},
        {"\"step\":20", "\"step\":21", true, "is for step 21, but its directory is named for step 20"},
        {"\"step\":20", "\"step\":4611686018427387904", true, "is for step 4611686018427387904"},
        {"\"epoch\":2", "\"epoch\":21", true, "inconsistent progress"},
        {"\"position\":80", "\"position\":-1", true, "inconsistent progress"},
        {"\"position\":80", "\"position\":9007199254740993", true, "inconsistent progress"},
        {"\"seed\":\"7\"", "\"seed\":\"seven\"", true, "is not the state of a Lockstep checkpoint"},
        {"\"seed\":\"7\"", "\"seed\":\"-7\"", true, "is not the state of a Lockstep checkpoint"},
        {"\"seed\":\"7\"", "\"seed\":\" 7\"", true, "is not the state of a Lockstep checkpoint"},
        {"\"seed\":\"7\"", "\"seed\":\"18446744073709551616\"", true, "is not the state of a Lockstep checkpoint"},
        {"\"seed\":\"7\"", "\"seed\":7", true, "is not the state of a Lockstep checkpoint"},
        {"\"step\":20", "\"step\":2e1", true, "is not the state of a Lockstep checkpoint"},
        {",\"state.json\":", ",\"other.json\":", false, "has no digest of its own"},
    };
    rig r;
    open_rig(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shell("rm -rf edited");
        REQUIRE(save_step(&r, "edited", 10, 2) == LK_OK && save_step(&r, "edited", 20, 2) == LK_OK, "%s",
                lk_context_error(r.context));
        CHECK(loaded_step(&r, "edited") == 20);
        edit_state(in_root("edited/step-00000020/state.json"), cases[i].from, cases[i].to, cases[i].sign);
        r.warnings = 0;
        int64_t step = loaded_step(&r, "edited");
        CHECK(step == 10 && r.warnings == 1 && strstr(r.warning, cases[i].text), "%s → %s: step %lld, %d warnings: %s",
              cases[i].from, cases[i].to, (long long)step, r.warnings, r.warning);
    }
    /* The directory of another step under this name. */
    shell("rm -rf edited/step-00000020 && cp -r edited/step-00000010 edited/step-00000020");
    r.warnings = 0;
    CHECK(loaded_step(&r, "edited") == 10 && r.warnings == 1 && strstr(r.warning, "is for step 10"), "%s", r.warning);
    shell("rm -rf edited/step-00000010");
    lk_progress progress;
    lk_status   status = lk_checkpoint_load(r.store, in_root("edited"), &progress);
    CHECK(status == LK_EFORMAT && strstr(lk_context_error(r.context), "is for step 10"), "%s: %s",
          lk_status_name(status), lk_context_error(r.context));
    close_rig(&r);
}

/* By another program: the digest is computed with zeros in its place. */
static void the_digest_of_a_state_agrees_with_sha256sum(void)
{
    rig r;
    open_rig(&r);
    REQUIRE(save_step(&r, "digest", 10, 2) == LK_OK);
    shell("cd digest && own=$(sed 's/.*\"state.json\":\"\\([0-9a-f]*\\)\".*/\\1/' state.json) && zeros=$(printf "
          "'%064d' 0) && "
          "[ \"$(sed \"s/$own/$zeros/\" state.json | sha256sum | cut -c1-64)\" = \"$own\" ]");
    close_rig(&r);
}

static void inconsistent_progress_is_not_saved(void)
{
    static const lk_progress wrong[] = {{-1, 0, 0, 0}, {3, 4, 0, 0}, {3, -1, 0, 0},
                                        {3, 0, -1, 0}, {0, 0, 5, 0}, {((int64_t)1 << 53) + 1, 0, 0, 0}};
    rig                      r;
    open_rig(&r);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(lk_checkpoint_save(r.store, in_root("wrong"), &wrong[i], 2) == LK_EINVAL &&
                  strstr(lk_context_error(r.context), "inconsistent progress"),
              "%zu: %s", i, lk_context_error(r.context));
    int64_t step;
    CHECK(lk_checkpoint_find(r.context, in_root("wrong"), &step) == LK_ENOENT);
    close_rig(&r);
}

static void names_that_resemble_a_checkpoints_are_ignored(void)
{
    rig     r;
    int64_t step;
    open_rig(&r);
    REQUIRE(save_step(&r, "names", 10, 2) == LK_OK);
    shell("cd names && mkdir step-11 step-0000000012 step-99999999999999999999 step-00000013x step-");
    CHECK(lk_checkpoint_find(r.context, in_root("names"), &step) == LK_OK && step == 10, "%lld", (long long)step);
    CHECK(save_step(&r, "names", 20, 1) == LK_OK);
    shell("cd names && rmdir step-11 step-0000000012 step-99999999999999999999 step-00000013x step-");
    close_rig(&r);
}

static void an_expected_absence_sets_no_error(void)
{
    rig         r;
    lk_progress progress;
    open_rig(&r);
    CHECK(lk_checkpoint_check(r.context, in_root("quiet")) == LK_OK);
    CHECK(save_step(&r, "quiet", 1, 1) == LK_OK && save_step(&r, "quiet", 2, 1) == LK_OK);
    CHECK(lk_checkpoint_load(r.store, in_root("quiet"), &progress) == LK_OK);
    shell("mkdir plain && cp -L quiet/model.safetensors plain/");
    CHECK(lk_weights_load(r.store, in_root("plain")) == LK_OK);
    CHECK(strcmp(lk_context_error(r.context), "") == 0, "nothing failed, but: %s", lk_context_error(r.context));
    close_rig(&r);
}

int main(void)
{
    make_root();
    RUN(files_of_the_user_are_refused_and_stay);
    RUN(a_damaged_step_with_a_file_of_the_user_is_set_aside);
    RUN(pruning_keeps_links_to_checkpoints_elsewhere);
    RUN(a_kill_at_any_system_call_leaves_only_complete_checkpoints);
    RUN(a_modified_state_is_skipped);
    RUN(the_digest_of_a_state_agrees_with_sha256sum);
    RUN(inconsistent_progress_is_not_saved);
    RUN(names_that_resemble_a_checkpoints_are_ignored);
    RUN(an_expected_absence_sets_no_error);
    remove_root();
    return check_result();
}
