/* factor_mutants.h - a line of factors, changed in one place: what a mistake in it would be. */
#ifndef FACTOR_MUTANTS_H
#define FACTOR_MUTANTS_H

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MUTANTS_MOST = 160, MUTANT_BYTES = 1024 };

typedef struct factor_mutants {
    char *line[MUTANTS_MOST];
    int   count;
} factor_mutants;

/* The line with `text` instead of its bytes from … to - 1. */
static inline void add_mutant(factor_mutants *m, const char *line, size_t from, size_t to, const char *text)
{
    char   changed[MUTANT_BYTES];
    size_t length = strlen(line);
    if (m->count == MUTANTS_MOST || length + strlen(text) >= sizeof changed) abort();
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)from, line, text, line + to);
    m->line[m->count++] = strdup(changed);
}

static inline bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static inline size_t word_length(const char *at)
{
    size_t length = 0;
    while (is_word(at[length])) length++;
    return length;
}

/* How often the word is in the line's parentheses: one that is there once connects nothing. */
static inline int count_word(const char *line, const char *word, size_t length)
{
    int count = 0, depth = 0;
    for (const char *at = line; *at && *at != '\n'; at++) {
        depth += (*at == '(') - (*at == ')');
        if (depth && (at == line || !is_word(at[-1])) && word_length(at) == length && strncmp(at, word, length) == 0)
            count++;
    }
    return count;
}

/* From `at` to the end of an item of a list of dimensions. */
static inline size_t item_length(const char *at) { return strcspn(at, ",)"); }

/* Whether the line couples the factor that a word names, somewhere. */
static inline bool is_coupled_word(const char *line, const char *word)
{
    size_t length = word_length(word);
    for (const char *at = line; *at && *at != '\n'; at++)
        if (*at == '!' && word_length(at + 1) == length && strncmp(at + 1, word, length) == 0) return true;
    return false;
}

static inline void swap_words(factor_mutants *m, const char *line, const char *first, size_t a, const char *second,
                              size_t b, const char *between)
{
    char text[256];
    if (a == b && strncmp(first, second, a) == 0) return;
    snprintf(text, sizeof text, "%.*s%s%.*s", (int)b, second, between, (int)a, first);
    add_mutant(m, line, (size_t)(first - line), (size_t)(second + b - line), text);
}

/* Changes inside the parentheses of operands: a dimension belongs to another factor, has its factors in another order,
 * changes places with its neighbour, or is no longer coupled. `alternative`: the beginning of this one of several
 * lines. */
static inline void mutate_dimensions(factor_mutants *m, const char *line, const char *alternative, const char *at)
{
    for (; *at != ')'; at++) {
        size_t length = word_length(at);
        if (*at == '!') add_mutant(m, line, (size_t)(at - line), (size_t)(at - line) + 1, "");
        if (!length) continue;
        bool coupled = at[-1] == '!' || at[-1] == '#', none = length == 1 && *at == '_';
        if (!coupled && !none && count_word(alternative, at, length) > 1)
            add_mutant(m, line, (size_t)(at - line), (size_t)(at - line) + length, "other");
        const char *next = at + length + 1 + (at[length] == '*' && at[length + 1] == '!');
        bool        fixed = is_coupled_word(alternative, at) && is_coupled_word(alternative, next);
        if (at[length] == '*' && is_word(*next) && !fixed)
            swap_words(m, line, at, length, next, word_length(next), next[-1] == '!' ? "*!" : "*");
        at += length - 1;
    }
}

/* Two coupled dimensions that are nowhere else may change places: nothing is said of them. */
static inline bool is_alone(const char *alternative, const char *item)
{
    return *item == '!' && count_word(alternative, item + 1, word_length(item + 1)) == 1;
}

static inline void mutate_order(factor_mutants *m, const char *line, const char *alternative, const char *at)
{
    while (*at != ')') {
        size_t      length = item_length(at);
        const char *next = at + length;
        if (*next == ',') {
            next += 1 + strspn(next + 1, " ");
            if (!is_alone(alternative, at) || !is_alone(alternative, next))
                swap_words(m, line, at, length, next, item_length(next), ", ");
        }
        at = next;
    }
}

/* What stands after the parentheses: @flag, :x,w. */
static inline void mutate_suffix(factor_mutants *m, const char *line, const char *at)
{
    while (*at == '@' || *at == ':') {
        size_t length = 1;
        while (is_word(at[length]) || (*at == ':' && at[length] == ',')) length++;
        add_mutant(m, line, (size_t)(at - line), (size_t)(at - line) + length, "");
        at += length;
    }
}

static inline bool has_before(const char *text, char c, const char *end)
{
    const char *found = strchr(text, c);
    return found && found < text + strcspn(text, end);
}

static inline factor_mutants list_mutants(const char *line)
{
    factor_mutants m = {.count = 0};
    const char    *alternative = line;
    for (const char *at = line; *at; at++) {
        if (*at == '\n') alternative = at + 1;
        if (*at == '+' || *at == '^') add_mutant(&m, line, (size_t)(at - line), (size_t)(at - line) + 1, "");
        /* Without ; a..#axis a line may be taken to couple more, which cuts nothing. */
        if (*at == ';' && !has_before(at + 1, '#', ";\n"))
            add_mutant(&m, line, (size_t)(at - line), (size_t)(at - line) + 1 + strcspn(at + 1, ";\n"), "");
        if (*at != '(') continue;
        mutate_dimensions(&m, line, alternative, at + 1);
        mutate_order(&m, line, alternative, at + 1);
        at = strchr(at, ')');
        mutate_suffix(&m, line, at + 1);
    }
    return m;
}

static inline void free_mutants(factor_mutants *m)
{
    for (int i = 0; i < m->count; i++) free(m->line[i]);
    m->count = 0;
}

#endif
