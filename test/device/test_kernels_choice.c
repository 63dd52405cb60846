/* test_kernels_choice.c - kernels that select values (where, max, argmax) against naive loops in double.
 *
 * ctest: label threaded */
#include "kernel_case.h"

/* ---- where ---- */

typedef struct shape {
    int     rank;
    int64_t dims[LK_MAX_RANK];
} shape;

static int64_t dim_at(const shape *s, int rank, int axis)
{
    return axis < rank - s->rank ? 1 : s->dims[axis - (rank - s->rank)];
}

/* The element of s that corresponds to element `flat` of y. */
static int64_t under(const shape *s, const shape *y, int64_t flat)
{
    int64_t at = 0, step = 1;
    for (int axis = y->rank - 1; axis >= 0; axis--) {
        int64_t index = flat % y->dims[axis], own = dim_at(s, y->rank, axis);
        flat /= y->dims[axis];
        if (own != 1) at += index * step;
        step *= own;
    }
    return at;
}

static void where_case(lk_dtype type, shape c, shape a, shape b)
{
    static const double truths[] = {1, 0, -3, 0, 0.25, 0, NAN, -0.0};
    shape               y = {.rank = c.rank > a.rank ? c.rank : a.rank};
    if (b.rank > y.rank) y.rank = b.rank;
    for (int i = 0; i < y.rank; i++) {
        int64_t all[] = {dim_at(&c, y.rank, i), dim_at(&a, y.rank, i), dim_at(&b, y.rank, i)};
        y.dims[i] = 1;
        for (int k = 0; k < 3; k++)
            if (all[k] != 1) y.dims[i] = all[k];
    }
    begin(LK__OP_where);
    double *condition = in(type, c.rank, c.dims);
    for (int64_t i = 0, n = lk__operand_elements(&t.in[0]); i < n; i++) {
        condition[i] = truths[(size_t)(uniform(0, 1) * (double)COUNT(truths))];
        if (type != LK_F32 && type != LK_F64) condition[i] = condition[i] != 0 ? 200 : 0;
    }
    in(t.real, a.rank, a.dims);
    in(t.real, b.rank, b.dims);
    out(t.real, y.rank, y.dims, NULL);
    t.in_place = 6;
    run_case();
    int64_t n = lk__operand_elements(&t.out[0]);
    double *want = zeros(n);
    for (int64_t i = 0; i < n; i++)
        want[i] = t.x[0][under(&c, &y, i)] != 0 ? t.x[1][under(&a, &y, i)] : t.x[2][under(&b, &y, i)];
    expect(0, want, 0);
    free(want);
    end_case();
}

static void where_broadcasts_all_three(void)
{
    static const lk_dtype types[] = {LK_U8, LK_I32, LK_I64, LK_F32, LK_F64};
    static const shape    shapes[][3] = {
           {{0, {0}}, {0, {0}}, {0, {0}}},
           {{2, {101, 401}}, {2, {101, 401}}, {2, {101, 401}}},
           {{1, {37}}, {2, {509, 37}}, {2, {509, 1}}},
           {{2, {509, 1}}, {1, {37}}, {2, {509, 37}}},
           {{0, {0}}, {2, {3, 5}}, {1, {5}}},
           {{0, {0}}, {1, {17}}, {0, {0}}},
           {{1, {17}}, {0, {0}}, {0, {0}}},
           {{1, {17}}, {1, {17}}, {0, {0}}},
           {{1, {17}}, {0, {0}}, {1, {17}}},
           {{4, {2, 3, 5, 7}}, {4, {1, 3, 1, 1}}, {3, {3, 1, 7}}},
           {{4, {2, 1, 1, 7}}, {4, {1, 3, 1, 1}}, {4, {1, 1, 5, 1}}},
           {{6, {2, 1, 3, 1, 2, 5}}, {6, {1, 3, 1, 2, 2, 1}}, {6, {2, 3, 3, 2, 2, 5}}},
           {{2, {0, 5}}, {1, {5}}, {2, {0, 1}}},
    };
    for (size_t k = 0; k < COUNT(types); k++) {
        for (int64_t n = 0; n < 20; n++) where_case(types[k], (shape){1, {n}}, (shape){1, {n}}, (shape){1, {n}});
        for (size_t s = 0; s < COUNT(shapes); s++) where_case(types[k], shapes[s][0], shapes[s][1], shapes[s][2]);
    }
}

/* ---- max, argmax ---- */

/* Values of few sizes, so that maxima are equal; NaN above all numbers. */
static void fill_ties(double *x, int64_t n, bool nan)
{
    for (int64_t i = 0; i < n; i++) x[i] = nan && uniform(0, 1) < 0.1 ? NAN : floor(uniform(-3, 3));
}

static void max_case(int rank, const int64_t *dims, int axis, bool nan)
{
    int64_t outer = 1, inner = 1, n = dims[axis], reduced[LK_MAX_RANK];
    for (int i = 0; i < axis; i++) outer *= dims[i];
    for (int i = axis + 1; i < rank; i++) inner *= dims[i];
    for (int i = 0; i < rank; i++) reduced[i] = i == axis ? 1 : dims[i];
    double *value = zeros(outer * inner), *index = zeros(outer * inner), *dx = zeros(outer * n * inner);
    for (int what = 0; what < 3; what++) { /* both, the value alone, the index alone */
        begin(what == 2 ? LK__OP_argmax : LK__OP_max);
        t.attrs.axis = axis;
        fill_ties(in(t.real, rank, dims), outer * n * inner, nan);
        if (what < 2) out(t.real, rank, reduced, NULL);
        if (what == 1)
            no_out();
        else
            out(LK_I32, rank, reduced, NULL);
        run_case();
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < inner; i++) {
                int64_t best = 0;
                for (int64_t k = 1; k < n; k++) {
                    double x = t.x[0][(o * n + k) * inner + i], most = t.x[0][(o * n + best) * inner + i];
                    if (x > most || (isnan(x) && !isnan(most))) best = k;
                }
                index[o * inner + i] = (double)best;
                value[o * inner + i] = t.x[0][(o * n + best) * inner + i];
            }
        if (what < 2) expect(0, value, 0);
        if (what != 1) expect(what == 2 ? 0 : 1, index, 0);
        end_case();
    }

    begin(LK__OP_max_grad);
    t.attrs.axis = axis;
    in(t.real, rank, reduced);
    memcpy(in(LK_I32, rank, reduced), index, (size_t)(outer * inner) * sizeof *index);
    out(t.real, rank, dims, NULL);
    run_case();
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++)
            dx[(o * n + (int64_t)index[o * inner + i]) * inner + i] = t.x[0][o * inner + i];
    expect(0, dx, 0);
    end_case();
    free(value), free(index), free(dx);
}

static void max_takes_the_first_along_any_axis(void)
{
    for (int nan = 0; nan < 2; nan++) {
        for (int64_t n = 1; n < 20; n++) {
            max_case(1, DIMS(n), 0, nan);
            max_case(2, DIMS(3, n), 1, nan);
            max_case(2, DIMS(n, 3), 0, nan);
            max_case(2, DIMS(5, n), 0, nan);
        }
        max_case(2, DIMS(0, 7), 1, nan);
        max_case(3, DIMS(3, 7, 0), 1, nan);
        max_case(3, DIMS(5, 7, 17), 1, nan);
        max_case(3, DIMS(5, 7, 17), 0, nan);
        max_case(2, DIMS(1009, 37), 1, nan);
        max_case(2, DIMS(37, 1009), 0, nan);
        max_case(4, DIMS(2, 3, 40009, 1), 2, nan);
    }
}

static void tests(void)
{
    where_broadcasts_all_three();
    max_takes_the_first_along_any_axis();
}

int main(void) { return run_all(tests); }
