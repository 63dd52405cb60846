/* completion.c - `lockstep completion`: scripts that complete command lines in bash, zsh and fish, from the option
 * tables. */
#include "command.h"

#include <ctype.h>
#include <string.h>

/* What may follow an option, or stand as an operand. */
typedef struct values {
    char words[1024]; /* separated by spaces */
    bool files;       /* and names of files and directories */
    bool prefixed;    /* files may follow a word that ends with a colon: csv:FILE */
    bool program;     /* a command line of its own follows */
} values;

static void add_word(values *v, const char *word, size_t length)
{
    size_t used = strlen(v->words);
    if (used + length + 2 > sizeof v->words) return;
    snprintf(v->words + used, sizeof v->words - used, "%s%.*s", used ? " " : "", (int)length, word);
}

/* Adds what a placeholder such as "auto|DIR" or "get NAME | tokenize FILE|DIR..." allows: its words in small letters as
 * they are, and files for FILE, DIR and PATH. */
static void add_placeholder(values *v, const char *text)
{
    while (*text) {
        size_t length = strcspn(text, " |[]:");
        if (islower((unsigned char)*text))
            add_word(v, text, length);
        else if (strcmp(text, "FILES]") == 0)
            v->prefixed = true;
        else if (strncmp(text, "FILE", 4) == 0 || strncmp(text, "DIR", 3) == 0 || strncmp(text, "PATH", 4) == 0)
            v->files = true;
        else if (strncmp(text, "PROGRAM", 7) == 0)
            v->program = true;
        else if (strncmp(text, "COMMAND", 7) == 0)
            for (int i = 0; commands[i]; i++) add_word(v, commands[i]->name, strlen(commands[i]->name));
        text += length;
        text += strspn(text, " |[]:");
    }
}

static values values_of(const option *o)
{
    values v = {.files = o->type == OPTION_CHOICE_OR_FILE || o->type == OPTION_CONFIG};
    char   choices[OPTION_CHOICES];
    for (const char *at = option_choices(o, choices, sizeof choices); *at;) {
        size_t length = strcspn(at, "|");
        add_word(&v, at, length);
        at += length + (at[length] == '|');
    }
    if (o->argument) add_placeholder(&v, o->argument);
    return v;
}

static values operands_of(const command *c)
{
    values v = {0};
    if (c->operands) add_placeholder(&v, c->operands);
    return v;
}

/* Whether the row is an option that is completed, not a heading or one of another program. */
static bool is_offered(const option *o) { return o->name && o->type != OPTION_REFUSED; }

static bool is_row(const option *o) { return o && (o->name || o->doc); }

/* The first sentence of a description, without what follows a semicolon; at most `size` bytes of whole characters. */
static const char *shorten(const char *doc, char *out, size_t size)
{
    const char *stop = strstr(doc, ". "), *semicolon = strstr(doc, "; ");
    if (semicolon && (!stop || semicolon < stop)) stop = semicolon;
    size_t length = stop ? (size_t)(stop - doc) : strlen(doc);
    if (length > size - 1) length = size - 1;
    while (length > 0 && ((unsigned char)doc[length] & 0xC0) == 0x80) length--;
    snprintf(out, size, "%.*s", (int)length, doc);
    return out;
}

enum { DESCRIPTION = 100 };

/* The options that take a value, each after a space. */
static void print_valued(const command *c)
{
    for (const option *o = c->options; is_row(o); o++) {
        if (!is_offered(o) || !o->argument) continue;
        printf(" --%s", o->name);
        if (o->letter) printf(" -%c", o->letter);
    }
}

/* ---- bash ---- */

static void bash_command(const command *c)
{
    values operands = operands_of(c);
    printf("    %s)\n        options='", c->name);
    for (const option *o = c->options; is_row(o); o++)
        if (is_offered(o)) printf("--%s ", o->name);
    printf("--help'\n        valued='");
    print_valued(c);
    printf(" '\n        words='%s' files=%d program=%d\n        case $option in\n", operands.words, operands.files,
           operands.program);
    for (const option *o = c->options; is_row(o); o++) {
        if (!is_offered(o) || !o->argument) continue;
        values v = values_of(o);
        printf("        --%s", o->name);
        if (o->letter) printf(" | -%c", o->letter);
        printf(") words='%s' files=%d value=1 ;;\n", v.words, v.files);
    }
    printf("        esac\n        ;;\n");
}

/* bash breaks words at = and :, so `--model=cnn` and `csv:FILE` are three words each. */
static void bash_script(void)
{
    printf("# bash completion of lockstep, written by `lockstep completion bash`.\n"
           "_lockstep()\n{\n"
           "    local current=${COMP_WORDS[COMP_CWORD]} at=$((COMP_CWORD - 1)) option options= valued= words= files=0 "
           "value=0 program=0\n"
           "    local i name=${COMP_WORDS[1]}\n"
           "    COMPREPLY=()\n"
           "    if [ \"$current\" = = ] || [ \"$current\" = : ]; then current=; else [ \"${COMP_WORDS[at]}\" != = ] && "
           "[ \"${COMP_WORDS[at]}\" != : ] || at=$((at - 1)); fi\n"
           "    option=${COMP_WORDS[at]}\n"
           "    [ \"${COMP_WORDS[COMP_CWORD]}\" != : ] && [ \"${COMP_WORDS[COMP_CWORD - 1]}\" != : ] || { [ "
           "$COMP_CWORD -gt 2 ] && files=2; }\n"
           "    if [ $COMP_CWORD = 1 ]; then\n        COMPREPLY=($(compgen -W '");
    for (int i = 0; commands[i]; i++) printf("%s ", commands[i]->name);
    printf("--version --help' -- \"$current\"))\n        return\n    fi\n"
           "    if [ $files = 2 ]; then compopt -o filenames 2> /dev/null; mapfile -t COMPREPLY < <(compgen -f -- "
           "\"$current\"); "
           "return; fi\n"
           "    case $name in\n");
    for (int i = 0; commands[i]; i++) bash_command(commands[i]);
    printf("    esac\n"
           "    if [ $program = 1 ]; then # its own command line begins at the first word that is neither an option "
           "nor an option's value\n"
           "        i=2\n"
           "        while [ $i -lt $COMP_CWORD ]; do\n"
           "            case ${COMP_WORDS[i]} in\n"
           "            --) i=$((i + 1)); break ;;\n"
           "            -*) case \" $valued \" in *\" ${COMP_WORDS[i]} \"*) i=$((i + 1)); [ \"${COMP_WORDS[i]}\" != = "
           "] || i=$((i + 1)) ;; esac ;;\n"
           "            *) break ;;\n"
           "            esac\n"
           "            i=$((i + 1))\n"
           "        done\n"
           "        if [ $i -lt $COMP_CWORD ]; then\n"
           "            if [ \"${COMP_WORDS[i]##*/}\" = lockstep ]; then\n"
           "                COMP_WORDS=(\"${COMP_WORDS[@]:i}\") COMP_CWORD=$((COMP_CWORD - i))\n"
           "                _lockstep\n"
           "            elif declare -F _command_offset > /dev/null; then\n"
           "                _command_offset $i\n"
           "            else\n"
           "                compopt -o filenames 2> /dev/null\n"
           "                mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
           "            fi\n"
           "            return\n"
           "        fi\n"
           "    fi\n"
           "    if [ $value = 0 ] && [ \"${current:0:1}\" = - ]; then\n"
           "        COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
           "        return\n"
           "    fi\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
           "    [ ${#COMPREPLY[@]} != 1 ] || [ \"${COMPREPLY[0]: -1}\" != : ] || compopt -o nospace 2> /dev/null\n"
           "    if [ $value = 0 ] && [ $program = 1 ]; then COMPREPLY+=($(compgen -c -- \"$current\")); files=1; fi\n"
           "    if [ $files = 1 ]; then compopt -o filenames 2> /dev/null; mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < "
           "<(compgen -f -- \"$current\"); "
           "fi\n"
           "}\n"
           "complete -F _lockstep lockstep\n");
}

/* ---- zsh ---- */

/* Prints text inside single quotes, with a backslash before the characters that separate the parts of a
 * specification. */
static void print_zsh(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'') {
            fputs("'\\''", stdout);
            continue;
        }
        if (strchr("[]:\\", *text)) fputc('\\', stdout);
        fputc(*text, stdout);
    }
}

/* ":message:what completes it" */
static void zsh_values(const char *message, const values *v)
{
    fputc(':', stdout);
    print_zsh(message);
    if (v->words[0] && (v->prefixed || v->files)) {
        printf(": %s ", v->prefixed ? "_lockstep_prefixed" : "_lockstep_words_or_files");
        print_zsh(v->words);
    } else if (v->words[0]) {
        fputs(":(", stdout);
        print_zsh(v->words);
        fputc(')', stdout);
    } else {
        fputs(v->files ? ":_files" : ": ", stdout);
    }
}

static void zsh_option(const option *o, const char *prefix, const char *equals)
{
    char text[DESCRIPTION];
    printf(" \\\n            '%s%s%s[", o->type == OPTION_LIST || o->type == OPTION_TEXTS ? "*" : "", prefix,
           o->argument ? equals : "");
    print_zsh(shorten(o->doc, text, sizeof text));
    fputc(']', stdout);
    if (o->argument) {
        values v = values_of(o);
        zsh_values(o->argument, &v);
    }
    fputc('\'', stdout);
}

static void zsh_command(const command *c)
{
    values operands = operands_of(c);
    printf("        %s)\n            _arguments -S", c->name);
    for (const option *o = c->options; is_row(o); o++) {
        char name[64];
        if (!is_offered(o)) continue;
        snprintf(name, sizeof name, "--%.60s", o->name);
        zsh_option(o, name, "=");
        snprintf(name, sizeof name, "-%c", o->letter);
        if (o->letter) zsh_option(o, name, "+");
    }
    printf(" \\\n            '--help[Show the options and exit]'");
    if (operands.program) {
        printf(" \\\n            '(-)1:program:_command_names -e' '*::argument:_normal'");
    } else if (c->operands) {
        printf(" \\\n            '*");
        zsh_values("argument", &operands);
        fputc('\'', stdout);
    }
    printf("\n            ;;\n");
}

static void zsh_script(void)
{
    printf("#compdef lockstep\n# zsh completion of lockstep, written by `lockstep completion zsh`.\n"
           "_lockstep_prefixed() {\n"
           "    if compset -P '*[:,]'; then _files; else compadd -S '' -- \"$@\"; fi\n"
           "}\n"
           "_lockstep_words_or_files() {\n"
           "    _alternative \"words:word:($*)\" 'files:file:_files'\n"
           "}\n"
           "_lockstep() {\n"
           "    local curcontext=\"$curcontext\" state line\n"
           "    local -a subcommands\n"
           "    _arguments -C '--version[Show the version and exit]' '--help[Show the commands and exit]' "
           "'1:command:->command' '*::argument:->argument'\n"
           "    case $state in\n"
           "    command)\n        subcommands=(\n");
    for (int i = 0; commands[i]; i++) {
        printf("            '%s:", commands[i]->name);
        print_zsh(commands[i]->summary);
        printf("'\n");
    }
    printf("        )\n        _describe command subcommands\n        ;;\n    argument)\n        case $line[1] in\n");
    for (int i = 0; commands[i]; i++) zsh_command(commands[i]);
    printf("        esac\n        ;;\n    esac\n}\n"
           "if [ \"$funcstack[1]\" = _lockstep ]; then _lockstep \"$@\"; else compdef _lockstep lockstep; fi\n");
}

/* ---- fish ---- */

static void print_fish(const char *text)
{
    fputc('\'', stdout);
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\') fputc('\\', stdout);
        fputc(*text, stdout);
    }
    fputc('\'', stdout);
}

static void fish_command(const command *c)
{
    char   text[DESCRIPTION];
    values operands = operands_of(c);
    printf("complete -c lockstep -n __fish_use_subcommand -a %s -d ", c->name);
    print_fish(c->summary);
    printf("\nset -l seen '__fish_seen_subcommand_from %s'\n", c->name);
    for (const option *o = c->options; is_row(o); o++) {
        if (!is_offered(o)) continue;
        values v = values_of(o);
        printf("complete -c lockstep -n $seen -l %s", o->name);
        if (o->letter) printf(" -s %c", o->letter);
        if (o->argument) printf(v.files ? " -r -F" : " -x");
        if (v.words[0]) printf(v.prefixed ? " -a '(__lockstep_prefixed %s)'" : " -a '%s'", v.words);
        printf(" -d ");
        print_fish(shorten(o->doc, text, sizeof text));
        fputc('\n', stdout);
    }
    printf("complete -c lockstep -n $seen -l help -d 'Show the options and exit'\n");
    if (operands.words[0]) printf("complete -c lockstep -n $seen -a '%s'\n", operands.words);
    if (operands.files) printf("complete -c lockstep -n $seen -F\n");
    if (operands.program) {
        printf("complete -c lockstep -n $seen -a '(__lockstep_program");
        print_valued(c);
        printf(")'\n");
    }
}

/* A program's command line begins at the first word that is neither an option nor an option's value. */
static void fish_functions(void)
{
    printf("function __lockstep_program # OPTION…: those with a value\n"
           "    set -l words (commandline -opc)\n"
           "    set -e words[1..2]\n"
           "    while set -q words[1]\n"
           "        switch $words[1]\n"
           "            case --\n"
           "                set -e words[1]\n"
           "                break\n"
           "            case '-*'\n"
           "                contains -- $words[1] $argv; and set -q words[2]; and set -e words[1]\n"
           "                set -e words[1]\n"
           "            case '*'\n"
           "                break\n"
           "        end\n"
           "    end\n"
           "    set -l word (commandline -ct)\n"
           "    if set -q words[1]; or string match -q -r -- '^[^-]' \"$word\"\n"
           "        set -l line (string join ' ' -- (string escape -- $words) $word)\n"
           "        test -n \"$word\"; or set line \"$line \"\n"
           "        complete -C \"$line\"\n"
           "    end\n"
           "end\n"
           "function __lockstep_prefixed # WORD…: the words, or behind a colon files\n"
           "    set -l value (string replace -r '^--[a-z-]+=' '' -- (commandline -ct))\n"
           "    set -l prefix (string match -r '^.*[:,]' -- $value)\n"
           "    if test -z \"$prefix\"\n"
           "        string join \\n -- $argv\n"
           "        return\n"
           "    end\n"
           "    for file in (string replace -r '^.*[:,]' '' -- $value)*\n"
           "        test -d $file; and set file $file/\n"
           "        echo -- $prefix$file\n"
           "    end\n"
           "end\n");
}

static void fish_script(void)
{
    printf("# fish completion of lockstep, written by `lockstep completion fish`.\n");
    fish_functions();
    printf("complete -c lockstep -f\n"
           "complete -c lockstep -n __fish_use_subcommand -l version -d 'Show the version and exit'\n"
           "complete -c lockstep -n __fish_use_subcommand -l help -d 'Show the commands and exit'\n");
    for (int i = 0; commands[i]; i++) fish_command(commands[i]);
}

/* ---- the command ---- */

static int run_completion(const options *given)
{
    static const struct {
        const char *shell;
        void (*print)(void);
    } shells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (strcmp(given->operands[0], shells[i].shell) == 0) {
            shells[i].print();
            return 0;
        }
    print_error("completion", "no completion for '%s': expected bash, zsh or fish", given->operands[0]);
    return EXIT_USER_ERROR;
}

const command command_completion = {
    .name = "completion",
    .summary = "print the script that completes command lines in a shell",
    .description =
        "Prints a script for bash, zsh or fish that completes commands, options, their values and files. `cmake "
        "--install` "
        "puts all three where the shells look for them. For one user:\n\n"
        "bash: lockstep completion bash > ~/.local/share/bash-completion/completions/lockstep, or source it in "
        "~/.bashrc\n\n"
        "zsh: lockstep completion zsh > DIR/_lockstep, with a DIR of $fpath, before compinit\n\n"
        "fish: lockstep completion fish > ~/.config/fish/completions/lockstep.fish",
    .operands = "bash|zsh|fish",
    .least = 1,
    .most = 1,
    .run = run_completion,
};
