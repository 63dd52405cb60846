/* fetch.c - downloads a missing data set: one rank of each host downloads it while the others wait. */
#include "progress.h"
#include "ranks.h"

#include <string.h>

static lk_status fetch_dataset(setup *s, const char *data, const char *url)
{
    char        name[64];
    progress    bar = {.what = name};
    lk_dataset *found;
    size_t      length = strcspn(data, ":");
    lk_status   status = LK_OK;
    for (int i = 0; i < 2 && status == LK_OK; i++) { /* an interrupted download may have only one of them */
        status = lk_dataset_probe(s->context, data, i == 0 ? LK_SPLIT_TRAIN : LK_SPLIT_TEST, NULL, &found);
        if (status >= 0) lk_dataset_free(found);
    }
    if (status != LK_ENOENT) return status;
    snprintf(name, sizeof name, "%.*s", (int)length, data);
    status = lk_data_get(s->context, name, data[length] ? data + length + 1 : NULL, url, progress_bytes, &bar);
    if (bar.out) progress_end(&bar);
    return status;
}

int ranks_fetch(setup *s, const char *command_name, const options *given)
{
    const char *from = options_text(given, "download"), *data = options_text(given, "data");
    lk_comm    *comm = s->config.comm;
    lk_status   status = LK_OK;
    if (!from) return 0;
    if (!data) {
        transformer model;
        int         code = transformer_make(&model, command_name, given, s->checkpoint, s->context);
        if (code != 0) return code;
        data = setup_default_data(options_text(given, "model"), model.used);
    }
    if (!data_has(data, LK_DATA_PUBLIC)) {
        char names[256];
        data_names_public(names, sizeof names);
        print_error(command_name, "--download %s: only %s can be downloaded, not --data %s; omit --download", from,
                    names, data);
        return EXIT_USER_ERROR;
    }
    if (!comm || lk_comm_local_rank(comm) == 0) {
        if (comm) lk_comm_busy_begin(comm, "downloading the data set");
        status = fetch_dataset(s, data, strcmp(from, "auto") == 0 ? NULL : from);
        if (comm) lk_comm_busy_end(comm);
        if (status < 0) {
            if (comm) lk_comm_abort(comm, lk_context_error(s->context));
            return report(command_name, s->context, status);
        }
    }
    if (comm) status = lk_comm_barrier(comm, NULL);
    return status < 0 ? report(command_name, s->context, status) : 0;
}
