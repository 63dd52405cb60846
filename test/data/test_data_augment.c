/* test_data_augment.c - augmentation: pixels as torchvision's functional transforms make them (stored values), random
 * numbers with the moments of their distributions, batches that depend neither on workers nor on shares, mixup against
 * the samples it mixes.
 *
 * ctest: label threaded */
#define _GNU_SOURCE
#include "support.h"

#include "base/random.h"
#include "data/augment/augment.h"
#include "data/dataset.h"

#include <lockstep/trainer.h>

static lk_context *context;

/* ---- pixels ---- */

typedef struct picture {
    lk__augment_image image;
    int64_t           elements;
    float             pixels[3 * 13 * 17], changed[3 * 13 * 17];
} picture;

static picture draw_picture(uint64_t seed, int64_t channels, int64_t height, int64_t width)
{
    picture p = {.image = {channels, height, width}, .elements = channels * height * width};
    for (int64_t i = 0; i < p.elements; i++) p.pixels[i] = (float)number(seed, (uint64_t)i);
    return p;
}

static void compare(lk__safetensors *file, const char *prefix, const char *name, const picture *p)
{
    int64_t count;
    double *stored = golden(file, prefix, name, &count), worst = 0;
    REQUIRE(count == p->elements);
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)p->changed[i] - stored[i]);
        if (!(difference <= worst)) worst = difference;
    }
    CHECK(worst < 2e-6, "%s%s differs from torchvision's by %g", prefix, name, worst);
    free(stored);
}

static void compare_color(lk__safetensors *file, const char *prefix, const char *name, picture *p, int which,
                          double factor)
{
    double             strength[LK__COLORS] = {0};
    lk__augment_jitter jitter = {.order = {0, 1, 2, 3}};
    strength[which] = 1;
    jitter.factors[which] = factor;
    memcpy(p->changed, p->pixels, sizeof p->pixels);
    lk__augment_color(&p->image, p->changed, &jitter, strength);
    compare(file, prefix, name, p);
}

static void pixels_are_those_of_torchvision(void)
{
    lk__safetensors *file = golden_open(context, "augment.safetensors");
    picture          pictures[] = {draw_picture(1, 3, 13, 17), draw_picture(2, 1, 8, 5)};
    for (int k = 0; k < 2; k++) {
        picture        *p = &pictures[k];
        const char     *prefix = k ? "2." : "1.";
        char            name[32];
        int64_t         height = p->image.height, width = p->image.width;
        lk__augment_box boxes[] = {{0, 0, height, width}, {2, 1, 4, 3}, {height - 1, 0, 1, width}, {3, 2, 5, 3}};
        double          angles[] = {0, 90, -33.5, 7.25, 180}, factors[] = {0, 0.5, 1.7}, hues[] = {-0.5, 0.11, 0.4};
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "resize.%d", i);
            lk__augment_resize(&p->image, p->pixels, boxes[i], p->changed);
            compare(file, prefix, name, p);
        }
        for (int i = 0; i < 5; i++) {
            snprintf(name, sizeof name, "rotate.%d", i);
            lk__augment_rotate(&p->image, p->pixels, angles[i], p->changed);
            compare(file, prefix, name, p);
        }
        for (int i = 0; i < 3; i++) {
            static const char *const names[] = {"brightness", "contrast", "saturation", "hue"};
            for (int which = 0; which < LK__COLORS; which++) {
                snprintf(name, sizeof name, "%s.%d", names[which], i);
                compare_color(file, prefix, name, p, which, which == LK__HUE ? hues[i] : factors[i]);
            }
        }
        memcpy(p->changed, p->pixels, sizeof p->pixels);
        lk__augment_color(&p->image, p->changed, &(lk__augment_jitter){{1.3, 1.4, 0.6, 0.2}, {3, 0, 2, 1}},
                          (double[]){1, 1, 1, 0.5});
        compare(file, prefix, "jitter", p);
    }
    lk__safetensors_close(file);
}

/* ---- random numbers ---- */

typedef struct moments {
    double sum, squares, low, high;
    int    count;
} moments;

static void add_value(moments *m, double v)
{
    if (m->count == 0) m->low = m->high = v;
    m->low = fmin(m->low, v), m->high = fmax(m->high, v);
    m->sum += v, m->squares += v * v, m->count++;
}

/* Mean and variance within five standard errors of a distribution on an interval of that width. */
static void check_moments(const char *what, const moments *m, double mean, double variance, double width)
{
    double n = m->count, own = m->sum / n, spread = m->squares / n - own * own;
    CHECK(fabs(own - mean) < 5 * sqrt(variance / n), "%s: mean %g, expected %g", what, own, mean);
    CHECK(fabs(spread - variance) < 5 * width * sqrt(variance / n), "%s: variance %g, expected %g", what, spread,
          variance);
}

enum { DRAWS = 40000 };

static void boxes_have_the_area_and_ratio_of_torchvisions(void)
{
    lk__random        random = lk__random_make(5, LK__FOR_AUGMENT, 3);
    lk__augment_image image = {3, 1000, 1000};
    double            ratio[2] = {3.0 / 4, 4.0 / 3}, width = log(16.0 / 9);
    moments           area = {0}, log_ratio = {0}, top = {0};
    for (int64_t i = 0; i < DRAWS; i++) {
        /* Boxes of up to half of the image always fit, so nothing is drawn again. */
        lk__augment_box box = lk__augment_draw_box(&random, i, &image, (double[]){0.08, 0.5}, ratio);
        CHECK(box.top >= 0 && box.left >= 0 && box.top + box.height <= 1000 && box.left + box.width <= 1000);
        add_value(&area, (double)(box.height * box.width) / 1e6);
        add_value(&log_ratio, log((double)box.width / (double)box.height));
        add_value(&top, (double)box.top / (double)(1000 - box.height));
    }
    check_moments("area", &area, 0.29, 0.42 * 0.42 / 12, 0.42);
    check_moments("log of the ratio", &log_ratio, 0, width * width / 12, width);
    check_moments("top", &top, 0.5, 1.0 / 12, 1);
    /* Where no ratio fits, the largest box in the middle: 100 × 3 allows a width of at most 4/3 × 3. */
    lk__augment_image flat = {1, 3, 100};
    lk__augment_box   box = lk__augment_draw_box(&random, 1, &flat, (double[]){1, 1}, ratio);
    CHECK(box.height == 3 && box.width == 4 && box.top == 0 && box.left == 48);
}

static void jitter_is_uniform_and_in_any_order(void)
{
    lk__random random = lk__random_make(6, LK__FOR_AUGMENT, 0);
    double     strength[LK__COLORS] = {0.4, 1.5, 0.2, 0.1};
    moments    factors[LK__COLORS] = {0};
    int        orders[256] = {0}, different = 0;
    for (int64_t i = 0; i < DRAWS; i++) {
        lk__augment_jitter j = lk__augment_draw_jitter(&random, i, strength);
        for (int k = 0; k < LK__COLORS; k++) add_value(&factors[k], j.factors[k]);
        orders[j.order[0] * 64 + j.order[1] * 16 + j.order[2] * 4 + j.order[3]]++;
    }
    check_moments("brightness", &factors[0], 1, 0.8 * 0.8 / 12, 0.8);
    check_moments("contrast", &factors[1], 1.25, 2.5 * 2.5 / 12, 2.5); /* not below 0 */
    check_moments("saturation", &factors[2], 1, 0.4 * 0.4 / 12, 0.4);
    check_moments("hue", &factors[3], 0, 0.2 * 0.2 / 12, 0.2);
    CHECK(factors[1].low >= 0 && factors[3].low >= -0.1 && factors[3].high <= 0.1);
    for (int i = 0; i < 256; i++) {
        if (orders[i] == 0) continue;
        different++;
        CHECK(abs(orders[i] - DRAWS / 24) < 5 * 41, "order %d occurs %d times of %d", i, orders[i], DRAWS);
    }
    CHECK(different == 24);
}

/* The part of Beta(a, a) below x: by the substitution t = s^(1/a), which removes the pole at 0, and the midpoint
 * rule. */
static double beta_below(double a, double x)
{
    double parts[2] = {0, 0}, ends[2] = {pow(x, a), pow(0.5, a)};
    int    n = 20000;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < n; i++) parts[k] += pow(1 - pow(ends[k] * (i + 0.5) / n, 1 / a), a - 1) * ends[k] / n;
    return 0.5 * parts[0] / parts[1]; /* half of it is below 1/2 */
}

static void mixing_weights_are_beta_distributed(void)
{
    static const double alphas[] = {0.05, 0.2, 1, 3};
    for (int k = 0; k < 4; k++) {
        double  a = alphas[k], variance = 1 / (4 * (2 * a + 1)), expected = beta_below(a, 0.1);
        moments mix = {0}, partner = {0};
        int     below = 0, above = 0;
        for (int64_t i = 0; i < DRAWS; i++) {
            lk__augment_mixup m = lk__mixup_draw(9, 2, i, 1000, a);
            CHECK(m.mix >= 0 && m.mix <= 1 && m.partner >= 0 && m.partner < 1000);
            add_value(&mix, m.mix);
            add_value(&partner, (double)m.partner);
            below += m.mix < 0.1;
            above += m.mix > 0.9;
        }
        double error = 5 * sqrt(expected * (1 - expected) / DRAWS);
        check_moments("mix", &mix, 0.5, variance, 1);
        check_moments("partner", &partner, 499.5, (1000.0 * 1000 - 1) / 12, 1000);
        CHECK(fabs((double)below / DRAWS - expected) < error && fabs((double)above / DRAWS - expected) < error,
              "alpha %g: %d below 0.1, %d above 0.9 of %d, expected %g", a, below, above, DRAWS, expected);
    }
}

/* The same on every machine. */
static void mixing_weights_have_fixed_bits(void)
{
    static const struct {
        int64_t index, partner;
        double  mix;
    } stored[] = {{0, 18303, 0x1.5b098e9933df6p-1},
                  {1, 21799, 0x1.9b85a24427f18p-2},
                  {2, 24080, 0x1.9fc819253d7d9p-3},
                  {12345, 34612, 0x1.76dc5ccd5d014p-4},
                  {49999, 1962, 0x1.67e19c6330f18p-7}};
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++) {
        lk__augment_mixup m = lk__mixup_draw(7, 4, stored[i].index, 50000, 0.4);
        CHECK(m.partner == stored[i].partner && m.mix == stored[i].mix, "sample %lld: {%lld, %lld, %a}",
              (long long)stored[i].index, (long long)stored[i].index, (long long)m.partner, m.mix);
    }
}

/* ---- batches ---- */

enum { COUNT = 37, SIDE = 9, ELEMENTS = 3 * SIDE * SIDE };

static lk_dataset *make_images(lk_dtype type)
{
    static unsigned char bytes[COUNT * ELEMENTS];
    static float         floats[COUNT * ELEMENTS];
    static int32_t       labels[COUNT];
    for (int i = 0; i < COUNT * ELEMENTS; i++) {
        bytes[i] = (unsigned char)(number_bits(3, (uint64_t)i) >> 56);
        floats[i] = (float)bytes[i] / 255.0f;
    }
    for (int i = 0; i < COUNT; i++) labels[i] = i * 5 % 7;
    lk_field                 fields[] = {{.name = "image", .dtype = type, .rank = 3, .dims = {3, SIDE, SIDE}},
                                         {.name = "label", .dtype = LK_I32, .classes = 7}};
    lk_dataset_arrays_config c = LK_DATASET_ARRAYS_CONFIG_INIT;
    lk_dataset              *d = NULL;
    c.count = COUNT, c.fields = fields, c.fields_count = 2;
    c.data = (const void *[]){type == LK_U8 ? (const void *)bytes : floats, labels};
    c.copy = true;
    REQUIRE(lk_dataset_from_arrays(context, &c, &d) == LK_OK, "%s", lk_context_error(context));
    return d;
}

static lk_loader_config everything(const lk_dataset *d)
{
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    c.dataset = d, c.batch = 8, c.shuffle = true, c.seed = 11;
    lk_transform *t = &c.transform;
    t->crop_padding = 2, t->flip = 0.5, t->rotate = 20, t->cutout = 3, t->mixup = 0.4;
    t->resized_crop[0] = 0.3, t->resized_crop[1] = 1;
    memcpy(t->color_jitter, (double[]){0.4, 0.4, 0.4, 0.1}, sizeof t->color_jitter);
    return c;
}

/* Everything a loader returns in an epoch, by sample. */
typedef struct epoch {
    double  rows[COUNT][ELEMENTS], mix[COUNT];
    int32_t label[COUNT], label_2[COUNT];
    int     seen[COUNT];
} epoch;

static void read_batch(const lk_batch *b, epoch *e)
{
    int mixes = b->fields_count == 4;
    for (int64_t i = 0; i < b->count; i++) {
        int64_t at = b->indices[i];
        e->seen[at]++;
        for (int k = 0; k < ELEMENTS; k++) e->rows[at][k] = real_at(b->fields[0], b->about[0].dtype, i * ELEMENTS + k);
        e->label[at] = ((const int32_t *)b->fields[1])[i];
        e->label_2[at] = mixes ? ((const int32_t *)b->fields[2])[i] : -1;
        e->mix[at] = mixes ? real_at(b->fields[3], b->about[3].dtype, i) : 1;
    }
}

static epoch *read_epoch(lk_loader_config c, int64_t number_of_epoch, int parts)
{
    epoch *e = calloc(1, sizeof *e);
    for (int part = 0; part < parts; part++) {
        lk_loader *loader;
        lk_batch   b;
        if (parts > 1) c.parts = parts, c.first_part = part, c.last_part = part + 1;
        size_t before = lk_context_memory(context, LK_MEMORY_LOADER);
        REQUIRE(lk_loader_create(context, &c, &loader) == LK_OK, "%s", lk_context_error(context));
        CHECK(lk_context_memory(context, LK_MEMORY_LOADER) - before == lk_loader_bytes(&c));
        REQUIRE(lk_loader_seek(loader, number_of_epoch, 0) == LK_OK);
        while (lk_loader_next(loader, &b) == LK_OK) read_batch(&b, e);
        lk_loader_free(loader);
    }
    for (int i = 0; i < COUNT; i++) CHECK(e->seen[i] == 1);
    return e;
}

static void samples_depend_neither_on_workers_nor_on_shares(void)
{
    static const lk_dtype types[] = {LK_U8, LK_F32}, wide[] = {LK_F32, LK_F64};
    for (int k = 0; k < 4; k++) {
        lk_dataset      *d = make_images(types[k % 2]);
        lk_loader_config c = everything(d);
        c.dtype = wide[k / 2];
        epoch *one = read_epoch(c, 2, 1), *other = read_epoch(c, 3, 1);
        CHECK(memcmp(one->rows, other->rows, sizeof one->rows) != 0);
        CHECK(memcmp(one->mix, other->mix, sizeof one->mix) != 0);
        free(other);
        for (int way = 0; way < 4; way++) {
            c.workers = way % 2 ? 3 : 1;
            other = read_epoch(c, 2, way < 2 ? 1 : 3);
            CHECK(memcmp(one, other, sizeof *one) == 0, "way %d", way);
            free(other);
        }
        free(one);
        lk_dataset_free(d);
    }
}

/* The images of bytes and the same of floats give the same rows, but for the rounding of v / 255. */
static void bytes_and_floats_are_changed_alike(void)
{
    lk_dataset      *bytes = make_images(LK_U8), *floats = make_images(LK_F32);
    lk_loader_config c = everything(bytes);
    epoch           *a = read_epoch(c, 1, 1), *b;
    c.dataset = floats;
    c.transform.channels = 1, c.transform.mean[0] = c.transform.std[0] = 0.5; /* the default of bytes */
    b = read_epoch(c, 1, 1);
    CHECK(memcmp(a, b, sizeof *a) == 0);
    free(a), free(b);
    lk_dataset_free(bytes), lk_dataset_free(floats);
}

static void changes_happen_in_the_documented_order(void)
{
    lk_dataset      *d = make_images(LK_F32);
    lk_loader_config c = everything(d);
    lk__random       random = lk__random_make(c.seed, LK__FOR_AUGMENT, 1);
    double           ratio[2] = {3.0 / 4, 4.0 / 3};
    c.transform.mixup = 0, c.transform.cutout = 0, c.transform.crop_padding = 0, c.transform.flip = 1;
    epoch *e = read_epoch(c, 1, 1);
    for (int64_t i = 0; i < COUNT; i++) {
        static float      a[ELEMENTS], b[ELEMENTS];
        uint32_t          draw[4];
        lk__augment_image image = {3, SIDE, SIDE};
        REQUIRE(lk_dataset_get(d, i, (void *[]){a, NULL}) == LK_OK);
        lk__augment_resize(&image, a, lk__augment_draw_box(&random, i, &image, c.transform.resized_crop, ratio), b);
        for (int k = 0; k < ELEMENTS; k++) a[k] = b[k / SIDE * SIDE + SIDE - 1 - k % SIDE]; /* the flip */
        lk__random4(&random, (uint64_t)i, LK__DRAW_ROTATE, draw);
        lk__augment_rotate(&image, a, 20 * (2 * lk__random_unit(draw[0]) - 1), b);
        lk__augment_jitter jitter = lk__augment_draw_jitter(&random, i, c.transform.color_jitter);
        lk__augment_color(&image, b, &jitter, c.transform.color_jitter);
        for (int k = 0; k < ELEMENTS; k++) CHECK(e->rows[i][k] == (double)b[k]);
    }
    free(e);
    lk_dataset_free(d);
}

static void cutout_clears_one_square(void)
{
    lk_dataset      *d = make_images(LK_U8);
    lk_loader_config c = LK_LOADER_CONFIG_INIT;
    int              whole = 0, centres[SIDE][SIDE] = {{0}}, different = 0;
    c.dataset = d, c.batch = 16;
    for (int n = 0; n < 40; n++) {
        c.transform.cutout = 0;
        epoch *plain = read_epoch(c, n, 1);
        c.transform.cutout = 4;
        epoch *cut = read_epoch(c, n, 1);
        for (int i = 0; i < COUNT; i++) {
            int top = SIDE, left = SIDE, bottom = -1, right = -1;
            for (int y = 0; y < SIDE; y++)
                for (int x = 0; x < SIDE; x++)
                    for (int ch = 0; ch < 3; ch++) {
                        int k = (ch * SIDE + y) * SIDE + x;
                        if (cut->rows[i][k] == plain->rows[i][k]) continue;
                        CHECK(cut->rows[i][k] == 0);
                        top = y < top ? y : top, bottom = y > bottom ? y : bottom;
                        left = x < left ? x : left, right = x > right ? x : right;
                    }
            REQUIRE(bottom >= 0 && bottom - top < 4 && right - left < 4);
            /* A whole square, or cut at an edge: around pixel (top + 2, left + 2). */
            CHECK(bottom - top == 3 || top == 0 || bottom == SIDE - 1);
            CHECK(right - left == 3 || left == 0 || right == SIDE - 1);
            for (int y = top; y <= bottom; y++)
                for (int x = left; x <= right; x++)
                    for (int ch = 0; ch < 3; ch++) CHECK(cut->rows[i][(ch * SIDE + y) * SIDE + x] == 0);
            int centre_y = top ? top + 2 : bottom - 1, centre_x = left ? left + 2 : right - 1;
            REQUIRE(centre_y >= 0 && centre_y < SIDE && centre_x >= 0 && centre_x < SIDE);
            centres[centre_y][centre_x]++;
            whole += bottom - top == 3 && right - left == 3;
        }
        free(plain), free(cut);
    }
    for (int i = 0; i < SIDE * SIDE; i++) different += centres[i / SIDE][i % SIDE] > 0;
    CHECK(different == SIDE * SIDE, "only %d pixels of %d are centres", different, SIDE * SIDE);
    CHECK(whole > 300, "%d", whole);
    lk_dataset_free(d);
}

static void mixup_is_the_weighted_mean_of_two_samples(void)
{
    lk_dataset *d = make_images(LK_U8);
    for (int k = 0; k < 2; k++) {
        lk_loader_config c = everything(d);
        lk_field         field;
        int              fields = 0;
        c.dtype = k ? LK_F64 : LK_F32;
        epoch *mixed = read_epoch(c, 5, 1);
        while (lk_loader_field(&c, fields, &field)) fields++;
        CHECK(fields == 4 && lk_loader_field(&c, 2, &field) && strcmp(field.name, "label_2") == 0 &&
              field.dtype == LK_I32 && field.rank == 0 && field.classes == 7);
        CHECK(lk_loader_field(&c, 3, &field) && strcmp(field.name, "mix") == 0 && field.dtype == c.dtype);
        c.transform.mixup = 0;
        epoch *plain = read_epoch(c, 5, 1);
        for (int i = 0; i < COUNT; i++) {
            lk__augment_mixup m = lk__mixup_draw(c.seed, 5, i, COUNT, 0.4);
            double            mix = k ? m.mix : (double)(float)m.mix;
            CHECK(mixed->mix[i] == mix && mixed->label[i] == plain->label[i] &&
                  mixed->label_2[i] == plain->label[m.partner]);
            for (int e = 0; e < ELEMENTS; e++) {
                double expected = mix * plain->rows[i][e] + (1 - mix) * plain->rows[m.partner][e];
                CHECK(fabs(mixed->rows[i][e] - expected) < (k ? 1e-15 : 3e-7));
            }
        }
        free(mixed), free(plain);
    }
    lk_loader_config c = LK_LOADER_CONFIG_INIT; /* a test set has the fields too */
    c.dataset = d, c.transform.mixup_fields = true;
    epoch *e = read_epoch(c, 0, 1);
    for (int i = 0; i < COUNT; i++) CHECK(e->mix[i] == 1 && e->label_2[i] == e->label[i]);
    free(e);
    lk_dataset_free(d);
}

static void compare_mixup_loss(lk__safetensors *file, lk_dtype type, int variant)
{
    static const int    labels[] = {0, 3, 1, 3, 2}, labels_2[] = {1, 3, 0, 2, 0};
    static const double mixes[] = {0.25, 0.5, 1, 0, 0.875}, weights[] = {1, 0, 2, 0.5, 3};
    char                prefix[32];
    rig                 r = rig_open(type, 1);
    cell                c = {.graph = r.graph, .real = type};
    lk_tensor           logits = lk_scale(OPERAND(&c, PLAIN, 5, 4), 8);
    lk_tensor label = integers(&c, labels, 5, 1, &(int64_t){5}), label_2 = integers(&c, labels_2, 5, 1, &(int64_t){5});
    lk_tensor mix = reals(&c, mixes, 5), weight = variant == 2 ? reals(&c, weights, 5) : (lk_tensor){0};
    lk_plan_config      plan = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config optimizer = LK_OPTIMIZER_CONFIG_INIT;
    plan.optimizer = &optimizer;
    plan.loss = lk_mixup_loss(logits, label, label_2, mix, .label_smoothing = variant == 1 ? 0.1 : 0, .weight = weight);
    rig_plan(&r, &plan, 0);
    cell_fill(&c, &r, 7);
    lk_step step = {.step = 1, .count = 5};
    REQUIRE(lk_program_step(r.program, &step) == LK_OK && lk_program_run(r.program, LK_FORWARD) == LK_OK &&
                lk_program_run(r.program, LK_BACKWARD) == LK_OK,
            "%s", lk_context_error(r.context));
    lk_metrics m = rig_metrics(&r);
    snprintf(prefix, sizeof prefix, "mixup.%d.", variant);
    double *loss = golden(file, prefix, "loss", NULL), *gradient = golden(file, prefix, "gradient", NULL), sum = 0;
    double  exact = type == LK_F64 ? 1e-12 : 1e-5, own[20];
    for (int i = 0; i < 5; i++) sum += variant == 2 ? weights[i] : 1;
    CHECK(fabs(m.loss - loss[0]) < exact && fabs(m.weight - sum) < exact,
          "variant %d: loss %.12g of weight %g, PyTorch's is %.12g", variant, m.loss, m.weight, loss[0]);
    void *data = copy_room(20 * lk_dtype_size(type));
    REQUIRE(lk_program_gradient_read(r.program, "p0", data, 20 * lk_dtype_size(type)) == LK_OK);
    for (int i = 0; i < 20; i++) {
        own[i] = real_at(data, type, i) / 8 / sum; /* of the sum; p0 is a part of 8 */
        CHECK(fabs(own[i] - gradient[i]) < exact, "variant %d, gradient %d: %g, PyTorch's %g", variant, i, own[i],
              gradient[i]);
    }
    const lk_named_metric *accuracy = lk_metrics_find(m.named, m.named_count, "accuracy");
    CHECK(accuracy && accuracy->weight == 5);
    free(loss), free(gradient);
    cell_close(&c);
    rig_close(&r);
}

static void the_loss_of_mixup_is_that_of_pytorch(void)
{
    lk__safetensors *file = golden_open(context, "augment.safetensors");
    for (int variant = 0; variant < 3; variant++) {
        compare_mixup_loss(file, LK_F64, variant);
        compare_mixup_loss(file, LK_F32, variant);
    }
    lk__safetensors_close(file);
}

#define REFUSED(change, text)                                                                            \
    do {                                                                                                 \
        lk_loader_config c = LK_LOADER_CONFIG_INIT;                                                      \
        lk_loader       *loader;                                                                         \
        c.dataset = d;                                                                                   \
        lk_transform *t = &c.transform;                                                                  \
        change;                                                                                          \
        CHECK(lk_loader_create(context, &c, &loader) == LK_EINVAL && strstr(lk_context_error(context), text), \
              "%s: %s", #change, lk_context_error(context));                                             \
        CHECK(lk_loader_bytes(&c) == 0);                                                                 \
    } while (0)

static void invalid_settings_are_refused(void)
{
    lk_dataset *d = make_images(LK_U8);
    REFUSED(t->resized_crop[0] = 0.5, "random resized crop of 0.5 to 0");
    REFUSED((t->resized_crop[0] = 0.5, t->resized_crop[1] = 1.5), "at most 1");
    REFUSED((t->resized_crop[0] = 0.5, t->resized_crop[1] = 1, t->resized_ratio[0] = 2, t->resized_ratio[1] = 1),
            "ratios");
    REFUSED(t->rotate = 181, "rotation by 181");
    REFUSED(t->rotate = NAN, "rotation");
    REFUSED(t->color_jitter[3] = 0.6, "hue 0.6");
    REFUSED(t->color_jitter[0] = -1, "brightness -1");
    REFUSED(t->cutout = -1, "cutout");
    REFUSED(t->mixup = -1, "mixup of -1");
    REFUSED((t->mixup = 1, t->raw = true), "raw");
    lk_dataset_free(d);
    float                    numbers[4] = {0};
    lk_field                 flat[] = {{.name = "features", .dtype = LK_F32, .rank = 1, .dims = {2}}};
    lk_dataset_arrays_config arrays = LK_DATASET_ARRAYS_CONFIG_INIT;
    arrays.count = 2, arrays.fields = flat, arrays.fields_count = 1, arrays.data = (const void *[]){numbers};
    REQUIRE(lk_dataset_from_arrays(context, &arrays, &d) == LK_OK);
    REFUSED(t->rotate = 5, "(channels, height, width)");
    REFUSED(t->cutout = 5, "(channels, height, width)");
    REFUSED(t->mixup = 1, "needs a field \"label\"");
    lk_dataset_free(d);
    lk_field grey[] = {{.name = "image", .dtype = LK_F32, .rank = 3, .dims = {1, 2, 1}}};
    arrays.fields = grey;
    REQUIRE(lk_dataset_from_arrays(context, &arrays, &d) == LK_OK);
    REFUSED(t->color_jitter[2] = 0.5, "needs images of 3 channels");
    lk_dataset_free(d);
}

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    config.threads = 1;
    REQUIRE(lk_context_create(&config, &context) == LK_OK);
    RUN(pixels_are_those_of_torchvision);
    RUN(boxes_have_the_area_and_ratio_of_torchvisions);
    RUN(jitter_is_uniform_and_in_any_order);
    RUN(mixing_weights_are_beta_distributed);
    RUN(mixing_weights_have_fixed_bits);
    RUN(samples_depend_neither_on_workers_nor_on_shares);
    RUN(bytes_and_floats_are_changed_alike);
    RUN(changes_happen_in_the_documented_order);
    RUN(cutout_clears_one_square);
    RUN(mixup_is_the_weighted_mean_of_two_samples);
    RUN(the_loss_of_mixup_is_that_of_pytorch);
    RUN(invalid_settings_are_refused);
    CHECK(lk_context_memory(context, LK_MEMORY_LOADER) == 0 && lk_context_memory(context, LK_MEMORY_DATA) == 0);
    lk_context_free(context);
    return check_result();
}
