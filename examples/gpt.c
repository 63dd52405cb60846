/* gpt.c - a GPT by hand: the model in a page, trained to predict the next byte of a text file.
 *
 *   gpt FILE [STEPS] */
#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 64, WIDTH = 128, HEADS = 4, LAYERS = 4, BYTES = 256 };

static lk_tensor block(lk_tensor x, int i)
{
    char      name[16];
    lk_tensor none = {0};
    snprintf(name, sizeof name, "h%d", i);
    lk_block_begin(x, name);
    lk_tensor qkv = lk_linear(lk_layer_norm(x, "ln1"), "qkv", 3 * WIDTH, .std = 0.02);
    x = lk_add(x, lk_linear(lk_attention(qkv, none, none, .heads = HEADS, .causal = true), "proj", WIDTH, .std = 0.02));
    lk_tensor hidden = lk_gelu(lk_linear(lk_layer_norm(x, "ln2"), "fc", 4 * WIDTH, .std = 0.02), .tanh = true);
    x = lk_add(x, lk_linear(hidden, "out", WIDTH, .std = 0.02));
    lk_block_end(x);
    return x;
}

/* The loss over a batch of samples: tokens and the tokens that follow. */
static lk_tensor gpt(const lk_inputs *inputs, void *user)
{
    lk_tensor tokens = lk_inputs_find(inputs, "tokens"); /* (N, LENGTH) */
    lk_graph *g = inputs->graph;
    lk_tensor wte = lk_parameter(g, "wte", 2, ((int64_t[]){BYTES, WIDTH}), .init = LK_INIT_NORMAL, .a = 0.02);
    lk_tensor wpe = lk_parameter(g, "wpe", 2, ((int64_t[]){LENGTH, WIDTH}), .init = LK_INIT_NORMAL, .a = 0.02);
    lk_tensor x = lk_add(lk_f_embedding(tokens, wte), wpe); /* (N, LENGTH, WIDTH) */
    for (int i = 0; i < LAYERS; i++) x = block(x, i);
    (void)user;
    return lk_linear_cross_entropy(lk_layer_norm(x, "ln"), wte, lk_inputs_find(inputs, "label")); /* tied */
}

/* ---- data: a window at every position of the file ---- */

static unsigned char text[1 << 20];

static lk_status window(void *user, int64_t index, void *const *fields)
{
    (void)user;
    for (int i = 0; i < LENGTH; i++) {
        ((int32_t *)fields[0])[i] = text[index + i];
        ((int32_t *)fields[1])[i] = text[index + i + 1];
    }
    return LK_OK;
}

static int print_loss(void *user, const lk_event *e)
{
    (void)user;
    if (e->kind == LK_EVENT_STEP && (e->step % 50 == 0 || e->step == 1))
        printf("step %lld: loss %.4f\n", (long long)e->step, e->loss);
    return 0;
}

int main(int argc, char **argv)
{
    FILE       *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    size_t      bytes = file ? fread(text, 1, sizeof text, file) : 0;
    lk_context *context;
    lk_dataset *data = NULL;
    lk_trainer *trainer = NULL;
    if (file) fclose(file);
    if (bytes <= LENGTH)
        return fprintf(stderr, "usage: gpt FILE [STEPS]; FILE must have more than %d bytes\n", LENGTH), 2;
    if (lk_context_create(NULL, &context) < 0) return 1;

    lk_field                    fields[] = {{.name = "tokens", .dtype = LK_I32, .rank = 1, .dims = {LENGTH}},
                                            {.name = "label", .dtype = LK_I32, .rank = 1, .dims = {LENGTH}}};
    lk_dataset_callbacks_config windows = LK_DATASET_CALLBACKS_CONFIG_INIT;
    windows.count = (int64_t)bytes - LENGTH;
    windows.fields = fields;
    windows.fields_count = 2;
    windows.get = window;
    lk_trainer_config training = LK_TRAINER_CONFIG_INIT;
    training.loss = gpt;
    training.batch = 12;
    training.steps = argc > 2 ? atoll(argv[2]) : 200;
    training.optimizer.kind = LK_ADAMW;
    training.optimizer.clip = 1;
    training.event = print_loss;
    lk_status status = lk_dataset_from_callbacks(context, &windows, &data);
    training.train = data;
    if (status >= 0) status = lk_trainer_create(context, &training, &trainer);
    if (status >= 0) status = lk_trainer_run(trainer);
    if (status < 0) fprintf(stderr, "gpt: %s\n", lk_context_error(context));
    lk_trainer_free(trainer);
    lk_dataset_free(data);
    lk_context_free(context);
    return status < 0;
}
