/* setup.c - creates a context, data sets and a model from options. */
#define _GNU_SOURCE
#include "setup.h"

#include "encoder_classes.h"
#include "environment.h"
#include "model.h"
#include "model_files.h"
#include "split.h"

#include <lockstep/environment.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

lk_tensor setup_model(setup *s, lk_tensor x)
{
    bool      good = lk_graph_status(x.graph) == LK_OK;
    lk_tensor y = s->model(x, s->model_options);
    s->model_failed = good && lk_graph_status(x.graph) != LK_OK;
    return y;
}

static lk_tensor record_loss(const lk_inputs *inputs, void *user)
{
    setup *s = user;
    if (s->transformer.used) {
        bool      good = lk_graph_status(inputs->graph) == LK_OK;
        lk_tensor loss = transformer_loss(&s->transformer, inputs, s->config.label_smoothing);
        s->model_failed = good && lk_graph_status(inputs->graph) != LK_OK;
        return loss;
    }
    lk_tensor y = setup_model(s, inputs->tensors[0]);
    bool      good = lk_graph_status(inputs->graph) == LK_OK;
    lk_tensor loss = loss_record(s->loss, y, inputs, s->model_options.classes, s->config.label_smoothing);
    if (good && lk_graph_status(inputs->graph) != LK_OK) s->model_failed = true; /* its outputs do not fit the data */
    return loss;
}

static void log_line(void *user, lk_log_level level, const char *text)
{
    const setup *s = user;
    if (s->quiet) return;
    if (level >= LK_LOG_WARNING)
        print_note(s->command, "warning: %s", text);
    else if (level == LK_LOG_INFO)
        print_note(s->command, "%s", text);
}

const char *setup_default_data(const char *model, bool transformer)
{
    return transformer || strcmp(model, "mlp") == 0 ? "synthetic" : "cifar10";
}

/* The name for lk_dataset_open: defaults by model, and shapes for synthetic data. */
static void set_data_name(setup *s, const options *given)
{
    const char *model = options_text(given, "model"), *data = options_text(given, "data");
    bool        mlp = strcmp(model, "mlp") == 0;
    if (!data) data = setup_default_data(model, s->transformer.used);
    if (s->transformer.used && strcmp(data, "synthetic") == 0) {
        int64_t vocabulary = s->transformer.config.vocabulary;
        snprintf(s->data, sizeof s->data, "synthetic-tokens:%lld,vocabulary=%lld", (long long)s->transformer.length,
                 (long long)(vocabulary ? vocabulary : 65));
        return;
    }
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

/* Without a test set (LK_END), s->test stays NULL. */
static lk_status open_both(setup *s)
{
    lk_status status = lk_dataset_open(s->context, s->data, LK_SPLIT_TRAIN, &s->open_options, &s->train);
    return status < 0 ? status : lk_dataset_open(s->context, s->data, LK_SPLIT_TEST, &s->open_options, &s->test);
}

static lk_status probe_both(setup *s)
{
    lk_status status = lk_dataset_probe(s->context, s->data, LK_SPLIT_TRAIN, &s->open_options, &s->train);
    return status < 0 ? status : lk_dataset_probe(s->context, s->data, LK_SPLIT_TEST, &s->open_options, &s->test);
}

/* A placeholder for a set of a public data set: black images that use no memory, since their pages are never
 * touched. */
static lk_status open_placeholder(setup *s, const lk_data_format *format, int set, lk_dataset **dataset)
{
    int64_t        count = format->samples[set];
    const int64_t *image = format->image;
    lk_field       fields[] = {{.name = "image", .dtype = LK_U8, .rank = 3, .dims = {image[0], image[1], image[2]}},
                               {.name = "label", .dtype = LK_I32, .classes = format->classes}};
    lk_dataset_arrays_config c = LK_DATASET_ARRAYS_CONFIG_INIT;
    size_t                   bytes = (size_t)(count * (image[0] * image[1] * image[2] + (int64_t)sizeof(int32_t)));
    char *pages = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); /* never unmapped */
    if (pages == MAP_FAILED) return LK_ENOMEM;
    c.count = count;
    c.fields = fields;
    c.fields_count = 2;
    c.data = (const void *[]){pages + (size_t)count * sizeof(int32_t), pages};
    return lk_dataset_from_arrays(s->context, &c, dataset);
}

/* The shapes and sizes of a known data set: of its files if `probe` and they exist, else the published ones. */
static lk_status open_shapes(setup *s, bool probe)
{
    const lk_data_format *format = lk_data_format_find(s->data);
    if (probe && probe_both(s) >= 0) return LK_OK;
    lk_dataset_free(s->train);
    s->train = NULL;
    if (!format || !(format->traits & LK_DATA_PUBLIC)) return probe_both(s);
    lk_status status = open_placeholder(s, format, 0, &s->train);
    return status < 0 ? status : open_placeholder(s, format, 1, &s->test);
}

static lk_status open_data(setup *s, const options *given, setup_data what)
{
    if (what == SETUP_PROBE) return probe_both(s);
    if (what == SETUP_SIZES || what == SETUP_SHAPES) return open_shapes(s, what == SETUP_SIZES);
    return what == SETUP_BOTH ? open_both(s) : split_open(s, given, what == SETUP_ANY, what == SETUP_PROBE_TEST);
}

/* An option that this model or data set does not use is a user error, instead of being ignored. */
static int check_model_options(const setup *s, const char *name, const options *given)
{
    static const struct {
        const char *option, *models; /* that use it */
    } table[] = {
        {"hidden", "mlp, transformers"}, {"stem", "resnet18"}, {"recompute", "resnet18, resnet20, transformers"}};
    const char *model = s->transformer.used ? "transformers" : s->model_name;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (options_given(given, table[i].option) && !s->model_library && !strstr(table[i].models, model)) {
            print_error(name, "--%s applies only to --model %s; %s does not use it", table[i].option, table[i].models,
                        s->model_name);
            return EXIT_USER_ERROR;
        }
    return 0;
}

static int check_data_options(const setup *s, const char *name, const options *given)
{
    const lk_dataset *d = s->train ? s->train : s->test;
    const lk_field   *input = lk_dataset_field(d, 0), *label = lk_dataset_find(d, "label");
    int64_t           classes = options_integer(given, "classes"), features = options_integer(given, "features");
    bool              flat = input->rank == 1;
    if (options_given(given, "classes") && classes != (label ? label->classes : 0)) {
        print_error(name, "--classes %lld: %s has %d classes; remove --classes", (long long)classes, s->data,
                    label ? label->classes : 0);
        return EXIT_USER_ERROR;
    }
    if (options_given(given, "features") && !(flat && features == lk_field_elements(input))) {
        print_error(name, "--features %lld: a sample of %s has %lld %s; remove --features", (long long)features,
                    s->data, (long long)lk_field_elements(input), flat ? "features" : "values (an image)");
        return EXIT_USER_ERROR;
    }
    return 0;
}

/* mean and std: one number for all channels, or one per channel. */
static int set_normalisation(setup *s, const char *name, const options *given)
{
    lk_transform *t = &s->config.transform;
    if (!options_given(given, "mean") && !options_given(given, "std")) return 0;
    const lk_dataset *d = s->train ? s->train : s->test;
    const lk_field   *input = lk_dataset_field(d, 0);
    bool              bytes = input->dtype == LK_U8; /* other numbers are neither shifted nor divided by default */
    int means = options_given(given, "mean") ? options_numbers(given, "mean", t->mean, LK_MAX_CHANNELS) : 0;
    int stds = options_given(given, "std") ? options_numbers(given, "std", t->std, LK_MAX_CHANNELS) : 0;
    if (means == 0) t->mean[0] = bytes ? 0.5 : 0;
    if (stds == 0) t->std[0] = bytes ? 0.5 : 1;
    t->channels = means > stds ? means : stds;
    if (means > LK_MAX_CHANNELS || stds > LK_MAX_CHANNELS || (means > 1 && stds > 1 && means != stds)) {
        print_error(name, "--mean has %d numbers and --std has %d; give one number, or one per channel", means, stds);
        return EXIT_USER_ERROR;
    }
    int64_t channels = input->rank == 3 ? input->dims[0] : 1;
    if (t->channels > 1 && t->channels != channels) {
        print_error(name, "--mean and --std for %d channels: %s has %lld; give one number, or one per channel",
                    t->channels, s->data, (long long)channels);
        return EXIT_USER_ERROR;
    }
    for (int i = means > 1 ? means : 1; i < t->channels; i++) t->mean[i] = t->mean[0];
    for (int i = stds > 1 ? stds : 1; i < t->channels; i++) t->std[i] = t->std[0];
    return 0;
}

int setup_begin(setup *s, const char *name, const options *given, int threads)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    *s = (setup){.config = LK_TRAINER_CONFIG_INIT, .open_options = LK_OPEN_OPTIONS_INIT, .command = name};
    int code = device_choose(name, given, &config.device);
    if (code != 0) return code;
    config.threads = threads;
    config.overcommit = options_flag(given, "overcommit");
    config.plans_only = strcmp(name, "plan") == 0;
    config.log = log_line;
    config.log_user = s;
    if (environment_rank() <= 0) config.progress = progress_work; /* the other ranks wait for rank 0 */
    config.progress_user = &s->work;
    lk_status status = lk_context_create(&config, &s->context);
    return status < 0 ? report(name, NULL, status) : 0;
}

static bool has_tokenizer(const char *directory)
{
    char path[4096];
    return directory && snprintf(path, sizeof path, "%s/tokenizer.json", directory) < (int)sizeof path &&
           access(path, R_OK) == 0;
}

/* Token files need no tokenizer: where that of the weights is of a kind that is not supported, they are used without.
 * In a context of its own, which keeps the message from later ones. */
static bool is_supported(const setup *s, const char *directory)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    lk_context       *context;
    lk_tokenizer     *tokenizer;
    config.threads = 1;
    config.device = "cpu";
    if (lk_context_create(&config, &context) < 0) return true; /* opening the data says why */
    int       rank = environment_rank(); /* -1 in the process that starts ranks, which prints it for them */
    bool      quiet = rank > 0 || (rank == 0 && lk_environment_get(NULL, "LOCKSTEP_STARTED_RANKS"));
    lk_status status = lk_tokenizer_open(context, directory, &tokenizer);
    if (status < 0 && !quiet)
        print_note(s->command, "the tokenizer of %s is neither used nor saved: %s", directory,
                   lk_context_error(context));
    lk_tokenizer_free(tokenizer);
    lk_context_free(context);
    return status >= 0;
}

/* A checkpoint has the tokenizer that it was trained with: characters, for example, are those of its text, not of any
 * other. Weights to start from have theirs beside them. */
static void use_saved_tokenizer(setup *s, const options *given)
{
    static const char *const weights[] = {"init", "init-partial"};
    bool                     tokens = data_has(s->data, LK_DATA_TOKENIZED);
    if (!data_uses(s->data, "tokenizer") || options_chosen(given, "tokenizer")) return;
    if (has_tokenizer(s->checkpoint)) {
        if (s->open_options.tokenizer || !tokens || is_supported(s, s->checkpoint))
            s->open_options.tokenizer = s->checkpoint;
        return;
    }
    for (int i = 0; i < 2 && !s->open_options.tokenizer; i++) {
        const char *from = options_known(given, weights[i]) ? options_text(given, weights[i]) : NULL;
        if (has_tokenizer(from) && (!tokens || is_supported(s, from))) s->open_options.tokenizer = from;
    }
}

static int set_open_options(setup *s, const char *name, const options *given)
{
    const char *loss = options_text(given, "loss");
    int         code = open_options_set(name, given, s->data, &s->open_options);
    s->open_options.regression = strcmp(loss, "mse") == 0 || strcmp(loss, "l1") == 0;
    s->open_options.classification = strcmp(loss, "cross_entropy") == 0;
    if (s->transformer.used) {
        s->open_options.context = s->transformer.length;
        s->open_options.vocabulary = s->transformer.config.vocabulary; /* 0: that of the data */
    }
    if (code == 0) use_saved_tokenizer(s, given);
    return code;
}

/* Images of another folder than the recorded one are resized to what the model reads. */
static void use_recorded_size(setup *s, const options *given)
{
    const lk_field *image = s->expected;
    if (!image || image->rank != 3 || !data_uses(s->data, "size") || !options_chosen(given, "data")) return;
    setup_image_size(image, &s->open_options);
}

/* New data is read as that of training: nothing is inferred from it. Samples to predict (`any`) may be without
 * labels. */
static void expect_recorded(setup *s, const options *given, bool any)
{
    bool table = data_has(s->data, LK_DATA_TABLE), named = false;
    use_recorded_size(s, given);
    if (!s->expected) return;
    s->open_options.expected = s->expected;
    s->open_options.expected_count = s->expected_count;
    s->open_options.label_optional = any && !options_chosen(given, "label");
    for (int i = 1; i < s->expected_count; i++) named |= s->expected[i].column_names != NULL;
    if (table && named && !options_chosen(given, "label"))
        s->open_options.label = NULL; /* by its recorded name, not by a number that may be another column here */
}

const lk_field *setup_field(const setup *s, const char *field_name)
{
    for (int i = 0; (s->described || s->labels) && i < s->expected_count; i++)
        if (strcmp(s->expected[i].name, field_name) == 0) return &s->expected[i];
    return lk_dataset_find(s->train ? s->train : s->test, field_name);
}

void setup_image_size(const lk_field *image, lk_open_options *open)
{
    if (open->channels == 0) open->channels = (int)image->dims[0];
    if (open->height == 0) open->height = image->dims[1], open->width = image->dims[2];
}

/* Several whole numbers for each sample are labels of a sequence; for --loss bce they are targets of 0 and 1. */
static lk_status reopen_as_targets(setup *s, const options *given, setup_data what)
{
    const lk_field *label = lk_dataset_find(s->train ? s->train : s->test, "label");
    if (strcmp(options_text(given, "loss"), "bce") != 0 || !label || label->rank == 0 || s->transformer.used)
        return LK_OK;
    lk_dataset_free(s->train);
    lk_dataset_free(s->test);
    s->train = s->test = NULL;
    s->open_options.regression = true;
    return open_data(s, given, what);
}

/* Opens the data set that --data names. */
static int open_named(setup *s, const char *name, const options *given, setup_data what)
{
    set_data_name(s, given);
    int code = set_open_options(s, name, given);
    if (code != 0) return code;
    if ((code = encoder_classes_set(s, name, given, what == SETUP_ANY)) != 0) return code;
    expect_recorded(s, given, what == SETUP_ANY);
    s->quiet = environment_rank() > 0 || what == SETUP_PROBE || what == SETUP_PROBE_TEST; /* rank 0 logs the same */
    lk_status status = open_data(s, given, what);
    if (status == LK_END && !s->train) return split_report_none(s, name);
    if (status >= 0) status = reopen_as_targets(s, given, what);
    s->quiet = false;
    if (status >= 0) return check_data_options(s, name, given);
    code = report(name, s->context, status);
    if (status == LK_ENOENT && s->checkpoint && options_given(given, "data") && !options_chosen(given, "data"))
        print_note(
            name,
            "%s is the data path recorded in %s, relative to the directory of that run; give another path with --data",
            s->data, s->checkpoint);
    return code;
}

/* Decoding images needs more time than computing with small models, so all cores do it; the thread pool leaves them
 * their cores. Each worker has two batches, which limits how many there are unless the user asks for more. */
static int choose_workers(const setup *s, const options *given)
{
    enum { DECODERS_MOST = 4 };
    const char *kind = lk_dataset_name(s->train ? s->train : s->test);
    int         threads = lk_context_threads(s->context);
    if (options_given(given, "workers")) return (int)options_integer(given, "workers");
    bool decoded = data_has(kind, LK_DATA_DECODED) || strcmp(kind, "images") == 0; /* lk_dataset_images */
    if (s->open_options.cache || !decoded) return 1;
    return threads < DECODERS_MOST ? threads : DECODERS_MOST;
}

/* Rank 0 logs for all ranks, and the process that started them has done so. */
static int make_transformer(setup *s, const char *name, const options *given)
{
    s->quiet =
        environment_rank() > 0 || (environment_rank() == 0 && lk_environment_get(NULL, "LOCKSTEP_STARTED_RANKS"));
    int code = transformer_make(&s->transformer, name, given, s->checkpoint, s->context);
    s->quiet = false;
    return code;
}

/* Options of classes, for a model of numbers. */
static int check_label_options(const setup *s, const char *name, const options *given)
{
    if (options_chosen(given, "unknown-label") && !setup_field(s, "label")) {
        print_error(name, "--unknown-label applies only to class labels; this model predicts numbers");
        return EXIT_USER_ERROR;
    }
    bool smooths = options_known(given, "label-smoothing") && options_number(given, "label-smoothing") > 0;
    if (smooths && !s->transformer.used && s->loss != LOSS_CROSS_ENTROPY) {
        print_error(name, "--label-smoothing applies only to --loss cross_entropy; this model is trained with %s",
                    loss_name(s->loss));
        return EXIT_USER_ERROR;
    }
    return 0;
}

int setup_make(setup *s, const char *name, const options *given, setup_data what)
{
    int code = s->context ? 0 : setup_begin(s, name, given, (int)options_integer(given, "threads"));
    if (code != 0) return code;
    s->model_name = options_text(given, "model");
    if (!s->transformer.used && (code = make_transformer(s, name, given)) != 0) return code;
    if (!s->transformer.used && !(s->model = model_load(name, s->model_name, &s->model_library)))
        return EXIT_USER_ERROR;
    s->model_options = (lk_model_options){.hidden = options_integer(given, "hidden"),
                                          .cifar_stem = strcmp(options_text(given, "stem"), "cifar") == 0,
                                          .recompute = options_flag(given, "recompute")};
    if ((code = check_model_options(s, name, given)) != 0) return code;
    if (what != SETUP_OPENED && (code = open_named(s, name, given, what)) != 0) return code;
    if (s->transformer.used)
        code =
            transformer_use_data(&s->transformer, name, given, s->train ? s->train : s->test, setup_field(s, "label"));
    else {
        loss_data data = {s->data, setup_field(s, "label"), setup_field(s, "target")};
        code = loss_choose(name, options_text(given, "loss"), &data, &s->loss, &s->model_options.classes);
    }
    if (code != 0) return code;
    if ((code = check_label_options(s, name, given)) != 0) return code;
    s->config.loss = record_loss;
    s->config.model_user = s;
    s->config.train = s->train;
    s->config.test = s->test;
    lk_policy_parse(options_text(given, "dtype"), &s->config.policy, &s->config.dtype);
    lk_matmul_precision_parse(options_text(given, "matmul-precision"), &s->config.matmul_precision);
    if (s->config.matmul_precision != LK_MATMUL_HIGHEST && s->config.dtype != LK_F32) {
        print_error(name, "--matmul-precision %s does not apply to --dtype %s; omit one of the two",
                    options_text(given, "matmul-precision"), lk_dtype_name(s->config.dtype));
        return EXIT_USER_ERROR;
    }
    s->config.batch = options_integer(given, "batch");
    s->config.workers = choose_workers(s, given);
    s->config.seed = (uint64_t)options_integer(given, "seed");
    bool read = what == SETUP_BOTH || what == SETUP_TEST; /* else the samples cannot be read, or targets are not used */
    for (int i = 0; i < 2 && code == 0 && !s->transformer.used; i++)
        code = loss_check_fields(name, s->loss, s->data, i ? s->test : s->train, read);
    return code != 0 ? code : set_normalisation(s, name, given);
}

int setup_report(const setup *s, const char *name, lk_status status)
{
    if (s->groups && strstr(lk_context_error(s->context), "depends on no trainable parameter")) {
        print_error(name, "--freeze and --group leave %s without trainable parameters", s->model_name);
        return EXIT_USER_ERROR;
    }
    char options[sizeof s->data + 64] = "";
    if (s->model_failed)
        snprintf(options, sizeof options, "--model %s --data %s: ", s->model_name, s->data);
    else if (s->config.init && strstr(lk_context_error(s->context), s->config.init))
        snprintf(options, sizeof options, "%s: ", s->weights_option);
    else if (s->config.init_partial && strstr(lk_context_error(s->context), s->config.init_partial))
        snprintf(options, sizeof options, "--init-partial: ");
    return report_as(name, options, s->context, status);
}

const char *setup_unit(const setup *s)
{
    if (s->transformer.used) return "tokens";
    return strcmp(lk_dataset_field(s->train, 0)->name, "image") == 0 ? "images" : "samples";
}

int64_t setup_units(const setup *s) { return s->transformer.used ? s->transformer.length : 1; }

void setup_free(setup *s)
{
    lk_dataset_free(s->train);
    lk_dataset_free(s->test);
    lk_description_free(s->description);
    encoder_classes_free(s);
    lk_mesh_free(s->mesh);
    free(s->tactics);
    lk_context_free(s->context);
    model_unload(s->model_library);
    free(s->expected_fields);
    free(s->expected_bytes);
    free(s->record);
    free(s->record_text);
    model_files_free(s);
    free(s->groups);
    for (int i = 0; i < 2; i++) free(s->group_text[i]);
}
