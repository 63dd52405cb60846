/* setup.c - creates a context, data sets and a model from options. */
#define _GNU_SOURCE
#include "setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static lk_tensor build_model(lk_tensor x, void *user)
{
    setup    *s = user;
    bool      good = lk_graph_status(x.graph) == LK_OK;
    lk_tensor y = s->model(x, s->model_options);
    s->model_failed = good && lk_graph_status(x.graph) != LK_OK;
    return y;
}

static void log_line(void *user, lk_log_level level, const char *text)
{
    const char *name = user;
    if (level >= LK_LOG_WARNING)
        print_note(name, "warning: %s", text);
    else if (level == LK_LOG_INFO)
        print_note(name, "%s", text);
}

/* The name for lk_dataset_open: defaults by model, and shapes for synthetic data. */
static void set_data_name(setup *s, const options *given)
{
    const char *model = options_text(given, "model"), *data = options_text(given, "data");
    bool        mlp = strcmp(model, "mlp") == 0;
    if (!data) data = mlp ? "synthetic" : "cifar10";
    bool named = strncmp(data, "synthetic:", 10) == 0; /* with its sizes; options may set the others */
    if (named && options_given(given, "classes") && !strstr(data, "classes="))
        snprintf(s->data, sizeof s->data, "%s%sclasses=%lld", data, data[10] ? "," : "",
                 (long long)options_integer(given, "classes"));
    else if (strcmp(data, "synthetic") != 0)
        snprintf(s->data, sizeof s->data, "%s", data);
    else if (mlp)
        snprintf(s->data, sizeof s->data, "synthetic:%lld,classes=%lld", (long long)options_integer(given, "features"),
                 (long long)options_integer(given, "classes"));
    else
        snprintf(s->data, sizeof s->data, "synthetic:3x32x32,classes=%lld",
                 (long long)options_integer(given, "classes"));
}

static lk_status open_both(setup *s)
{
    lk_status status = lk_dataset_open(s->context, s->data, LK_SPLIT_TRAIN, &s->train);
    return status < 0 ? status : lk_dataset_open(s->context, s->data, LK_SPLIT_TEST, &s->test);
}

static lk_status probe_both(setup *s)
{
    lk_status status = lk_dataset_probe(s->context, s->data, LK_SPLIT_TRAIN, &s->train);
    return status < 0 ? status : lk_dataset_probe(s->context, s->data, LK_SPLIT_TEST, &s->test);
}

/* A placeholder data set of `count` black images that uses no memory: its pages are never touched. */
static lk_status open_placeholder(setup *s, int64_t count, int64_t channels, int64_t side, lk_dataset **dataset)
{
    lk_dataset_arrays_config c = LK_DATASET_ARRAYS_CONFIG_INIT;
    size_t                   bytes = (size_t)(count * (channels * side * side + (int64_t)sizeof(int32_t)));
    char *pages = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); /* never unmapped */
    if (pages == MAP_FAILED) return LK_ENOMEM;
    c.count = count;
    c.rank = 3;
    c.dims[0] = channels;
    c.dims[1] = c.dims[2] = side;
    c.dtype = LK_U8;
    c.classes = 10;
    c.labels = (const int32_t *)pages;
    c.features = pages + (size_t)count * sizeof(int32_t);
    return lk_dataset_from_arrays(s->context, &c, dataset);
}

/* The shapes and sizes of a known data set: of its files if `probe` and they exist, else the published ones. */
static lk_status open_shapes(setup *s, bool probe)
{
    static const struct {
        const char *name;
        int64_t     count[2], channels, side;
    } known[] = {
        {"cifar10", {50000, 10000}, 3, 32}, {"fashion-mnist", {60000, 10000}, 1, 28}, {"mnist", {60000, 10000}, 1, 28}};
    size_t length = strcspn(s->data, ":");
    if (probe && probe_both(s) >= 0) return LK_OK;
    lk_dataset_free(s->train);
    s->train = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].name) != length || strncmp(s->data, known[i].name, length) != 0) continue;
        lk_status status = open_placeholder(s, known[i].count[0], known[i].channels, known[i].side, &s->train);
        return status < 0 ? status : open_placeholder(s, known[i].count[1], known[i].channels, known[i].side, &s->test);
    }
    return probe_both(s);
}

static lk_status open_data(setup *s, setup_data what)
{
    if (what == SETUP_PROBE) return probe_both(s);
    if (what == SETUP_SIZES || what == SETUP_SHAPES) return open_shapes(s, what == SETUP_SIZES);
    return what == SETUP_BOTH ? open_both(s) : lk_dataset_open(s->context, s->data, LK_SPLIT_TEST, &s->test);
}

/* An option that this model or data set does not use is a user error, instead of being ignored. */
static int check_model_options(const setup *s, const char *name, const options *given)
{
    static const struct {
        const char *option, *models; /* that use it */
    } table[] = {{"hidden", "mlp"}, {"stem", "resnet18"}, {"recompute", "resnet18, resnet20"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (options_given(given, table[i].option) && !strstr(table[i].models, s->model_name)) {
            print_error(name, "--%s belongs to --model %s; %s does not use it", table[i].option, table[i].models,
                        s->model_name);
            return EXIT_USER_ERROR;
        }
    return 0;
}

static int check_data_options(const setup *s, const char *name, const options *given)
{
    const lk_dataset *d = s->train ? s->train : s->test;
    int64_t           classes = options_integer(given, "classes"), features = options_integer(given, "features");
    bool              flat = lk_dataset_rank(d) == 1;
    if (options_given(given, "classes") && classes != lk_dataset_classes(d)) {
        print_error(name, "--classes %lld: %s has %d classes; remove --classes", (long long)classes, s->data,
                    lk_dataset_classes(d));
        return EXIT_USER_ERROR;
    }
    if (options_given(given, "features") && !(flat && features == lk_dataset_elements(d))) {
        print_error(name, "--features %lld: a sample of %s has %lld %s; remove --features", (long long)features,
                    s->data, (long long)lk_dataset_elements(d), flat ? "features" : "values, as an image");
        return EXIT_USER_ERROR;
    }
    return 0;
}

/* mean and std: one number for all channels, or one per channel. */
static int set_normalisation(setup *s, const char *name, const options *given)
{
    lk_transform *t = &s->config.transform;
    if (!options_given(given, "mean") && !options_given(given, "std")) return 0;
    int means = options_given(given, "mean") ? options_numbers(given, "mean", t->mean, LK_MAX_CHANNELS) : 0;
    int stds = options_given(given, "std") ? options_numbers(given, "std", t->std, LK_MAX_CHANNELS) : 0;
    if (means == 0) t->mean[0] = 0.5;
    if (stds == 0) t->std[0] = 0.5;
    t->channels = means > stds ? means : stds;
    if (means > LK_MAX_CHANNELS || stds > LK_MAX_CHANNELS || (means > 1 && stds > 1 && means != stds)) {
        print_error(name, "--mean has %d numbers and --std %d; give one number, or one per channel", means, stds);
        return EXIT_USER_ERROR;
    }
    const lk_dataset *d = s->train ? s->train : s->test;
    int64_t           channels = lk_dataset_rank(d) == 3 ? lk_dataset_dims(d)[0] : 1;
    if (t->channels > 1 && t->channels != channels) {
        print_error(name, "--mean and --std for %d channels: %s has %lld; give one number, or one per channel",
                    t->channels, s->data, (long long)channels);
        return EXIT_USER_ERROR;
    }
    for (int i = means > 1 ? means : 1; i < t->channels; i++) t->mean[i] = t->mean[0];
    for (int i = stds > 1 ? stds : 1; i < t->channels; i++) t->std[i] = t->std[0];
    return 0;
}

/* "cpu, guarded": the devices of this build. */
static const char *list_devices(char *out, size_t size)
{
    size_t      used = 0;
    const char *device;
    out[0] = 0;
    for (size_t i = 0; (device = lk_device_name(i)) && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", device);
    return out;
}

static int check_device(const char *name, const char *given)
{
    const char *device = given ? given : getenv("LOCKSTEP_DEVICE"), *known;
    char        all[256];
    if (!device || (!given && !*device)) return 0;
    for (size_t i = 0; (known = lk_device_name(i)); i++)
        if (strcmp(known, device) == 0) return 0;
    print_error(name, "%s%.40s%s: there is no such device; this build has %s",
                given ? "--device " : "LOCKSTEP_DEVICE is '", device, given ? "" : "' in the environment",
                list_devices(all, sizeof all));
    return EXIT_USER_ERROR;
}

int setup_begin(setup *s, const char *name, const options *given, int threads)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    *s = (setup){.config = LK_TRAINER_CONFIG_INIT};
    if (check_device(name, options_text(given, "device")) != 0) return EXIT_USER_ERROR;
    config.threads = threads;
    config.device = options_text(given, "device");
    config.log = log_line;
    config.log_user = (void *)name;
    lk_status status = lk_context_create(&config, &s->context);
    return status < 0 ? report(name, NULL, status) : 0;
}

/* bf16 is a policy for a model that is recorded in f32; f32 and f64 are types of the record. */
static void set_precision(lk_trainer_config *config, const char *type)
{
    bool mixed = strcmp(type, "bf16") == 0;
    config->policy = mixed ? LK_POLICY_BF16 : LK_POLICY_RECORDED;
    lk_dtype_parse(mixed ? "f32" : type, &config->dtype);
}

int setup_make(setup *s, const char *name, const options *given, setup_data what)
{
    lk_status status;
    int       code = s->context ? 0 : setup_begin(s, name, given, (int)options_integer(given, "threads"));
    if (code != 0) return code;
    s->model_name = options_text(given, "model");
    s->model = lk_model_find(s->model_name);
    s->model_options = (lk_model_options){.hidden = options_integer(given, "hidden"),
                                          .cifar_stem = strcmp(options_text(given, "stem"), "cifar") == 0,
                                          .recompute = options_flag(given, "recompute")};
    if ((code = check_model_options(s, name, given)) != 0) return code;
    set_data_name(s, given);
    if ((status = open_data(s, what)) < 0) return report(name, s->context, status);
    if ((code = check_data_options(s, name, given)) != 0) return code;
    s->model_options.classes = lk_dataset_classes(s->train ? s->train : s->test);
    s->config.model_with = build_model;
    s->config.model_user = s;
    s->config.train = s->train;
    s->config.test = s->test;
    set_precision(&s->config, options_text(given, "dtype"));
    s->config.batch = options_integer(given, "batch");
    s->config.workers = (int)options_integer(given, "workers");
    s->config.seed = (uint64_t)options_integer(given, "seed");
    return set_normalisation(s, name, given);
}

int setup_report(const setup *s, const char *name, lk_status status)
{
    char options[sizeof s->data + 64] = "";
    if (s->model_failed)
        snprintf(options, sizeof options, "--model %s --data %s: ", s->model_name, s->data);
    else if (s->config.init && strstr(lk_context_error(s->context), s->config.init))
        snprintf(options, sizeof options, "%s: ", s->weights_option);
    return report_as(name, options, s->context, status);
}

void setup_free(setup *s)
{
    lk_dataset_free(s->train);
    lk_dataset_free(s->test);
    lk_context_free(s->context);
}
