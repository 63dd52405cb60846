/* test_kernels_batch.c - the operations around a step, sample_rows and choose_tokens, against naive loops: an image
 * that is padded, cropped and flipped by its definition, and tokens from a sorted list.
 *
 * ctest: label threaded */
#include "kernel_case.h"

#include "base/random.h"
#include "device/batch.h"
#include "device/tokens.h"

/* Bytes as the values of an operand. */
static void set_bytes(double *x, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) x[i] = ((const unsigned char *)from)[i];
}

/* ---- sample_rows ---- */

enum { SLOTS = 3, SLOT = 7, SAMPLES = 11 };

typedef struct rows_case {
    lk_dtype type; /* of the images */
    int64_t  rows, channels, height, width;
    int      per; /* channels of the table, or of mean and std */
    int      padding, cutout;
    double   flip;
    bool     by_row, ring;
} rows_case;

static const rows_case *rc;
static int64_t          ids[16];

/* All slots of the ring are other steps; that of SLOT has these ids. */
static void headers_in(void)
{
    int64_t dims[] = {rc->ring ? SLOTS : 1, LK__DEVICE_IDS + rc->rows * (int64_t)sizeof(int64_t)};
    double *x = in(LK_U8, 2, dims);
    for (int64_t s = 0; s < dims[0]; s++) {
        bool            used = !rc->ring || s == SLOT % SLOTS;
        lk__kernel_step step = {.step = 3 + s, .epoch = 2 + s, .count = rc->rows, .seed = used ? 77 : 5};
        double         *header = x + s * dims[1];
        for (int64_t i = 0; i < dims[1]; i++) header[i] = 1;
        set_bytes(header, &step, sizeof step);
        for (int64_t i = 0; i < rc->rows; i++) {
            int64_t id = used ? ids[i] : 0;
            set_bytes(header + LK__DEVICE_IDS + i * (int64_t)sizeof id, &id, sizeof id);
        }
    }
    if (rc->ring)
        in(LK_I64, 0, NULL)[0] = SLOT;
    else
        no_in();
}

static int64_t epoch_of(void) { return 2 + (rc->ring ? SLOT % SLOTS : 0); }

/* What was drawn for a sample. */
typedef struct drawn {
    int64_t down, right, top, left;
    bool    flip;
} drawn;

static drawn draw(int64_t id)
{
    lk__random random = lk__random_make(77, LK__FOR_AUGMENT, (uint64_t)epoch_of());
    uint32_t   crop[4], square[4];
    lk__random4(&random, (uint64_t)id, LK__DRAW_CROP, crop);
    lk__random4(&random, (uint64_t)id, LK__DRAW_CUTOUT, square);
    double span = 2 * rc->padding + 1;
    return (drawn){.down = (int64_t)(crop[0] / 4294967296.0 * span) - rc->padding,
                   .right = (int64_t)(crop[1] / 4294967296.0 * span) - rc->padding,
                   .flip = (crop[2] + 0.5) / 4294967296.0 < rc->flip,
                   .top = (int64_t)(square[0] / 4294967296.0 * (double)rc->height) - rc->cutout / 2,
                   .left = (int64_t)(square[1] / 4294967296.0 * (double)rc->width) - rc->cutout / 2};
}

static double convert(double v, int64_t channel)
{
    int64_t k = rc->per > 1 ? channel : 0;
    if (rc->type == LK_U8) return t.x[LK__ROWS_TABLE][k * 256 + (int64_t)v];
    double mean = t.x[LK__ROWS_NORMAL][k], std = t.x[LK__ROWS_NORMAL][rc->per + k];
    if (t.real == LK_F32) return (double)(((float)v - (float)mean) / (float)std);
    return (v - mean) / std;
}

/* One pixel of a row: of the sample with zeros around it. */
static double pixel(const double *sample, const drawn *d, int64_t channel, int64_t y, int64_t x)
{
    int64_t from = y + d->down, at = (d->flip ? rc->width - 1 - x : x) + d->right;
    bool    inside = from >= 0 && from < rc->height && at >= 0 && at < rc->width;
    if (rc->cutout && y >= d->top && y < d->top + rc->cutout && x >= d->left && x < d->left + rc->cutout) return 0;
    return convert(inside ? sample[(channel * rc->height + from) * rc->width + at] : 0, channel);
}

static void expect_images(int64_t elements)
{
    double *want = zeros(rc->rows * elements), *to = want;
    for (int64_t r = 0; r < rc->rows; r++) {
        drawn         d = rc->padding || rc->flip > 0 || rc->cutout ? draw(ids[r]) : (drawn){0};
        const double *sample = t.x[LK__ROWS_SAMPLES] + (rc->by_row ? r : ids[r]) * elements;
        if (rc->padding == 0 && !(rc->flip > 0)) d.down = d.right = 0, d.flip = false;
        for (int64_t c = 0; c < rc->channels; c++)
            for (int64_t y = 0; y < rc->height; y++)
                for (int64_t x = 0; x < rc->width; x++) *to++ = pixel(sample, &d, c, y, x);
    }
    expect(LK__ROWS_OUT, want, 0);
    free(want);
}

/* A field that is copied, or f32 that becomes f64. */
static void expect_field(int field, int64_t elements)
{
    double *want = zeros(rc->rows * elements);
    for (int64_t r = 0; r < rc->rows; r++)
        for (int64_t i = 0; i < elements; i++)
            want[r * elements + i] = t.x[LK__ROWS_SAMPLES + field][(rc->by_row ? r : ids[r]) * elements + i];
    expect(LK__ROWS_OUT + field, want, 0);
    free(want);
}

static void expect_header(const double *before)
{
    int64_t bytes = t.out[LK__ROWS_HEADER].dims[0];
    double *want = zeros(bytes);
    for (int64_t i = 0; i < bytes; i++) {
        bool copied = i < (int64_t)sizeof(lk__kernel_step) || i >= LK__DEVICE_IDS;
        want[i] = copied ? t.x[LK__ROWS_HEADERS][(rc->ring ? SLOT % SLOTS : 0) * bytes + i] : before[i];
    }
    expect(LK__ROWS_HEADER, want, 0);
    free(want);
}

static void run_rows(const rows_case *c)
{
    static const lk_dtype types[] = {LK_I32, LK_F32, LK_I64, LK_U8};
    static const int64_t  sizes[] = {1, 3, 4, 33};
    int64_t               elements = c->channels * c->height * c->width, n = c->by_row ? c->rows : SAMPLES;
    int64_t               bytes = LK__DEVICE_IDS + c->rows * (int64_t)sizeof(int64_t);
    double               *before = zeros(bytes);
    rc = c;
    begin(LK__OP_sample_rows);
    t.attrs = (lk__op_attrs){.padding = c->padding, .cutout = c->cutout, .probability = c->flip, .by_row = c->by_row};
    for (int64_t i = 0; i < c->rows; i++) ids[i] = (i * 7 + 3) % SAMPLES;
    for (int64_t i = 0; i < bytes; i++) before[i] = 9;
    headers_in();
    if (c->type == LK_U8)
        in(t.real, 2, (int64_t[]){c->per, 256});
    else
        no_in();
    if (c->type != LK_U8) {
        double *normal = in(LK_F64, 2, (int64_t[]){2, c->per});
        for (int i = 0; i < c->per; i++) normal[c->per + i] = 0.25 + i;
    } else {
        no_in();
    }
    double *images = in(c->type, 4, (int64_t[]){n, c->channels, c->height, c->width});
    for (int64_t i = 0; i < n * elements && c->type == LK_U8; i++) images[i] = (double)(int)uniform(0, 256);
    out(LK_U8, 1, &bytes, before);
    out(t.real, 4, (int64_t[]){c->rows, c->channels, c->height, c->width}, NULL);
    for (int i = 0; i < 4; i++) {
        bool    widened = types[i] == LK_F32;
        double *x = in(types[i], 2, (int64_t[]){n, sizes[i]});
        for (int64_t k = 0; k < n * sizes[i] && !widened; k++) x[k] = (double)(int)uniform(0, 100);
        out(widened ? t.real : types[i], 2, (int64_t[]){c->rows, sizes[i]}, NULL);
    }
    run_case();
    if (!t.skipped) {
        expect_header(before);
        expect_images(elements);
        for (int i = 0; i < 4; i++) expect_field(i + 1, sizes[i]);
    }
    free(before);
    end_case();
}

static void sample_rows(void)
{
    static const rows_case all[] = {
        {LK_U8, 5, 1, 1, 37, 1, 0, 0, 0, false, false},  {LK_U8, 7, 3, 8, 8, 3, 2, 0, 0.5, false, true},
        {LK_U8, 4, 3, 5, 7, 1, 3, 3, 0.5, true, false},  {LK_F32, 6, 2, 4, 4, 2, 1, 2, 0.5, false, false},
        {LK_F32, 3, 1, 1, 9, 1, 0, 0, 0, true, true},    {LK_U8, 1, 1, 4, 12, 1, 6, 0, 0, false, true},
        {LK_F32, 11, 3, 3, 5, 1, 0, 4, 0, false, false}, {LK_U8, 2, 2, 1, 1, 2, 0, 0, 1, true, false},
    };
    for (size_t i = 0; i < COUNT(all); i++) run_rows(&all[i]);
}

/* ---- choose_tokens ---- */

enum { ROWS = 3, WINDOW = 4 };

typedef struct ranked {
    double weight;
    int    token;
} ranked;

static int heavier_first(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->weight != y->weight ? (x->weight < y->weight ? 1 : -1) : x->token - y->token;
}

/* From all tokens the last first, by their weights; from those that top_k and top_p leave, the most probable first. */
static int naive_token(const double *logits, int64_t n, const lk__device_sampling *s, double uniform)
{
    ranked *r = calloc((size_t)n, sizeof *r);
    double  most = -INFINITY, total = 0, sum = 0;
    int64_t kept = n;
    for (int64_t i = 0; i < n; i++) most = fmax(most, logits[i]);
    for (int64_t i = 0; i < n; i++) {
        double scaled = s->temperature > 0 ? s->temperature : 1;
        r[i] = (ranked){exp((logits[n - 1 - i] - most) / scaled), (int)(n - 1 - i)};
    }
    if (s->temperature == 0 || lk__sampling_sorts(s, n)) {
        qsort(r, (size_t)n, sizeof *r, heavier_first);
        kept = s->temperature == 0 ? 1 : s->top_k > 0 && s->top_k < n ? s->top_k : n;
    }
    for (int64_t i = 0; i < kept; i++) total += r[i].weight;
    if (s->temperature > 0 && s->top_p > 0 && s->top_p < 1) {
        int64_t left = 0;
        while (left < kept && sum < s->top_p * total) sum += r[left++].weight;
        kept = left, total = sum, sum = 0;
    }
    int token = r[kept - 1].token;
    for (int64_t i = 0; i < kept; i++)
        if ((sum += r[i].weight) > uniform * total) {
            token = r[i].token;
            break;
        }
    free(r);
    return token;
}

static void expect_numbers(int k, const int *want)
{
    double numbers[ROWS];
    for (int r = 0; r < ROWS; r++) numbers[r] = want[r];
    expect(k, numbers, 0);
}

static void run_tokens(lk__device_sampling s, int64_t n, bool inputs)
{
    lk__device_prompt prompts[ROWS];
    double            bytes[sizeof prompts], chosen[LK__DEVICE_TOKEN_STEPS * ROWS], after[sizeof prompts];
    double            places[ROWS] = {2, 6, -1}, others[ROWS] = {0};
    int               token[ROWS], tokens[ROWS] = {0}, place[ROWS] = {3, 7, -1}, next[ROWS] = {3, 7, 0};
    begin(LK__OP_choose_tokens);
    t.attrs = (lk__op_attrs){.window = WINDOW, .sorts = lk__sampling_sorts(&s, n)};
    double *logits = in(t.real, 2, (int64_t[]){ROWS, n});
    for (int64_t i = 0; i < ROWS * n; i++) logits[i] = 3 * logits[i];
    set_bytes(in(LK_U8, 1, (int64_t[]){sizeof s}), &s, sizeof s);
    for (int r = 0; r < ROWS; r++)
        prompts[r] = (lk__device_prompt){.hash = 5 + (uint64_t)r, .earlier = r, .position = 10 + r, .step = 6};
    set_bytes(bytes, prompts, sizeof prompts);
    for (int i = 0; i < LK__DEVICE_TOKEN_STEPS * ROWS; i++) chosen[i] = -9;
    out(LK_I32, 2, (int64_t[]){LK__DEVICE_TOKEN_STEPS, ROWS}, chosen);
    out(LK_U8, 2, (int64_t[]){ROWS, sizeof *prompts}, bytes);
    for (int k = LK__TOKENS_PLACES; k < LK__TOKENS_OUTPUTS && inputs; k++)
        out(LK_I32, 1, (int64_t[]){ROWS}, k == LK__TOKENS_PLACES ? places : others);
    run_case();
    if (t.skipped) {
        end_case();
        return;
    }
    for (int r = 0; r < ROWS; r++) {
        const lk__device_prompt *p = &prompts[r];
        token[r] = naive_token(t.x[0] + r * n, n, &s, lk__sample_uniform(s.seed, p->hash, p->earlier, p->position));
        chosen[6 % LK__DEVICE_TOKEN_STEPS * ROWS + r] = token[r];
        if (r < 2) tokens[r] = token[r];
        prompts[r].step++, prompts[r].position++;
    }
    set_bytes(after, prompts, sizeof prompts);
    expect(LK__TOKENS_CHOSEN, chosen, 0);
    expect(LK__TOKENS_PROMPTS, after, 0);
    if (inputs) {
        expect_numbers(LK__TOKENS_PLACES, place);
        expect_numbers(LK__TOKENS_TOKENS, tokens);
        expect_numbers(LK__TOKENS_POSITIONS, next);
        expect_numbers(LK__TOKENS_FIRST, (int[]){0, 7 - WINDOW + 1, 0});
        expect_numbers(LK__TOKENS_LAST, next);
    }
    end_case();
}

static void choose_tokens(void)
{
    static const lk__device_sampling all[] = {
        {.temperature = 0, .seed = 1},
        {.temperature = 1, .seed = 2},
        {.temperature = 0.7, .top_k = 5, .seed = 3},
        {.temperature = 1.5, .top_p = 0.9, .seed = 4},
        {.temperature = 1, .top_k = 40, .top_p = 0.5, .seed = 5},
        {.temperature = 2, .top_k = 1, .seed = 6},
    };
    static const int64_t sizes[] = {1, 7, 300, 2051};
    for (size_t i = 0; i < COUNT(all); i++)
        for (size_t k = 0; k < COUNT(sizes); k++) run_tokens(all[i], sizes[k], (i + k) % 3 != 2);
}

static void tests(void)
{
    sample_rows();
    choose_tokens();
}

int main(void) { return run_all(tests); }
