/* test_json.c - the JSON reader: what it accepts, what it refuses and at which byte, and the values it returns. */
#include "check.h"

#include "base/json.h"

#include <locale.h>
#include <math.h>

static lk__json parse(const char *text)
{
    lk__json       value = {0};
    lk__json_error error;
    REQUIRE(lk__json_parse(text, strlen(text), &value, &error), "%s: %s at %zu", text, error.what, error.offset);
    return value;
}

static bool refused(const char *text, size_t offset)
{
    lk__json       value;
    lk__json_error error = {"", 0};
    bool           ok = lk__json_parse(text, strlen(text), &value, &error);
    if (!ok && error.offset != offset)
        printf("%s: refused at %zu, not %zu: %s\n", text, error.offset, offset, error.what);
    return !ok && error.offset == offset;
}

static void members_are_visited_in_order(void)
{
    lk__json root = parse(" { \"a\" : [ 1 , [2,\"]}\"] ,{\"x\":{}}, true,null ] ,\"b\":-7,\"a\":3, \"\" : \"\" } "), a,
             b, item, key;
    CHECK(root.kind == LK__JSON_OBJECT && lk__json_count(&root) == 4);
    CHECK(lk__json_get(&root, "a", &a) && a.kind == LK__JSON_ARRAY && lk__json_count(&a) == 5);
    static const lk__json_kind kinds[] = {LK__JSON_NUMBER, LK__JSON_ARRAY, LK__JSON_OBJECT, LK__JSON_BOOL,
                                          LK__JSON_NULL};
    lk__json_walk              walk = lk__json_begin(&a);
    for (int i = 0; i < 5; i++) CHECK(lk__json_next(&walk, &key, &item) && item.kind == kinds[i], "%d", i);
    CHECK(!lk__json_next(&walk, &key, &item) && !lk__json_next(&walk, &key, &item));
    int64_t n = 0;
    CHECK(lk__json_get(&root, "b", &b) && lk__json_integer(&b, &n) && n == -7);
    CHECK(lk__json_get(&root, "", &b) && lk__json_equals(&b, ""));
    CHECK(!lk__json_get(&root, "c", &b) && !lk__json_get(&a, "a", &b));
    lk__json empty = parse("[ ]"), number = parse("5");
    CHECK(lk__json_count(&empty) == 0 && lk__json_count(&number) == 0);
}

static void numbers_are_exact_or_refused(void)
{
    static const struct {
        const char *text;
        bool        fits;
        int64_t     value;
    } integers[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999999", false, 0},
        {"1.0", false, 0},
        {"1e2", false, 0},
        {"true", false, 0},
    };
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        int64_t  n = 0;
        lk__json v = parse(integers[i].text);
        CHECK(lk__json_integer(&v, &n) == integers[i].fits && n == integers[i].value, "%s", integers[i].text);
    }
    const char *locales[] = {"C", "de_DE.UTF-8", "fr_FR.UTF-8"}; /* if installed: with a decimal comma */
    for (int i = 0; i < 3; i++) {
        double   x = 0;
        lk__json v = parse("-12.5e-1");
        setlocale(LC_ALL, locales[i]);
        CHECK(lk__json_number(&v, &x) && x == -1.25, "%s %g", locales[i], x);
    }
    setlocale(LC_ALL, "C");
    double   x = 7;
    lk__json tenth = parse("0.1"), huge = parse("1e999"), tiny = parse("1e-999"), text = parse("\"1\"");
    CHECK(lk__json_number(&tenth, &x) && x == 0.1);
    CHECK(lk__json_number(&tiny, &x) && x == 0.0);
    CHECK(!lk__json_number(&huge, &x) && !lk__json_number(&text, &x));
    bool     b = false;
    lk__json yes = parse("true"), no = parse("false");
    CHECK(lk__json_bool(&yes, &b) && b && lk__json_bool(&no, &b) && !b && !lk__json_bool(&tenth, &b));
}

static void strings_are_decoded(void)
{
    char        out[64];
    lk__json    v = parse("\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u20AC\\ud83D\\uDE00\xc3\xa9z\"");
    const char *expected = "a\"\\/\b\f\n\r\t\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa9z";
    CHECK(lk__json_string(&v, out, sizeof out) == strlen(expected) && strcmp(out, expected) == 0);
    CHECK(lk__json_equals(&v, expected) && !lk__json_equals(&v, "a") && !lk__json_equals(&v, ""));
    char small[4] = "???";
    CHECK(lk__json_string(&v, small, sizeof small) == strlen(expected) && memcmp(small, "a\"\\", 4) == 0);
    CHECK(lk__json_string(&v, NULL, 0) == strlen(expected));
    lk__json nul = parse("\"a\\u0000b\""), number = parse("1");
    CHECK(lk__json_string(&nul, out, sizeof out) == 3 && memcmp(out, "a\0b", 4) == 0 && !lk__json_equals(&nul, "a"));
    CHECK(lk__json_string(&number, out, sizeof out) == SIZE_MAX && !lk__json_equals(&number, "1"));
    for (int c = 0; c < 128; c++) { /* an escaped byte decodes to itself */
        char   text[16] = "\"", decoded[4];
        size_t n = lk__json_escape((unsigned char)c, text + 1);
        memcpy(text + 1 + n, "\"", 2);
        lk__json round = parse(text);
        CHECK(lk__json_string(&round, decoded, sizeof decoded) == 1 && decoded[0] == (char)c, "%d", c);
    }
}

/* Strings are read many bytes at a time: what is special may be at any place of them, in values that are skipped
 * too. */
static void special_bytes_are_found_anywhere(void)
{
    static const struct {
        const char *text, *means; /* NULL: refused */
    } special[] = {{"\\\"", "\""}, {"\\\\", "\\"}, {"\\n", "\n"}, {"\xc3\xa9", "\xc3\xa9"}, {"\\u20ac", "\xe2\x82\xac"},
                   {"\x1f", NULL}, {"\x80", NULL}, {"\\q", NULL}};
    enum { LONGEST = 40 };
    for (size_t k = 0; k < sizeof special / sizeof *special; k++)
        for (int before = 0; before <= LONGEST; before++)
            for (int after = 0; after <= LONGEST; after++) {
                char     text[256], wanted[128], got[128], plain[LONGEST + 1];
                lk__json object, value;
                memset(plain, '!', sizeof plain); /* next to a space, a quote and '#' among the bytes */
                snprintf(text, sizeof text, "{\"skipped\": [\"%.*s%s%.*s\"], \"x\": \"%.*s%s%.*s\"}", before, plain,
                         special[k].text, after, plain, before, plain, special[k].text, after, plain);
                bool parsed = lk__json_parse(text, strlen(text), &object, NULL);
                CHECK(parsed == (special[k].means != NULL), "%s", text);
                if (!parsed || !special[k].means) continue;
                snprintf(wanted, sizeof wanted, "%.*s%s%.*s", before, plain, special[k].means, after, plain);
                CHECK(lk__json_get(&object, "x", &value), "%s", text);
                CHECK(lk__json_string(&value, got, sizeof got) == strlen(wanted) && strcmp(got, wanted) == 0, "%s",
                      text);
                char small[LONGEST / 2] = "";
                CHECK(lk__json_string(&value, small, sizeof small) == strlen(wanted));
                CHECK(strncmp(small, wanted, sizeof small - 1) == 0 && strlen(small) <= sizeof small - 1, "%s", text);
            }
}

static void errors_name_the_byte(void)
{
    CHECK(refused("", 0) && refused("  ", 2) && refused("{\"a\" 1}", 5) && refused("[1,]", 3) && refused("[1 2]", 3));
    CHECK(refused("\"\\q\"", 1) && refused("\"ab", 3) && refused("+1", 0) && refused(".5", 0) && refused("1 1", 2));
    CHECK(refused("nul", 0) && refused("NaN", 0) && refused("[\x01]", 1) && refused("{a:1}", 1) && refused("'a'", 0));
    CHECK(refused("\"\xc3\"", 1) && refused("\"\x80\"", 1) && refused("\"\xe2\x82\"", 1) && refused("[1}", 2) &&
          refused("\xef\xbb\xbf{}", 0));
    char deep[400];
    for (int depth = 63; depth <= 65; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        deep[2 * depth] = 0;
        lk__json       v;
        lk__json_error error;
        CHECK(lk__json_parse(deep, strlen(deep), &v, &error) == (depth <= LK__JSON_DEPTH), "%d", depth);
    }
}

int main(void)
{
    RUN(members_are_visited_in_order);
    RUN(numbers_are_exact_or_refused);
    RUN(strings_are_decoded);
    RUN(special_bytes_are_found_anywhere);
    RUN(errors_name_the_byte);
    return check_result();
}
