/* test_record.c - a checkpoint knows what it is: options, fields, classes and normalisation are read back as they were
 * given, by this library and by another JSON reader; other data is refused; checkpoints without a record still work.
 * And partial loading.
 *
 * ctest: timeout 120 */
#define _GNU_SOURCE
#include "checkpoint_rig.h"

#include "base/hash.h"

#include <math.h>
#include <pwd.h>
#include <time.h>

enum { COUNT = 40, SIDE = 6, CLASSES = 3, MANY = 20000 };

static const char *const class_names[] = {"cat", "d\"o\\g\n", "猫"};

static lk_tensor small(lk_tensor x) { return lk_linear(lk_flatten(x), "fc", CLASSES); }
static lk_tensor seven(lk_tensor x) { return lk_linear(lk_flatten(x), "fc", CLASSES + 4); }
static lk_tensor wide(lk_tensor x) { return lk_linear(lk_flatten(x), "fc", MANY); }
static lk_tensor normed(lk_tensor x) { return lk_linear(lk_flatten(lk_batch_norm(x, "bn")), "fc", CLASSES); }

/* Images of u8 with labels of named classes. */
static lk_dataset *make_images(lk_context *c, int64_t side, const char *const *names, int classes)
{
    static unsigned char     pixels[COUNT * SIDE * SIDE * 4];
    static int32_t           labels[COUNT];
    lk_field                 fields[] = {{.name = "image", .dtype = LK_U8, .rank = 3, .dims = {1, side, SIDE}},
                                         {.name = "label", .dtype = LK_I32, .classes = classes, .class_names = names}};
    lk_dataset_arrays_config config = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_dataset              *dataset;
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (unsigned char)(i * 37 % 251);
    for (int i = 0; i < COUNT; i++) labels[i] = i % CLASSES;
    config.count = COUNT;
    config.fields = fields;
    config.fields_count = 2;
    config.data = (const void *[]){pixels, labels};
    REQUIRE(lk_dataset_from_arrays(c, &config, &dataset) == LK_OK, "%s", lk_context_error(c));
    return dataset;
}

static lk_trainer_config make_config(const lk_dataset *train, const char *directory)
{
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    config.model = small;
    config.train = train;
    config.batch = 16;
    config.steps = 4;
    config.save = directory;
    return config;
}

static lk_status train(lk_context *c, const lk_trainer_config *config)
{
    lk_trainer *t;
    lk_status   status = lk_trainer_create(c, config, &t);
    if (status >= 0) status = lk_trainer_run(t);
    lk_trainer_free(t);
    return status;
}

static lk_context *make_context(void)
{
    lk_context       *c;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &c) == LK_OK);
    return c;
}

/* ---- what is recorded ---- */

static const lk_record options[] = {{"model", "small"},
                                    {"data", "folder:with \"quotes\" and a \\ and\ttab"},
                                    {"empty", ""},
                                    {"path", "/tmp/caf\xe9"}, /* Latin-1, which JSON cannot hold */
                                    {"unicode", "naïve 猫"}};

static void check_options(const lk_description *d)
{
    CHECK(lk_description_recorded(d) && lk_description_options(d) == 5 && !lk_description_option(d, 5));
    for (int i = 0; i < 5; i++) {
        const char *expected = i == 3 ? "/tmp/caf\xef\xbf\xbd" : options[i].value;
        CHECK(strcmp(lk_description_option(d, i)->name, options[i].name) == 0 &&
                  strcmp(lk_description_option(d, i)->value, expected) == 0,
              "%s", lk_description_option(d, i)->value);
    }
    CHECK(strcmp(lk_description_find(d, "model"), "small") == 0 && !lk_description_find(d, "mode"));
}

static void check_samples(const lk_description *d)
{
    lk_transform    t = LK_TRANSFORM_INIT;
    const lk_field *image = lk_description_field(d, 0), *label = lk_description_field(d, 1);
    REQUIRE(lk_description_fields(d) == 2 && image && label && !lk_description_field(d, 2));
    CHECK(strcmp(image->name, "image") == 0 && image->dtype == LK_U8 && image->rank == 3 && image->dims[0] == 1 &&
          image->dims[1] == SIDE && image->dims[2] == SIDE && image->classes == 0);
    CHECK(strcmp(label->name, "label") == 0 && label->dtype == LK_I32 && label->rank == 0 && label->classes == CLASSES);
    for (int i = 0; i < CLASSES; i++)
        CHECK(label->class_names && strcmp(label->class_names[i], class_names[i]) == 0, "class %d", i);
    CHECK(lk_description_normalisation(d, &t) && t.channels == 1 && t.mean[0] == 1.0 / 3 && t.std[0] == 0.3081,
          "%.17g %.17g", t.mean[0], t.std[0]);
}

static void check_writer(const lk_description *d)
{
    char           host[256] = "", date[64];
    time_t         now = time(NULL);
    struct tm      utc, *read = memset(&utc, 0, sizeof utc);
    struct passwd *user = getpwuid(geteuid());
    gethostname(host, sizeof host - 1);
    snprintf(date, sizeof date, "%s", lk_description_text(d, "date"));
    CHECK(strcmp(lk_description_text(d, "host"), host) == 0, "%s", lk_description_text(d, "host"));
    CHECK(!user || strcmp(lk_description_text(d, "user"), user->pw_name) == 0, "%s", lk_description_text(d, "user"));
    CHECK(strcmp(lk_description_text(d, "version"), lk_version()) == 0 &&
          strcmp(lk_description_text(d, "dtype"), "f32") == 0 && !lk_description_text(d, "colour"));
    CHECK(strptime(date, "%Y-%m-%dT%H:%M:%SZ", read) && llabs((long long)(timegm(read) - now)) < 60, "%s", date);
}

static void check_tensors(const lk_description *d)
{
    REQUIRE(lk_description_tensors(d) == 2);
    lk_saved_tensor bias = lk_description_tensor(d, 0), weight = lk_description_tensor(d, 1);
    CHECK(strcmp(bias.name, "fc.bias") == 0 && bias.rank == 1 && bias.dims[0] == CLASSES && bias.dtype == LK_F32);
    CHECK(strcmp(weight.name, "fc.weight") == 0 && weight.rank == 2 && weight.dims[1] == SIDE * SIDE);
    CHECK(lk_description_parameters(d) == CLASSES * SIDE * SIDE + CLASSES, "%lld",
          (long long)lk_description_parameters(d));
}

static void a_checkpoint_gives_back_what_its_run_was(void)
{
    lk_context       *c = make_context();
    lk_dataset       *data = make_images(c, SIDE, class_names, CLASSES);
    lk_trainer_config config = make_config(data, in_root("whole"));
    lk_description   *d;
    config.record = options;
    config.record_count = 5;
    config.transform.channels = 1;
    config.transform.mean[0] = 1.0 / 3;
    config.transform.std[0] = 0.3081;
    REQUIRE(train(c, &config) == LK_OK, "%s", lk_context_error(c));
    for (int i = 0; i < 2; i++) { /* the directory, and that of its newest step */
        REQUIRE(lk_checkpoint_describe(c, in_root(i ? "whole/step-00000004" : "whole"), &d) == LK_OK, "%s",
                lk_context_error(c));
        CHECK(strcmp(lk_description_path(d), in_root("whole/step-00000004")) == 0, "%s", lk_description_path(d));
        CHECK(lk_description_progress(d)->step == 4 && lk_description_progress(d)->epoch == 1);
        check_options(d);
        check_samples(d);
        check_writer(d);
        check_tensors(d);
        CHECK(lk_description_verify(d) == LK_OK, "%s", lk_context_error(c));
        lk_description_free(d);
    }
    /* another reader agrees, where it is installed */
    shell("! command -v python3 > /dev/null || python3 -c 'import json; r = "
          "json.load(open(\"whole/state.json\"))[\"record\"]; "
          "assert r[\"options\"][\"unicode\"] == \"naïve 猫\" and r[\"normalisation\"][\"mean\"] == [1 / 3], r; "
          "assert r[\"fields\"][1][\"class_names\"][1] == chr(100) + chr(34) + \"o\" + chr(92) + \"g\" + chr(10), r'");
    shell("printf X | dd of=whole/step-00000004/model.safetensors bs=1 seek=200 conv=notrunc 2> /dev/null");
    REQUIRE(lk_checkpoint_describe(c, in_root("whole"), &d) == LK_OK);
    CHECK(lk_description_verify(d) == LK_EFORMAT && strstr(lk_context_error(c), "model.safetensors is damaged"), "%s",
          lk_context_error(c));
    lk_description_free(d);
    CHECK(lk_checkpoint_describe(c, in_root("nowhere"), &d) == LK_ENOENT && !d, "%s", lk_context_error(c));
    lk_dataset_free(data);
    lk_context_free(c);
}

static void the_record_does_not_change_the_weights_file(void)
{
    lk_context       *c = make_context();
    lk_dataset       *data = make_images(c, SIDE, NULL, CLASSES);
    lk_trainer_config config = make_config(data, in_root("plain"));
    REQUIRE(train(c, &config) == LK_OK, "%s", lk_context_error(c));
    config.save = in_root("recorded");
    config.record = options;
    config.record_count = 5;
    REQUIRE(train(c, &config) == LK_OK, "%s", lk_context_error(c));
    shell("cmp plain/model.safetensors recorded/model.safetensors && cmp plain/optimizer.safetensors "
          "recorded/optimizer.safetensors && ! cmp -s plain/state.json recorded/state.json");
    lk_description *d;
    lk_transform    t = LK_TRANSFORM_INIT;
    REQUIRE(lk_checkpoint_describe(c, in_root("plain"), &d) == LK_OK);
    CHECK(lk_description_recorded(d) && lk_description_options(d) == 0 && !lk_description_field(d, 1)->class_names);
    CHECK(lk_description_normalisation(d, &t) && t.channels == 1 && t.mean[0] == 0.5 && t.std[0] == 0.5,
          "the default of u8 is written out");
    lk_description_free(d);
    shell("mkdir own && echo mine > own/config.json");
    config.save = in_root("own");
    config.files = &(lk_checkpoint_file){"config.json", "{}", 2};
    config.files_count = 1;
    CHECK(train(c, &config) == LK_EINVAL &&
              strstr(lk_context_error(c), "own/config.json is not a link created by a save"),
          "%s", lk_context_error(c));
    shell("[ \"$(ls own)\" = config.json ]");
    config.files = &(lk_checkpoint_file){"../config.json", "{}", 2};
    CHECK(train(c, &config) == LK_EINVAL && strstr(lk_context_error(c), "is not a valid name"), "%s",
          lk_context_error(c));
    config.files_count = 0;
    config.record = &(lk_record){"model", NULL};
    config.record_count = 1;
    CHECK(train(c, &config) == LK_EINVAL && strstr(lk_context_error(c), "record 0 has no name or no value"), "%s",
          lk_context_error(c));
    lk_dataset_free(data);
    lk_context_free(c);
}

/* A plan counts the record's bytes, and steps and saves allocate nothing, however long it is. */
static void count_allocations(lk_trainer_config *config, lk_context *c)
{
    lk_trainer *t;
    lk_graph   *graph;
    lk_plan    *plan;
    size_t      memory[LK_MEMORY_COUNT];
    REQUIRE(lk_trainer_plan(c, config, &graph, &plan, memory) == LK_OK && lk_trainer_create(c, config, &t) == LK_OK,
            "%s", lk_context_error(c));
    CHECK(lk_context_memory(c, LK_MEMORY_CHECKPOINT) == memory[LK_MEMORY_CHECKPOINT], "held %zu, planned %zu",
          lk_context_memory(c, LK_MEMORY_CHECKPOINT), memory[LK_MEMORY_CHECKPOINT]);
    uint64_t before = lk_context_allocations(c);
    CHECK(lk_trainer_run(t) == LK_OK && lk_context_allocations(c) == before, "%llu allocations",
          (unsigned long long)(lk_context_allocations(c) - before));
    lk_trainer_free(t);
    lk_plan_free(plan);
    lk_graph_free(graph);
}

static void many_class_names_are_saved_without_allocating(void)
{
    static char        text[MANY][24];
    static const char *names[MANY];
    lk_context        *c = make_context();
    lk_description    *d;
    for (int i = 0; i < MANY; i++) {
        snprintf(text[i], sizeof text[i], "class number %d", i);
        names[i] = text[i];
    }
    lk_dataset       *data = make_images(c, SIDE, names, MANY);
    lk_trainer_config config = make_config(data, in_root("many"));
    config.model = wide;
    config.save_every = 1;
    config.keep = 1;
    config.files = (lk_checkpoint_file[]){{"config.json", "{}", 2}, {"tokenizer.json", text[0], sizeof text}};
    config.files_count = 2;
    count_allocations(&config, c);
    REQUIRE(lk_checkpoint_describe(c, in_root("many"), &d) == LK_OK, "%s", lk_context_error(c));
    const lk_field *label = lk_description_field(d, 1);
    REQUIRE(label && label->classes == MANY && label->class_names);
    for (int i = 0; i < MANY; i++)
        if (strcmp(label->class_names[i], names[i]) != 0) CHECK(false, "class %d is %s", i, label->class_names[i]);
    CHECK(lk_description_verify(d) == LK_OK, "%s", lk_context_error(c));
    lk_description_free(d);
    CHECK(lk_context_memory(c, LK_MEMORY_CHECKPOINT) == 0);
    shell("[ $(stat -Lc %s many/tokenizer.json) = 480000 ] && [ $(ls many/step-* | wc -l) = 5 ]");
    lk_dataset_free(data);
    lk_context_free(c);
}

/* ---- resuming ---- */

static void other_data_is_refused_with_both_shapes(void)
{
    lk_context *c = make_context();
    lk_dataset *data = make_images(c, SIDE, class_names, CLASSES),
               *taller = make_images(c, SIDE + 2, class_names, CLASSES);
    const char *const other_names[] = {class_names[0], class_names[1], "dog"};
    lk_dataset       *renamed = make_images(c, SIDE, other_names, CLASSES);
    lk_dataset       *more = make_images(c, SIDE, NULL, CLASSES + 4);
    lk_trainer_config config = make_config(data, in_root("other"));
    REQUIRE(train(c, &config) == LK_OK, "%s", lk_context_error(c));
    config.resume = true;
    config.steps = 8;
    config.train = taller;
    CHECK(train(c, &config) == LK_EMISMATCH && strstr(lk_context_error(c), "image u8 (1, 6, 6) with 3 classes") &&
              strstr(lk_context_error(c), "image u8 (1, 8, 6) with 3 classes"),
          "%s", lk_context_error(c));
    config.train = more;
    config.model = seven;
    CHECK(train(c, &config) == LK_EMISMATCH && strstr(lk_context_error(c), "(1, 6, 6) with 3 classes") &&
              strstr(lk_context_error(c), "(1, 6, 6) with 7 classes"),
          "%s", lk_context_error(c));
    config.train = renamed;
    config.model = small;
    CHECK(train(c, &config) == LK_EMISMATCH && strstr(lk_context_error(c), "number 2 is \"猫\" there and \"dog\" in"),
          "%s", lk_context_error(c));
    config.train = data;
    CHECK(train(c, &config) == LK_OK, "%s", lk_context_error(c));
    lk_dataset_free(data);
    lk_dataset_free(renamed);
    lk_dataset_free(taller);
    lk_dataset_free(more);
    lk_context_free(c);
}

/* A table whose columns have these names. */
static lk_status make_table(lk_context *c, int rank, const char *const *columns, lk_dataset **table)
{
    static float   features[COUNT * 3];
    static int32_t labels[COUNT];
    lk_field       fields[] = {
              {.name = "features", .dtype = LK_F32, .rank = rank, .dims = {3, 1}, .column_names = columns},
              {.name = "label", .dtype = LK_I32, .classes = CLASSES, .column_names = columns ? columns + 2 : NULL},
    };
    lk_dataset_arrays_config config = LK_DATASET_ARRAYS_CONFIG_INIT;
    for (int i = 0; i < COUNT; i++) labels[i] = i % CLASSES;
    config.count = COUNT;
    config.fields = fields;
    config.fields_count = 2;
    config.data = (const void *[]){features, labels};
    return lk_dataset_from_arrays(c, &config, table);
}

static void columns_with_other_names_are_refused(void)
{
    lk_context              *c = make_context();
    static const char *const names[] = {"age", "in\"come\n", "猫"}, *const swapped[] = {"age", "猫", "in\"come\n"};
    lk_dataset     *data, *other, *nameless, *invalid;
    lk_description *d;
    REQUIRE(make_table(c, 1, names, &data) == LK_OK && make_table(c, 1, swapped, &other) == LK_OK &&
                make_table(c, 1, NULL, &nameless) == LK_OK,
            "%s", lk_context_error(c));
    CHECK(make_table(c, 2, names, &invalid) == LK_EINVAL && strstr(lk_context_error(c), "column names and 2 axes"));
    lk_trainer_config config = make_config(data, in_root("columns"));
    REQUIRE(train(c, &config) == LK_OK, "%s", lk_context_error(c));
    REQUIRE(lk_checkpoint_describe(c, in_root("columns"), &d) == LK_OK);
    const lk_field *features = lk_description_field(d, 0);
    REQUIRE(features && features->column_names);
    for (int i = 0; i < 3; i++)
        CHECK(strcmp(features->column_names[i], names[i]) == 0, "%s", features->column_names[i]);
    const lk_field *label = lk_description_field(d, 1); /* whose column has a name, too */
    CHECK(label->column_names && strcmp(label->column_names[0], names[2]) == 0);
    CHECK(lk_description_check(d, data) == LK_OK && lk_description_check(d, nameless) == LK_OK);
    lk_description_free(d);
    config.resume = true;
    config.steps = 8;
    config.train = other;
    CHECK(train(c, &config) == LK_EMISMATCH && strstr(lk_context_error(c), "feature 2 is \"in") &&
              strstr(lk_context_error(c), "\"猫\" in the data set"),
          "%s", lk_context_error(c));
    config.train = nameless;
    CHECK(train(c, &config) == LK_OK, "%s", lk_context_error(c));
    lk_dataset_free(data);
    lk_dataset_free(other);
    lk_dataset_free(nameless);
    lk_context_free(c);
}

/* Rewrites state.json as versions without a record wrote it. */
static void write_old_state(const char *directory)
{
    char                     text[8192], path[512], sha[2][65], old[2048], hex[65];
    unsigned char            raw[32];
    lk__sha256               digest;
    static const char *const keys[] = {"\"model.safetensors\":\"", "\"optimizer.safetensors\":\""};
    snprintf(path, sizeof path, "%s/state.json", directory);
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    for (int i = 0; i < 2; i++) snprintf(sha[i], 65, "%s", strstr(text, keys[i]) + strlen(keys[i]));
    int n = snprintf(
        old, sizeof old,
        "{\"lockstep\":\"0.1.0\",\"step\":4,\"epoch\":1,\"position\":16,\"seed\":\"0\",\"dtype\":\"f32\",\"sha256\":{"
        "\"model.safetensors\":\"%s\",\"optimizer.safetensors\":\"%s\",\"state.json\":\"%064d\"}}\n",
        sha[0], sha[1], 0);
    lk__sha256_init(&digest);
    lk__sha256_update(&digest, old, (size_t)n);
    lk__sha256_final(&digest, raw);
    lk__sha256_hex(raw, hex);
    memcpy(old + n - 4 - 64, hex, 64);
    file = fopen(path, "w");
    REQUIRE(file && fputs(old, file) >= 0 && fclose(file) == 0);
}

static void a_checkpoint_without_a_record_is_resumed(void)
{
    lk_context       *c = make_context();
    lk_dataset       *data = make_images(c, SIDE, class_names, CLASSES);
    lk_trainer_config config = make_config(data, in_root("old"));
    lk_description   *d;
    lk_transform      t = LK_TRANSFORM_INIT;
    REQUIRE(train(c, &config) == LK_OK, "%s", lk_context_error(c));
    write_old_state(in_root("old/step-00000004"));
    REQUIRE(lk_checkpoint_describe(c, in_root("old"), &d) == LK_OK, "%s", lk_context_error(c));
    CHECK(!lk_description_recorded(d) && lk_description_options(d) == 0 && lk_description_fields(d) == 0);
    CHECK(!lk_description_text(d, "host") && !lk_description_text(d, "date") && lk_description_parameters(d) == -1);
    CHECK(!lk_description_normalisation(d, &t) && lk_description_check(d, data) == LK_OK &&
          lk_description_tensors(d) == 2);
    CHECK(lk_description_verify(d) == LK_OK);
    lk_description_free(d);
    config.resume = true;
    config.steps = 8;
    CHECK(train(c, &config) == LK_OK, "%s", lk_context_error(c));
    REQUIRE(lk_checkpoint_describe(c, in_root("old"), &d) == LK_OK, "%s", lk_context_error(c));
    CHECK(lk_description_recorded(d) && lk_description_progress(d)->step == 8);
    lk_description_free(d);
    lk_dataset_free(data);
    lk_context_free(c);
}

/* ---- partial loading ---- */

static lk_store *make_store(lk_context *c, lk_tensor (*model)(lk_tensor), uint64_t seed, lk_graph **graph,
                            lk_plan **plan)
{
    lk_store      *store;
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    REQUIRE(lk_graph_create(c, LK_F32, graph) == LK_OK);
    lk_tensor out = model(lk_input(*graph, "x", LK_F32, 4, ((int64_t[]){2, 1, SIDE, SIDE})));
    config.outputs = &out;
    config.outputs_count = 1;
    REQUIRE(lk_plan_create(*graph, &config, plan) == LK_OK && lk_store_create(*plan, seed, &store) == LK_OK, "%s",
            lk_context_error(c));
    return store;
}

static lk_tensor backbone(lk_tensor x, int64_t classes)
{
    x = lk_relu(lk_batch_norm(lk_conv2d(x, "conv", 4, 3), "bn"));
    return lk_linear(lk_flatten(x), "head", classes);
}
static lk_tensor ten_classes(lk_tensor x) { return lk_linear(backbone(x, 10), "extra", 2); }
static lk_tensor two_classes(lk_tensor x) { return lk_relu(backbone(x, 2)); }

static const lk_load_entry *find_entry(const lk_load_report *r, const char *name)
{
    const lk_load_entry *e;
    for (size_t i = 0; (e = lk_load_report_at(r, i)); i++)
        if (strcmp(e->name, name) == 0) return e;
    return NULL;
}

static void partial_loading_takes_what_matches_and_lists_the_rest(void)
{
    static const struct {
        const char    *name;
        lk_load_result result;
        const char    *text;
    } expected[] = {{"conv.weight", LK_LOAD_LOADED, ""},
                    {"conv.bias", LK_LOAD_LOADED, ""},
                    {"bn.weight", LK_LOAD_LOADED, ""},
                    {"bn.bias", LK_LOAD_LOADED, ""},
                    {"bn.running_mean", LK_LOAD_LOADED, ""},
                    {"bn.running_var", LK_LOAD_LOADED, ""},
                    {"bn.num_batches_tracked", LK_LOAD_LOADED, ""},
                    {"head.weight", LK_LOAD_MISMATCHED, "(10×64) in the file and (2×64) in the model"},
                    {"head.bias", LK_LOAD_MISMATCHED, "(10) in the file and (2) in the model"},
                    {"extra.weight", LK_LOAD_UNEXPECTED, ""},
                    {"extra.bias", LK_LOAD_UNEXPECTED, ""}};
    lk_context *c = make_context();
    lk_graph   *g[3];
    lk_plan    *p[3];
    lk_store   *from = make_store(c, ten_classes, 5, &g[0], &p[0]), *to = make_store(c, two_classes, 6, &g[1], &p[1]);
    lk_store   *fresh = make_store(c, two_classes, 6, &g[2], &p[2]);
    lk_load_report *r;
    REQUIRE(lk_weights_save(from, in_root("ten.safetensors")) == LK_OK);
    REQUIRE(lk_weights_load_partial(to, in_root("ten.safetensors"), &r) == LK_OK, "%s", lk_context_error(c));
    size_t count = sizeof expected / sizeof *expected;
    CHECK(lk_load_report_count(r) == count && !lk_load_report_at(r, count), "%zu", lk_load_report_count(r));
    for (size_t i = 0; i < count; i++) {
        const lk_load_entry *e = find_entry(r, expected[i].name);
        CHECK(e && e->result == expected[i].result && strcmp(e->text, expected[i].text) == 0, "%s: %d, %s",
              expected[i].name, e ? (int)e->result : -1, e ? e->text : "");
        if (expected[i].result == LK_LOAD_UNEXPECTED) continue;
        /* loaded values are the file's; the others are those of the seed */
        lk_state  a, b;
        lk_store *source = expected[i].result == LK_LOAD_LOADED ? from : fresh;
        REQUIRE(lk_store_find(to, expected[i].name, &a) && lk_store_find(source, expected[i].name, &b));
        int64_t elements = 1;
        for (int k = 0; k < a.rank; k++) elements *= a.dims[k];
        char   one[4096], two[4096];
        size_t bytes = (size_t)elements * lk_dtype_size(a.dtype);
        REQUIRE(lk_store_read(to, a.name, LK_STATE_VALUE, 0, elements, one, bytes) == LK_OK &&
                lk_store_read(source, a.name, LK_STATE_VALUE, 0, elements, two, bytes) == LK_OK);
        CHECK(memcmp(one, two, bytes) == 0, "%s", a.name);
    }
    lk_load_report_free(r);
    CHECK(lk_weights_load_partial(to, in_root("missing.safetensors"), &r) == LK_ENOENT && !r);
    CHECK(lk_weights_load_partial(to, in_root("ten.safetensors"), NULL) == LK_OK, "without a report");
    lk_store_free(fresh);
    lk_plan_free(p[2]);
    lk_graph_free(g[2]);
    fresh = make_store(c, small, 1, &g[2], &p[2]);
    CHECK(lk_weights_load_partial(fresh, in_root("ten.safetensors"), &r) == LK_EMISMATCH && r &&
              strstr(lk_context_error(c), "share no tensor"),
          "%s", lk_context_error(c));
    lk_load_report_free(r);
    lk_store *stores[] = {from, to, fresh};
    for (int i = 0; i < 3; i++) {
        lk_store_free(stores[i]);
        lk_plan_free(p[i]);
        lk_graph_free(g[i]);
    }
    lk_context_free(c);
}

static void a_trainer_starts_from_a_part_and_ignores_it_when_it_resumes(void)
{
    lk_context       *c = make_context();
    lk_dataset       *data = make_images(c, SIDE, class_names, CLASSES);
    lk_trainer_config config = make_config(data, in_root("source"));
    lk_trainer       *t;
    REQUIRE(train(c, &config) == LK_OK, "%s", lk_context_error(c));
    config.model = normed;
    config.save = in_root("partial");
    config.init_partial = in_root("source"); /* a directory: its newest checkpoint */
    REQUIRE(lk_trainer_create(c, &config, &t) == LK_OK, "%s", lk_context_error(c));
    const lk_load_report *r = lk_trainer_load_report(t);
    REQUIRE(r != NULL);
    CHECK(find_entry(r, "fc.weight")->result == LK_LOAD_LOADED &&
          find_entry(r, "bn.weight")->result == LK_LOAD_MISSING);
    CHECK(lk_trainer_run(t) == LK_OK);
    lk_trainer_free(t);
    config.resume = true;
    config.steps = 6;
    REQUIRE(lk_trainer_create(c, &config, &t) == LK_OK, "%s", lk_context_error(c));
    CHECK(!lk_trainer_load_report(t) && lk_trainer_progress(t)->step == 4);
    lk_trainer_free(t);
    config.init = in_root("source");
    CHECK(lk_trainer_create(c, &config, &t) == LK_EINVAL && strstr(lk_context_error(c), "are mutually exclusive"), "%s",
          lk_context_error(c));
    lk_dataset_free(data);
    lk_context_free(c);
}

int main(void)
{
    make_root();
    RUN(a_checkpoint_gives_back_what_its_run_was);
    RUN(the_record_does_not_change_the_weights_file);
    RUN(many_class_names_are_saved_without_allocating);
    RUN(other_data_is_refused_with_both_shapes);
    RUN(columns_with_other_names_are_refused);
    RUN(a_checkpoint_without_a_record_is_resumed);
    RUN(partial_loading_takes_what_matches_and_lists_the_rest);
    RUN(a_trainer_starts_from_a_part_and_ignores_it_when_it_resumes);
    remove_root();
    return check_result();
}
