/* images.c - how fast a folder of images is loaded: batches of the loader, as training gets them, without a model.
 * Usage: images DIR [WORKERS [HEIGHT WIDTH [EPOCHS [CACHE]]]]; prints images per second of each epoch. */
#include "base/base.h"

#include <lockstep/data.h>
#include <stdio.h>
#include <stdlib.h>

static int report_failure(lk_context *context)
{
    fprintf(stderr, "%s\n", lk_context_error(context));
    return 1;
}

int main(int count, char **arguments)
{
    lk_context      *context;
    lk_dataset      *dataset;
    lk_loader       *loader;
    lk_open_options  options = LK_OPEN_OPTIONS_INIT;
    lk_loader_config config = LK_LOADER_CONFIG_INIT;
    char             name[1024];
    if (count < 2 || lk_context_create(NULL, &context) < 0) {
        fprintf(stderr, "usage: images DIR [WORKERS [HEIGHT WIDTH [EPOCHS [CACHE]]]]\n");
        return 2;
    }
    snprintf(name, sizeof name, "folder:%s", arguments[1]);
    config.workers = count > 2 ? atoi(arguments[2]) : 1;
    options.height = count > 4 ? atoi(arguments[3]) : 0;
    options.width = count > 4 ? atoi(arguments[4]) : 0;
    int epochs = count > 5 ? atoi(arguments[5]) : 3;
    options.cache = count > 6 ? arguments[6] : NULL;
    double begun = lk__now();
    if (lk_dataset_open(context, name, LK_SPLIT_TRAIN, &options, &dataset) < 0) return report_failure(context);
    printf("opened %lld images in %.3f s\n", (long long)lk_dataset_count(dataset), lk__now() - begun);
    config.dataset = dataset;
    config.batch = 64;
    config.shuffle = true;
    if (lk_loader_create(context, &config, &loader) < 0) return report_failure(context);
    for (int epoch = 0; epoch < epochs; epoch++) {
        lk_batch  batch;
        lk_status status;
        begun = lk__now();
        while ((status = lk_loader_next(loader, &batch)) == LK_OK) {}
        if (status < 0) return report_failure(context);
        printf("%.0f images/s with %d workers\n", (double)lk_dataset_count(dataset) / (lk__now() - begun),
               config.workers);
    }
    lk_loader_free(loader);
    lk_dataset_free(dataset);
    lk_context_free(context);
    return 0;
}
