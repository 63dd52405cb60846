/* infer.c - inference without training: loads the weights that mlp.c saved and classifies four points.
 *
 *   infer FILE.safetensors */
#include <lockstep.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    static const float corners[4][2] = {{-1, -1}, {1, -1}, {-1, 1}, {1, 1}}; /* of classes 0, 1, 2, 3 */
    lk_context        *context = NULL;
    lk_graph          *graph = NULL;
    lk_plan           *plan = NULL;
    lk_store          *store = NULL;
    lk_program        *program = NULL;
    float              output[4][4]; /* probabilities (N, 4) */
    int                correct = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: infer FILE.safetensors (written by mlp)\n");
        return 2;
    }
    if (lk_context_create(NULL, &context) < 0) return 1;

    lk_status status = lk_graph_create(context, LK_F32, &graph);
    if (status >= 0) {
        lk_tensor      x = lk_input(graph, "x", LK_F32, 2, ((int64_t[]){4, 2}));
        lk_tensor      y = lk_linear(lk_dropout(lk_gelu(lk_linear(x, "hidden", 32)), 0.1), "out", 4);
        lk_tensor      probabilities = lk_softmax(y, -1);
        lk_plan_config config = LK_PLAN_CONFIG_INIT; /* no loss, no optimizer: no memory for training */
        config.outputs = &probabilities;
        config.outputs_count = 1;
        status = lk_plan_create(graph, &config, &plan);
    }
    if (status >= 0) status = lk_store_create(plan, 0, &store);
    if (status >= 0) status = lk_weights_load(store, argv[1]);
    if (status >= 0) status = lk_program_create(plan, store, NULL, &program);
    if (status >= 0) status = lk_program_bind(program, "x", corners);
    if (status >= 0) status = lk_program_step(program, &(lk_step){.step = 1, .count = 4});
    if (status >= 0) status = lk_program_run(program, LK_EVALUATE);
    if (status >= 0) status = lk_program_output_read(program, 0, output, sizeof output);
    if (status < 0) fprintf(stderr, "infer: %s\n", lk_context_error(context));
    for (int i = 0; i < 4 && status >= 0; i++) {
        const float *p = output[i];
        int          best = 0;
        for (int k = 1; k < 4; k++)
            if (p[k] > p[best]) best = k;
        printf("(%+.0f, %+.0f): class %d, %.1f %%\n", (double)corners[i][0], (double)corners[i][1], best,
               100 * (double)p[best]);
        correct += best == i;
    }

    lk_program_free(program);
    lk_store_free(store);
    lk_plan_free(plan);
    lk_graph_free(graph);
    lk_context_free(context);
    return status < 0 || correct != 4;
}
