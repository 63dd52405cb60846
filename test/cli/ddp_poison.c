/* ddp_poison.c - a rank of a job whose data may contain one NaN sample; storm_ddp.sh builds and runs it.
 *
 *   ddp_poison SAVE STEPS SAMPLE      SAMPLE: the index of the NaN; -1: none */
#include <lockstep.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 400, PIXELS = 3 * 8 * 8 };

typedef struct poison {
    int64_t sample;
    int     rank;
} poison;

static lk_tensor model(lk_tensor x)
{
    x = lk_relu(lk_batch_norm(lk_conv2d(x, "conv", 16, 3, .padding = 1), "bn"));
    return lk_linear(lk_flatten(x), "fc", 10);
}

static lk_status read_sample(void *user, int64_t index, void *const *fields)
{
    poison  *p = user;
    float   *features = fields[0];
    int32_t *label = fields[1];
    *label = (int32_t)(index % 10);
    for (int i = 0; i < PIXELS; i++) features[i] = (float)((index * 31 + i * 17) % 97) / 97 - 0.5f + (float)*label / 20;
    if (index != p->sample) return LK_OK;
    features[7] = NAN;
    fprintf(stderr, "rank %d read the bad sample\n", p->rank);
    return LK_OK;
}

static int train(lk_context *context, lk_comm *comm, poison *p, const char *save, int64_t steps)
{
    lk_dataset_callbacks_config data = LK_DATASET_CALLBACKS_CONFIG_INIT;
    lk_trainer_config           config = LK_TRAINER_CONFIG_INIT;
    lk_dataset                 *dataset = NULL;
    lk_trainer                 *trainer = NULL;
    data.count = SAMPLES;
    data.fields = (lk_field[]){{.name = "image", .dtype = LK_F32, .rank = 3, .dims = {3, 8, 8}},
                               {.name = "label", .dtype = LK_I32, .classes = 10}};
    data.fields_count = 2;
    data.get = read_sample;
    data.user = p;
    lk_status status = lk_dataset_from_callbacks(context, &data, &dataset);
    config.model = model;
    config.train = dataset;
    config.batch = 20;
    config.steps = steps;
    config.seed = 9;
    config.workers = 0; /* a sample is read for the step that needs it */
    config.save = save;
    config.save_every = 1;
    config.resume = true;
    config.comm = lk_comm_size(comm) > 1 ? comm : NULL;
    config.leaves = 8;
    config.sync_batch_norm = true;
    if (status >= 0) status = lk_trainer_create(context, &config, &trainer);
    if (status >= 0) status = lk_trainer_run(trainer);
    if (status < 0)
        fprintf(stderr, "%s: %s\n", lk_status_name(status), lk_context_error(context));
    else if (p->rank == 0)
        printf("{\"hash\": \"%016llx\"}\n", (unsigned long long)lk_store_hash(lk_trainer_store(trainer)));
    lk_trainer_free(trainer);
    lk_dataset_free(dataset);
    return status < 0;
}

int main(int argc, char **argv)
{
    lk_context       *context;
    lk_comm          *comm;
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_comm_config    comm_config = LK_COMM_CONFIG_INIT;
    config.threads = 1;
    comm_config.join_ms = 30000;
    if (argc != 4 || lk_context_create(&config, &context) < 0) return 2;
    if (lk_comm_create(context, &comm_config, &comm) < 0) {
        fprintf(stderr, "%s\n", lk_context_error(context));
        return 2;
    }
    poison p = {.sample = atoll(argv[3]), .rank = lk_comm_rank(comm)};
    int    code = train(context, comm, &p, argv[1], atoll(argv[2]));
    lk_comm_free(comm);
    lk_context_free(context);
    return code;
}
