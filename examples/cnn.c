/* cnn.c - a convolutional network on CIFAR-10 in one screen: the model, the data, the trainer.
 *
 *   cnn [DATA] [EPOCHS] [DIR]     cnn cifar10 5 runs/cnn     cnn synthetic:3x32x32,count=512 1 */
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>

static lk_tensor simple_cnn(lk_tensor x)                                            /* (N, 3, 32, 32) */
{
    x = lk_max_pool2d(lk_relu(lk_conv2d(x, "conv1", 32, 3, .padding = 1)), 2);  /* (N, 32, 16, 16) */
    x = lk_max_pool2d(lk_relu(lk_conv2d(x, "conv2", 64, 3, .padding = 1)), 2);  /* (N, 64, 8, 8) */
    x = lk_relu(lk_linear(lk_flatten(x), "fc1", 512));
    return lk_linear(x, "fc2", 10);                                             /* logits (N, 10) */
}

static int on_event(void *user, const lk_event *e)
{
    (void)user;
    if (e->kind == LK_EVENT_STEP && e->step % 20 == 0)
        printf("step %lld/%lld  loss %.4f\n", (long long)e->step, (long long)e->steps, e->loss);
    const lk_named_metric *accuracy = lk_metrics_find(e->metrics, e->metrics_count, "accuracy");
    if (e->kind == LK_EVENT_EVALUATED)
        printf("epoch %lld: test loss %.4f, accuracy %.2f %%\n", (long long)e->epoch + 1, e->loss,
               accuracy ? 100 * accuracy->value : 0);
    return 0; /* any other result stops training */
}

int main(int argc, char **argv)
{
    const char *data = argc > 1 ? argv[1] : "cifar10";
    lk_context *context = NULL;
    lk_dataset *train = NULL, *test = NULL;
    lk_trainer *trainer = NULL;
    lk_status   status = lk_context_create(NULL, &context);
    if (status < 0) return 1;

    if (status >= 0) status = lk_dataset_open(context, data, LK_SPLIT_TRAIN, NULL, &train);
    if (status >= 0) status = lk_dataset_open(context, data, LK_SPLIT_TEST, NULL, &test);
    if (status >= 0) {
        lk_trainer_config config = LK_TRAINER_CONFIG_INIT; /* Adam, 1e-3, batches of 64 */
        config.model = simple_cnn;
        config.train = train;
        config.test = test;
        config.epochs = argc > 2 ? atoi(argv[2]) : 5;
        config.save = argc > 3 ? argv[3] : NULL;
        config.resume = true; /* resume if DIR holds a checkpoint */
        config.event = on_event;
        status = lk_trainer_create(context, &config, &trainer);
    }
    if (status >= 0) status = lk_trainer_run(trainer);
    if (status < 0) fprintf(stderr, "cnn: %s\n", lk_context_error(context));

    lk_trainer_free(trainer);
    lk_dataset_free(train);
    lk_dataset_free(test);
    lk_context_free(context);
    return status < 0;
}
