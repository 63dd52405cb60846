/* mlp.c - trains on arrays in memory: classifies noisy points by four corners, and saves the weights.
 *
 *   mlp [FILE.safetensors] */
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 2000, TESTS = 500 };

static lk_tensor mlp(lk_tensor x) /* (N, 2) → (N, 4) */
{
    x = lk_gelu(lk_linear(x, "hidden", 32));
    return lk_linear(lk_dropout(x, 0.1), "out", 4);
}

static void make_points(float *points, int32_t *labels, int count)
{
    for (int i = 0; i < count; i++) {
        labels[i] = rand() % 4;
        points[2 * i] = (labels[i] % 2 ? 1.0f : -1.0f) + 0.8f * ((float)rand() / (float)RAND_MAX - 0.5f);
        points[2 * i + 1] = (labels[i] / 2 ? 1.0f : -1.0f) + 0.8f * ((float)rand() / (float)RAND_MAX - 0.5f);
    }
}

int main(int argc, char **argv)
{
    static float   points[2 * (SAMPLES + TESTS)];
    static int32_t labels[SAMPLES + TESTS];
    lk_context    *context = NULL;
    lk_dataset    *train = NULL, *test = NULL;
    lk_trainer    *trainer = NULL;
    lk_evaluation  result = {0};
    double         accuracy = 0;
    make_points(points, labels, SAMPLES + TESTS);
    if (lk_context_create(NULL, &context) < 0) return 1;

    lk_dataset_arrays_config arrays = LK_DATASET_ARRAYS_CONFIG_INIT; /* borrows both arrays */
    lk_field                 fields[] = {{.name = "point", .dtype = LK_F32, .rank = 1, .dims = {2}},
                                         {.name = "label", .dtype = LK_I32, .classes = 4}};
    arrays.fields = fields;
    arrays.fields_count = 2;
    arrays.count = SAMPLES;
    arrays.data = (const void *[]){points, labels};
    lk_status status = lk_dataset_from_arrays(context, &arrays, &train);
    arrays.count = TESTS;
    arrays.data = (const void *[]){points + 2 * SAMPLES, labels + SAMPLES};
    if (status >= 0) status = lk_dataset_from_arrays(context, &arrays, &test);
    if (status >= 0) {
        lk_trainer_config config = LK_TRAINER_CONFIG_INIT;
        config.model = mlp;
        config.train = train;
        config.test = test;
        config.batch = 32;
        config.epochs = 5;
        config.optimizer.kind = LK_SGD;
        config.optimizer.lr = 0.1;
        config.optimizer.momentum = 0.9;
        status = lk_trainer_create(context, &config, &trainer);
    }
    if (status >= 0) status = lk_trainer_run(trainer);
    if (status >= 0) status = lk_trainer_evaluate(trainer, &result);
    if (status >= 0) accuracy = lk_metrics_find(result.metrics, result.metrics_count, "accuracy")->value;
    if (status >= 0)
        printf("loss %.4f, accuracy %.1f %% on %lld points\n", result.loss, 100 * accuracy, (long long)result.samples);
    if (status >= 0 && argc > 1) status = lk_weights_save(lk_trainer_store(trainer), argv[1]);
    if (status < 0) fprintf(stderr, "mlp: %s\n", lk_context_error(context));

    lk_trainer_free(trainer);
    lk_dataset_free(train);
    lk_dataset_free(test);
    lk_context_free(context);
    return status < 0 || accuracy < 0.9;
}
