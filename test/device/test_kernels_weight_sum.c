/* test_kernels_weight_sum.c - gradients of weights that are added to those of other rows: linear_grad_weight with a
 * sum, which may be in place. Compared with sums in double. */
#include "kernel_case.h"

static void weight_sum_case(int64_t rows, int64_t inputs, int64_t outputs, bool transposed, bool bias)
{
    int64_t shape[] = {transposed ? inputs : outputs, transposed ? outputs : inputs}, count = inputs * outputs;
    double *want = zeros(count), *size = zeros(count), *column = zeros(outputs);
    begin(LK__OP_linear_grad_weight);
    t.attrs.transposed = transposed;
    double *x = in(t.real, 2, DIMS(rows, inputs)), *dy = in(t.real, 2, DIMS(rows, outputs)),
           *sum = in(t.wide, 2, shape);
    t.in_place = 1u << 2;
    out(t.wide, 2, shape, NULL);
    if (bias) out(t.wide, 1, DIMS(outputs), NULL);
    round_inputs();
    for (int64_t i = 0; i < count; i++) want[i] = sum[i], size[i] = fabs(sum[i]);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < outputs; o++) {
            column[o] += dy[r * outputs + o];
            for (int64_t i = 0; i < inputs; i++) {
                int64_t at = transposed ? i * outputs + o : o * inputs + i;
                double  term = x[r * inputs + i] * dy[r * outputs + o];
                want[at] += term;
                size[at] += fabs(term);
            }
        }
    t.terms = 4;
    run_case();
    expect_within(0, want, size, (double)rows + 2);
    if (bias) expect(1, column, 1e-5);
    end_case();
    free(want), free(size), free(column);
}

static void tests(void)
{
    static const int64_t shapes[][3] = {{1, 1, 1},   {3, 5, 7},    {17, 4, 33},   {0, 3, 2},
                                        {64, 48, 5}, {300, 9, 70}, {600, 130, 97}}; /* the last in blocks of k */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int transposed = 0; transposed < 2; transposed++)
            for (int bias = 0; bias < 2; bias++)
                weight_sum_case(shapes[i][0], shapes[i][1], shapes[i][2], transposed, bias);
}

int main(void) { return run_types(tests, LK_BF16); }
