/* test_data_csv.c - data sets from CSV files: quoting, line ends, separators, headers, labels; numbers as strtod reads
 * them; what is wrong is named with its line and column. */
#define _GNU_SOURCE
#include "test_data.h"

#include "data/csv/csv.h"

#include <math.h>
#include <time.h>

static lk_context *context;

static lk_status open_text(const char *text, lk_split split, const lk_open_options *options, lk_dataset **d)
{
    char name[1024];
    write_file(scratch("data.csv"), text, strlen(text));
    snprintf(name, sizeof name, "csv:%s", scratch("data.csv"));
    return lk_dataset_open(context, name, split, options, d);
}

/* Opens the text and compares rows with `features` (count × columns), then labels or targets. */
static void check_table(const char *text, const lk_open_options *options, int64_t rows, int64_t columns,
                        const float *features, const float *labels, const char *second)
{
    lk_dataset *d, *probed;
    char        name[1024];
    CHECK_OK(context, open_text(text, LK_SPLIT_TRAIN, options, &d));
    CHECK(lk_dataset_count(d) == rows && lk_dataset_fields(d) == 2 && strcmp(lk_dataset_name(d), "csv") == 0);
    const lk_field *f = lk_dataset_field(d, 0), *l = lk_dataset_field(d, 1);
    CHECK(strcmp(f->name, "features") == 0 && f->dtype == LK_F32 && f->rank == 1 && f->dims[0] == columns);
    CHECK(strcmp(l->name, second) == 0 && l->rank == 0 && l->dtype == (*second == 'l' ? LK_I32 : LK_F32));
    for (int64_t i = 0; i < rows; i++) {
        float   row[16], target;
        int32_t label;
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){row, *second == 'l' ? (void *)&label : &target}));
        for (int64_t k = 0; k < columns; k++) CHECK(row[k] == features[i * columns + k]);
        CHECK((*second == 'l' ? (float)label : target) == labels[i]);
    }
    snprintf(name, sizeof name, "csv:%s", scratch("data.csv"));
    CHECK_OK(context, lk_dataset_probe(context, name, LK_SPLIT_TRAIN, options, &probed));
    CHECK(lk_dataset_count(probed) == rows && lk_dataset_field(probed, 0)->dims[0] == columns &&
          lk_dataset_field(probed, 1)->classes == l->classes);
    lk_dataset_free(probed);
    lk_dataset_free(d);
}

static void separators_line_ends_and_headers_are_detected(void)
{
    static const float       features[] = {1, 2.5f, -3, 4e2f}, labels[] = {0, 1};
    static const char *const texts[] = {
        "a,b,c\n1,2.5,0\n-3,4e2,1\n",       /* a header */
        "1,2.5,0\n-3,4e2,1\n",              /* none */
        "1,2.5,0\n-3,4e2,1",                /* no end of the last line */
        "a;b;c\r\n1;2.5;0\r\n-3;4e2;1\r\n", /* Excel's in many countries */
        "a\tb\tc\n1\t2.5\t0\n-3\t4e2\t1\n", /* tabs */
        "\xef\xbb\xbf"
        "a,b,c\n1,2.5,0\n-3,4e2,1\n", /* a byte-order mark */
        "\xef\xbb\xbf"
        "1,2.5,0\n-3,4e2,1\n",
        "a,b,c\n\n1,2.5,0\n\n\n-3,4e2,1\n\n",                             /* empty lines */
        "a,b,c\r1,2.5,0\r-3,4e2,1\r",                                     /* old Mac OS */
        "\"a\",\"b;x\",\"c\"\n\"1\",\"2.5\",\"0\"\n\"-3\", 4e2 ,\"1\"\n", /* quotes, spaces */
        "\"a\nb\",\"say \"\"b\"\"\",c\n1,2.5,0\n-3,4e2,1\n",              /* a newline and quotes inside quotes */
        "+1,.25e1,0\n-3.,0.4E+3,1\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_table(texts[i], NULL, 2, 2, features, labels, "label");
    lk_open_options    options = LK_OPEN_OPTIONS_INIT;
    static const float three[] = {7, 8, 1, 2.5f, -3, 4e2f}, three_labels[] = {2, 0, 1};
    options.classification = true; /* three whole numbers, of few rows */
    check_table("7,8,2\n1,2.5,0\n-3,4e2,1\n", &options, 3, 2, three, three_labels, "label");
    options.header = 1; /* numbers as names */
    check_table("7,8,2\n1,2.5,0\n-3,4e2,1\n", &options, 2, 2, features, labels, "label");
    options.header = -1;
    check_table("7,8,2\n1,2.5,0\n-3,4e2,1\n", &options, 3, 2, three, three_labels, "label");
    lk_dataset *d;
    CHECK_FAILS(context, open_text("a,b,c\n1,2,0\n", LK_SPLIT_TRAIN, &options, &d), LK_EFORMAT, "line 1, column 1",
                "'a' is not a number");
}

static void the_label_is_found_by_name_or_number(void)
{
    static const float features[] = {1, 2, 3, 4}, labels[] = {1, 0};
    lk_open_options    options = LK_OPEN_OPTIONS_INIT;
    check_table("label,a,b\n1,1,2\n0,3,4\n", NULL, 2, 2, features, labels, "label");
    check_table("a,Target,b\n1,1,2\n3,0,4\n", NULL, 2, 2, features, labels, "label");
    options.label = "2";
    check_table("a,label,b\n1,1,2\n3,0,4\n", &options, 2, 2, features, labels, "label");
    check_table("1,1,2\n3,0,4\n", &options, 2, 2, features, labels, "label");
    options.label = "what is it";
    check_table("a,what is it,b\n1,1,2\n3,0,4\n", &options, 2, 2, features, labels, "label");
    lk_dataset *d;
    CHECK_FAILS(context, open_text("a,what is,b\n1,1,2\n", LK_SPLIT_TRAIN, &options, &d), LK_EINVAL,
                "no column 'what is it'", "did you mean 'what is'");
    CHECK_FAILS(context, open_text("1,1,2\n", LK_SPLIT_TRAIN, &options, &d), LK_EINVAL, "no header", "1 to 3");
    options.label = "4";
    CHECK_FAILS(context, open_text("a,b,c\n1,1,2\n", LK_SPLIT_TRAIN, &options, &d), LK_EINVAL, "no column '4'");
}

static void text_labels_are_classes_in_sorted_order(void)
{
    static const float features[] = {1, 2, 3, 4, 5}, labels[] = {2, 0, 2, 1, 0};
    const char        *text = "x,kind\n1,zebra\n2,\"ant, red\"\n3,zebra\n4,bee\n5,\"ant, red\"\n";
    check_table(text, NULL, 5, 1, features, labels, "label");
    lk_dataset *d;
    CHECK_OK(context, open_text(text, LK_SPLIT_TRAIN, NULL, &d));
    const lk_field *label = lk_dataset_find(d, "label");
    CHECK(label->classes == 3 && strcmp(lk_field_class_name(label, 0), "ant, red") == 0 &&
          strcmp(lk_field_class_name(label, 1), "bee") == 0 && strcmp(lk_field_class_name(label, 2), "zebra") == 0);
    lk_dataset_free(d);
    /* A name after numbers makes all of them names, which sort as text. */
    static const float mixed[] = {1, 0, 2, 1, 0};
    check_table("x,kind\n1,7\n2,10\n3,bee\n4,7\n5,10\n", NULL, 5, 1, features, mixed, "label");
    char *many = malloc(1 << 22), *to = many; /* more names than the first hash table has room for */
    for (int i = 0; i < 3000; i++) to += sprintf(to, "%d,class %04d\n", i, 2999 - i);
    CHECK_OK(context, open_text(many, LK_SPLIT_TRAIN, NULL, &d));
    CHECK(lk_dataset_find(d, "label")->classes == 3000);
    for (int i = 0; i < 3000; i++) {
        float   x;
        int32_t k;
        CHECK_OK(context, lk_dataset_get(d, i, (void *[]){&x, &k}));
        CHECK(k == 2999 - i && x == (float)i);
    }
    lk_dataset_free(d);
    to = many;
    for (int i = 0; i < 65537; i++) to += sprintf(to, "%d,class %05d\n", i, i);
    CHECK_FAILS(context, open_text(many, LK_SPLIT_TRAIN, NULL, &d), LK_EFORMAT, "more than 65536 different labels",
                "--label");
    free(many);
}

static void features_have_the_names_of_the_header(void)
{
    lk_dataset     *d;
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    const char     *text = "a,\"b, c\",kind,d\n1,2,x,3\n4,5,y,6\n1,2,x,3\n4,5,y,6\n";
    options.label = "kind";
    for (int part = 0; part < 2; part++) { /* the whole table, and the rows that are not held out */
        options.holdout = part ? 0.5 : 0;
        CHECK_OK(context, open_text(text, LK_SPLIT_TRAIN, &options, &d));
        const lk_field *f = lk_dataset_field(d, 0);
        CHECK(f->dims[0] == 3 && f->column_names && strcmp(lk_dataset_field(d, 1)->column_names[0], "kind") == 0);
        CHECK(strcmp(f->column_names[0], "a") == 0 && strcmp(f->column_names[1], "b, c") == 0 &&
              strcmp(f->column_names[2], "d") == 0);
        lk_dataset_free(d);
    }
    CHECK_OK(context, open_text("1,2,0\n3,4,1\n", LK_SPLIT_TRAIN, NULL, &d));
    CHECK(!lk_dataset_field(d, 0)->column_names);
    lk_dataset_free(d);
}

static void numbers_with_a_fraction_are_targets(void)
{
    static const float features[] = {1, 2, 3}, targets[] = {-1, 0.5f, 2}, wholes[] = {0, 1, 2};
    lk_open_options    options = LK_OPEN_OPTIONS_INIT;
    check_table("x,price\n1,-1\n2,0.5\n3,2\n", NULL, 3, 1, features, targets, "target");
    options.regression = true;
    check_table("x,price\n1,0\n2,1\n3,2\n", &options, 3, 1, features, wholes, "target");
    lk_dataset *d;
    CHECK_FAILS(context, open_text("x,y\n1,2\n2,cat\n", LK_SPLIT_TRAIN, &options, &d), LK_EFORMAT,
                "line 3, column 2 ('y')", "'cat'", "regression");
}

/* `rows` rows with each of the labels, one after the other. */
static char *write_labels(char *to, const char *const *labels, int rows)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; labels[i]; i++) to += sprintf(to, "%d,%s\n", r, labels[i]);
    return to;
}

/* The rule for whole numbers, case by case: which are classes, their number, and the names of the first and the last
 * where numbers are not their own class numbers. */
static void whole_numbers_are_classes_where_they_look_like_classes(void)
{
    static const struct {
        const char *labels[13];
        int         rows, classes; /* classes 0: numbers to predict */
        const char *first, *last;  /* names; NULL: none */
    } cases[] = {
        {{"0", "1"}, 1, 2, NULL, NULL},
        {{"1", "2"}, 1, 2, "1", "2"},
        {{"-1", "1"}, 1, 2, "-1", "1"},
        {{"3000000000", "5"}, 1, 2, "5", "3000000000"},
        {{"0", "1.0"}, 1, 2, NULL, NULL},
        {{"0", "1", "2"}, 9, 0, NULL, NULL},
        {{"0", "1", "2"}, 10, 3, NULL, NULL},
        {{"2", "3", "1"}, 9, 0, NULL, NULL},
        {{"2", "3", "1"}, 10, 3, "1", "3"},
        /* not in the order of bytes */
        {{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"}, 10, 12, "1", "12"},
        {{"2", "3", "4"}, 100, 0, NULL, NULL},
        {{"0", "1", "3"}, 100, 0, NULL, NULL},
        {{"-1", "0", "1"}, 100, 0, NULL, NULL},
        {{"100000", "250000", "618440"}, 100, 0, NULL, NULL},
        {{"0", "1", "2.5"}, 100, 0, NULL, NULL},
    };
    char *text = malloc(1 << 16);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lk_dataset *d;
        write_labels(text, cases[i].labels, cases[i].rows);
        CHECK_OK(context, open_text(text, LK_SPLIT_TRAIN, NULL, &d));
        const lk_field *label = lk_dataset_find(d, "label"), *target = lk_dataset_find(d, "target");
        CHECK((label != NULL) == (cases[i].classes > 0) && (target != NULL) == !label);
        if (label) {
            const char *first = lk_field_class_name(label, 0), *last = lk_field_class_name(label, cases[i].classes - 1);
            CHECK(label->classes == cases[i].classes);
            CHECK(cases[i].first
                      ? first && last && strcmp(first, cases[i].first) == 0 && strcmp(last, cases[i].last) == 0
                      : !first && !last);
        }
        int each = 0;
        while (cases[i].labels[each]) each++;
        for (int row = 0; row < each * cases[i].rows; row++) { /* the number, or the class of that name */
            float       x, y = -7;
            int32_t     k = -7;
            const char *written = cases[i].labels[row % each], *name;
            CHECK_OK(context, lk_dataset_get(d, row, (void *[]){&x, label ? (void *)&k : &y}));
            name = label ? lk_field_class_name(label, k) : NULL;
            CHECK(!label ? y == (float)atof(written) : name ? strcmp(name, written) == 0 : k == atoi(written));
        }
        lk_dataset_free(d);
    }
    /* One class short of rows makes all of them numbers; the option makes classes of any. */
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    lk_dataset     *d;
    char           *to = write_labels(text, (const char *const[]){"0", "1", "2", NULL}, 10);
    write_labels(to, (const char *const[]){"3", NULL}, 9);
    CHECK_OK(context, open_text(text, LK_SPLIT_TRAIN, NULL, &d));
    CHECK(lk_dataset_find(d, "target"));
    lk_dataset_free(d);
    write_labels(text, (const char *const[]){"30", "-4", "7", NULL}, 1);
    options.classification = true;
    CHECK_OK(context, open_text(text, LK_SPLIT_TRAIN, &options, &d));
    const lk_field *label = lk_dataset_find(d, "label");
    CHECK(label && label->classes == 3);
    CHECK(strcmp(lk_field_class_name(label, 0), "-4") == 0 && strcmp(lk_field_class_name(label, 1), "7") == 0 &&
          strcmp(lk_field_class_name(label, 2), "30") == 0);
    lk_dataset_free(d);
    free(text);
}

static void numbers_are_those_of_strtod(void)
{
    static const char *const numbers[] = {"0",
                                          "-0",
                                          "0.1",
                                          "1e-45",
                                          "3.4028235e38",
                                          "1.17549435e-38",
                                          "123456789012345678901234567890e-20",
                                          "0.000000000000000000000000000000000000000000001",
                                          "9007199254740993",
                                          "9007199254740992.5",
                                          "1e22",
                                          "1e23",
                                          "8.98846567431158e-29",
                                          "18014398509481985e-1",
                                          "00000000000000000000000012.5",
                                          "2.2250738585072011e-308",
                                          "4.35",
                                          "0.3e-7",
                                          "179769313486231570e-2",
                                          "16777217",
                                          "1.00000017881393432617187499",
                                          "1e-400"};
    char                     text[512];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double       number;
        lk__csv_text field = {.at = text, .length = strlen(numbers[i])};
        strcpy(text, numbers[i]);
        CHECK(lk__csv_number(&field, &number) && number == strtod(numbers[i], NULL));
    }
    for (uint64_t i = 1; i < 200000; i++) {
        uint64_t     bits = i * 0x9E3779B97F4A7C15u;
        int          digits = 1 + (int)(bits >> 60), exponent = (int)(bits >> 40 & 63) - 32;
        double       number;
        lk__csv_text field = {.at = text};
        field.length = (size_t)sprintf(text, "%s%.*fe%d", bits & 1 ? "-" : "", digits,
                                       (double)(bits >> 8 & 0xffffffff) / 1000, exponent);
        CHECK(lk__csv_number(&field, &number) && number == strtod(text, NULL));
    }
    static const char *const not_numbers[] = {"",    " ",   "-",   "+",   ".",   "e5",    "1e",    "1e+", "0x10",
                                              "1,5", "1 2", "nan", "inf", "--1", "1.2.3", "1e5.5", "12a"};
    for (size_t i = 0; i < sizeof not_numbers / sizeof *not_numbers; i++) {
        double number;
        strcpy(text, not_numbers[i]);
        CHECK(!lk__csv_number(&(lk__csv_text){.at = text, .length = strlen(text)}, &number));
    }
}

static void what_is_wrong_is_named_with_its_place(void)
{
    static const struct {
        const char *text, *words[3];
    } cases[] = {
        {"a,b,y\n1,2,0\n1,2\n", {"line 3 has 2 fields separated by commas", "line 1 has 3", "data.csv"}},
        {"a;b;y\n1;2;0\n1,5;2\n", {"line 3 has 2 fields separated by semicolons", "line 1 has 3", ""}},
        {"a,b,y\n1,2,0\n1,2,0,1\n", {"line 3 has 4 fields", "line 1 has 3", ""}},
        {"a,\"b\nc\",y\n1,2,0\n\n1,2\n", {"line 5 has 2 fields", "", ""}},
        {"a,b,y\n1,2,0\n1,,1\n", {"line 3, column 2 ('b')", "missing", "''"}},
        {"a,b,y\n1,2,0\n1,NA,1\n", {"line 3, column 2 ('b')", "missing value ('NA')", ""}},
        {"a,b,y\n1,2,0\nnan,2,1\n", {"line 3, column 1 ('a')", "missing value ('nan')", ""}},
        {"a,b,y\n1,2,0\n1,2,\n", {"line 3, column 3 ('y')", "missing", ""}},
        {"a,b,y\n1,2,0\n1,inf,1\n", {"line 3, column 2 ('b')", "'inf' is infinite", ""}},
        {"a,b,y\n1,2,0\n1,1e39,1\n", {"line 3, column 2 ('b')", "'1e39' is infinite", ""}},
        {"a,b,y\n1,2,0\n1,two,1\n", {"line 3, column 2 ('b')", "'two' is not a number", "--label 2"}},
        {"1,2,0\n1,two,1\n", {"line 2, column 2:", "'two' is not a number", ""}},
        {"a,b,y\n1,2,0\n1,2,0\n", {"only the label '0'", "two classes", ""}},
        {"a,b,y\n1,2,cat\n1,2,cat\n", {"only the label 'cat'", "two classes", ""}},
        {"a,b,y\n1,2,7\n1,2,7\n", {"only the label '7'", "two classes", ""}},
        {"a,b,y\n1,2,1e999\n", {"line 2, column 3", "infinite", ""}},
        {"a,b,y\n1,\"2,0\n1,2,1\n", {"line 2, column 2", "not closed", ""}},
        {"a,b,y\n1,\"2\"2,0\n", {"line 2, column 2", "follows a closing quote", ""}},
        {"a,b,y\n1,2\"2,0\n", {"line 2, column 2", "a quote inside", ""}},
        {"a\n1\n", {"one column", "semicolon", ""}},
        {"a,b\n", {"no rows", "", ""}},
        {"", {"empty", "", ""}},
        {"\n\n", {"empty", "", ""}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lk_dataset *d;
        CHECK_FAILS(context, open_text(cases[i].text, LK_SPLIT_TRAIN, NULL, &d), LK_EFORMAT, cases[i].words[0],
                    cases[i].words[1], cases[i].words[2]);
        CHECK(!d);
    }
    lk_dataset *d;
    CHECK_FAILS(context, lk_dataset_open(context, "csv:/nowhere.csv", LK_SPLIT_TRAIN, NULL, &d), LK_ENOENT,
                "/nowhere.csv");
    CHECK_FAILS(context, lk_dataset_open(context, "csv", LK_SPLIT_TRAIN, NULL, &d), LK_EINVAL, "csv:FILE");
    CHECK(open_text("1,2\n3,0\n", LK_SPLIT_TEST, NULL, &d) == LK_END && !d);
}

/* Records that cross the ends of the buffer, at every offset, and one that is longer than it; plain and gzip. */
static void large_files_are_read_in_pieces(void)
{
    enum { ROWS = 60000, LONG = 70000 };
    size_t      capacity = 8 << 20, used = 0;
    char       *text = malloc(capacity), name[1024];
    lk_dataset *d;
    for (int i = 0; i < ROWS; i++)
        used += (size_t)sprintf(text + used, "%d,\"%d\",%.*f,%d\n", i, i * 7 % 1000, i % 9, i / 8.0, i % 3);
    write_file(scratch("large.csv"), text, used);
    write_gzip(scratch("large.csv.gz"), text, used);
    for (int k = 0; k < 2; k++) {
        snprintf(name, sizeof name, "csv:%s", scratch(k ? "large.csv.gz" : "large.csv"));
        CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, NULL, &d));
        CHECK(lk_dataset_count(d) == ROWS);
        CHECK(lk_context_memory(context, LK_MEMORY_DATA) == ROWS * (3 * sizeof(float) + sizeof(int32_t)));
        for (int i = 0; i < ROWS; i += 7) {
            float   row[3];
            int32_t label;
            char    third[64];
            sprintf(third, "%.*f", i % 9, i / 8.0);
            CHECK_OK(context, lk_dataset_get(d, i, (void *[]){row, &label}));
            CHECK(row[0] == (float)i && row[1] == (float)(i * 7 % 1000) && row[2] == (float)atof(third) &&
                  label == i % 3);
        }
        lk_dataset_free(d);
    }
    used = 0;
    for (int row = 0; row < 2; row++)
        for (int i = 0; i <= LONG; i++)
            used += (size_t)sprintf(text + used, "%d%s", (i + row) % 2, i < LONG ? "    ," : "\n");
    write_file(scratch("long.csv"), text, used);
    snprintf(name, sizeof name, "csv:%s", scratch("long.csv"));
    CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, NULL, &d));
    CHECK(lk_dataset_count(d) == 2 && lk_dataset_field(d, 0)->dims[0] == LONG);
    lk_dataset_free(d);
    free(text);
}

/* A table as wide as those of genes or spectra. Work that is quadratic in the columns would take minutes. */
static void wide_tables_are_read_in_time(void)
{
    enum { COLUMNS = 300000 };
    char           *text = malloc(16 << 20), *to = text;
    lk_dataset     *d;
    lk_open_options options = LK_OPEN_OPTIONS_INIT;
    float          *row = malloc(COLUMNS * sizeof *row);
    int32_t         label;
    for (int i = 0; i < COLUMNS; i++) to += sprintf(to, "gene %d,", i);
    to += sprintf(to, "kind\n");
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < COLUMNS; i++) to += sprintf(to, "%d,", (i + r) % 10);
        to += sprintf(to, "%s\n", r ? "x" : "y");
    }
    for (int k = 0; k < 2; k++) { /* as it is, and by the names of training */
        options.label = k ? NULL : "kind";
        CHECK_OK(context, open_text(text, LK_SPLIT_TRAIN, &options, &d));
        CHECK(lk_dataset_count(d) == 2 && lk_dataset_field(d, 0)->dims[0] == COLUMNS);
        CHECK_OK(context, lk_dataset_get(d, 1, (void *[]){row, &label}));
        CHECK(label == 0 && row[0] == 1 && row[COLUMNS - 1] == (float)(COLUMNS % 10));
        if (k == 0) {
            lk_dataset *again;
            options.expected = lk_dataset_field(d, 0), options.expected_count = lk_dataset_fields(d);
            text[0] = 'G'; /* the first column has another name */
            CHECK_FAILS(context, open_text(text, LK_SPLIT_TRAIN, &options, &again), LK_EMISMATCH, "no column 'gene 0'");
            text[0] = 'g';
            CHECK_OK(context, open_text(text, LK_SPLIT_TRAIN, &options, &again));
            lk_dataset_free(again);
            options.expected = NULL, options.expected_count = 0;
        }
        lk_dataset_free(d);
    }
    free(row);
    free(text);
}

static lk_status open_once(lk_context *limited)
{
    static const char text[] = "a,b,y\n1,2,cat\n3,4,dog\n";
    lk_open_options   options = LK_OPEN_OPTIONS_INIT;
    lk_dataset       *d;
    lk_status         status =
        lk__csv_dataset(limited, &(lk__csv_source){.label = "text", .bytes = text, .size = sizeof text - 1},
                        &(lk__data_request){.split = LK_SPLIT_TRAIN, .options = &options}, &d);
    lk_dataset_free(d);
    return status;
}

static void each_failed_allocation_is_reported(void) { CHECK(fail_each_allocation(open_once) > 10); }

/* --speed: how fast a table of 20 columns is read, on one thread, by the processor's time. */
static void print_speed(void)
{
    size_t  capacity = 200 << 20, used = 0;
    char   *text = malloc(capacity), name[1024];
    int64_t rows = 0;
    for (uint64_t bits = 1; used < capacity - 1000; rows++) {
        for (int i = 0; i < 20; i++, bits = bits * 6364136223846793005u + 1)
            used += (size_t)sprintf(text + used, "%.5f,", (double)(bits >> 40) / 1e6 - 8);
        used += (size_t)sprintf(text + used, "%d\n", (int)(bits >> 60));
    }
    write_file(scratch("speed.csv"), text, used);
    free(text);
    snprintf(name, sizeof name, "csv:%s", scratch("speed.csv"));
    for (int k = 0; k < 3; k++) {
        lk_dataset     *d;
        struct timespec begin, end;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        CHECK_OK(context, lk_dataset_open(context, name, LK_SPLIT_TRAIN, NULL, &d));
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
        printf("%.0f MB of CSV, %lld rows: %.2f s, %.0f MB/s\n", (double)used / 1e6, (long long)rows, seconds,
               (double)used / 1e6 / seconds);
        lk_dataset_free(d);
    }
}

int main(int argc, char **argv)
{
    make_scratch();
    context = make_context();
    if (argc > 1 && strcmp(argv[1], "--speed") == 0) {
        print_speed();
        free_context(context);
        return 0;
    }
    RUN(separators_line_ends_and_headers_are_detected);
    RUN(the_label_is_found_by_name_or_number);
    RUN(text_labels_are_classes_in_sorted_order);
    RUN(features_have_the_names_of_the_header);
    RUN(numbers_with_a_fraction_are_targets);
    RUN(whole_numbers_are_classes_where_they_look_like_classes);
    RUN(numbers_are_those_of_strtod);
    RUN(what_is_wrong_is_named_with_its_place);
    RUN(large_files_are_read_in_pieces);
    RUN(wide_tables_are_read_in_time);
    RUN(each_failed_allocation_is_reported);
    free_context(context);
    return 0;
}
