/* cxx_headers.cpp - every public header from C++, and a program that uses them: a line fitted by gradient descent must
 * find the numbers it was drawn with. */
#include <lockstep.h>

#include <cmath>
#include <cstdio>
#include <vector>

#define TRY(call)                                                                               \
    do {                                                                                        \
        if ((call) < 0) {                                                                       \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, lk_context_error(context)); \
            return 1;                                                                           \
        }                                                                                       \
    } while (0)

int main()
{
    constexpr int rows = 37;
    lk_context   *context = nullptr;
    lk_graph     *graph = nullptr;
    lk_plan      *plan = nullptr;
    lk_store     *store = nullptr;
    lk_program   *program = nullptr;
    if (lk_context_create(nullptr, &context) < 0) return 1;
    TRY(lk_graph_create(context, LK_F64, &graph));

    const int64_t dims[] = {rows, 2}, target_dims[] = {rows, 1};
    lk_tensor     x = lk_input(graph, "x", LK_F64, 2, dims);
    lk_tensor     target = lk_input(graph, "target", LK_F64, 2, target_dims);
    lk_tensor     loss = lk_mse(lk_linear(x, "fc", 1, .std = 0.5), target); /* named options, as in C */

    lk_optimizer_config sgd = LK_OPTIMIZER_CONFIG_INIT;
    sgd.kind = LK_SGD;
    sgd.lr = 0.1;
    lk_plan_config config = LK_PLAN_CONFIG_INIT;
    config.loss = loss;
    config.optimizer = &sgd;
    TRY(lk_plan_create(graph, &config, &plan));
    TRY(lk_store_create(plan, 1, &store));
    TRY(lk_program_create(plan, store, NULL, &program));

    std::vector<double> points(2 * rows), heights(rows); /* height = 2 a - 3 b + 1 */
    for (int i = 0; i < rows; i++) {
        double a = points[2 * i] = std::sin(1.0 + i), b = points[2 * i + 1] = std::cos(3.0 * i);
        heights[i] = 2 * a - 3 * b + 1;
    }
    TRY(lk_program_bind(program, "x", points.data()));
    TRY(lk_program_bind(program, "target", heights.data()));
    for (int i = 1; i <= 500; i++) {
        lk_step step = {};
        step.step = i;
        step.count = rows;
        step.rate = sgd.lr;
        TRY(lk_program_train(program, &step));
    }
    double w[2], b[1];
    TRY(lk_store_read(store, "fc.weight", LK_STATE_VALUE, 0, 2, w, sizeof w));
    TRY(lk_store_read(store, "fc.bias", LK_STATE_VALUE, 0, 1, b, sizeof b));
    std::printf("%.9f a + %.9f b + %.9f\n", w[0], w[1], b[0]);
    bool found = std::fabs(w[0] - 2) < 1e-6 && std::fabs(w[1] + 3) < 1e-6 && std::fabs(b[0] - 1) < 1e-6;

    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(graph);
    lk_context_free(context);
    return found ? 0 : 1;
}
