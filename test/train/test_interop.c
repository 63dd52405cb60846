/* test_interop.c - exchange of files with PyTorch: a state_dict that PyTorch wrote (golden/make_interop.py) gives
 * PyTorch's logits here, and saving it writes the same bytes as the safetensors library. */
#include "base/hash.h"
#include "check.h"
#include "copies.h"
#include "data/safetensors.h"
#include "train/file.h"

#include <lockstep.h>
#include <math.h>
#include <unistd.h>

#define GOLDEN LK_SOURCE_DIR "/test/golden/"

typedef struct model {
    lk_context *context;
    lk_graph   *graph;
    lk_plan    *plan;
    lk_store   *store;
    lk_program *program;
} model;

static void load_model(model *m, lk_dtype type)
{
    int64_t        dims[] = {2, 3, 32, 32};
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    REQUIRE(lk_context_create(NULL, &m->context) == LK_OK);
    REQUIRE(lk_graph_create(m->context, type, &m->graph) == LK_OK);
    lk_tensor y = lk_model_resnet20(lk_input(m->graph, "x", type, 4, dims), (lk_model_options){0});
    config.outputs = &y;
    config.outputs_count = 1;
    REQUIRE(lk_plan_create(m->graph, &config, &m->plan) == LK_OK, "%s", lk_context_error(m->context));
    REQUIRE(lk_store_create(m->plan, 0, &m->store) == LK_OK);
    REQUIRE(lk_program_create(m->plan, m->store, NULL, &m->program) == LK_OK);
    REQUIRE(lk_weights_load(m->store, GOLDEN "resnet20.safetensors") == LK_OK, "%s", lk_context_error(m->context));
}

static void free_model(model *m)
{
    lk_program_free(m->program);
    lk_store_free(m->store);
    lk_plan_free(m->plan);
    lk_graph_free(m->graph);
    lk_context_free(m->context);
}

static void read_golden(lk_context *c, double logits[20], char sha256[65])
{
    lk__safetensors *file;
    REQUIRE(lk__safetensors_open(c, GOLDEN "resnet20_logits.safetensors", &file) == LK_OK, "%s", lk_context_error(c));
    const lk__safetensors_tensor *t = lk__safetensors_find(file, "logits");
    REQUIRE(t && t->bytes == 20 * sizeof(double));
    REQUIRE(lk__safetensors_read(file, t, 0, logits, 20 * sizeof(double)) == LK_OK);
    snprintf(sha256, 65, "%s", lk__safetensors_metadata(file, "sha256"));
    lk__safetensors_close(file);
}

static void check_logits(lk_dtype type, double tolerance)
{
    static double wide[2 * 3 * 32 * 32];
    static float  narrow[2 * 3 * 32 * 32];
    double        expected[20];
    char          sha256[65];
    model         m;
    uint32_t      state = 1;
    load_model(&m, type);
    read_golden(m.context, expected, sha256);
    for (int i = 0; i < 2 * 3 * 32 * 32; i++) {
        state = state * 1664525u + 1013904223u;
        wide[i] = (double)(int32_t)state / 2147483648.0;
        narrow[i] = (float)wide[i];
    }
    REQUIRE(lk_program_bind(m.program, "x", type == LK_F64 ? (void *)wide : (void *)narrow) == LK_OK);
    REQUIRE(lk_program_step(m.program, &(lk_step){.step = 1, .count = 2}) == LK_OK);
    REQUIRE(lk_program_run(m.program, LK_EVALUATE) == LK_OK);
    const void *y = output_copy(m.program, 0, 20 * lk_dtype_size(type));
    for (int i = 0; i < 20; i++) {
        double got = type == LK_F64 ? ((const double *)y)[i] : (double)((const float *)y)[i];
        CHECK(fabs(got - expected[i]) <= tolerance * (1 + fabs(expected[i])), "logit %d: %.12g, PyTorch %.12g", i, got,
              expected[i]);
    }
    free_model(&m);
}

static void a_state_dict_of_pytorch_gives_pytorchs_logits_in_f64(void) { check_logits(LK_F64, 1e-12); }
static void a_state_dict_of_pytorch_gives_pytorchs_logits_in_f32(void) { check_logits(LK_F32, 2e-5); }

static void saved_files_equal_those_of_the_safetensors_library(void)
{
    double logits[20];
    char   expected[65], got[65], path[] = "/tmp/lockstep-interop-XXXXXX", staging[LK__FILE_STAGING];
    model  m;
    load_model(&m, LK_F32);
    read_golden(m.context, logits, expected);
    close(mkstemp(path));
    CHECK(lk_weights_save(m.store, path) == LK_OK, "%s", lk_context_error(m.context));
    CHECK(lk__file_digest(m.context, path, staging, sizeof staging, got) == LK_OK);
    CHECK(strcmp(got, expected) == 0, "SHA-256 %s, the library's file has %s", got, expected);
    unlink(path);
    free_model(&m);
}

int main(void)
{
    RUN(a_state_dict_of_pytorch_gives_pytorchs_logits_in_f64);
    RUN(a_state_dict_of_pytorch_gives_pytorchs_logits_in_f32);
    RUN(saved_files_equal_those_of_the_safetensors_library);
    return check_result();
}
