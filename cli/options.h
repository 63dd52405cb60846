/* options.h - one table per command feeds parsing, --help, the man page and --config FILE. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum option_type {
    OPTION_FLAG,    /* --name, or --name=true|false */
    OPTION_INTEGER, /* low … high */
    OPTION_NUMBER,  /* low … high, finite */
    OPTION_NUMBERS, /* comma-separated numbers, each low … high */
    OPTION_TEXT,
    OPTION_LIST,           /* texts separated by ';'; the option may also be repeated, which appends */
    OPTION_TEXTS,          /* a text; the option may be repeated, and each is kept as it is */
    OPTION_CHOICE,         /* one of `choices` */
    OPTION_CHOICE_OR_FILE, /* the same, or a file: a text with a / or that ends with .so or .json */
    OPTION_CONFIG,         /* a file of `key = value` lines with the same options; the command line has precedence */
    OPTION_REFUSED         /* another program's option that is not supported: `doc` is the reason; hidden in the help */
} option_type;

/* What becomes of an option that a run has set, where its checkpoints are resumed or loaded. All but OPTION_UNRECORDED
 * are in the record of the run (state.json), and those of them without OPTION_LOCAL are taken from there unless the
 * user sets them. */
typedef enum option_flag {
    OPTION_UNRECORDED = 1, /* how the command prints */
    OPTION_LOCAL = 2,      /* it describes the command or the machine: never taken from a record */
    OPTION_FIXED = 4,      /* without it the weights do not fit: another value than the recorded one is an error */
    OPTION_CONTENTS = 8    /* of data: it says what is in a file, and also belongs to other data of the same kind */
} option_flag;

typedef struct option {
    const char *name; /* "weight-decay": --weight-decay, and weight-decay = … in a file. NULL with a doc: a heading */
    const char *argument; /* "N" in the help; NULL for a flag */
    const char *value;    /* the default, as text; NULL: unset */
    const char *doc;
    option_type type;
    char        letter; /* 'n': also -n; 0: none */
    double      low, high;
    const char *choices; /* "sgd|adam|adamw"; of a text: what shells offer, other values are allowed */
    /* Instead of `choices`, where a table of the library has them: the value at `index`; NULL past the last. Of a form
     * such as NAME:FILE or NAME[:DIR] the part that is typed as it is. */
    const char *(*listed)(int index);
    /* Writes what follows `doc` in the help, where that is in a table of the library; NULL: nothing. */
    void (*describe)(char *out, size_t size);
    unsigned flags; /* option_flag */
    /* the option that it belongs to: if the user sets that one, a recorded value of this one does not count; NULL:
     * none */
    const char *of;
    unsigned    axes;    /* LK_AXIS_…: it needs a mesh with one of them; 0: none */
    const char *without; /* the value of an option that was given without one; NULL: it needs one */
    const char *same_as; /* another name of that option of the table, which is set and recorded instead; NULL: none */
} option;

/* Rows of a table. Further members may follow, such as .letter = 'n'. */
#define FLAG(name_, doc_, ...) {.name = name_, .doc = doc_, .type = OPTION_FLAG, __VA_ARGS__}
#define OPTION_RANGED(type_, name_, argument_, value_, low_, high_, doc_, ...)                                      \
    {.name = name_, .argument = argument_, .value = value_, .doc = doc_, .type = type_, .low = low_, .high = high_, \
     __VA_ARGS__}
#define INTEGER(...) OPTION_RANGED(OPTION_INTEGER, __VA_ARGS__)
#define NUMBER(...) OPTION_RANGED(OPTION_NUMBER, __VA_ARGS__)
#define NUMBERS(...) OPTION_RANGED(OPTION_NUMBERS, __VA_ARGS__)
#define TEXT(name_, argument_, value_, doc_, ...)                                                                      \
    {.name = name_, .argument = argument_, .value = value_, .doc = doc_, .type = OPTION_TEXT, __VA_ARGS__}
#define TEXT_SUGGESTED(name_, argument_, value_, choices_, doc_, ...) \
    TEXT(name_, argument_, value_, doc_, .choices = choices_, __VA_ARGS__)
#define LIST(name_, argument_, doc_, ...) \
    {.name = name_, .argument = argument_, .doc = doc_, .type = OPTION_LIST, __VA_ARGS__}
#define TEXTS(name_, argument_, doc_, ...) \
    {.name = name_, .argument = argument_, .doc = doc_, .type = OPTION_TEXTS, __VA_ARGS__}
#define CHOICE(name_, argument_, value_, choices_, doc_, ...)                                                        \
    {.name = name_, .argument = argument_, .value = value_, .doc = doc_, .type = OPTION_CHOICE, .choices = choices_, \
     __VA_ARGS__}
#define CHOICE_LISTED(name_, argument_, value_, listed_, doc_, ...)                                                \
    {.name = name_, .argument = argument_, .value = value_, .doc = doc_, .type = OPTION_CHOICE, .listed = listed_, \
     __VA_ARGS__}
#define CHOICE_OR_FILE(name_, argument_, value_, choices_, doc_, ...)                                   \
    {.name = name_, .argument = argument_, .value = value_, .doc = doc_, .type = OPTION_CHOICE_OR_FILE, \
     .choices = choices_, __VA_ARGS__}
#define FLAG_LETTER(letter_, name_, doc_) FLAG(name_, doc_, .letter = letter_)
#define INTEGER_LETTER(letter_, ...) INTEGER(__VA_ARGS__, .letter = letter_)
#define TEXT_LETTER(letter_, name_, argument_, value_, choices_, doc_) \
    TEXT_SUGGESTED(name_, argument_, value_, choices_, doc_, .letter = letter_)
#define CONFIG                                                                                                       \
    {.name = "config", .argument = "FILE", .type = OPTION_CONFIG, .flags = OPTION_UNRECORDED | OPTION_LOCAL,         \
     .doc = "Read options from FILE: lines of `name = value`, for flags `name = true`, # for comments; the "         \
            "command line takes precedence"}
#define SAME_AS(name_, argument_, other_, doc_) \
    {.name = name_, .argument = argument_, .doc = doc_, .type = OPTION_TEXT, .same_as = other_}
#define REFUSED(name_, reason_) {.name = name_, .doc = reason_, .type = OPTION_REFUSED}
#define HEADING(text_) {.doc = text_}
#define OPTIONS_END {.name = NULL}

enum {
    OPTIONS_MOST = 160,
    OPTION_CHOICES = 512,
    OPTION_DOC = 2048,
    OPTIONS_OPERANDS = 4096,
    OPTIONS_ERROR = 1024,
    OPTIONS_CONFIG_BYTES = 1 << 20
};

typedef struct options {
    const option *table;
    const char   *values[OPTIONS_MOST]; /* by row of the table: as given, or the default */
    int           lines[OPTIONS_MOST];  /* 0 default, -1 argument, -2 environment, -3 options_set, or the file's line */
    const char   *operands[OPTIONS_OPERANDS];
    int           operand_count;
    char        **program; /* after options_parse_program: from the first operand to the end of argv, NULL last */
    int           program_count;
    bool          help;                /* --help or -h was given; nothing else was checked */
    char         *config_text;         /* values from the file point into it */
    char         *lists[OPTIONS_MOST]; /* by row: the joined texts of a repeated list; NULL: not repeated */
    size_t        more[OPTIONS_MOST]; /* by row of OPTION_TEXTS: bytes of the texts behind the first, with their NULs */
    char          error[OPTIONS_ERROR]; /* why parsing failed */
} options;

/* argv[0] is the command's name. False: error is set. The table has at most OPTIONS_MOST rows.
 * Values point into argv and into memory that options_free releases. */
bool options_parse(options *options, const option *table, int argc, char **argv);
/* For a command that starts a program: options end at the first operand; the rest is the program's command line. In
 * both, --weight_decay is --weight-decay. */
bool options_parse_program(options *options, const option *table, int argc, char **argv);
/* The same for the text of a configuration file (which it changes and keeps pointers into). */
bool options_parse_config(options *options, const char *path, char *text, size_t length);
/* Options that are not set yet, from variables PREFIX + NAME, such as PET_NNODES; a flag is 0 or 1 there. Empty
 * variables are ignored. */
bool options_parse_environment(options *options, const char *prefix);
/* Sets an option that nothing has set yet, as if the user had given it; the value is borrowed. False: error is set;
 * `where` begins it. An option that is set, or that the table does not have, is left: true. */
bool options_set(options *options, const char *name, const char *value, const char *where);
/* Also if the user gave it; value is valid. */
void options_override(options *options, const char *name, const char *value);
void options_init(options *options, const option *table);
void options_free(options *options);

/* The name must be in the table and of that type: anything else is a bug in the command and aborts the process. */
bool        options_flag(const options *options, const char *name);
int64_t     options_integer(const options *options, const char *name);
double      options_number(const options *options, const char *name);
int         options_numbers(const options *options, const char *name, double *out, int most); /* returns their number */
const char *options_text(const options *options, const char *name); /* texts, lists, choices, config; NULL if unset */
const char *options_text_at(const options *options, const char *name, int index); /* OPTION_TEXTS; NULL past the last */
bool        options_given(const options *options, const char *name);              /* by the user, anywhere */
bool        options_is_file(const char *text); /* whether a OPTION_CHOICE_OR_FILE is the file */
/* Calls each for every option that is set, in the order of the table. */
void options_each(const options *options, void (*each)(void *user, const char *name, const char *value), void *user);
/* The row of that name; NULL: there is none. */
const option *option_find(const option *table, const char *name);
const char   *options_find(const options *options,
                           const char    *name); /* as text, of any type; NULL: unset or not in the table */
bool          options_known(const options *options, const char *name); /* in the table */
bool options_chosen(const options *options, const char *name); /* in the table, and set otherwise than by options_set */

/* The choices of a row as "a|b|c", from `choices` or `listed`; "": it has none. Returns out. */
const char *option_choices(const option *row, char *out, size_t size);
/* What the help says of it: its doc, and what `describe` adds. Returns out. */
const char *option_doc(const option *row, char *out, size_t size);

/* An option as it can be typed: --width 16, --untied, --untied=false, with quotes for a shell where the value needs
 * them. Returns its bytes, as snprintf does. */
size_t options_typed(const option *table, const char *name, const char *value, char *out, size_t size);

/* The word of `known` (terminated by NULL) that was probably meant, or NULL. */
const char *suggest_word(const char *word, const char *const *known);

#endif
