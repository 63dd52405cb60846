/* test_checkpoint_isa.c - a checkpoint names the instruction set of its kernels, and a resume with another one says so
 * in one line where results may differ: where nothing is said, the bits are the same.
 *
 * ctest: timeout 120 */
#define _GNU_SOURCE
#include "checkpoint_rig.h"

#include "base/hash.h"
#include "base/isa.h"

typedef struct run {
    const char *isa; /* NULL: the best */
    lk_policy   policy;
    int64_t     steps;
    char        save[128], from[128]; /* "": none */
    int         lines;                /* about the instruction set */
    char        line[512];
} run;

static void keep_line(void *user, lk_log_level level, const char *text)
{
    run *r = user;
    (void)level;
    if (!strstr(text, "instruction set")) return;
    r->lines++;
    snprintf(r->line, sizeof r->line, "%s", text);
}

static lk_tensor small(lk_tensor x) { return lk_linear(lk_relu(lk_linear(lk_flatten(x), "fc1", 40)), "fc2", 10); }

/* Trains and returns the hash of the weights. */
static uint64_t train(run *r)
{
    lk_context       *c;
    lk_dataset       *data;
    lk_trainer       *t = NULL;
    lk_context_config context = LK_CONTEXT_CONFIG_INIT;
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    context.threads = 1;
    context.isa = r->isa;
    context.log = keep_line;
    context.log_user = r;
    REQUIRE(lk_context_create(&context, &c) == LK_OK, "%s", lk_context_error(NULL));
    REQUIRE(lk_dataset_open(c, "synthetic:1x8x8,count=100", LK_SPLIT_TRAIN, NULL, &data) == LK_OK);
    config.model = small;
    config.train = data;
    config.batch = 32;
    config.policy = r->policy;
    config.steps = r->steps;
    config.save = r->save[0] ? r->save : NULL;
    config.resume_from = r->from[0] ? r->from : NULL;
    r->lines = 0;
    REQUIRE(lk_trainer_create(c, &config, &t) == LK_OK && lk_trainer_run(t) == LK_OK, "%s", lk_context_error(c));
    uint64_t hash = lk_store_hash(lk_trainer_store(t));
    lk_trainer_free(t);
    lk_dataset_free(data);
    lk_context_free(c);
    return hash;
}

static run make_run(const char *isa, lk_policy policy, int64_t steps, const char *save, const char *from)
{
    run r = {.isa = isa, .policy = policy, .steps = steps};
    if (save) snprintf(r.save, sizeof r.save, "%s/%s", root, save);
    if (from) snprintf(r.from, sizeof r.from, "%s/%s", root, from);
    return r;
}

/* The text of lk_description_text for a directory; "": there is none. */
static void read_isa(const char *directory, char text[64])
{
    lk_context       *c;
    lk_description   *d;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    char              path[256];
    snprintf(path, sizeof path, "%s/%s", root, directory);
    REQUIRE(lk_context_create(&config, &c) == LK_OK);
    REQUIRE(lk_checkpoint_describe(c, path, &d) == LK_OK, "%s", lk_context_error(c));
    const char *isa = lk_description_text(d, "isa");
    snprintf(text, 64, "%s", isa ? isa : "");
    lk_description_free(d);
    lk_context_free(c);
}

static bool is_on_cpu(void)
{
    lk_context       *c;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    REQUIRE(lk_context_create(&config, &c) == LK_OK);
    bool cpu = strcmp(lk_context_device(c), "cuda") != 0;
    lk_context_free(c);
    return cpu;
}

/* Each pair of sets of this machine, in f32 and bf16. */
static void a_line_is_printed_where_bits_may_differ(void)
{
    static const lk_policy policies[] = {LK_POLICY_RECORDED, LK_POLICY_BF16};
    char                   name[64], isa[64];
    int                    made = 0;
    for (int i = 0; lk__isa_names[i]; i++) {
        if (!lk__isa_available(lk__isa_names[i])) continue;
        for (int p = 0; p < 2; p++) {
            snprintf(name, sizeof name, "first%d", made++);
            run first = make_run(lk__isa_names[i], policies[p], 3, name, NULL);
            train(&first);
            read_isa(name, isa);
            CHECK(strcmp(isa, is_on_cpu() ? lk__isa_names[i] : "") == 0, "\"%s\"", isa);
            run      same = make_run(lk__isa_names[i], policies[p], 6, NULL, name);
            uint64_t hash = train(&same);
            CHECK(same.lines == 0, "%s", same.line);
            for (int k = 0; lk__isa_names[k]; k++) {
                if (k == i || !lk__isa_available(lk__isa_names[k])) continue;
                run      other = make_run(lk__isa_names[k], policies[p], 6, NULL, name);
                uint64_t reached = train(&other);
                CHECK(other.lines <= 1 && (other.lines == 1 || reached == hash),
                      "%s, then %s: %d lines, %016llx and %016llx", lk__isa_names[i], lk__isa_names[k], other.lines,
                      (unsigned long long)hash, (unsigned long long)reached);
                const char *a = lk__isa_extended(lk__isa_names[i]), *b = lk__isa_extended(lk__isa_names[k]);
                if ((a && strcmp(a, lk__isa_names[k]) == 0) || (b && strcmp(b, lk__isa_names[i]) == 0))
                    CHECK(other.lines == (p && is_on_cpu()), "%s, then %s: %d lines", lk__isa_names[i],
                          lk__isa_names[k], other.lines); /* they have the kernels of f32 in common */
                if (other.lines == 1)
                    CHECK(strstr(other.line, lk__isa_names[i]) && strstr(other.line, lk__isa_names[k]), "%s",
                          other.line);
            }
        }
    }
}

/* Writes another name into state.json, and its digest anew. */
static void rename_isa(const char *directory, const char *name)
{
    char          path[256], text[8192] = "", digest[65];
    unsigned char raw[32];
    lk__sha256    sha;
    snprintf(path, sizeof path, "%s/%s/state.json", root, directory);
    FILE *file = fopen(path, "re");
    REQUIRE(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    char *isa = strstr(text, "\"isa\":\""), *own = strstr(text, "\"state.json\":\"");
    REQUIRE(length < sizeof text - 1 && isa && own);
    memcpy(isa + strlen("\"isa\":\""), name, strlen(name));
    own += strlen("\"state.json\":\"");
    memset(own, '0', 64);
    lk__sha256_init(&sha);
    lk__sha256_update(&sha, text, length);
    lk__sha256_final(&sha, raw);
    lk__sha256_hex(raw, digest);
    memcpy(own, digest, 64);
    REQUIRE((file = fopen(path, "we")) && fwrite(text, 1, length, file) == length && fclose(file) == 0);
}

/* Of another processor: none of this build's. */
static void a_set_that_is_not_known_here_is_another_one(void)
{
    if (!is_on_cpu()) return;
    char isa[64], other[64];
    run  first = make_run(NULL, LK_POLICY_RECORDED, 3, "known", NULL);
    train(&first);
    read_isa("known", isa);
    memset(other, 'z', sizeof other);
    other[strlen(isa)] = 0;
    rename_isa("known", other);
    run second = make_run(NULL, LK_POLICY_RECORDED, 6, NULL, "known");
    train(&second);
    CHECK(second.lines == 1 && strstr(second.line, other) && strstr(second.line, isa), "%d: %s", second.lines,
          second.line);
}

int main(void)
{
    make_root();
    RUN(a_line_is_printed_where_bits_may_differ);
    RUN(a_set_that_is_not_known_here_is_another_one);
    remove_root();
    return check_result();
}
