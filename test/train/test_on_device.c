/* test_on_device.c - batches that the device makes itself: rows with the bits of the loader's, and trainers with the
 * losses and weights of those whose batches the host makes: crops, flips, partial batches, micro-batches, leaves,
 * ranks, a resumed run. On devices that make no batches: that they say so.
 *
 * ctest: timeout 120, ranks 2 */
#include "check.h"
#include "data/gather.h"

#include <lockstep.h>
#include <sys/mman.h>
#include <sys/stat.h>

static char root[] = "/tmp/lockstep-on-device-XXXXXX";

static lk_context *open_context(void)
{
    lk_context       *context;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK, "%s", lk_context_error(NULL));
    return context;
}

static bool makes_batches(const lk_context *context)
{
    return lk__context_device(context)->backend->memory.available != NULL; /* others have the host's */
}

/* ---- data ---- */

static unsigned pattern(int64_t sample, int64_t i)
{
    return (unsigned)(sample * 131 + i * 29 + (i ^ sample) * 7) & 255;
}

/* 61 samples of "image" (u8 or f32) and further fields, in records with a gap between them. */
enum { SAMPLES = 61, GAP = 5 };

static lk_dataset *make_data(lk_context *context, lk_dtype type, int rank, const int64_t *dims)
{
    lk_field fields[] = {
        {.name = "image", .dtype = type, .rank = rank},
        {.name = "label", .dtype = LK_I32, .classes = 10},
        {.name = "weight", .dtype = LK_F32, .rank = 1, .dims = {3}},
        {.name = "serial", .dtype = LK_I64},
        {.name = "flags", .dtype = LK_U8, .rank = 1, .dims = {7}},
    };
    lk_dataset *d;
    memcpy(fields[0].dims, dims, (size_t)rank * sizeof *dims);
    REQUIRE(lk__dataset_make(context, &(lk__dataset_about){"test", SAMPLES, fields, 5}, &d) == LK_OK, "%s",
            lk_context_error(context));
    for (int f = 0; f < 5; f++) {
        int64_t        elements = lk_field_elements(&fields[f]);
        unsigned char *column = lk__dataset_column(d, f);
        for (int64_t s = 0; s < SAMPLES; s++)
            for (int64_t i = 0; i < elements; i++) {
                unsigned value = pattern(s, i + f);
                int64_t  at = s * elements + i;
                if (fields[f].dtype == LK_U8) column[at] = (unsigned char)value;
                if (fields[f].dtype == LK_F32) ((float *)column)[at] = (float)value / 77.0f - 1.1f;
                if (fields[f].dtype == LK_I32) ((int32_t *)column)[at] = (int32_t)(value % 10);
                if (fields[f].dtype == LK_I64) ((int64_t *)column)[at] = (int64_t)value << 40 | s;
            }
    }
    return d;
}

/* The same samples in an order of their own, some left out: as a hold-out has them. */
static void keep_some(lk_dataset *d)
{
    d->count = 47;
    d->kept_bytes = (size_t)d->count * sizeof *d->kept;
    REQUIRE((d->kept = lk__alloc(d->context, LK_MEMORY_DATA, d->kept_bytes)) != NULL);
    for (int64_t i = 0; i < d->count; i++) d->kept[i] = (i * 17 + 5) % SAMPLES;
}

/* Field 0 as in records of a file: with other bytes between two samples. */
static void spread_records(lk_dataset *d)
{
    size_t         bytes = lk_field_bytes(&d->fields[0]), spread = (bytes + GAP) * SAMPLES;
    unsigned char *records = lk__alloc(d->context, LK_MEMORY_DATA, spread);
    REQUIRE(records && d->fields[0].dtype == LK_U8);
    for (size_t i = 0; i < SAMPLES; i++) memcpy(records + i * (bytes + GAP), (char *)d->owned[0] + i * bytes, bytes);
    lk__free(d->context, LK_MEMORY_DATA, d->owned[0], d->owned_bytes[0]);
    d->columns[0] = d->owned[0] = records;
    d->owned_bytes[0] = spread;
    d->strides[0] = bytes + GAP;
}

/* ---- rows ---- */

typedef struct row_case {
    lk_dtype     type, out;
    int          rank;
    int64_t      dims[3];
    lk_transform transform;
    bool         kept, spread;
} row_case;

static void set_operand(lk__kernel_operand *o, const void *data, lk_dtype type, int rank, const int64_t *dims)
{
    *o = (lk__kernel_operand){.data = (void *)data, .dtype = type, .rank = rank};
    memcpy(o->dims, dims, (size_t)rank * sizeof *dims);
}

/* The call of sample_rows for a batch, without the memory that rows are written to. */
static void describe_call(const lk__device_gather *g, int64_t rows, char *header, lk__kernel_call *call)
{
    const lk__device_transform *t = &g->transform;
    int64_t                     channels = t->per_channel ? t->channels : 1, bytes = LK__DEVICE_IDS + rows * 8;
    set_operand(&call->in[LK__ROWS_HEADERS], header, LK_U8, 2, (int64_t[]){1, bytes});
    set_operand(&call->in[LK__ROWS_TABLE], t->table, t->out, 2, (int64_t[]){channels, 256});
    set_operand(&call->in[LK__ROWS_NORMAL], t->mean, LK_F64, 2, (int64_t[]){2, channels});
    set_operand(&call->out[LK__ROWS_HEADER], header, LK_U8, 1, &bytes);
    for (int f = 0; f < g->count; f++) {
        bool    image = f == 0 && g->transformed;
        int64_t dims[] = {g->by_row ? rows : g->samples, image ? t->channels : g->fields[f].elements, t->height,
                          t->width};
        set_operand(&call->in[LK__ROWS_SAMPLES + f], g->fields[f].samples, g->fields[f].in, image ? 4 : 2, dims);
        dims[0] = rows;
        set_operand(&call->out[LK__ROWS_OUT + f], NULL, g->fields[f].out, image ? 4 : 2, dims);
    }
    call->inputs = LK__ROWS_SAMPLES + g->count;
    call->outputs = LK__ROWS_OUT + g->count;
}

/* What the host would send of a batch, in the device's memory. */
static char *send_samples(lk__device *device, const lk_batch *batch, const lk_loader_config *stored,
                          lk__device_gather *gather, size_t *bytes)
{
    enum { EACH = 1 << 18 };
    lk_loader *loader;
    lk_batch   sent;
    char      *raw;
    REQUIRE(lk_loader_create(device->context, stored, &loader) == LK_OK);
    REQUIRE(lk_loader_seek(loader, batch->epoch, batch->position) == LK_OK);
    REQUIRE(lk_loader_next(loader, &sent) == LK_OK);
    REQUIRE(memcmp(sent.indices, batch->indices, (size_t)batch->count * sizeof(int64_t)) == 0);
    *bytes = (size_t)gather->count * EACH;
    REQUIRE(lk__device_alloc(device, LK_MEMORY_OTHER, *bytes, &raw) == LK_OK);
    for (int f = 0; f < gather->count; f++) {
        gather->fields[f].samples = raw + f * EACH;
        REQUIRE(lk__device_write(device, NULL, gather->fields[f].samples, sent.fields[f],
                                 (size_t)batch->count * lk_field_bytes(&sent.about[f])) == LK_OK);
    }
    lk_loader_free(loader);
    return raw;
}

/* Makes the rows of a batch on the device and compares their bytes with the loader's. */
static void compare_rows(const row_case *c, lk__gather_memory *m, const lk_batch *batch, const lk_loader_config *config,
                         const lk_loader_config *stored)
{
    lk__device       *device = m->device;
    lk__kernel_step   step = {.step = 1, .epoch = batch->epoch, .count = batch->count, .seed = config->seed};
    size_t            header = LK__DEVICE_IDS + 64 * sizeof(int64_t), sent = 0;
    lk__device_gather gather = m->gather;
    lk__op_attrs      attrs = {.by_row = gather.by_row,
                               .padding = gather.transform.padding,
                               .probability = gather.transform.flip,
                               .cutout = gather.transform.cutout};
    lk__kernel_call   call = {.attrs = &attrs, .device = device, .pool = lk__context_pool(device->context)};
    char             *memory, *raw = NULL;
    REQUIRE(lk__device_alloc(device, LK_MEMORY_OTHER, header, &memory) == LK_OK);
    REQUIRE(lk__device_write(device, NULL, memory, &step, sizeof step) == LK_OK);
    REQUIRE(lk__device_write(device, NULL, memory + LK__DEVICE_IDS, batch->indices,
                             (size_t)batch->count * sizeof(int64_t)) == LK_OK);
    if (gather.by_row) raw = send_samples(device, batch, stored, &gather, &sent);
    describe_call(&gather, batch->count, memory, &call);
    for (int f = 0; f < gather.count; f++)
        REQUIRE(lk__device_alloc(device, LK_MEMORY_OTHER, (size_t)batch->count * lk_field_bytes(&batch->about[f]),
                                 (char **)&call.out[LK__ROWS_OUT + f].data) == LK_OK);
    lk__device_kernel kernel = device->backend->kernels.find(device, LK__OP_sample_rows, gather.element, &call);
    REQUIRE(kernel.run && (!kernel.prepare || kernel.prepare(device, &kernel, &call) == LK_OK));
    REQUIRE(kernel.run(&call) == LK_OK, "%s", lk_context_error(device->context));
    for (int f = 0; f < gather.count; f++) {
        size_t bytes = (size_t)batch->count * lk_field_bytes(&batch->about[f]);
        char  *made = malloc(bytes), *rows = call.out[LK__ROWS_OUT + f].data;
        REQUIRE(made && lk__device_read(device, NULL, made, rows, bytes) == LK_OK);
        CHECK(memcmp(made, batch->fields[f], bytes) == 0, "%s %s to %s, epoch %lld, %lld rows, %s",
              batch->about[f].name, lk_dtype_name(c->type), lk_dtype_name(c->out), (long long)batch->epoch,
              (long long)batch->count, gather.by_row ? "by row" : "by id");
        free(made);
        lk__device_free(device, LK_MEMORY_OTHER, rows, bytes);
    }
    lk__device_free(device, LK_MEMORY_OTHER, raw, sent);
    lk__device_free(device, LK_MEMORY_OTHER, memory, header);
}

static void check_rows(const row_case *c)
{
    lk_context       *context = open_context();
    lk__device       *device = lk__context_device(context);
    lk_dataset       *d = make_data(context, c->type, c->rank, c->dims);
    lk_loader_config  config = LK_LOADER_CONFIG_INIT, stored;
    lk_loader        *loader;
    lk__gather_memory memory[2];
    lk_batch          batch;
    if (c->spread) spread_records(d);
    if (c->kept) keep_some(d);
    config.dataset = d;
    config.batch = 19; /* the last batch of an epoch is smaller */
    config.shuffle = true;
    config.seed = 0x1234567890abcdefu;
    config.dtype = c->out;
    config.transform = c->transform;
    stored = lk__gather_stored(&config);
    int ways = c->type == LK_U8 && !c->transform.raw ? 2 : 1;
    CHECK((lk__gather_refused(device, &config) == NULL) == makes_batches(context));
    CHECK(lk__gather_sends_bytes(device, &config) == (makes_batches(context) && ways == 2));
    for (int way = 0; way < ways; way++) {
        size_t before = lk_context_memory(context, LK_MEMORY_DATA);
        REQUIRE(lk__gather_create(device, &config, way == 1, &memory[way]) == LK_OK, "%s", lk_context_error(context));
        CHECK(lk_context_memory(context, LK_MEMORY_DATA) - before == lk__gather_bytes(&config, way == 1));
    }
    REQUIRE(lk_loader_create(context, &config, &loader) == LK_OK, "%s", lk_context_error(context));
    for (int epoch = 0; epoch < 2;) {
        lk_status status = lk_loader_next(loader, &batch);
        REQUIRE(status >= 0);
        epoch += status == LK_END;
        for (int way = 0; way < ways && status == LK_OK; way++) compare_rows(c, &memory[way], &batch, &config, &stored);
    }
    for (int way = 0; way < ways; way++) lk__gather_free(&memory[way]);
    lk_loader_free(loader);
    lk_dataset_free(d);
    lk_context_free(context);
}

static void rows_have_the_bits_of_the_loaders(void)
{
    lk_transform plain = LK_TRANSFORM_INIT, crop = plain, all, one;
    crop.crop_padding = 3;
    crop.flip = 0.5;
    all = crop;
    all.channels = 3;
    all.cutout = 5;
    for (int i = 0; i < 3; i++) all.mean[i] = 0.4 + 0.03 * i, all.std[i] = 0.2 + 0.07 * i;
    one = crop;
    one.channels = 1;
    one.mean[0] = 0.1307;
    one.std[0] = 0.3081;
    lk_transform raw = plain, wide = crop;
    raw.raw = true;
    wide.crop_padding = 40; /* more than the image: some crops are all border */
    const row_case cases[] = {
        {LK_U8, LK_F32, 3, {3, 9, 8}, all, false, false},    {LK_U8, LK_F32, 3, {3, 9, 8}, all, true, true},
        {LK_U8, LK_F64, 3, {3, 9, 8}, all, false, false},    {LK_U8, LK_F32, 3, {1, 7, 5}, crop, false, true},
        {LK_U8, LK_F32, 3, {2, 28, 28}, one, true, false},   {LK_U8, LK_F32, 3, {1, 4, 4}, wide, false, false},
        {LK_U8, LK_F32, 3, {3, 32, 32}, plain, true, false}, {LK_U8, LK_F64, 1, {37}, plain, false, false},
        {LK_F32, LK_F32, 3, {3, 9, 8}, all, false, false},   {LK_F32, LK_F64, 3, {3, 9, 7}, all, true, false},
        {LK_F32, LK_F32, 1, {64}, plain, false, false},      {LK_F32, LK_F32, 1, {33}, plain, true, false},
        {LK_F32, LK_F64, 1, {33}, plain, false, false},      {LK_U8, LK_F32, 3, {3, 5, 5}, raw, true, false},
        {LK_F32, LK_F32, 3, {2, 3, 3}, crop, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_rows(&cases[i]);
}

/* ---- trainers ---- */

enum { MOST_STEPS = 64, RANKS = 2 };

typedef struct outcome {
    double   losses[MOST_STEPS], tests[MOST_STEPS];
    int      steps, evaluations;
    bool     on_device;
    uint64_t hash;
    size_t   held[LK_MEMORY_COUNT], planned[LK_MEMORY_COUNT];
} outcome;

typedef struct run {
    lk_data_place place;
    bool          features, callbacks;
    lk_dtype      dtype;
    int           world, accumulate, leaves;
    int64_t       steps;
    const char   *save, *resume_from;
    outcome      *out;
} run;

static lk_tensor tiny(lk_tensor x)
{
    x = lk_max_pool2d(lk_relu(lk_conv2d(x, "conv", 4, 3, .padding = 1)), 2);
    return lk_linear(lk_dropout(lk_flatten(x), 0.2), "fc", 10);
}
static lk_tensor flat(lk_tensor x) { return lk_linear(lk_relu(lk_linear(lk_flatten(x), "fc1", 16)), "fc2", 10); }

static int note_event(void *user, const lk_event *e)
{
    outcome *o = user;
    if (e->kind == LK_EVENT_STEP && o->steps < MOST_STEPS) o->losses[o->steps++] = e->loss;
    if (e->kind == LK_EVENT_EVALUATED && o->evaluations < MOST_STEPS) o->tests[o->evaluations++] = e->loss;
    return 0;
}

static lk_status get_image(void *user, int64_t index, void *const *fields)
{
    (void)user;
    for (int i = 0; i < 64; i++) ((unsigned char *)fields[0])[i] = (unsigned char)pattern(index, i);
    *(int32_t *)fields[1] = (int32_t)(pattern(index, 5) % 10);
    return LK_OK;
}

static lk_dataset *open_images(lk_context *context, const run *r, lk_split split)
{
    lk_dataset *d;
    if (!r->callbacks) {
        const char *name = r->features ? "synthetic:24,count=45" : "synthetic:1x8x8,count=45";
        REQUIRE(lk_dataset_open(context, name, split, NULL, &d) == LK_OK, "%s", lk_context_error(context));
        return d;
    }
    lk_field                    fields[] = {{.name = "image", .dtype = LK_U8, .rank = 3, .dims = {1, 8, 8}},
                                            {.name = "label", .dtype = LK_I32, .classes = 10}};
    lk_dataset_callbacks_config config = LK_DATASET_CALLBACKS_CONFIG_INIT;
    config.count = 45;
    config.fields = fields;
    config.fields_count = 2;
    config.get = get_image;
    REQUIRE(lk_dataset_from_callbacks(context, &config, &d) == LK_OK, "%s", lk_context_error(context));
    return d;
}

/* Kinds of memory that depend on where batches are made. LK_MEMORY_DATA: without what the data sets themselves hold. */
static void note_memory(lk_context *context, const lk_trainer_config *config, const size_t *before, outcome *o)
{
    lk_graph *graph;
    lk_plan  *plan;
    for (int i = 0; i < LK_MEMORY_COUNT; i++) o->held[i] = lk_context_memory(context, (lk_memory)i) - before[i];
    REQUIRE(lk_trainer_plan(context, config, &graph, &plan, o->planned) == LK_OK, "%s", lk_context_error(context));
    lk_plan_free(plan);
    lk_graph_free(graph);
}

static int run_rank(int rank, void *user)
{
    const run        *r = user;
    lk_context       *context = open_context();
    lk_dataset       *train = open_images(context, r, LK_SPLIT_TRAIN), *test = open_images(context, r, LK_SPLIT_TEST);
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    lk_comm_config    joining = LK_COMM_CONFIG_INIT;
    lk_comm          *comm = NULL;
    lk_trainer       *t;
    size_t            before[LK_MEMORY_COUNT];
    joining.join_ms = joining.timeout_ms = 60000;
    if (r->world > 1) REQUIRE(lk_comm_create(context, &joining, &comm) == LK_OK, "%s", lk_context_error(context));
    config.model = r->features ? flat : tiny;
    config.train = train;
    config.test = test;
    config.comm = comm;
    config.dtype = r->dtype;
    config.batch = 13; /* 45 samples: the last batch of an epoch has 6 */
    config.steps = r->steps ? r->steps : 11;
    config.accumulate = r->accumulate;
    config.leaves = r->leaves;
    config.seed = 3;
    config.workers = 0;
    config.save = r->save;
    config.resume_from = r->resume_from;
    config.event = rank == 0 ? note_event : NULL;
    config.event_user = r->out;
    config.data_on_device = r->place;
    if (!r->features) config.transform.crop_padding = 2, config.transform.flip = 0.5;
    for (int i = 0; i < LK_MEMORY_COUNT; i++) before[i] = lk_context_memory(context, (lk_memory)i);
    REQUIRE(lk_trainer_create(context, &config, &t) == LK_OK, "%s", lk_context_error(context));
    if (rank == 0) note_memory(context, &config, before, r->out);
    REQUIRE(lk_trainer_run(t) == LK_OK, "%s", lk_context_error(context));
    if (rank == 0) r->out->hash = lk_store_hash(lk_trainer_store(t));
    if (rank == 0) r->out->on_device = lk_trainer_data_on_device(t);
    lk_trainer_free(t);
    lk_comm_free(comm);
    lk_dataset_free(train);
    lk_dataset_free(test);
    lk_context_free(context);
    return check_result();
}

/* In processes of their own: where a device was used, no rank can be forked. */
static void train(run r, outcome *out)
{
    lk_spawn_result result;
    outcome        *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    r.out = shared;
    if (r.world == 0) r.world = 1;
    check_ranks_announced(r.world);
    CHECK(lk_spawn(r.world, run_rank, &r, &result) == LK_OK, "%s", result.text);
    *out = *shared;
    munmap(shared, sizeof *shared);
}

static void check_equal(const char *what, const outcome *a, const outcome *b)
{
    CHECK(a->steps == b->steps && a->steps > 0 && a->evaluations == b->evaluations, "%s: %d and %d steps", what,
          a->steps, b->steps);
    CHECK(memcmp(a->losses, b->losses, sizeof a->losses) == 0, "%s: other losses, as %.17g and %.17g", what,
          a->losses[0], b->losses[0]);
    CHECK(memcmp(a->tests, b->tests, sizeof a->tests) == 0, "%s: other losses of the test set", what);
    CHECK(a->hash == b->hash, "%s: other weights", what);
}

static void check_memory(const char *what, const outcome *o)
{
    static const lk_memory kinds[] = {LK_MEMORY_STAGING, LK_MEMORY_LOADER, LK_MEMORY_DATA, LK_MEMORY_ACTIVATIONS};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        CHECK(o->held[kinds[i]] == o->planned[kinds[i]], "%s, %s: held %zu, planned %zu", what,
              lk_memory_name(kinds[i]), o->held[kinds[i]], o->planned[kinds[i]]);
}

/* Trains twice, with the batches of the host and with those of the device. */
static void compare_places(const char *what, run r)
{
    outcome host, device;
    r.place = LK_DATA_ON_HOST;
    train(r, &host);
    r.place = r.callbacks ? LK_DATA_AUTO : LK_DATA_ON_DEVICE;
    train(r, &device);
    CHECK(!host.on_device && host.planned[LK_MEMORY_DATA] == 0, "%s", what);
    CHECK(device.on_device == !r.callbacks && device.planned[LK_MEMORY_DATA] > 0, "%s", what);
    check_equal(what, &host, &device);
    check_memory(what, &host);
    check_memory(what, &device);
}

static void trainers_have_the_bits_of_the_hosts_batches(void)
{
    compare_places("u8 images, crops and flips", (run){.dtype = LK_F32});
    compare_places("u8 images in f64", (run){.dtype = LK_F64});
    compare_places("f32 features", (run){.dtype = LK_F32, .features = true});
    compare_places("f32 features in f64", (run){.dtype = LK_F64, .features = true});
    compare_places("micro-batches", (run){.dtype = LK_F32, .accumulate = 3});
    compare_places("leaves", (run){.dtype = LK_F32, .leaves = 4});
    compare_places("two ranks", (run){.dtype = LK_F32, .world = 2});
    compare_places("two ranks with leaves", (run){.dtype = LK_F32, .world = 2, .leaves = 4});
}

static void images_that_are_read_are_sent_as_bytes(void)
{
    compare_places("bytes", (run){.dtype = LK_F32, .callbacks = true});
    compare_places("bytes in micro-batches", (run){.dtype = LK_F64, .callbacks = true, .accumulate = 2});
    compare_places("bytes in leaves", (run){.dtype = LK_F32, .callbacks = true, .leaves = 4});
    compare_places("bytes in two ranks", (run){.dtype = LK_F32, .callbacks = true, .world = 2});
}

static void a_run_resumes_with_the_same_batches(void)
{
    char    saved[96];
    outcome whole, first, rest;
    snprintf(saved, sizeof saved, "%s/saved", root);
    train((run){.dtype = LK_F32, .place = LK_DATA_ON_HOST}, &whole);
    train((run){.dtype = LK_F32, .place = LK_DATA_ON_DEVICE, .steps = 6, .save = saved}, &first);
    train((run){.dtype = LK_F32, .place = LK_DATA_ON_DEVICE, .resume_from = saved}, &rest);
    REQUIRE(first.steps == 6 && rest.steps == 5 && whole.steps == 11);
    CHECK(memcmp(whole.losses, first.losses, 6 * sizeof *whole.losses) == 0);
    CHECK(memcmp(whole.losses + 6, rest.losses, 5 * sizeof *whole.losses) == 0);
    CHECK(whole.hash == rest.hash);
}

/* ---- what is refused ---- */

static void check_refused(lk_context *context, lk_trainer_config *config, const char *text)
{
    lk_trainer *t;
    size_t      memory[LK_MEMORY_COUNT];
    lk_graph   *graph;
    lk_plan    *plan;
    config->data_on_device = LK_DATA_ON_DEVICE;
    CHECK(lk_trainer_create(context, config, &t) == LK_EINVAL && strstr(lk_context_error(context), text), "%s",
          lk_context_error(context));
    lk_trainer_free(t);
    CHECK(lk_trainer_plan(context, config, &graph, &plan, memory) == LK_EINVAL, "%s", text);
    config->data_on_device = LK_DATA_AUTO;
    REQUIRE(lk_trainer_create(context, config, &t) == LK_OK, "%s", lk_context_error(context));
    CHECK(!lk_trainer_data_on_device(t), "%s", text);
    lk_trainer_free(t);
}

static void what_the_device_cannot_do_is_said(void)
{
    lk_context       *context = open_context();
    bool              makes = makes_batches(context);
    run               images = {.callbacks = false}, callbacks = {.callbacks = true};
    lk_dataset       *d = open_images(context, &images, LK_SPLIT_TRAIN), *read = open_images(context, &callbacks, 0);
    lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
    config.model = tiny;
    config.train = d;
    config.batch = 13;
    config.workers = 0;
    if (!makes) check_refused(context, &config, "kernels run on the CPU");
    config.transform.rotate = 10;
    check_refused(context, &config, makes ? "rotations" : "kernels run on the CPU");
    config.transform.rotate = 0;
    config.transform.mixup = 0.2;
    check_refused(context, &config, makes ? "mixup" : "kernels run on the CPU");
    config.transform.mixup = 0;
    config.train = read;
    check_refused(context, &config, makes ? "created on demand" : "kernels run on the CPU");
    lk_dataset_free(d);
    lk_dataset_free(read);
    lk_context_free(context);
}

/* Borrowed arrays may change after they were checked. */
static void a_label_out_of_range_is_named(void)
{
    lk_context              *context = open_context();
    static unsigned char     images[20][1][8][8];
    int32_t                  labels[20] = {0};
    lk_field                 fields[] = {{.name = "image", .dtype = LK_U8, .rank = 3, .dims = {1, 8, 8}},
                                         {.name = "label", .dtype = LK_I32, .classes = 10}};
    lk_dataset_arrays_config arrays = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_trainer_config        config = LK_TRAINER_CONFIG_INIT;
    lk_dataset              *d;
    lk_trainer              *t;
    arrays.count = 20;
    arrays.fields = fields;
    arrays.fields_count = 2;
    arrays.data = (const void *[]){images, labels};
    REQUIRE(lk_dataset_from_arrays(context, &arrays, &d) == LK_OK);
    labels[7] = 10;
    config.model = tiny;
    config.train = d;
    config.batch = 8;
    lk_status status = lk_trainer_create(context, &config, &t);
    if (makes_batches(context))
        CHECK(status == LK_EINVAL && strstr(lk_context_error(context), "sample 7 of 20 has label 10"), "%s",
              lk_context_error(context));
    lk_trainer_free(t);
    lk_dataset_free(d);
    lk_context_free(context);
}

static int check_device(int rank, void *user)
{
    lk_context *context = open_context();
    (void)rank;
    *(bool *)user = makes_batches(context);
    lk_context_free(context);
    return 0;
}

int main(void)
{
    setenv("LOCKSTEP_CUDA_MEASURE", "0", 1); /* two runs that are compared choose the same algorithms */
    bool *makes = mmap(NULL, sizeof *makes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(makes != MAP_FAILED && mkdtemp(root) && lk_spawn(1, check_device, makes, NULL) == LK_OK);
    if (*makes) { /* ranks are forked before this process uses the device */
        RUN(trainers_have_the_bits_of_the_hosts_batches);
        RUN(images_that_are_read_are_sent_as_bytes);
        RUN(a_run_resumes_with_the_same_batches);
    }
    RUN(rows_have_the_bits_of_the_loaders);
    RUN(what_the_device_cannot_do_is_said);
    RUN(a_label_out_of_range_is_named);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", root);
    CHECK(system(command) == 0);
    return check_result();
}
