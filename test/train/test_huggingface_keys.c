/* test_huggingface_keys.c - every key that transformers knows for the models of a config.json, with several values
 * each: a value gives the logits that transformers has with it, or is refused by name. golden/make_huggingface_keys.py
 * made models and logits; weights come from the same formula as there. */
#include "train/file.h"
#include "train/huggingface.h"
#include "training_batch.h"

#include <lockstep/transformer.h>

enum { VOCABULARY = 23, LENGTH = 12, TEXTS = 2, PROJECTIONS = LENGTH, TEXT = 4096 };

typedef struct base_model {
    lk__json              config; /* members of its config.json */
    lk_transformer_config parsed;
    double                logits[PROJECTIONS];
} base_model;

static lk_context *context;
static int         refused, computed, same;

/* ---- a config.json with another value ---- */

static void append(char *out, const char *format, ...)
{
    size_t  used = strlen(out);
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(out + used, TEXT - used, format, arguments);
    va_end(arguments);
    REQUIRE(n >= 0 && used + (size_t)n < TEXT);
}

static void change_key(const base_model *base, const char *key, const lk__json *value, char out[TEXT])
{
    lk__json      name, member;
    lk__json_walk walk = lk__json_begin(&base->config);
    snprintf(out, TEXT, "{");
    while (lk__json_next(&walk, &name, &member))
        if (!lk__json_equals(&name, key))
            append(out, "%.*s: %.*s, ", (int)name.length, name.text, (int)member.length, member.text);
    append(out, "\"%s\": %.*s}", key, (int)value->length, value->text);
}

/* ---- logits ---- */

/* make_huggingface_keys.py's run() and project(). */
static void compute(const lk_transformer_config *config, double *projections)
{
    bool           encoder = config->kind == LK_TRANSFORMER_ENCODER;
    int64_t        rows = encoder ? TEXTS : 1, dims[] = {rows, LENGTH};
    int32_t        tokens[TEXTS * LENGTH] = {0}, lengths[TEXTS] = {LENGTH, 7};
    lk_plan_config plan = LK_PLAN_CONFIG_INIT;
    rig            r = rig_open(LK_F32, 1);
    lk_tensor      none = {0}, input = lk_input(r.graph, "tokens", LK_I32, 2, dims);
    lk_tensor      length = encoder ? lk_input(r.graph, "length", LK_I32, 1, dims) : none;
    for (int64_t n = 0; n < rows; n++)
        for (int i = 0; i < lengths[n]; i++)
            tokens[n * LENGTH + i] = (int32_t)(number_bits(77, (uint64_t)i) % VOCABULARY);
    lk_transformer_result made = lk_transformer(input, config, .lengths = length);
    lk_tensor             logits = encoder ? made.logits : lk_f_linear(made.hidden, made.head, none);
    plan.outputs = &logits;
    plan.outputs_count = 1;
    int64_t width = encoder ? config->classes : config->vocabulary, count = encoder ? TEXTS : LENGTH;
    float  *values = malloc((size_t)(width * count) * sizeof *values);
    rig_plan(&r, &plan, 1);
    initialise(r.store);
    REQUIRE(lk_program_bind(r.program, "tokens", tokens) == LK_OK &&
            (!encoder || lk_program_bind(r.program, "length", lengths) == LK_OK));
    REQUIRE(lk_program_step(r.program, &(lk_step){.step = 1, .count = rows}) == LK_OK &&
                lk_program_run(r.program, LK_EVALUATE) == LK_OK &&
                lk_program_output_read(r.program, 0, values, (size_t)(width * count) * sizeof *values) == LK_OK,
            "%s", lk_context_error(r.context));
    for (int64_t i = 0; i < count; i++) {
        projections[i] = 0;
        for (int64_t j = 0; j < width; j++)
            projections[i] += (double)values[i * width + j] * (2 * number(99, (uint64_t)(i * width + j)) - 1);
    }
    free(values);
    rig_close(&r);
}

static int read_numbers(const lk__json *list, double *out)
{
    lk__json      item;
    lk__json_walk walk = lk__json_begin(list);
    int           count = 0;
    while (count < PROJECTIONS && lk__json_next(&walk, NULL, &item)) REQUIRE(lk__json_number(&item, &out[count++]));
    return count;
}

static double difference(const double *a, const double *b, int count)
{
    double most = 0;
    for (int i = 0; i < count; i++) most = fmax(most, fabs(a[i] - b[i]) / fmax(1, fabs(b[i])));
    return most;
}

/* ---- cases ---- */

static void check_value(const base_model *base, const char *key, const char *part, const lk__json *value,
                        const lk__json *expected)
{
    char                  text[TEXT], quoted[160];
    lk_transformer_config config;
    double                own[PROJECTIONS] = {0}, theirs[PROJECTIONS];
    int                   count = base->parsed.kind == LK_TRANSFORMER_ENCODER ? TEXTS : LENGTH;
    change_key(base, key, value, text);
    snprintf(quoted, sizeof quoted, "\"%.150s\"", part[0] ? part : key);
    if (lk__hf_config_parse(context, "config.json", text, strlen(text), &config) < 0) {
        const char *error = lk_context_error(context);
        bool size = strstr(error, "json: gpt: ") || strstr(error, "json: llama: ") || strstr(error, "json: encoder: ");
        CHECK(strstr(error, quoted) || size, "%s is refused without its name: %s", text, error);
        refused++;
        return;
    }
    /* What transformers refuses has no result that could differ: a value of the wrong type of a key that changes
     * nothing. */
    bool unchanged = memcmp(&config, &base->parsed, sizeof config) == 0;
    if (lk__json_equals(expected, "fails") && unchanged) {
        same++;
        return;
    }
    if (expected->kind == LK__JSON_ARRAY)
        REQUIRE(read_numbers(expected, theirs) == count);
    else
        memcpy(theirs, base->logits, sizeof theirs);
    bool made = expected->kind == LK__JSON_ARRAY || lk__json_equals(expected, "same");
    CHECK(made, "%.*s of %s%s%s is accepted; transformers: %.*s", (int)value->length, value->text, key,
          part[0] ? "." : "", part, (int)expected->length, expected->text);
    if (!made) return;
    if (unchanged) {
        memcpy(own, base->logits, sizeof own);
        same++;
    } else {
        compute(&config, own);
        computed++;
    }
    CHECK(difference(own, theirs, count) < 1e-4, "%.*s of %s%s%s: logits differ by %g", (int)value->length, value->text,
          key, part[0] ? "." : "", part, difference(own, theirs, count));
}

static void check_key(const base_model *base, const lk__json *line)
{
    lk__json key, part, cases, pair, value, expected;
    char     name[80] = "", inner[80] = "";
    REQUIRE(lk__json_get(line, "key", &key) && lk__json_get(line, "cases", &cases));
    lk__json_string(&key, name, sizeof name);
    if (lk__json_get(line, "part", &part)) lk__json_string(&part, inner, sizeof inner);
    lk__json_walk walk = lk__json_begin(&cases);
    while (lk__json_next(&walk, NULL, &pair)) {
        lk__json_walk members = lk__json_begin(&pair);
        REQUIRE(lk__json_next(&members, NULL, &value) && lk__json_next(&members, NULL, &expected));
        check_value(base, name, inner, &value, &expected);
    }
}

static void open_base(base_model *base, const lk__json *config, const lk__json *line)
{
    lk__json logits;
    double   own[PROJECTIONS] = {0};
    *base = (base_model){.config = *config};
    REQUIRE(lk__hf_config_parse(context, "config.json", config->text, config->length, &base->parsed) == LK_OK, "%s",
            lk_context_error(context));
    REQUIRE(lk__json_get(line, "logits", &logits));
    int count = read_numbers(&logits, base->logits);
    compute(&base->parsed, own);
    CHECK(difference(own, base->logits, count) < 1e-4, "%.*s: logits differ by %g", (int)config->length, config->text,
          difference(own, base->logits, count));
}

static void every_value_gives_the_logits_of_transformers_or_is_refused(void)
{
    char           path[512], *text, *end;
    size_t         length;
    base_model     base = {0};
    lk__json       line, config;
    lk__json_error error;
    int            models = 0;
    snprintf(path, sizeof path, "%s/test/golden/huggingface_keys.jsonl", LK_SOURCE_DIR);
    REQUIRE(lk__read_text(context, path, 1 << 24, &text, &length) == LK_OK, "%s", lk_context_error(context));
    for (char *at = text; at < text + length; at = end + 1) {
        end = memchr(at, '\n', (size_t)(text + length - at));
        REQUIRE(end && lk__json_parse(at, (size_t)(end - at), &line, &error));
        if (lk__json_get(&line, "config", &config))
            open_base(&base, &config, &line), models++;
        else
            check_key(&base, &line);
    }
    printf("     %d models: %d values are refused, %d change nothing, %d give other logits\n", models, refused, same,
           computed);
    CHECK(models == 4 && refused > 100 && same > 100 && computed > 50);
    lk__text_free(context, text, length);
}

int main(void)
{
    REQUIRE(lk_context_create(NULL, &context) == LK_OK);
    RUN(every_value_gives_the_logits_of_transformers_or_is_refused);
    lk_context_free(context);
    return check_result();
}
