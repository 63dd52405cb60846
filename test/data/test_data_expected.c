/* test_data_expected.c - data sets that are read as those that a model was trained on: class numbers, columns and types
 * are those of training, whatever the new file has. Expected values are written out by hand. */
#define _GNU_SOURCE
#include "test_data.h"

#include "data/csv/csv.h"

#include <math.h>

static lk_context *context;
static char        logged[8192]; /* what was logged, line by line */

static void keep_log(void *user, lk_log_level level, const char *text)
{
    (void)user, (void)level;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%s\n", text);
}

static lk_status open_csv(const char *text, const lk_open_options *options, lk_dataset **d)
{
    char name[1024];
    write_file(scratch("new.csv"), text, strlen(text));
    snprintf(name, sizeof name, "csv:%s", scratch("new.csv"));
    logged[0] = 0;
    return lk_dataset_open(context, name, LK_SPLIT_TRAIN, options, d);
}

/* The samples of training: columns a, b and c, and the classes ant, bee and cow. */
static const char *const columns[] = {"a", "b", "c"}, *const kinds[] = {"ant", "bee", "cow"},
                         *const kind_column[] = {"kind"};
static const lk_field           trained[] = {
              {.name = "features", .dtype = LK_F32, .rank = 1, .dims = {3}, .column_names = columns},
              {.name = "label", .dtype = LK_I32, .classes = 3, .class_names = kinds, .column_names = kind_column},
};

static lk_open_options expecting(const lk_field *fields, int count)
{
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    options.expected = fields;
    options.expected_count = count;
    return options;
}

/* Opens a table, and compares features (rows × 3) and labels; labels NULL: there is no such field. */
static void check_rows(const char *text, const lk_open_options *options, int64_t rows, const float *features,
                       const int32_t *labels)
{
    lk_dataset *d;
    CHECK_OK(context, open_csv(text, options, &d));
    CHECK(lk_dataset_count(d) == rows && lk_dataset_fields(d) == (labels ? 2 : 1));
    CHECK(!labels || (lk_dataset_find(d, "label")->classes == 3 &&
                      strcmp(lk_dataset_find(d, "label")->class_names[2], "cow") == 0));
    for (int64_t i = 0; i < rows; i++) {
        float   row[3];
        int32_t label;
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){row, &label}));
        for (int k = 0; k < 3; k++) CHECK(row[k] == features[3 * i + k]);
        CHECK(!labels || label == labels[i]);
    }
    lk_dataset_free(d);
}

static void tables_with_some_of_the_classes_keep_their_numbers(void)
{
    static const float features[] = {1, 2, 3, 4, 5, 6};
    lk_open_options    options = expecting(trained, 2);
    check_rows("a,b,c,kind\n1,2,3,cow\n4,5,6,bee\n", &options, 2, features, (int32_t[]){2, 1});
    check_rows("a,b,c,kind\n1,2,3,cow\n4,5,6,cow\n", &options, 2, features, (int32_t[]){2, 2});
    check_rows("a,b,c,kind\n1,2,3, bee \n", &options, 1, features, (int32_t[]){1});
    options.holdout = 0;
    lk_dataset *d;
    CHECK_FAILS(context, open_csv("a,b,c,kind\n1,2,3,cow\n4,5,6,bea\n", &options, &d), LK_EFORMAT,
                "new.csv: line 3, column 4 ('kind')", "'bea' is not a class of the training data (did you mean 'bee'?)",
                "expected one of 'ant', 'bee', 'cow'", "--unknown-label skip");
    CHECK_FAILS(context, open_csv("a,b,c,kind\n1,2,3,4\n", &options, &d), LK_EFORMAT, "'4' is not a class");
    CHECK_FAILS(context, open_csv("a,b,c,kind\n1,2,3,\n", &options, &d), LK_EFORMAT, "line 2, column 4", "missing");
}

static void columns_are_found_by_their_names(void)
{
    static const float features[] = {1, 2, 3, 4, 5, 6};
    const int32_t      labels[] = {2, 1};
    lk_open_options    options = expecting(trained, 2);
    check_rows("kind,c,b,a\ncow,3,2,1\nbee,6,5,4\n", &options, 2, features, labels);
    check_rows("id,c,kind,b,\"note\",a\n7,3,cow,2,9,1\n8,6,bee,5,9,4\n", &options, 2, features, labels);
    CHECK(strstr(logged, "2 columns that the model was not trained on are not used: 'id', 'note'"));
    check_rows("note,a,b,c,kind\nold,1,2,3,cow\n,4,5,6,bee\n", &options, 2, features,
               labels); /* also text, and nothing */
    lk_dataset *d;
    CHECK_FAILS(context, open_csv("a,bb,c,kind\n1,2,3,cow\n", &options, &d), LK_EMISMATCH,
                "no column 'b' (did you mean 'bb'?)");
    CHECK_FAILS(context, open_csv("a,c,kind\n1,3,cow\n", &options, &d), LK_EMISMATCH, "no column 'b'");
    CHECK_FAILS(context, open_csv("a,b,c,kinds\n1,2,3,cow\n", &options, &d), LK_EINVAL, "no column 'kind'",
                "did you mean 'kinds'");
    CHECK_FAILS(context, open_csv("a,b,c,a,kind\n1,2,3,4,cow\n", &options, &d), LK_EMISMATCH,
                "two columns with the same name");
    options.label = "b";
    CHECK_FAILS(context, open_csv("a,b,c,kind\n1,2,3,cow\n", &options, &d), LK_EMISMATCH,
                "column 'b' cannot be the label");
    options.label = NULL;
    /* Without names the label's place is not known, unless it is given. */
    CHECK_FAILS(context, open_csv("1,2,3,cow\n4,5,6,bee\n", &options, &d), LK_EINVAL, "no header", "'kind'", "--label");
    options.label = "4";
    check_rows("1,2,3,cow\n4,5,6,bee\n", &options, 2, features, labels);
    CHECK_FAILS(context, open_csv("1,2,3,4,cow\n", &options, &d), LK_EMISMATCH, "trained on 3 features");
    /* Names that are numbers are names where the model was trained on them. */
    const char *const years[] = {"2019", "2020", "2021"};
    lk_field          numbered[] = {trained[0], trained[1]};
    numbered[0].column_names = years;
    options = expecting(numbered, 2);
    check_rows("kind,2021,2020,2019\ncow,3,2,1\nbee,6,5,4\n", &options, 2, features, labels);
    options.label_optional = true;
    check_rows("2021,2020,2019\n3,2,1\n6,5,4\n", &options, 2, features, NULL);
    check_rows("1,2,3\n4,5,6\n", &options, 2, features, NULL);
}

static void rows_to_predict_need_no_label(void)
{
    static const float features[] = {1, 2, 3, 4, 5, 6};
    lk_open_options    options = expecting(trained, 2);
    lk_dataset        *d;
    CHECK_FAILS(context, open_csv("a,b,c\n1,2,3\n", &options, &d), LK_EINVAL, "no column 'kind'");
    CHECK_FAILS(context, open_csv("1,2,3\n", &options, &d), LK_EFORMAT, "3 columns: expected 3 features and a label");
    options.label_optional = true;
    check_rows("a,b,c\n1,2,3\n4,5,6\n", &options, 2, features, NULL);
    check_rows("c,b,a,id\n3,2,1,0\n6,5,4,1\n", &options, 2, features, NULL);
    check_rows("1,2,3\n4,5,6\n", &options, 2, features, NULL);
    check_rows("a,b,c,kind\n1,2,3,cow\n4,5,6,\n", &options, 2, features, (int32_t[]){2, LK_NO_LABEL});
    CHECK_FAILS(context, open_csv("a,b,c,kind\n1,2,3,cat\n", &options, &d), LK_EFORMAT, "'cat' is not a class");
    /* A record of an older version has no name of the label's column: it is the usual one, unless that is a feature. */
    lk_field older[] = {trained[0], trained[1]};
    older[1].column_names = NULL;
    options = expecting(older, 2);
    check_rows("label,c,b,a\ncow,3,2,1\nbee,6,5,4\n", &options, 2, features, (int32_t[]){2, 1});
    check_rows("c,b,a,kind\n3,2,1,cow\n6,5,4,bee\n", &options, 2, features, (int32_t[]){2, 1});
    CHECK_FAILS(context, open_csv("id,c,b,a\n0,3,2,1\n", &options, &d), LK_EFORMAT, "expected 3 features and a label");
    options.label_optional = true;
    check_rows("c,b,a\n3,2,1\n6,5,4\n", &options, 2, features, NULL);
    check_rows("id,c,b,a\n0,3,2,1\n1,6,5,4\n", &options, 2, features, NULL);
}

static void rows_of_unknown_classes_are_left_out_on_demand(void)
{
    static const float features[] = {1, 2, 3, 4, 5, 6};
    lk_open_options    options = expecting(trained, 2);
    options.skip_unknown = true;
    check_rows("a,b,c,kind\n9,9,9,dog\n1,2,3,cow\n9,9,9,eel\n9,9,9,dog\n4,5,6,bee\n", &options, 2, features,
               (int32_t[]){2, 1});
    CHECK(
        strstr(logged, "3 of 5 samples have labels that the training data does not have ('dog', …), and are left out"));
    check_rows("a,b,c,kind\n1,2,3,cow\n4,5,6,bee\n", &options, 2, features, (int32_t[]){2, 1});
    CHECK(!strstr(logged, "left out"));
    lk_dataset *d;
    CHECK_FAILS(context, open_csv("a,b,c,kind\n1,2,3,dog\n", &options, &d), LK_EFORMAT, "none of its 1 samples",
                "'dog'");
}

/* Which rows are held out does not depend on rows that are left out. */
static void rows_stay_held_out_where_others_are_left_out(void)
{
    lk_open_options options = expecting(trained, 2);
    lk_dataset     *d;
    char            name[1024], text[2][4096];
    bool            seen[2][40] = {{0}};
    options.skip_unknown = true;
    options.holdout = 0.4;
    for (int unknown = 0; unknown < 2; unknown++) {
        char *to = text[unknown] + sprintf(text[unknown], "a,b,c,kind\n");
        for (int i = 0; i < 40; i++) to += sprintf(to, "%d,0,0,%s\n", i, unknown && i % 3 == 0 ? "dog" : kinds[i % 3]);
        write_file(scratch("held.csv"), text[unknown], strlen(text[unknown]));
        snprintf(name, sizeof name, "csv:%s", scratch("held.csv"));
        CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TEST, &options, &d));
        for (int64_t k = 0; k < lk_dataset_count(d); k++) {
            float   row[3];
            int32_t label;
            CHECK_OK(context, lk_dataset_get(d, k, (void *[]){row, &label}));
            CHECK(label == (int)row[0] % 3);
            seen[unknown][(int)row[0]] = true;
        }
        lk_dataset_free(d);
    }
    for (int i = 0; i < 40; i++) CHECK(seen[1][i] == (seen[0][i] && i % 3 != 0));
}

/* Class numbers, classes that are called as numbers, and numbers to predict: read as in training, not by the rule for
 * new tables. */
static void numbers_are_what_they_were_in_training(void)
{
    static const char *const from_one[] = {"1", "2", "3"};
    lk_field                 fields[] = {{.name = "features", .dtype = LK_F32, .rank = 1, .dims = {1}},
                                         {.name = "label", .dtype = LK_I32, .classes = 5}};
    lk_open_options          options = expecting(fields, 2);
    lk_dataset              *d;
    float                    x, y;
    int32_t                  k;
    CHECK_OK(context, open_csv("7,3\n8,0\n9,2\n", &options, &d));
    CHECK_OK(context, lk_dataset_get(d, 0, (void *[]){&x, &k}));
    CHECK(k == 3 && x == 7 && lk_dataset_find(d, "label")->classes == 5);
    lk_dataset_free(d);
    CHECK_FAILS(context, open_csv("7,3\n8,5\n", &options, &d), LK_EFORMAT, "line 2, column 2", "'5' is not a class",
                "0 to 4");
    CHECK_FAILS(context, open_csv("7,2.5\n", &options, &d), LK_EFORMAT, "'2.5' is not a class");
    CHECK_FAILS(context, open_csv("7,-1\n", &options, &d), LK_EFORMAT, "'-1' is not a class");
    fields[1].classes = 3, fields[1].class_names = from_one;
    CHECK_OK(context, open_csv("7,3\n8,1.0\n", &options, &d));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){&x, &k}));
        CHECK(k == (i == 0 ? 2 : 0));
    }
    lk_dataset_free(d);
    CHECK_FAILS(context, open_csv("7,0\n", &options, &d), LK_EFORMAT, "'0' is not a class", "'1', '2', '3'");
    fields[1] = (lk_field){.name = "target", .dtype = LK_F32};
    CHECK_OK(context, open_csv("7,3\n8,3\n", &options, &d));
    CHECK_OK(context, lk_dataset_get(d, 1, (void *[]){&x, &y}));
    CHECK(lk_dataset_find(d, "target") && y == 3);
    lk_dataset_free(d);
    CHECK_FAILS(context, open_csv("7,many\n", &options, &d), LK_EFORMAT, "'many'", "needs numbers");
    options.label_optional = true;
    CHECK_OK(context, open_csv("7,3\n8,NA\n", &options, &d));
    CHECK_OK(context, lk_dataset_get(d, 1, (void *[]){&x, &y}));
    CHECK(x == 8 && isnan(y));
    lk_dataset_free(d);
    options.label = "1"; /* the number of the label's column in training, which rows to predict may not have */
    CHECK_OK(context, open_csv("7\n8\n", &options, &d));
    CHECK_OK(context, lk_dataset_get(d, 1, (void *[]){&x}));
    CHECK(x == 8 && lk_dataset_fields(d) == 1);
    lk_dataset_free(d);
    CHECK_OK(context, open_csv("3,7\n3,8\n", &options, &d));
    CHECK_OK(context, lk_dataset_get(d, 1, (void *[]){&x, &y}));
    CHECK(x == 8 && y == 3);
    lk_dataset_free(d);
}

/* A name that is not UTF-8 is U+FFFD in a record, and still the same class and column. */
static void names_that_are_not_utf8_are_known(void)
{
    static const char *const names[] = {"\xef\xbf\xbdx", "dog", "\xef\xbf\xbd"}, *const column[] = {"caf\xef\xbf\xbd"};
    lk_field        fields[] = {{.name = "features", .dtype = LK_F32, .rank = 1, .dims = {1}, .column_names = column},
                                {.name = "label", .dtype = LK_I32, .classes = 3, .class_names = names}};
    lk_open_options options = expecting(fields, 2);
    lk_dataset     *d;
    int32_t         k;
    float           x;
    CHECK_OK(context, open_csv("label,caf\351\n\351x,1\n\352,2\ndog,3\n", &options, &d));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){&x, &k}));
        CHECK(x == (float)(i + 1) && k == (i == 0 ? 0 : i == 1 ? 2 : 1));
    }
    lk_dataset_free(d);
    CHECK_FAILS(context, open_csv("label,caf\351\n\351y,1\n", &options, &d), LK_EFORMAT, "is not a class");
}

/* ---- arrays ---- */

static void write_npy(const char *name, const char *type, const char *shape, const void *data, size_t bytes)
{
    char   file[4096], about[128];
    size_t used = 128;
    snprintf(about, sizeof about, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", type, shape);
    memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
    snprintf(file + 10, sizeof file - 10, "%-117.117s\n", about);
    memcpy(file + used, data, bytes);
    write_file(scratch(name), file, used + bytes);
}

static lk_status open_npy(const char *x, const char *y, const lk_open_options *options, lk_dataset **d)
{
    char name[2048];
    logged[0] = 0;
    snprintf(name, sizeof name, "npy:%s%s%s", scratch(x), y ? "," : "", y ? scratch(y) : "");
    return lk_dataset_open(context, name, LK_SPLIT_TRAIN, options, d);
}

static void arrays_have_the_types_and_classes_of_training(void)
{
    lk_field        fields[] = {{.name = "features", .dtype = LK_F32, .rank = 1, .dims = {2}},
                                {.name = "label", .dtype = LK_I32, .classes = 4}};
    lk_open_options options = expecting(fields, 2);
    lk_dataset     *d;
    float           x[2], y;
    int32_t         k;
    write_npy("bytes.npy", "|u1", "3, 2", (uint8_t[]){1, 255, 3, 4, 5, 6}, 6);
    write_npy("longs.npy", "<i8", "3, 2", (int64_t[]){1, 255, 3, 4, 5, 6}, 48);
    write_npy("zeros.npy", "<i8", "3,", (int64_t[]){0, 0, 0}, 24);
    write_npy("classes.npy", "<i8", "3,", (int64_t[]){2, 7, 3}, 24);
    write_npy("float_classes.npy", "<f4", "3,", (float[]){2, 0, 3}, 12);
    for (int i = 0; i < 2; i++) { /* integers where training had f32: the same numbers; one class */
        CHECK_OK(context, open_npy(i ? "longs.npy" : "bytes.npy", "zeros.npy", &options, &d));
        CHECK(lk_dataset_field(d, 0)->dtype == LK_F32 && lk_dataset_find(d, "label")->classes == 4);
        CHECK_OK(context, lk_dataset_get(d, 0, (void *[]){x, &k}));
        CHECK(x[0] == 1 && x[1] == 255 && k == 0);
        lk_dataset_free(d);
    }
    CHECK_OK(context, open_npy("longs.npy", "float_classes.npy", &options, &d));
    CHECK_OK(context, lk_dataset_get(d, 2, (void *[]){x, &k}));
    CHECK(k == 3);
    lk_dataset_free(d);
    CHECK_FAILS(context, open_npy("longs.npy", "classes.npy", &options, &d), LK_EFORMAT, "classes.npy: row 1",
                "'7' is not a class", "0 to 3");
    options.skip_unknown = true;
    CHECK_OK(context, open_npy("longs.npy", "classes.npy", &options, &d));
    CHECK(lk_dataset_count(d) == 2 &&
          strstr(logged, "1 of 3 samples have labels that the training data does not have ('7')"));
    CHECK_OK(context, lk_dataset_get(d, 1, (void *[]){x, &k}));
    CHECK(x[0] == 5 && k == 3);
    lk_dataset_free(d);
    CHECK_OK(context, open_npy("longs.npy", NULL, &options, &d)); /* nothing to compare with, for predictions */
    CHECK(lk_dataset_fields(d) == 1);
    lk_dataset_free(d);
    fields[1] = (lk_field){.name = "target", .dtype = LK_F32};
    CHECK_OK(context, open_npy("bytes.npy", "classes.npy", &options, &d));
    CHECK_OK(context, lk_dataset_get(d, 1, (void *[]){x, &y}));
    CHECK(lk_dataset_find(d, "target") && y == 7);
    lk_dataset_free(d);
    fields[0].dtype = LK_U8;
    CHECK_FAILS(context, open_npy("longs.npy", "classes.npy", &options, &d), LK_EMISMATCH, "longs.npy is int64",
                "trained on u8", "np.uint8");
    fields[0].dtype = LK_I32;
    CHECK_OK(context, open_npy("longs.npy", "classes.npy", &options, &d));
    CHECK(lk_dataset_field(d, 0)->dtype == LK_I32);
    lk_dataset_free(d);
    write_npy("large.npy", "<i8", "3, 2", (int64_t[]){1, 1, 1, 1, 1, 3000000000}, 48);
    CHECK_FAILS(context, open_npy("large.npy", "classes.npy", &options, &d), LK_EFORMAT,
                "row 2 has the value 3000000000");
}

static void idx_files_have_the_classes_of_training(void)
{
    static const lk_field      fields[] = {{.name = "image", .dtype = LK_U8, .rank = 3, .dims = {1, 1, 2}},
                                           {.name = "label", .dtype = LK_I32, .classes = 9}};
    static const unsigned char images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 10, 11, 12, 13},
                               labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 9, 5};
    char            name[2048];
    lk_open_options options = expecting(fields, 2);
    lk_dataset     *d;
    unsigned char   x[2];
    int32_t         k;
    write_file(scratch("images.idx"), images, sizeof images);
    write_file(scratch("labels.idx"), labels, sizeof labels);
    snprintf(name, sizeof name, "idx:%s,%s", scratch("images.idx"), scratch("labels.idx"));
    CHECK_FAILS(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, &options, &d), LK_EFORMAT,
                "labels.idx: sample 0", "'9' is not a class");
    options.skip_unknown = true;
    CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, &options, &d));
    CHECK_OK(context, lk_dataset_get(d, 0, (void *[]){x, &k}));
    CHECK(lk_dataset_count(d) == 1 && k == 5 && x[1] == 13 && lk_dataset_find(d, "label")->classes == 9);
    lk_dataset_free(d);
}

/* ---- JSONL ---- */

static lk_status open_jsonl(const char *text, const lk_open_options *options, lk_dataset **d)
{
    char name[1024];
    write_file(scratch("new.jsonl"), text, strlen(text));
    snprintf(name, sizeof name, "jsonl:%s", scratch("new.jsonl"));
    logged[0] = 0;
    return lk_dataset_open(context, name, LK_SPLIT_TRAIN, options, d);
}

static int32_t text_class(const lk_dataset *d, int64_t i)
{
    int32_t tokens[4], length, label;
    CHECK_OK(context, lk_dataset_get(d, i, (void *[]){tokens, &length, &label}));
    return label;
}

static void texts_have_the_classes_of_training(void)
{
    lk_field        fields[] = {{.name = "tokens", .dtype = LK_I32, .rank = 1, .dims = {4}, .classes = 256},
                                {.name = "length", .dtype = LK_I32},
                                {.name = "label", .dtype = LK_I32, .classes = 3, .class_names = kinds}};
    lk_open_options options = expecting(fields, 3);
    lk_dataset     *d;
    options.tokenizer = "byte", options.context = 4, options.label = "kind", options.holdout = -1;
    CHECK_OK(context, open_jsonl("{\"text\": \"moo\", \"kind\": \"cow\"}\n", &options, &d));
    CHECK(lk_dataset_count(d) == 1 && text_class(d, 0) == 2 && lk_dataset_find(d, "label")->classes == 3);
    lk_dataset_free(d);
    const char *three = "{\"text\": \"a\", \"kind\": \"bee\"}\n{\"text\": \"b\", \"kind\": \"bees\"}\n{\"text\": "
                        "\"c\", \"kind\": \"ant\"}\n";
    CHECK_FAILS(context, open_jsonl(three, &options, &d), LK_EFORMAT, "new.jsonl: line 2: 'bees' is not a class",
                "did you mean 'bee'?");
    options.skip_unknown = true;
    CHECK_OK(context, open_jsonl(three, &options, &d));
    CHECK(lk_dataset_count(d) == 2 && text_class(d, 0) == 1 && text_class(d, 1) == 0);
    CHECK(strstr(logged, "1 of 3 samples") && strstr(lk_dataset_sample_name(d, 1), "line 3"));
    lk_dataset_free(d);
    options.skip_unknown = false;
    const char *without = "{\"text\": \"a\"}\n{\"text\": \"b\", \"kind\": null}\n{\"text\": \"c\", \"kind\": \"\"}\n";
    CHECK_FAILS(context, open_jsonl(without, &options, &d), LK_EFORMAT, "line 1 has no field 'kind'");
    options.label_optional = true;
    CHECK_OK(context, open_jsonl(without, &options, &d));
    CHECK(lk_dataset_count(d) == 3 && lk_dataset_fields(d) == 2);
    lk_dataset_free(d);
    CHECK_OK(context, open_jsonl("{\"text\": \"a\"}\n{\"text\": \"b\", \"kind\": \"cow\"}\n", &options, &d));
    CHECK(text_class(d, 0) == LK_NO_LABEL && text_class(d, 1) == 2);
    lk_dataset_free(d);
    options.label = NULL; /* nobody said which field it is */
    CHECK_OK(context, open_jsonl(without, &options, &d));
    CHECK(lk_dataset_count(d) == 3 && lk_dataset_fields(d) == 2);
    lk_dataset_free(d);
    fields[2].class_names = NULL, options.label = "kind"; /* class numbers */
    CHECK_OK(context, open_jsonl("{\"text\": \"a\", \"kind\": 2}\n", &options, &d));
    CHECK(text_class(d, 0) == 2);
    lk_dataset_free(d);
    CHECK_FAILS(context, open_jsonl("{\"text\": \"a\", \"kind\": 3}\n", &options, &d), LK_EFORMAT, "'3' is not a class",
                "0 to 2");
}

static lk_status open_once(lk_context *limited)
{
    static const char text[] = "id,kind,b,a,c\n1,cow,2,3,4\n1,dog,2,3,4\n1,bee,2,3,4\n";
    lk_open_options   options = expecting(trained, 2);
    lk_dataset       *d;
    options.skip_unknown = true;
    lk_status status =
        lk__csv_dataset(limited, &(lk__csv_source){.label = "text", .bytes = text, .size = sizeof text - 1},
                        &(lk__data_request){.split = LK_SPLIT_TRAIN, .options = &options}, &d);
    lk_dataset_free(d);
    return status;
}

static void each_failed_allocation_is_reported(void) { CHECK(fail_each_allocation(open_once) > 15); }

int main(void)
{
    lk_context_config config = LK_CONTEXT_CONFIG_INIT;
    make_scratch();
    config.threads = 1;
    config.log = keep_log;
    CHECK(lk_context_create(&config, &context) == LK_OK);
    RUN(tables_with_some_of_the_classes_keep_their_numbers);
    RUN(columns_are_found_by_their_names);
    RUN(rows_to_predict_need_no_label);
    RUN(rows_of_unknown_classes_are_left_out_on_demand);
    RUN(rows_stay_held_out_where_others_are_left_out);
    RUN(numbers_are_what_they_were_in_training);
    RUN(names_that_are_not_utf8_are_known);
    RUN(arrays_have_the_types_and_classes_of_training);
    RUN(idx_files_have_the_classes_of_training);
    RUN(texts_have_the_classes_of_training);
    RUN(each_failed_allocation_is_reported);
    free_context(context);
    return 0;
}
