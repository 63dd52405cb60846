/* help.c - `lockstep help`: the list of commands, their help texts and man pages, all from the option tables. */
#include "command.h"
#include "environment.h"
#include "pager.h"
#include "terminal.h"

#include <ctype.h>
#include <lockstep/base.h>
#include <string.h>

/* Columns of a help text: the terminal's, but not so many that lines are hard to read. Options are described beside
 * their names, or below them on a narrow terminal. */
enum { WIDEST = 100, COLUMN = 26, NARROW = 60, NARROW_COLUMN = 6 };

static int help_width(void)
{
    int columns = terminal_columns(stdout);
    return columns < WIDEST ? columns : WIDEST;
}

/* The description of an option: its doc, choices and, unless the doc has it, its default. */
static void describe_option(const option *o, char *out, size_t size)
{
    char choices[OPTION_CHOICES];
    option_doc(o, out, size);
    int  n = (int)strlen(out);
    bool told = strstr(out, "(default") != NULL;
    if (o->type == OPTION_CHOICE || o->type == OPTION_CHOICE_OR_FILE) {
        n += snprintf(out + n, size - (size_t)n, strpbrk(out, ":;") ? ". One of " : ": ");
        for (const char *c = option_choices(o, choices, sizeof choices); *c && n + 4 < (int)size; c++) {
            if (*c == '|')
                n += snprintf(out + n, size - (size_t)n, strchr(c + 1, '|') ? ", " : " or ");
            else
                out[n++] = *c, out[n] = 0;
        }
        if (o->type == OPTION_CHOICE_OR_FILE) n += snprintf(out + n, size - (size_t)n, ", or a file such as ./mine.so");
    }
    if (o->value && !told) snprintf(out + n, size - (size_t)n, " (default %s)", o->value);
}

static void print_paragraphs(FILE *out, const char *text, void (*each)(FILE *out, const char *paragraph))
{
    char paragraph[2048];
    while (*text) {
        const char *end = strstr(text, "\n\n");
        size_t      length = end ? (size_t)(end - text) : strlen(text);
        snprintf(paragraph, sizeof paragraph, "%.*s", (int)length, text);
        each(out, paragraph);
        text += length + (end ? 2 : 0);
    }
}

static void help_paragraph(FILE *out, const char *paragraph)
{
    fprintf(out, "\n");
    terminal_wrap(out, paragraph, 0, 0, help_width());
}

static void command_print_help(const command *c, FILE *out)
{
    int width = help_width(), column = width < NARROW ? NARROW_COLUMN : COLUMN;
    fprintf(out, "Usage: lockstep %s%s%s%s\n", c->name, c->options ? " [OPTIONS]" : "", c->operands ? " " : "",
            c->operands ? c->operands : "");
    print_paragraphs(out, c->description, help_paragraph);
    fprintf(out, "\n");
    for (const option *o = c->options; o && (o->name || o->doc); o++) {
        if (o->type == OPTION_REFUSED) continue;
        if (!o->name) {
            fprintf(out, "\n%s\n", o->doc);
            continue;
        }
        char text[OPTION_DOC];
        describe_option(o, text, sizeof text);
        int used = fprintf(out, "  --%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
        if (o->letter) used += fprintf(out, ", -%c", o->letter);
        if (used >= column) used = fprintf(out, "\n") - 1;
        terminal_wrap(out, text, used, column, width);
    }
    int used = fprintf(out, "  --help");
    if (used >= column) used = fprintf(out, "\n") - 1;
    terminal_wrap(out, "Show this help and exit", used, column, width);
}

void commands_print_help(FILE *out)
{
    fprintf(out,
            "Usage: lockstep COMMAND [OPTIONS]\n       lockstep --version\n\nTrains neural networks. Commands:\n\n");
    for (int i = 0; commands[i]; i++) {
        int used = fprintf(out, "  %s", commands[i]->name);
        terminal_wrap(out, commands[i]->summary, used, 14, help_width());
    }
    fprintf(out, "\n`lockstep COMMAND --help` shows the options of a command.\n");
}

void command_show_help(const command *c)
{
    FILE *out = pager_open();
    if (c)
        command_print_help(c, out);
    else
        commands_print_help(out);
    pager_close(out);
}

/* ---- man pages ---- */

/* The code point of the UTF-8 sequence at *text, which moves to its last byte. Our own texts are valid UTF-8. */
static unsigned code_point(const char **text)
{
    const unsigned char *at = (const unsigned char *)*text;
    int                  more = at[0] >= 0xf0 ? 3 : at[0] >= 0xe0 ? 2 : 1;
    unsigned             code = at[0] & (0x3fu >> more);
    for (int i = 1; i <= more && at[i]; i++) {
        code = code << 6 | (at[i] & 0x3f);
        (*text)++;
    }
    return code;
}

/* Prints text for troff: hyphens that can be copied, no line that begins with a control character, only ASCII. */
static void print_troff(FILE *out, const char *text)
{
    for (bool start = true; *text; text++) {
        if (start && (*text == '.' || *text == '\'')) fputs("\\&", out);
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else if ((unsigned char)*text >= 0x80)
            fprintf(out, "\\[u%04X]", code_point(&text));
        else
            fputc(*text, out);
        start = *text == '\n';
    }
}

static void man_paragraph(FILE *out, const char *paragraph)
{
    fprintf(out, ".PP\n");
    print_troff(out, paragraph);
    fprintf(out, "\n");
}

static void man_title(FILE *out, const char *name)
{
    char title[64];
    snprintf(title, sizeof title, "lockstep%s%s", name ? "-" : "", name ? name : "");
    for (char *c = title; *c; c++) *c = (char)toupper((unsigned char)*c);
    fprintf(out, ".TH %s 1 \"\" \"Lockstep %s\" \"User commands\"\n", title, LK_VERSION_STRING);
}

static void man_end(FILE *out)
{
    fprintf(out,
            ".SH EXIT STATUS\n.TP\n.B 0\nSuccess.\n.TP\n.B 1\nFailure, such as a full disk, lack of memory, or a loss "
            "that is not a number.\n"
            ".TP\n.B 2\nUser error, such as an unknown option, a value out of range, or a file in the wrong format.\n");
}

static void man_command(const command *c, FILE *out)
{
    man_title(out, c->name);
    fprintf(out, ".SH NAME\nlockstep\\-%s \\- ", c->name);
    print_troff(out, c->summary);
    fprintf(out, "\n.SH SYNOPSIS\n.B lockstep %s\n%s", c->name, c->options ? "[\\fIOPTIONS\\fR]\n" : "");
    if (c->operands) {
        print_troff(out, c->operands);
        fprintf(out, "\n");
    }
    fprintf(out, ".SH DESCRIPTION\n");
    print_paragraphs(out, c->description, man_paragraph);
    fprintf(out, ".SH OPTIONS\n");
    for (const option *o = c->options; o && (o->name || o->doc); o++) {
        if (o->type == OPTION_REFUSED) continue;
        if (!o->name) {
            fprintf(out, ".SS ");
            print_troff(out, o->doc);
            fprintf(out, "\n");
            continue;
        }
        char text[OPTION_DOC];
        describe_option(o, text, sizeof text);
        fprintf(out, ".TP\n\\fB\\-\\-");
        print_troff(out, o->name);
        fprintf(out, "\\fR");
        if (o->argument) {
            fprintf(out, " \\fI");
            print_troff(out, o->argument);
            fprintf(out, "\\fR");
        }
        if (o->letter) fprintf(out, ", \\fB\\-%c\\fR", o->letter);
        fprintf(out, "\n");
        print_troff(out, text);
        fprintf(out, "\n");
    }
    fprintf(out, ".TP\n\\fB\\-\\-help\\fR\nShow a summary and exit\n");
    man_end(out);
    fprintf(out, ".SH SEE ALSO\n.BR lockstep (1)\n");
}

static void man_environment(FILE *out)
{
    for (int group = 0; group < LK_ENVIRONMENT_GROUPS; group++) {
        fprintf(out, ".SS ");
        print_troff(out, environment_heading((lk_environment_group)group));
        fprintf(out, "\n");
        for (int i = 0; lk_environment_at(i); i++) {
            char text[OPTION_DOC];
            if ((int)lk_environment_at(i)->group != group) continue;
            environment_describe(lk_environment_at(i), text, sizeof text);
            fprintf(out, ".TP\n.B %s\n", lk_environment_at(i)->name);
            print_troff(out, text);
            fprintf(out, "\n");
        }
    }
}

void command_print_man(const command *c, FILE *out)
{
    if (c) {
        man_command(c, out);
        return;
    }
    man_title(out, NULL);
    fprintf(out, ".SH NAME\nlockstep \\- trains neural networks\n.SH SYNOPSIS\n.B lockstep\n\\fICOMMAND\\fR "
                 "[\\fIOPTIONS\\fR]\n.SH COMMANDS\n");
    for (int i = 0; commands[i]; i++) {
        fprintf(out, ".TP\n.BR lockstep\\-%s (1)\n", commands[i]->name);
        print_troff(out, commands[i]->summary);
        fprintf(out, "\n");
    }
    fprintf(out, ".SH OPTIONS\n.TP\n\\fB\\-\\-version\\fR\nShow the version and exit\n.TP\n\\fB\\-\\-help\\fR\nShow "
                 "the commands and exit\n.SH ENVIRONMENT\n");
    man_environment(out);
    man_end(out);
}

/* ---- the command ---- */

static const option help_options[] = {
    TEXT("man", "COMMAND", NULL, "Print the man page of a command, or of `lockstep` itself, as troff"),
    FLAG("names", "Print the names of all commands, one per line"),
    OPTIONS_END,
};

static int run_help(const options *given)
{
    const char *wanted = options_text(given, "man");
    if (options_flag(given, "names")) {
        for (int i = 0; commands[i]; i++) printf("%s\n", commands[i]->name);
        return 0;
    }
    if (!wanted && given->operand_count == 0) {
        command_show_help(NULL);
        return 0;
    }
    const char    *name = wanted ? wanted : given->operands[0];
    const command *found = command_find(name);
    if (!wanted && strcmp(name, "environment") == 0) {
        FILE *out = pager_open();
        environment_print_help(out, help_width());
        pager_close(out);
        return 0;
    }
    if (!found && !(wanted && strcmp(wanted, "lockstep") == 0)) {
        print_error("help", "unknown command '%s'; `lockstep help` lists them", name);
        return EXIT_USER_ERROR;
    }
    if (wanted)
        command_print_man(found, stdout);
    else
        command_show_help(found);
    return 0;
}

const command command_help = {
    .name = "help",
    .summary = "show the options of a command, or the environment variables",
    .description = "Lists the commands, shows the options of one, or lists the environment variables.",
    .operands = "[COMMAND|environment]",
    .most = 1,
    .options = help_options,
    .run = run_help,
};
