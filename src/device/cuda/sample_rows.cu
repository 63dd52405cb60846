/* sample_rows.cu - rows of a batch from samples in the GPU's memory: copied, or normalised, cropped and flipped, with
 * the bits of the host's device/sample_row.c and data/batch.c. One launch for all fields; blocks of 256 threads, each
 * on a part of one field of one row. Latency bounds it: a batch of 64 images of 32 × 32 is 200 kB. Where headers are in
 * pinned memory, each block reads one id over the bus, all at once. */
#include "device/cuda/backend.h"
#include "device/cuda/random.h"

enum { GATHER_THREADS = 256, GATHER_ROWS = 65535 /* of a grid */ };

enum field_conversion {
    FIELD_COPIED,     /* as stored */
    FIELD_WIDENED,    /* f32 to f64 */
    FIELD_TRANSFORMED /* u8 or f32, by the transform; the first field alone */
};

typedef struct gather_field {
    field_conversion how;
    lk_dtype         in, out;
    int              elements; /* of a sample */
    const char      *samples;
    char            *to;
} gather_field;

typedef struct image_transform { /* of lk__device_transform, with the types that kernels compute by */
    int           channels, height, width;
    bool          per_channel;
    int           padding, cutout;
    double        flip;
    const void   *table;
    const double *mean, *std;
} image_transform;

typedef struct gather_call {
    gather_field           fields[LK__ROWS_FIELDS];
    int                    count;
    bool                   by_row;
    image_transform        transform;
    int64_t                rows;
    const char            *headers;
    const int64_t         *ring_slot;
    int64_t                ring_slots, header_bytes;
    char                  *header;
    lk__kernel_invalid_id *report;
    int                    first[LK__ROWS_FIELDS + 1]; /* by field: its first block of a row */
    int                    each[LK__ROWS_FIELDS];      /* bytes, elements or pixels of a thread */
} gather_call;

/* What is drawn for a sample: offsets from a pixel of the row to that of the sample, and the square that is set to
 * 0. */
typedef struct gather_row {
    int64_t id;
    int     down, right;
    int     top, bottom, left, end; /* the square's rows and columns; empty: there is none */
    bool    flip;
} gather_row;

static __device__ __forceinline__ int scale_to_range(uint32_t bits, int n)
{
    return (int)((uint64_t)bits * (uint64_t)n >> 32);
}

static __device__ gather_row draw_row(const image_transform &t, const lk__kernel_step *step, int64_t id)
{
    gather_row r = {id, 0, 0, 0, 0, 0, 0, false};
    uint32_t   draw[4];
    if (t.padding == 0 && !(t.flip > 0) && t.cutout == 0) return r;
    lk__random random = random_make(step->seed, LK__FOR_AUGMENT, (uint64_t)step->epoch);
    if (t.padding > 0 || t.flip > 0) {
        random4(random, (uint64_t)id, LK__DRAW_CROP, draw);
        r.down = scale_to_range(draw[0], 2 * t.padding + 1) - t.padding;
        r.right = scale_to_range(draw[1], 2 * t.padding + 1) - t.padding;
        r.flip = (draw[2] + 0.5) * (1.0 / 4294967296.0) < t.flip; /* exact, as lk__random_unit */
    }
    if (t.cutout > 0) {
        random4(random, (uint64_t)id, LK__DRAW_CUTOUT, draw);
        r.top = scale_to_range(draw[0], t.height) - t.cutout / 2;
        r.left = scale_to_range(draw[1], t.width) - t.cutout / 2;
        r.bottom = r.top + t.cutout;
        r.end = r.left + t.cutout;
    }
    return r;
}

/* ---- fields ---- */

static __device__ __forceinline__ float normalize(float v, float mean, float std)
{
    return __fdiv_rn(__fsub_rn(v, mean), std);
}
static __device__ __forceinline__ double normalize(float v, double mean, double std)
{
    return __ddiv_rn(__dsub_rn((double)v, mean), std);
}

template <typename T> struct converted { /* of u8 by the table, of f32 by arithmetic */
    const T                   *table;
    T                          mean, std;
    __device__ __forceinline__ converted(const image_transform &t, int channel)
    {
        int k = t.per_channel ? channel : 0;
        table = t.table ? (const T *)t.table + k * 256 : NULL;
        mean = t.mean ? (T)__ldg(t.mean + k) : (T)0;
        std = t.mean ? (T)__ldg(t.std + k) : (T)1;
    }
    __device__ __forceinline__ T operator()(unsigned char v) const { return __ldg(table + v); }
    __device__ __forceinline__ T operator()(float v) const { return normalize(v, mean, std); }
};

/* N pixels of a line, from the first on. */
template <int N, typename F, typename T>
static __device__ __forceinline__ void transform_pixels(const image_transform &t, const gather_row &r, const F *sample,
                                                        T *row, unsigned first)
{
    unsigned       line = first / (unsigned)t.width;
    int            x = (int)(first - line * (unsigned)t.width), y = (int)(line % (unsigned)t.height);
    int            channel = (int)(line / (unsigned)t.height), from = y + r.down;
    converted<T>   value(t, channel);
    const F       *source = sample + ((int64_t)channel * t.height + from) * t.width;
    bool           outside = from < 0 || from >= t.height, cut = y >= r.top && y < r.bottom;
    lk__pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int at = (r.flip ? t.width - 1 - x - i : x + i) + r.right;
        F   v = outside || at < 0 || at >= t.width ? (F)0 : source[at];
        out.at[i] = cut && x + i >= r.left && x + i < r.end ? (T)0 : value(v);
    }
    store_pack<N>(row + first, out);
}

template <typename F, typename T>
static __device__ __forceinline__ void transform_part(const image_transform &t, const gather_row &r, const char *sample,
                                                      void *row, unsigned unit, int each)
{
    if (each == 4)
        transform_pixels<4>(t, r, (const F *)sample, (T *)row, 4 * unit);
    else
        transform_pixels<1>(t, r, (const F *)sample, (T *)row, unit);
}

static __device__ __forceinline__ void copy_part(const char *sample, char *row, unsigned unit, int each)
{
    if (each == 16)
        ((lk__pack<uint32_t, 4> *)row)[unit] = ((const lk__pack<uint32_t, 4> *)sample)[unit];
    else if (each == 4)
        ((uint32_t *)row)[unit] = ((const uint32_t *)sample)[unit];
    else
        row[unit] = sample[unit];
}

static __device__ size_t size_of(lk_dtype type)
{
    return type == LK_F64 || type == LK_I64 ? 8 : type == LK_F32 || type == LK_I32 ? 4 : 1;
}

static __device__ void write_part(const gather_call &c, int f, int64_t row, const gather_row &r, unsigned unit)
{
    const gather_field    &field = c.fields[f];
    const image_transform &t = c.transform;
    int64_t                bytes = (int64_t)field.elements * (int64_t)size_of(field.in), number = c.by_row ? row : r.id;
    const char            *sample = field.samples + number * bytes;
    char                  *to = field.to + row * field.elements * (int64_t)size_of(field.out);
    int                    each = c.each[f];
    if ((int64_t)unit * each >= (field.how == FIELD_COPIED ? bytes : field.elements)) return;
    if (field.how == FIELD_COPIED)
        copy_part(sample, to, unit, each);
    else if (field.how == FIELD_WIDENED)
        ((double *)to)[unit] = (double)((const float *)sample)[unit];
    else if (field.in == LK_U8 && field.out == LK_F32)
        transform_part<unsigned char, float>(t, r, sample, to, unit, each);
    else if (field.in == LK_U8)
        transform_part<unsigned char, double>(t, r, sample, to, unit, each);
    else if (field.out == LK_F32)
        transform_part<float, float>(t, r, sample, to, unit, each);
    else
        transform_part<float, double>(t, r, sample, to, unit, each);
}

static __global__ void __launch_bounds__(GATHER_THREADS) gather_kernel(const __grid_constant__ gather_call c)
{
    __shared__ gather_row drawn;
    begin_next(); /* which waits for all of this one */
    const char    *header = c.headers + (c.ring_slot ? (size_t)(*c.ring_slot % c.ring_slots * c.header_bytes) : 0);
    const int64_t *ids = (const int64_t *)(header + LK__DEVICE_IDS);
    int            block = (int)blockIdx.x, f = 0;
    while (f + 1 < c.count && block >= c.first[f + 1]) f++;
    unsigned unit = (unsigned)(block - c.first[f]) * GATHER_THREADS + threadIdx.x;
    bool     copies = block == 0 && header != c.header;
    if (copies && blockIdx.y == 0 && threadIdx.x < sizeof(lk__kernel_step) / sizeof(int64_t))
        ((int64_t *)c.header)[threadIdx.x] = ((const int64_t *)header)[threadIdx.x];
    if (c.report && block == 0 && blockIdx.y == 0 && threadIdx.x == 0) *c.report = lk__kernel_invalid_id{};
    for (int64_t row = blockIdx.y; row < c.rows; row += gridDim.y) {
        if (threadIdx.x == 0) {
            drawn = draw_row(c.transform, (const lk__kernel_step *)header, ids[row]);
            if (copies) ((int64_t *)(c.header + LK__DEVICE_IDS))[row] = drawn.id;
        }
        __syncthreads();
        write_part(c, f, row, drawn, unit);
        __syncthreads();
    }
}

/* What a thread does at once: as much as the alignment of rows allows, at most 16 bytes; 4 pixels of a line. */
static int choose_part(const gather_field *field, const image_transform *t)
{
    int64_t bytes = field->elements * (int64_t)cuda_size(field->in);
    if (field->how == FIELD_WIDENED) return 1;
    if (field->how == FIELD_TRANSFORMED) return t->width % 4 == 0 ? 4 : 1;
    return bytes % 16 == 0 ? 16 : bytes % 4 == 0 ? 4 : 1;
}

static image_transform transform_of(const lk__device_transform *t)
{
    image_transform image = {(int)t->channels, (int)t->height, (int)t->width, t->per_channel, t->padding,
                             t->cutout,        t->flip,        t->table,      t->mean,        t->std};
    return image;
}

static gather_call describe_call(const lk__kernel_call *call)
{
    const lk__kernel_operand *headers = &call->in[LK__ROWS_HEADERS];
    lk__device_transform      transform = {};
    gather_call               c = {};
    bool                      transformed = lk__rows_transform(call, &transform);
    c.count = call->outputs - LK__ROWS_OUT;
    c.by_row = call->attrs->by_row;
    c.transform = transform_of(&transform);
    c.rows = call->out[LK__ROWS_OUT].dims[0];
    c.headers = (const char *)headers->data;
    c.ring_slot = in_data<int64_t>(call, LK__ROWS_RING_SLOT);
    c.ring_slots = headers->dims[0];
    c.header_bytes = headers->dims[1];
    c.header = out_data<char>(call, LK__ROWS_HEADER);
    c.report = call->invalid;
    for (int i = 0; i < c.count; i++) {
        const lk__kernel_operand *from = &call->in[LK__ROWS_SAMPLES + i], *to = &call->out[LK__ROWS_OUT + i];
        gather_field             *f = &c.fields[i];
        f->how = i == 0 && transformed ? FIELD_TRANSFORMED : from->dtype == to->dtype ? FIELD_COPIED : FIELD_WIDENED;
        f->in = from->dtype;
        f->out = to->dtype;
        f->elements = (int)lk__rows_elements(to);
        f->samples = (const char *)from->data;
        f->to = (char *)to->data;
        int64_t all = f->elements * (f->how == FIELD_COPIED ? (int64_t)cuda_size(f->in) : 1);
        c.each[i] = choose_part(f, &c.transform);
        c.first[i + 1] = c.first[i] + (int)cuda_tiles(all, (int64_t)c.each[i] * GATHER_THREADS);
    }
    return c;
}

extern "C" lk_status lk__cuda_sample_rows(const lk__kernel_call *call)
{
    gather_call c = describe_call(call);
    int64_t     most = GATHER_ROWS;
    unsigned    down = (unsigned)(c.rows < 1 ? 1 : c.rows > most ? most : c.rows);
    LAUNCH(gather_kernel, dim3((unsigned)c.first[c.count], down), GATHER_THREADS, 0, cuda_stream(call), c);
    return lk__cuda_end(call->device, call->stream, cudaPeekAtLastError(), "preparing a batch");
}
