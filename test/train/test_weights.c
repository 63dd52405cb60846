/* test_weights.c - weights as other programs save them: directories with one file or with shards, names without their
 * prefix, buffers that no model needs, copies of tied tensors; and everything else is refused by name. */
#include "checkpoint_rig.h"
#include "copies.h"
#include "train/file.h"
#include "train/safetensors_write.h"

/* ---- a model of the tensors of a small GPT, and files ---- */

static const struct {
    const char *name;
    int64_t     rows, columns; /* columns 0: one axis */
} tensors[] = {{"transformer.wte.weight", 5, 3},
               {"transformer.h.0.ln_1.weight", 3, 0},
               {"transformer.h.0.attn.c_attn.weight", 3, 9},
               {"transformer.h.0.LayerNorm.bias", 3, 0}};
enum { TENSORS = 4 };

static void open_model(rig *r)
{
    lk_plan_config plan = LK_PLAN_CONFIG_INIT;
    lk_tensor      outputs[TENSORS];
    *r = (rig){0};
    REQUIRE(lk_context_create(NULL, &r->context) == LK_OK && lk_graph_create(r->context, LK_F32, &r->graph) == LK_OK);
    for (int i = 0; i < TENSORS; i++) {
        int64_t dims[] = {tensors[i].rows, tensors[i].columns};
        outputs[i] = lk_relu(lk_parameter(r->graph, tensors[i].name, tensors[i].columns ? 2 : 1, dims));
    }
    plan.outputs = outputs;
    plan.outputs_count = TENSORS;
    REQUIRE(lk_plan_create(r->graph, &plan, &r->plan) == LK_OK && lk_store_create(r->plan, 1, &r->store) == LK_OK, "%s",
            lk_context_error(r->context));
}

/* One tensor of a file: element j is base + j. */
typedef struct entry {
    const char *name;
    double      base;
    int         rank;
    int64_t     dims[4];
} entry;

static void write_file(lk_context *c, const char *name, const entry *entries, int count)
{
    static float           data[8][64];
    static char            staging[LK__FILE_STAGING];
    lk__safetensors_tensor list[8] = {{0}};
    for (int i = 0; i < count; i++) {
        list[i] = (lk__safetensors_tensor){
            .name = entries[i].name, .dtype = LK_F32, .rank = entries[i].rank, .data = data[i]};
        memcpy(list[i].dims, entries[i].dims, sizeof entries[i].dims);
        for (int j = 0; j < 64; j++) data[i][j] = (float)(entries[i].base + j);
    }
    REQUIRE(lk__safetensors_write(c, in_root(name), &(lk__safetensors_content){list, (size_t)count, NULL, 0},
                                  (lk__safetensors_staging){staging, sizeof staging}, NULL) == LK_OK,
            "%s", lk_context_error(c));
}

#define WTE {"wte.weight", 100, 2, {5, 3}}
#define LN {"h.0.ln_1.weight", 200, 1, {3}}
#define ATTN {"h.0.attn.c_attn.weight", 300, 2, {3, 9}}
#define NORM {"h.0.LayerNorm.bias", 400, 1, {3}}
static const entry plain[] = {WTE, LN, ATTN, NORM};

/* The tensors have the values of WTE, LN, ATTN and NORM. */
static void check_values(rig *r)
{
    for (int i = 0; i < TENSORS; i++) {
        lk_state state;
        REQUIRE(lk_store_find(r->store, tensors[i].name, &state));
        const float *values = state_copy(r->store, tensors[i].name);
        int64_t      n = tensors[i].rows * (tensors[i].columns ? tensors[i].columns : 1);
        for (int64_t j = 0; j < n; j++)
            CHECK(values[j] == (float)(100 * (i + 1) + j), "%s[%lld] is %g", tensors[i].name, (long long)j,
                  (double)values[j]);
    }
}

static void check_loads(rig *r, const char *path)
{
    CHECK(lk_weights_load(r->store, in_root(path)) == LK_OK, "%s: %s", path, lk_context_error(r->context));
    check_values(r);
}

static void check_refused(rig *r, const char *path, lk_status expected, const char *text)
{
    lk_status status = lk_weights_load(r->store, in_root(path));
    CHECK(status == expected && strstr(lk_context_error(r->context), text), "%s: %s, not \"%s\": %s", path,
          lk_status_name(status), text, lk_context_error(r->context));
}

static void write_index(const char *text)
{
    FILE *file = fopen(in_root("shards/model.safetensors.index.json"), "w");
    REQUIRE(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* ---- tests ---- */

static void names_may_lack_the_prefix_and_have_old_ends(void)
{
    static const entry with[] = {{"transformer.wte.weight", 100, 2, {5, 3}},
                                 {"transformer.h.0.ln_1.weight", 200, 1, {3}},
                                 {"h.0.attn.c_attn.weight", 300, 2, {3, 9}},
                                 {"transformer.h.0.LayerNorm.beta", 400, 1, {3}}};
    rig                r;
    open_model(&r);
    shell("rm -rf dir && mkdir dir");
    write_file(r.context, "dir/model.safetensors", plain, TENSORS);
    check_loads(&r, "dir");
    check_loads(&r, "dir/model.safetensors");
    write_file(r.context, "mixed.safetensors", with, TENSORS);
    check_loads(&r, "mixed.safetensors");
    close_rig(&r);
}

static void buffers_of_the_architecture_are_ignored(void)
{
    static const entry all[] = {WTE,
                                LN,
                                ATTN,
                                NORM,
                                {"h.0.attn.bias", 1, 4, {1, 1, 2, 2}},
                                {"transformer.h.0.attn.masked_bias", 1, 0, {0}},
                                {"model.rotary_emb.inv_freq", 1, 1, {4}},
                                {"bert.embeddings.position_ids", 1, 2, {1, 6}}};
    static const entry parameter[] = {WTE, LN, ATTN, NORM, {"h.0.attn.bias", 1, 1, {3}}};
    lk_load_report    *report;
    rig                r;
    open_model(&r);
    write_file(r.context, "buffers.safetensors", all, 8);
    check_loads(&r, "buffers.safetensors");
    REQUIRE(lk_weights_load_partial(r.store, in_root("buffers.safetensors"), &report) == LK_OK);
    CHECK(lk_load_report_count(report) == TENSORS, "%zu entries", lk_load_report_count(report));
    lk_load_report_free(report);
    write_file(r.context, "parameter.safetensors", parameter, 5);
    check_refused(&r, "parameter.safetensors", LK_EMISMATCH, "holds \"h.0.attn.bias\", which the model does not have");
    close_rig(&r);
}

static void a_tied_head_must_equal_the_embedding(void)
{
    static const entry equal[] = {WTE, LN, ATTN, NORM, {"lm_head.weight", 100, 2, {5, 3}}};
    static const entry other[] = {WTE, LN, ATTN, NORM, {"lm_head.weight", 101, 2, {5, 3}}};
    static const entry shape[] = {WTE, LN, ATTN, NORM, {"lm_head.weight", 100, 2, {3, 5}}};
    lk_load_report    *report;
    rig                r;
    open_model(&r);
    write_file(r.context, "equal.safetensors", equal, 5);
    check_loads(&r, "equal.safetensors");
    write_file(r.context, "other.safetensors", other, 5);
    check_refused(&r, "other.safetensors", LK_EMISMATCH, "\"lm_head.weight\" differs from \"wte.weight\"");
    write_file(r.context, "shape.safetensors", shape, 5);
    check_refused(&r, "shape.safetensors", LK_EMISMATCH, "\"lm_head.weight\" differs from \"wte.weight\"");
    REQUIRE(lk_weights_load_partial(r.store, in_root("other.safetensors"), &report) == LK_OK);
    REQUIRE(lk_load_report_count(report) == TENSORS + 1);
    CHECK(lk_load_report_at(report, TENSORS)->result == LK_LOAD_UNEXPECTED);
    lk_load_report_free(report);
    close_rig(&r);
}

static void everything_else_is_refused_by_name(void)
{
    static const entry more[] = {WTE, LN, ATTN, NORM, {"h.1.ln_1.weight", 1, 1, {3}}};
    static const entry twice[] = {WTE, LN, ATTN, NORM, {"transformer.wte.weight", 1, 2, {5, 3}}};
    static const entry shape[] = {WTE, {"h.0.ln_1.weight", 1, 1, {4}}, ATTN, NORM};
    rig                r;
    open_model(&r);
    write_file(r.context, "more.safetensors", more, 5);
    check_refused(&r, "more.safetensors", LK_EMISMATCH, "holds \"h.1.ln_1.weight\"");
    write_file(r.context, "twice.safetensors", twice, 5);
    check_refused(&r, "twice.safetensors", LK_EMISMATCH, "holds \"wte.weight\"");
    write_file(r.context, "fewer.safetensors", plain, 3);
    check_refused(&r, "fewer.safetensors", LK_EMISMATCH, "has no \"transformer.h.0.LayerNorm.bias\"");
    write_file(r.context, "shape.safetensors", shape, 4);
    check_refused(&r, "shape.safetensors", LK_EMISMATCH, "\"h.0.ln_1.weight\" is (4) in ");
    shell("rm -rf nothing && mkdir nothing");
    check_refused(&r, "nothing", LK_ENOENT,
                  "holds no checkpoint, no model.safetensors and no model.safetensors.index.json");
    shell("touch nothing/pytorch_model.bin");
    check_refused(&r, "nothing", LK_ENOENT, "pytorch_model.bin to safetensors");
    close_rig(&r);
}

#define MAP(a, b, c, d)                                                                                     \
    "{\"metadata\": {\"total_size\": 204}, \"weight_map\": {\"wte.weight\": \"" a "\", \"h.0.ln_1.weight\": \"" b \
    "\", \"h.0.attn.c_attn.weight\": \"" c "\", \"h.0.LayerNorm.bias\": \"" d "\"}}"
#define ONE "model-00001-of-00002.safetensors"
#define TWO "model-00002-of-00002.safetensors"

static void write_shards(lk_context *c)
{
    static const entry first[] = {WTE, NORM}, second[] = {LN, ATTN};
    shell("rm -rf shards && mkdir shards");
    write_file(c, "shards/" ONE, first, 2);
    write_file(c, "shards/" TWO, second, 2);
    write_index(MAP(ONE, TWO, TWO, ONE));
}

static void shards_are_loaded_by_their_index(void)
{
    rig r;
    open_model(&r);
    write_shards(r.context);
    check_loads(&r, "shards");
    check_loads(&r, "shards/model.safetensors.index.json");
    char before[256];
    REQUIRE(getcwd(before, sizeof before) && chdir(in_root("shards")) == 0);
    CHECK(lk_weights_load(r.store, "model.safetensors.index.json") == LK_OK, "%s", lk_context_error(r.context));
    REQUIRE(chdir(before) == 0);
    lk_load_report *report;
    REQUIRE(lk_weights_load_partial(r.store, in_root("shards"), &report) == LK_OK);
    CHECK(lk_load_report_count(report) == TENSORS);
    lk_load_report_free(report);
    write_file(r.context, "shards/model.safetensors", plain, TENSORS); /* as transformers does, it has precedence */
    write_index("{");
    check_loads(&r, "shards");
    close_rig(&r);
}

static void an_index_that_is_wrong_is_refused_by_name(void)
{
    static const struct {
        const char *index, *text;
        lk_status   status;
    } cases[] = {
        {MAP(ONE, TWO, TWO, "model-00003.safetensors"),
         "the shard \"model-00003.safetensors\", but there is no such file", LK_ENOENT},
        {MAP(ONE, TWO, ONE, ONE), "says that " ONE " contains \"h.0.attn.c_attn.weight\", but it does not", LK_EFORMAT},
        {MAP("../" ONE, TWO, TWO, ONE), "names the shard \"../" ONE "\", which is not the name of a file", LK_EFORMAT},
        {MAP("/etc/passwd", TWO, TWO, ONE), "names the shard \"/etc/passwd\"", LK_EFORMAT},
        {MAP("..", TWO, TWO, ONE), "names the shard \"..\"", LK_EFORMAT},
        {MAP("a/b.safetensors", TWO, TWO, ONE), "names the shard \"a/b.safetensors\"", LK_EFORMAT},
        {MAP("", TWO, TWO, ONE), "names the shard \"\"", LK_EFORMAT},
        {MAP("a\\u0000b", TWO, TWO, ONE), "the shard of \"wte.weight\" is not a file name", LK_EFORMAT},
        {"{\"weight_map\": {\"wte.weight\": 7}}", "the shard of \"wte.weight\" is not a file name", LK_EFORMAT},
        {"{\"weight_map\": {\"wte.weight\": \"" ONE "\", \"h.0.LayerNorm.bias\": \"" ONE
         "\", \"h.0.ln_1.weight\": \"" TWO "\"}}",
         "does not list \"h.0.attn.c_attn.weight\"", LK_EFORMAT},
        {"{\"weight_map\": {\"wte.weight\": \"" ONE "\", \"h.0.LayerNorm.bias\": \"" ONE "\"}}",
         "has no \"transformer.h.0.ln_1.weight\"", LK_EMISMATCH},
        {"{\"weight_map\": {\"wte.weight\": \"" ONE "\", \"wte.weight\": \"" ONE "\", \"wte.weight\": \"" ONE "\"}}",
         "does not list \"h.0.LayerNorm.bias\"", LK_EFORMAT},
        {"{\"weight_map\": []}", "has no object \"weight_map\"", LK_EFORMAT},
        {"[]", "has no object \"weight_map\"", LK_EFORMAT},
        {"{\"weight_map\": {", "byte 16: ", LK_EFORMAT},
        {"", "byte 0: ", LK_EFORMAT},
    };
    rig r;
    open_model(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_shards(r.context);
        write_index(cases[i].index);
        check_refused(&r, "shards", cases[i].status, cases[i].text);
    }
    write_shards(r.context);
    shell("truncate -s 100 shards/" TWO);
    check_refused(&r, "shards", LK_EFORMAT, TWO);
    size_t held = lk_context_memory(r.context, LK_MEMORY_OTHER);
    check_refused(&r, "shards", LK_EFORMAT, TWO);
    CHECK(lk_context_memory(r.context, LK_MEMORY_OTHER) == held);
    close_rig(&r);
}

int main(void)
{
    make_root();
    RUN(names_may_lack_the_prefix_and_have_old_ends);
    RUN(buffers_of_the_architecture_are_ignored);
    RUN(a_tied_head_must_equal_the_embedding);
    RUN(everything_else_is_refused_by_name);
    RUN(shards_are_loaded_by_their_index);
    RUN(an_index_that_is_wrong_is_refused_by_name);
    remove_root();
    return check_result();
}
