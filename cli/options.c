/* options.c - parses a command line and a configuration file from one table, and describes errors in them. */
#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- suggestions ---- */

enum { LONGEST_WORD = 40 };

/* Edits (insert, delete, replace, swap of neighbours) from a to b; both at most LONGEST_WORD long. */
static int edit_distance(const char *a, const char *b)
{
    int rows[3][LONGEST_WORD + 1], n = (int)strlen(a), m = (int)strlen(b);
    for (int j = 0; j <= m; j++) rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best) best = above[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[n % 3][m];
}

const char *suggest_word(const char *word, const char *const *known)
{
    const char *best = NULL;
    size_t      length = strlen(word);
    int         least = (int)(length + 3) / 3; /* about a third of the letters may be wrong */
    if (length == 0 || length > LONGEST_WORD) return NULL;
    for (; *known; known++) {
        if (strlen(*known) > LONGEST_WORD) continue;
        int distance = length >= 3 && strncmp(word, *known, length) == 0 ? 1 : edit_distance(word, *known);
        if (distance > least || (best && distance == least)) continue;
        least = distance;
        best = *known;
    }
    return best;
}

/* ---- the table ---- */

static int rows_of(const option *table)
{
    int rows = 0;
    while (table && (table[rows].name || table[rows].doc)) rows++;
    return rows;
}

static int find_row(const option *table, const char *name)
{
    for (int i = 0, rows = rows_of(table); i < rows; i++)
        if (table[i].name && strcmp(table[i].name, name) == 0)
            return table[i].same_as ? find_row(table, table[i].same_as) : i;
    return -1;
}

const option *option_find(const option *table, const char *name)
{
    int row = find_row(table, name);
    return row < 0 ? NULL : &table[row];
}

static const char *suggest_option(const option *table, const char *name)
{
    const char *known[OPTIONS_MOST + 2];
    int         count = 0;
    for (int i = 0, rows = rows_of(table); i < rows; i++)
        if (table[i].name && table[i].type != OPTION_REFUSED) known[count++] = table[i].name;
    known[count++] = "help";
    known[count] = NULL;
    return suggest_word(name, known);
}

__attribute__((format(printf, 2, 3))) static bool set_error(options *o, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(o->error, sizeof o->error, format, arguments);
    va_end(arguments);
    for (char *c = o->error; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?'; /* user input may contain any character */
    return false;
}

/* ---- values ---- */

static bool parse_integer(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || errno || isspace((unsigned char)text[0])) return false;
    *out = n;
    return true;
}

static bool parse_number(const char *text, char **end, double *out)
{
    if (isspace((unsigned char)text[0])) return false;
    *out = strtod(text, end);
    return *end != text && isfinite(*out);
}

static bool parse_flag(const char *text, bool *out)
{
    *out = strcmp(text, "true") == 0;
    return *out || strcmp(text, "false") == 0;
}

static bool is_choice(const char *choices, const char *text)
{
    for (size_t n = strlen(text); *choices;) {
        size_t length = strcspn(choices, "|");
        if (length == n && memcmp(choices, text, n) == 0) return true;
        choices += length + (choices[length] == '|');
    }
    return false;
}

bool options_is_file(const char *text)
{
    size_t length = strlen(text);
    return strchr(text, '/') || (length > 3 && strcmp(text + length - 3, ".so") == 0) ||
           (length > 5 && strcmp(text + length - 5, ".json") == 0);
}

const char *option_choices(const option *row, char *out, size_t size)
{
    size_t used = 0;
    snprintf(out, size, "%s", row->choices ? row->choices : "");
    for (int i = 0; row->listed && row->listed(i) && used < size; i++) {
        const char *value = row->listed(i);
        size_t      length = strcspn(value, "[:");
        length += value[length] == ':';
        used += (size_t)snprintf(out + used, size - used, "%s%.*s", i ? "|" : "", (int)length, value);
    }
    return out;
}

const char *option_doc(const option *row, char *out, size_t size)
{
    int used = snprintf(out, size, "%s", row->doc);
    if (row->describe && used >= 0 && (size_t)used < size) row->describe(out + used, size - (size_t)used);
    return out;
}

static bool check_choice(options *o, const char *where, const option *row, const char *text)
{
    char choices[OPTION_CHOICES];
    bool file = row->type == OPTION_CHOICE_OR_FILE;
    if (is_choice(option_choices(row, choices, sizeof choices), text) || (file && options_is_file(text))) return true;
    return set_error(o, "%s: '%.80s' is not one of %s%s", where, text, choices,
                     file ? ", nor a file such as ./mine.so or config.json" : "");
}

static bool check_range(options *o, const char *where, const option *row, double value, const char *text)
{
    if (value >= row->low && value <= row->high) return true;
    if (isinf(row->high)) return set_error(o, "%s: %s is out of range: expected at least %.15g", where, text, row->low);
    return set_error(o, "%s: %s is out of range: expected %.15g to %.15g", where, text, row->low, row->high);
}

/* Whether text is a valid value of row. `where` begins the error: "--batch" or "FILE:3: batch". */
static bool check_value(options *o, const char *where, const option *row, const char *text)
{
    int64_t integer;
    double  number;
    bool    flag;
    char   *end;
    switch (row->type) {
    case OPTION_FLAG:
        return parse_flag(text, &flag) ? true : set_error(o, "%s: '%.80s' is neither true nor false", where, text);
    case OPTION_INTEGER:
        if (!parse_integer(text, &integer)) return set_error(o, "%s: '%.80s' is not a whole number", where, text);
        return check_range(o, where, row, (double)integer, text);
    case OPTION_NUMBER:
        if (!parse_number(text, &end, &number) || *end) return set_error(o, "%s: '%.80s' is not a number", where, text);
        return check_range(o, where, row, number, text);
    case OPTION_NUMBERS:
        for (const char *at = text;; at = end + 1) {
            if (!parse_number(at, &end, &number) || (*end && *end != ','))
                return set_error(o, "%s: '%.80s' is not a comma-separated list of numbers", where, text);
            if (!check_range(o, where, row, number, text)) return false;
            if (!*end) return true;
        }
    case OPTION_CHOICE:
    case OPTION_CHOICE_OR_FILE: return check_choice(o, where, row, text);
    case OPTION_REFUSED: return set_error(o, "%s is not supported: %s", where, row->doc);
    case OPTION_TEXT:
    case OPTION_LIST:
    case OPTION_TEXTS:
    case OPTION_CONFIG: return *text ? true : set_error(o, "%s: the value is empty", where);
    }
    return set_error(o, "%s: invalid option type", where);
}

/* ---- the configuration file ---- */

static char *trim(char *text)
{
    while (isspace((unsigned char)*text)) text++;
    size_t length = strlen(text);
    while (length && isspace((unsigned char)text[length - 1])) text[--length] = 0;
    return text;
}

/* A # begins a comment at the start of a line and after a space; elsewhere it is part of the value. */
static void cut_comment(char *line)
{
    for (char *c = line; *c; c++)
        if (*c == '#' && (c == line || isspace((unsigned char)c[-1]))) {
            *c = 0;
            return;
        }
}

static bool parse_line(options *o, const char *path, int number, char *line)
{
    cut_comment(line);
    char *key = trim(line);
    if (!*key) return true;
    char *equals = strchr(key, '=');
    if (!equals) return set_error(o, "%s:%d: expected `name = value`, found '%.80s'", path, number, key);
    *equals = 0;
    key = trim(key);
    char *value = trim(equals + 1);
    int   row = find_row(o->table, key);
    if (row < 0) {
        const char *suggestion = suggest_option(o->table, key);
        return set_error(o, "%s:%d: unknown option '%.80s'%s%s%s", path, number, key,
                         suggestion ? "; did you mean '" : "", suggestion ? suggestion : "", suggestion ? "'?" : "");
    }
    const option *option = &o->table[row];
    if (option->type == OPTION_CONFIG)
        return set_error(o, "%s:%d: a configuration file cannot include another", path, number);
    if (o->lines[row] > 0) return set_error(o, "%s:%d: %s is already set on line %d", path, number, key, o->lines[row]);
    char where[512];
    snprintf(where, sizeof where, "%.400s:%d: %s", path, number, option->name);
    if (!check_value(o, where, option, value)) return false;
    if (o->lines[row] < 0) return true; /* the command line has precedence, but the file must be valid too */
    o->values[row] = value;
    o->lines[row] = number;
    return true;
}

bool options_parse_config(options *o, const char *path, char *text, size_t length)
{
    if (memchr(text, 0, length)) return set_error(o, "%s contains a NUL byte, so it is not a text file", path);
    int number = 1;
    for (char *line = text; line; number++) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        if (!parse_line(o, path, number, line)) return false;
        line = end ? end + 1 : NULL;
    }
    return true;
}

static bool read_config(options *o, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) return set_error(o, "%s: cannot open: %s", path, strerror(errno));
    o->config_text = malloc(OPTIONS_CONFIG_BYTES + 1);
    size_t length = o->config_text ? fread(o->config_text, 1, OPTIONS_CONFIG_BYTES, file) : 0;
    bool   broken = ferror(file), more = length == OPTIONS_CONFIG_BYTES;
    int    why = errno;
    fclose(file);
    if (!o->config_text) return set_error(o, "%s: out of memory", path);
    if (broken) return set_error(o, "%s: cannot read: %s", path, strerror(why));
    if (more) return set_error(o, "%s is too long for a configuration file", path);
    o->config_text[length] = 0;
    return options_parse_config(o, path, o->config_text, length);
}

/* ---- the command line ---- */

void options_init(options *o, const option *table)
{
    memset(o, 0, sizeof *o);
    o->table = table;
    int rows = rows_of(table);
    if (rows > OPTIONS_MOST) abort();
    for (int i = 0; i < rows; i++) o->values[i] = table[i].type == OPTION_FLAG ? "false" : table[i].value;
}

/* Appends to a list that the command line has set already: behind a ';' or, of OPTION_TEXTS, behind the NUL of the last
 * text. */
static bool append_list(options *o, int row, const char *value)
{
    bool   texts = o->table[row].type == OPTION_TEXTS;
    size_t length = strlen(o->values[row]) + o->more[row], more = strlen(value) + 1;
    char  *joined = malloc(length + 1 + more);
    if (!joined) return set_error(o, "--%s: out of memory", o->table[row].name);
    memcpy(joined, o->values[row], length);
    joined[length] = texts ? 0 : ';';
    memcpy(joined + length + 1, value, more);
    if (texts) o->more[row] += more;
    free(o->lists[row]);
    o->values[row] = o->lists[row] = joined;
    return true;
}

/* The arguments of the command; next: the first that was not read yet. */
typedef struct arguments {
    int    count;
    char **list;
    int    next;
} arguments;

/* Reads the value of a row: after its equals sign, `true` for a flag, else the next argument.
 * `name` is as the user wrote it, with dashes. */
static bool read_value(options *o, int row, const char *name, const char *value, arguments *given)
{
    const option *option = &o->table[row];
    if (!value && (option->type == OPTION_FLAG || option->type == OPTION_REFUSED)) value = "true";
    if (!value) {
        /* `--save --json` lacks a value; a directory of that name needs --save=--json. */
        const char *next = given->next < given->count ? given->list[given->next] : "--";
        bool        none = strncmp(next, "--", 2) == 0 || (option->without && next[0] == '-' && next[1]);
        if (none && !option->without) return set_error(o, "%s needs a value: %s %s", name, name, option->argument);
        value = none ? option->without : given->list[given->next++];
    }
    char where[64];
    snprintf(where, sizeof where, "--%s", option->name);
    if (value != option->without && !check_value(o, where, option, value)) return false;
    bool repeats = option->type == OPTION_LIST || option->type == OPTION_TEXTS;
    if (repeats && o->lines[row] == -1) return append_list(o, row, value);
    o->values[row] = value;
    o->lines[row] = -1;
    return true;
}

/* One --name, --name=value or --name value. */
static bool parse_option(options *o, const char *word, arguments *given)
{
    char        name[LONGEST_WORD + 3] = "--";
    const char *equals = strchr(word, '=');
    size_t      length = equals ? (size_t)(equals - word) : strlen(word);
    bool        fits = length <= LONGEST_WORD;
    snprintf(name + 2, sizeof name - 2, "%.*s", (int)(fits ? length : LONGEST_WORD), word);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
    int row = fits ? find_row(o->table, name + 2) : -1;
    if (row >= 0) return read_value(o, row, name, equals ? equals + 1 : NULL, given);
    const char *suggestion = suggest_option(o->table, name + 2);
    return set_error(o, "unknown option %s%s%s%s", name, suggestion ? "; did you mean --" : "",
                     suggestion ? suggestion : "", suggestion ? "?" : "");
}

/* One -n VALUE, -nVALUE, or -m of a flag. */
static bool parse_letter(options *o, const char *word, arguments *given)
{
    for (int i = 0, rows = rows_of(o->table); i < rows; i++) {
        if (!o->table[i].letter || o->table[i].letter != word[1]) continue;
        if (word[2] && o->table[i].type == OPTION_FLAG) break;
        char name[3] = {'-', word[1], 0};
        return read_value(o, i, name, word[2] ? word + 2 + (word[2] == '=') : NULL, given);
    }
    const char *suggestion = suggest_option(o->table, word + 1);
    return set_error(o, "unknown option %.80s%s%s%s", word, suggestion ? "; did you mean --" : "",
                     suggestion ? suggestion : "", suggestion ? "?" : "");
}

static bool is_help(const char *word) { return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0; }

static bool read_configs(options *o)
{
    for (int i = 0, rows = rows_of(o->table); i < rows; i++)
        if (o->table[i].name && o->table[i].type == OPTION_CONFIG && o->values[i] && !read_config(o, o->values[i]))
            return false;
    return true;
}

bool options_parse(options *o, const option *table, int argc, char **argv)
{
    options_init(o, table);
    bool only_operands = false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) /* help first: it must work despite other errors */
        if (is_help(argv[i])) return o->help = true;
    arguments given = {argc, argv, 1};
    while (given.next < argc) {
        const char *word = argv[given.next++];
        if (!only_operands && strcmp(word, "--") == 0) {
            only_operands = true;
        } else if (!only_operands && word[0] == '-' && word[1] == '-') {
            if (!parse_option(o, word + 2, &given)) return false;
        } else if (!only_operands && word[0] == '-' && word[1]) {
            if (!parse_letter(o, word, &given)) return false;
        } else {
            if (o->operand_count == OPTIONS_OPERANDS)
                return set_error(o, "too many arguments; at most %d are supported", OPTIONS_OPERANDS);
            o->operands[o->operand_count++] = word;
        }
    }
    return read_configs(o);
}

bool options_parse_program(options *o, const option *table, int argc, char **argv)
{
    options_init(o, table);
    arguments given = {argc, argv, 1};
    while (given.next < argc && argv[given.next][0] == '-' && argv[given.next][1]) {
        const char *word = argv[given.next++];
        if (strcmp(word, "--") == 0) break;
        if (is_help(word)) return o->help = true;
        if (word[1] == '-' ? parse_option(o, word + 2, &given) : parse_letter(o, word, &given)) continue;
        /* help works despite other errors, except after the program's name */
        for (int i = given.next; i < argc && argv[i][0] == '-'; i++)
            if (is_help(argv[i])) return o->help = true;
        return false;
    }
    o->program = argv + given.next;
    o->program_count = argc - given.next;
    return read_configs(o);
}

/* As in torchrun's environment: 0 and 1 for a flag. */
static const char *flag_word(const char *text)
{
    return strcmp(text, "1") == 0 ? "true" : strcmp(text, "0") == 0 ? "false" : text;
}

bool options_parse_environment(options *o, const char *prefix)
{
    for (int i = 0, rows = rows_of(o->table); i < rows; i++) {
        const option *option = &o->table[i];
        char          name[2 * LONGEST_WORD], where[3 * LONGEST_WORD];
        if (!option->name || o->lines[i] != 0) continue;
        snprintf(name, sizeof name, "%s%s", prefix, option->name);
        for (char *c = name; *c; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        const char *value = getenv(name);
        if (!value || !*value) continue;
        if (option->type == OPTION_FLAG) value = flag_word(value);
        snprintf(where, sizeof where, "%s in the environment", name);
        if (!check_value(o, where, option, value)) return false;
        o->values[i] = value;
        o->lines[i] = -2;
    }
    return true;
}

bool options_set(options *o, const char *name, const char *value, const char *where)
{
    int row = find_row(o->table, name);
    if (row < 0 || o->lines[row] != 0 || o->table[row].type == OPTION_REFUSED) return true;
    if (!check_value(o, where, &o->table[row], value)) return false;
    o->values[row] = value;
    o->lines[row] = -3;
    return true;
}

void options_override(options *o, const char *name, const char *value)
{
    int row = find_row(o->table, name);
    if (row < 0) return;
    o->values[row] = value;
    o->lines[row] = -3;
}

void options_free(options *o)
{
    free(o->config_text);
    o->config_text = NULL;
    for (int i = 0; i < OPTIONS_MOST; i++) free(o->lists[i]), o->lists[i] = NULL;
}

/* ---- access by commands ---- */

static int row_or_abort(const options *o, const char *name, bool right_type)
{
    int row = find_row(o->table, name);
    if (row >= 0 && right_type) return row;
    fprintf(stderr, "lockstep: internal error: option '%s' is not in the command's table, or has another type\n", name);
    abort();
}

static bool has_type(const options *o, const char *name, option_type type)
{
    int row = find_row(o->table, name);
    return row >= 0 && o->table[row].type == type;
}

bool options_flag(const options *o, const char *name)
{
    return strcmp(o->values[row_or_abort(o, name, has_type(o, name, OPTION_FLAG))], "true") == 0;
}

int64_t options_integer(const options *o, const char *name)
{
    const char *text = o->values[row_or_abort(o, name, has_type(o, name, OPTION_INTEGER))];
    int64_t     value = 0;
    if (text) (void)parse_integer(text, &value);
    return value;
}

double options_number(const options *o, const char *name)
{
    const char *text = o->values[row_or_abort(o, name, has_type(o, name, OPTION_NUMBER))];
    return text ? strtod(text, NULL) : 0.0;
}

int options_numbers(const options *o, const char *name, double *out, int most)
{
    const char *text = o->values[row_or_abort(o, name, has_type(o, name, OPTION_NUMBERS))];
    int         count = 0;
    while (text && *text) {
        char  *end;
        double value = strtod(text, &end);
        if (count < most) out[count] = value;
        count++;
        text = *end ? end + 1 : end;
    }
    return count;
}

const char *options_text(const options *o, const char *name)
{
    bool text = has_type(o, name, OPTION_TEXT) || has_type(o, name, OPTION_LIST) || has_type(o, name, OPTION_CHOICE) ||
                has_type(o, name, OPTION_CHOICE_OR_FILE) || has_type(o, name, OPTION_CONFIG);
    return o->values[row_or_abort(o, name, text)];
}

const char *options_text_at(const options *o, const char *name, int index)
{
    int         row = row_or_abort(o, name, has_type(o, name, OPTION_TEXTS));
    const char *text = o->values[row], *end = text ? text + strlen(text) + 1 + o->more[row] : NULL;
    for (; text && text < end && index > 0; index--) text += strlen(text) + 1;
    return text && text < end ? text : NULL;
}

bool options_given(const options *o, const char *name) { return o->lines[row_or_abort(o, name, true)] != 0; }

void options_each(const options *o, void (*each)(void *user, const char *name, const char *value), void *user)
{
    for (int i = 0, rows = rows_of(o->table); i < rows; i++)
        if (o->table[i].name && o->lines[i] != 0) each(user, o->table[i].name, o->values[i]);
}

const char *options_find(const options *o, const char *name)
{
    int row = find_row(o->table, name);
    return row < 0 ? NULL : o->values[row];
}

bool options_known(const options *o, const char *name) { return find_row(o->table, name) >= 0; }

bool options_chosen(const options *o, const char *name)
{
    int row = find_row(o->table, name);
    return row >= 0 && o->lines[row] != 0 && o->lines[row] != -3;
}

size_t options_typed(const option *table, const char *name, const char *value, char *out, size_t size)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:,=+@%-";
    int               row = find_row(table, name);
    if (row >= 0 && table[row].type == OPTION_FLAG)
        return (size_t)snprintf(out, size, strcmp(value, "true") == 0 ? "--%s" : "--%s=%s", name, value);
    bool   quoted = !*value || strspn(value, plain) < strlen(value);
    size_t used =
        (size_t)snprintf(out, size, "--%s%s%s", name, strncmp(value, "--", 2) == 0 ? "=" : " ", quoted ? "'" : "");
    for (const char *c = value; *c; c++)
        used += (size_t)snprintf(used < size ? out + used : NULL, used < size ? size - used : 0,
                                 *c == '\'' ? "'\\''" : "%c", *c);
    if (quoted) used += (size_t)snprintf(used < size ? out + used : NULL, used < size ? size - used : 0, "'");
    return used;
}
