/* device/cuda/conv.h - convolutions as products (tile.h): their geometry, and where the elements of the matrices are in
 * images.
 *
 *   forward      pixels of y × channels of y      Σ over (tap, channel of x)    x · w
 *   grad_input   pixels of x × channels of x      Σ over (tap, channel of y)    dy · w
 *   grad_weight  channels of y × (tap, channel of x)   Σ over pixels of y       dy · x
 *
 * Each for one group, which is the batch of the product. With a fused pool the pixels of y are listed window by window,
 * and those that the pool omits are left out. Images are (N, H, W, C) in memory. */
#ifndef LK__CUDA_CONV_H
#define LK__CUDA_CONV_H

#include "device/cuda/tile.h"

/* Division of 0 … 2³¹-1 by a number that the host knows, by a product (Granlund and Montgomery, 1994). */
struct divisor {
    unsigned                       by, multiplier, shift;
    __device__ __forceinline__ int quotient(int n) const
    {
#if defined(LK_CUDA_EMULATED)
        return (int)((unsigned)n / by);
#else
        return (int)((__umulhi((unsigned)n, multiplier) + (unsigned)n) >> shift);
#endif
    }
};
static inline divisor divide_by(int64_t d)
{
    divisor r = {(unsigned)(d < 1 ? 1 : d), 0, 0};
    while (r.shift < 31 && (1u << r.shift) < r.by) r.shift++;
    r.multiplier = (unsigned)(((uint64_t)1 << 32) * (((uint64_t)1 << r.shift) - r.by) / r.by + 1);
    return r;
}

struct conv_shape {
    int     n, c, h, w;                    /* x */
    int     o, kh, kw;                     /* w */
    int     oh, ow;                        /* of the convolution, before the pool; 0 where the kernel does not fit */
    int     yh, yw;                        /* of y and dy */
    int     stride, padding, groups, pool; /* pool >= 1 */
    int     cg, og;                        /* channels of a group, in and out */
    int     taps;
    bool    relu;
    divisor by_w, by_hw;                                      /* pixels of x */
    divisor by_yw, by_yhw;                                    /* pixels of y, after the pool */
    divisor by_kw, by_cg, by_og, by_stride, by_pool, by_area; /* area: pool² */
    /* of all images; windows: pixels of y after the pool, pixels_y: of those before it */
    int64_t pixels_x, windows, pixels_y;
};

static inline conv_shape conv_of(const lk__op_attrs *attrs, const int64_t *x, const int64_t *w)
{
    conv_shape v = {};
    v.n = (int)x[0], v.c = (int)x[1], v.h = (int)x[2], v.w = (int)x[3];
    v.o = (int)w[0], v.kh = (int)w[2], v.kw = (int)w[3];
    v.stride = attrs->stride > 1 ? (int)attrs->stride : 1;
    v.padding = (int)attrs->padding;
    v.groups = attrs->groups > 1 ? (int)attrs->groups : 1;
    v.pool = attrs->pool > 1 ? (int)attrs->pool : 1;
    bool fits = v.h + 2 * v.padding >= v.kh && v.w + 2 * v.padding >= v.kw;
    v.oh = fits ? (v.h + 2 * v.padding - v.kh) / v.stride + 1 : 0;
    v.ow = fits ? (v.w + 2 * v.padding - v.kw) / v.stride + 1 : 0;
    v.yh = v.oh / v.pool;
    v.yw = v.ow / v.pool;
    v.cg = v.c / v.groups;
    v.og = v.o / v.groups;
    v.taps = v.kh * v.kw;
    v.relu = attrs->activation == LK__RELU;
    v.by_w = divide_by(v.w), v.by_hw = divide_by((int64_t)v.h * v.w);
    v.by_yw = divide_by(v.yw), v.by_yhw = divide_by((int64_t)v.yh * v.yw);
    v.by_kw = divide_by(v.kw), v.by_cg = divide_by(v.cg), v.by_og = divide_by(v.og);
    v.by_stride = divide_by(v.stride), v.by_pool = divide_by(v.pool), v.by_area = divide_by(v.pool * v.pool);
    v.pixels_x = (int64_t)v.n * v.h * v.w;
    v.windows = (int64_t)v.n * v.yh * v.yw;
    v.pixels_y = v.windows * v.pool * v.pool;
    return v;
}
static inline bool conv_fits(const conv_shape &v) { return v.pixels_x < INT32_MAX && v.pixels_y < INT32_MAX; }

/* Pixel i of y, in the order of windows: the corner of x under the kernel there, and where that would be in x. */
struct pixel_place {
    int64_t base;
    int     y, x; /* far outside: there is no such pixel */
};
enum { CONV_OUTSIDE = -(1 << 30) };
static __device__ __forceinline__ pixel_place place_pixel(const conv_shape &v, int64_t at)
{
    if (at >= v.pixels_y) return pixel_place{0, CONV_OUTSIDE, 0};
    int i = (int)at, window = i, row = 0, column = 0;
    if (v.pool > 1) {
        window = v.by_area.quotient(i);
        int position = i - window * v.pool * v.pool;
        row = v.by_pool.quotient(position);
        column = position - row * v.pool;
    }
    int image = v.by_yhw.quotient(window), rest = window - image * v.yh * v.yw, y = v.by_yw.quotient(rest);
    row = (y * v.pool + row) * v.stride - v.padding;
    column = ((rest - y * v.yw) * v.pool + column) * v.stride - v.padding;
    return pixel_place{((int64_t)image * v.h * v.w + row * v.w + column) * v.c, row, column};
}

/* A position under the kernel and a channel, from the number tap*channels + channel: rows and columns from the corner,
 * and elements of an image with rows of `width` pixels. */
struct tap_place {
    int dy, dx, offset;
};
static __device__ __forceinline__ tap_place place_tap(const conv_shape &v, int64_t k, const divisor &channels,
                                                      int width, int pixel)
{
    int tap = channels.quotient((int)k), dy = v.by_kw.quotient(tap), dx = tap - dy * v.kw;
    return tap_place{dy, dx, (dy * width + dx) * pixel + (int)k - tap * (int)channels.by};
}

/* The element; NULL: the padding, which is 0. */
template <typename T>
static __device__ __forceinline__ const T *find_pixel(const conv_shape &v, const T *x, const pixel_place &p,
                                                      const tap_place &t)
{
    bool inside = (unsigned)(p.y + t.dy) < (unsigned)v.h && (unsigned)(p.x + t.dx) < (unsigned)v.w;
    return inside ? x + p.base + t.offset : NULL;
}

/* The patches of x, as rows: forward's A. */
template <typename T, int N = 1> struct patches_by_pixel {
    static constexpr bool along_k = true, shared_depth = false;
    static constexpr int  pack = N;
    const T              *x;
    conv_shape            v;
    typedef pixel_place   place;
    typedef tap_place     depth;
    __device__ void       select(int64_t group) { x += group * v.cg; }
    __device__ place      begin(int64_t i) const { return place_pixel(v, i); }
    __device__ depth      locate(int64_t k) const { return place_tap(v, k, v.by_cg, v.w, v.c); }
    __device__ const T   *find(const place &p, const depth &t) const { return find_pixel(v, x, p, t); }
    __device__ tile_values<WIDE(T), N> get(const place &p, const depth &t) const { return load_values<N>(find(p, t)); }
};

/* The same, with (tap, channel) as columns and the sum over pixels: grad_weight's B. A warp finds the pixels of a tile
 * together. */
template <typename T, int N = 1> struct patches_by_tap {
    static constexpr bool along_k = false, shared_depth = true;
    static constexpr int  pack = N;
    const T              *x;
    conv_shape            v;
    typedef tap_place     place;
    typedef pixel_place   depth;
    __device__ void       select(int64_t group) { x += group * v.cg; }
    __device__ place      begin(int64_t j) const
    {
        bool  inside = j < (int64_t)v.taps * v.cg;
        place t = place_tap(v, inside ? j : 0, v.by_cg, v.w, v.c);
        if (!inside) t.dy = CONV_OUTSIDE;
        return t;
    }
    __device__ depth        locate(int64_t k) const { return place_pixel(v, k); }
    static __device__ depth shuffle(const depth &d, int lane)
    {
        return depth{__shfl_sync(0xffffffffu, d.base, lane), __shfl_sync(0xffffffffu, d.y, lane),
                     __shfl_sync(0xffffffffu, d.x, lane)};
    }
    __device__ const T *find(const place &t, const depth &p) const { return find_pixel(v, x, p, t); }
    __device__ tile_values<WIDE(T), N> get(const place &t, const depth &p) const { return load_values<N>(find(t, p)); }
};

/* Gradients at `from`; with a pool those whose maximum is at this position of the window, others are 0. */
template <int N, typename T>
static __device__ __forceinline__ tile_values<WIDE(T), N> load_gradients(const T *from, const uint8_t *index,
                                                                         int position)
{
    tile_values<WIDE(T), N> values = load_values<N>(from);
    if (!index || !from) return values;
    lk__pack<uint8_t, N> at = load_pack<N>(index);
#pragma unroll
    for (int e = 0; e < N; e++)
        if (at.at[e] != position) values.at[e] = 0;
    return values;
}

/* The gradient before the pool, by channel and pixel: grad_weight's A. A window's gradient belongs to the pixel of its
 * maximum. */
template <typename T, int N = 1> struct gradient_by_channel {
    static constexpr bool along_k = false, shared_depth = false;
    static constexpr int  pack = N;
    const T              *dy;
    const uint8_t        *index; /* NULL: no pool */
    conv_shape            v;
    struct place {
        int channel; /* -1: none */
    };
    struct depth {
        int64_t window;
        int     position;
    };
    __device__ void select(int64_t group)
    {
        dy += group * v.og;
        if (index) index += group * v.og;
    }
    __device__ place begin(int64_t i) const { return place{i < v.og ? (int)i : -1}; }
    __device__ depth locate(int64_t k) const
    {
        if (v.pool == 1) return depth{k, 0};
        int window = v.by_area.quotient((int)k);
        return depth{window, (int)k - window * v.pool * v.pool};
    }
    __device__ const T *find(const place &p, const depth &d) const /* of the window */
    {
        return p.channel < 0 ? NULL : dy + d.window * v.o + p.channel;
    }
    __device__ tile_values<WIDE(T), N> get(const place &p, const depth &d) const
    {
        const T *from = find(p, d);
        return load_gradients<N>(from, index && from ? index + (from - dy) : NULL, d.position);
    }
};

/* The gradient before the pool at the pixels of y that pixel i of x contributes to: grad_input's A. With a stride, most
 * taps of a pixel reach none. */
template <typename T, int N = 1> struct gradient_by_pixel {
    static constexpr bool along_k = true, shared_depth = false;
    static constexpr int  pack = N;
    const T              *dy;
    const uint8_t        *index; /* NULL: no pool */
    conv_shape            v;
    typedef pixel_place   place; /* of a pixel of dy at stride 1 and without a pool; else base is its image's */
    typedef tap_place     depth;
    __device__ void       select(int64_t group)
    {
        dy += group * v.og;
        if (index) index += group * v.og;
    }
    __device__ bool  is_plain() const { return v.stride == 1 && v.pool == 1; }
    __device__ place begin(int64_t at) const
    {
        if (at >= v.pixels_x) return place{0, CONV_OUTSIDE, 0};
        int image = v.by_hw.quotient((int)at), rest = (int)at - image * v.h * v.w, row = v.by_w.quotient(rest);
        int y = row + v.padding, x = rest - row * v.w + v.padding;
        if (is_plain()) return place{((int64_t)image * v.oh * v.ow + y * v.ow + x) * v.o, y, x};
        return place{(int64_t)image * v.yh * v.yw * v.o, y, x};
    }
    __device__ depth locate(int64_t k) const
    {
        if (!is_plain()) return place_tap(v, k, v.by_og, 0, 0); /* offset: the channel */
        int tap = v.by_og.quotient((int)k), row = v.by_kw.quotient(tap), column = tap - row * v.kw;
        return depth{row, column, (int)k - tap * v.og - (row * v.ow + column) * v.o};
    }
    __device__ const T *find(const place &p, const depth &t,
                             int &position) const /* of the window, and the pixel's position in it */
    {
        int y = p.y - t.dy, x = p.x - t.dx;
        position = 0;
        if (is_plain()) {
            bool inside = (unsigned)y < (unsigned)v.oh && (unsigned)x < (unsigned)v.ow;
            return inside ? dy + p.base + t.offset : NULL;
        }
        if (y < 0 || x < 0) return NULL;
        if (v.stride > 1) {
            int row = v.by_stride.quotient(y), column = v.by_stride.quotient(x);
            if (row * v.stride != y || column * v.stride != x) return NULL;
            y = row, x = column;
        }
        int row = v.by_pool.quotient(y), column = v.by_pool.quotient(x);
        if (row >= v.yh || column >= v.yw) return NULL;
        position = (y - row * v.pool) * v.pool + x - column * v.pool;
        return dy + p.base + (row * v.yw + column) * v.o + t.offset;
    }
    __device__ const T *find(const place &p, const depth &t) const
    {
        int position;
        return find(p, t, position);
    }
    __device__ tile_values<WIDE(T), N> get(const place &p, const depth &t) const
    {
        int      position;
        const T *from = find(p, t, position);
        return load_gradients<N>(from, index && from ? index + (from - dy) : NULL, position);
    }
};

/* relu (where set) and the maximum of a window, whose positions are given one after the other; the first of equal
 * maxima counts, and NaN wins. */
template <typename W> struct window_maximum {
    W               best;
    int             position;
    __device__ void begin(W x) { best = x, position = 0; }
    __device__ void take(W x, int at)
    {
        if (x > best || (x != x && best == best)) best = x, position = at;
    }
    template <typename T> __device__ void put(bool relu, T *y, uint8_t *index) const
    {
        bool dead = relu && best <= 0;
        store(y, dead ? (W)0 : best);
        if (index) *index = dead ? 255 : (uint8_t)position;
    }
};

/* to[group][tap][row][column]: (row, column) is (channel of x, of y), or with `input` (of y, of x). */
template <typename T>
static __global__ void pack_weights(const T *w, T *to, int og, int cg, int taps, int64_t n, bool input)
{
    int columns = input ? cg : og, rows = input ? og : cg;
    EACH_INDEX(i, n)
    {
        int64_t column = i % columns, row = i / columns % rows, tap = i / columns / rows % taps;
        int64_t group = i / columns / rows / taps, o = input ? row : column, c = input ? column : row;
        to[i] = w[((group * og + o) * cg + c) * taps + tap];
    }
}

static inline int64_t weights_of(const conv_shape &v) { return (int64_t)v.o * v.cg * v.taps; }

template <typename T> static void pack(cudaStream_t stream, const conv_shape &v, const T *w, T *to, bool input)
{
    int64_t n = weights_of(v);
    LAUNCH((pack_weights<T>), cuda_blocks(n, 256), 256, 0, stream, w, to, v.og, v.cg, v.taps, n, input);
}

/* grad_weight's results, stored as weights are. */
template <typename T> struct weight_epilogue {
    typedef WIDE(T) W;
    W              *dw;
    int             cg, og, taps;
    divisor         by_cg;
    __device__ void select(int64_t group) { dw += group * og * cg * taps; }
    __device__ void put_at(W *to, int64_t o, int64_t j, W x) const
    {
        int tap = by_cg.quotient((int)j), c = (int)j - tap * cg;
        to[(o * cg + c) * taps + tap] = x;
    }
    __device__ void put(int64_t row, int64_t column, const W (&sums)[4][4]) const
    {
        for (int r = 0; r < 4; r++)
            for (int q = 0; q < 4; q++)
                if (row + r < og && column + q < (int64_t)taps * cg) put_at(dw, row + r, column + q, sums[r][q]);
    }
    __device__ void put_one(int64_t group, int64_t row, int64_t column, W x) const
    {
        put_at(dw + group * og * cg * taps, row, column, x);
    }
};

#endif
