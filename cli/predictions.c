/* predictions.c - one line for each sample, on standard output. Names of files and classes are the user's: they are
 * escaped. */
#include "predictions.h"

#include "json.h"
#include "terminal.h"

#include <lockstep/context.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The most probable output after `last` (-1: of all); equal ones follow in the order of their numbers. -1: there is
 * none. */
static int64_t next_best(const predictions *p, const double *values, int64_t last)
{
    int64_t best = -1;
    for (int64_t i = 0; i < p->outputs; i++) {
        bool after = last < 0 || values[i] < values[last] || (values[i] == values[last] && i > last);
        if (after && (best < 0 || values[i] > values[best])) best = i;
    }
    return best;
}

static const char *class_name(const predictions *p, int64_t label)
{
    return p->classes ? lk_field_class_name(p->classes, label) : NULL;
}

static bool has_label(const predictions *p, const prediction *one) { return p->labelled && one->label != LK_NO_LABEL; }
static bool has_target(const predictions *p, const prediction *one) { return p->targeted && !isnan(one->target[0]); }

/* ---- text ---- */

static void print_class(const predictions *p, int64_t label, double probability, bool aligned)
{
    char        number[32];
    const char *name = class_name(p, label);
    snprintf(number, sizeof number, "%lld", (long long)label);
    terminal_print(stdout, aligned ? "%-14s %5.1f %%" : "%s %.1f %%", name ? name : number, 100 * probability);
}

static void print_text(const predictions *p, const prediction *one)
{
    if (p->named)
        terminal_print(stdout, "%s  ", one->name);
    else
        printf("%6lld  ", (long long)one->index);
    if (p->kind == PREDICTIONS_NUMBERS) {
        for (int64_t i = 0; i < p->outputs; i++) printf("%s%g", i ? ", " : "", one->values[i]);
        for (int64_t i = 0; has_target(p, one) && i < p->outputs; i++)
            printf("%s%g", i ? ", " : "  it is ", one->target[i]);
        printf("\n");
        return;
    }
    int64_t first = next_best(p, one->values, -1);
    for (int64_t k = 0, at = first; k < p->top && at >= 0; k++, at = next_best(p, one->values, at)) {
        if (k) printf(", ");
        print_class(p, at, one->values[at], p->top == 1);
    }
    if (has_label(p, one) && p->kind == PREDICTIONS_CLASS) {
        const char *actual = class_name(p, one->label);
        bool        right = first == one->label;
        terminal_print(stdout, "  %s%s%s", right ? "right" : "wrong", right || !actual ? "" : ": it is ",
                       right || !actual ? "" : actual);
    }
    printf("\n");
}

/* ---- JSON ---- */

static void json_list(json *j, const char *key, const double *values, int64_t count)
{
    json_open(j, key, '[');
    for (int64_t i = 0; i < count; i++) json_number(j, NULL, values[i]);
    json_close(j, ']');
}

static void json_top(json *j, const predictions *p, const prediction *one)
{
    int64_t at = next_best(p, one->values, -1);
    json_open(j, "top", '[');
    for (int64_t k = 0; k < p->top && at >= 0; k++, at = next_best(p, one->values, at)) {
        json_open(j, NULL, '{');
        json_integer(j, "class", at);
        if (class_name(p, at)) json_text(j, "name", class_name(p, at));
        json_number(j, "probability", one->values[at]);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void print_json(const predictions *p, const prediction *one)
{
    json    j = json_to(stdout);
    int64_t best = next_best(p, one->values, -1);
    json_open(&j, NULL, '{');
    json_integer(&j, "index", one->index);
    if (p->named) json_text(&j, "file", one->name);
    if (has_label(p, one)) json_integer(&j, "label", one->label);
    if (p->kind == PREDICTIONS_NUMBERS) {
        json_list(&j, "values", one->values, p->outputs);
        if (has_target(p, one)) json_list(&j, "target", one->target, p->outputs);
    } else {
        json_integer(&j, "predicted", best);
        if (class_name(p, best)) json_text(&j, "name", class_name(p, best));
        json_number(&j, "probability", best >= 0 ? one->values[best] : 0);
        json_top(&j, p, one);
        json_list(&j, "probabilities", one->values, p->outputs);
    }
    json_close(&j, '}');
    json_line(&j);
}

/* ---- CSV (RFC 4180) ---- */

static void put_quoted(const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, stdout);
        return;
    }
    fputc('"', stdout);
    for (; *text; text++) {
        if (*text == '"') fputc('"', stdout);
        fputc(*text, stdout);
    }
    fputc('"', stdout);
}

/* As it is, for other programs; on a terminal with control characters escaped. */
static void put_cell(const char *text)
{
    size_t size = 4 * strlen(text) + 1; /* an escape such as "\x1b" has four characters */
    char  *shown = isatty(STDOUT_FILENO) ? malloc(size) : NULL;
    if (shown) lk_printable(text, shown, size);
    put_quoted(shown ? shown : text);
    free(shown);
}

void predictions_begin(const predictions *p)
{
    if (p->format != PREDICTIONS_CSV) return;
    fputs(p->named ? "file" : "index", stdout);
    if (p->labelled) fputs(",label", stdout);
    for (int64_t i = 1; p->targeted && i <= p->outputs; i++) printf(",target_%lld", (long long)i);
    for (int64_t i = 1; p->kind == PREDICTIONS_NUMBERS && i <= p->outputs; i++) printf(",value_%lld", (long long)i);
    for (int64_t k = 1; p->kind != PREDICTIONS_NUMBERS && k <= p->top; k++)
        printf(",class_%lld,name_%lld,probability_%lld", (long long)k, (long long)k, (long long)k);
    fputc('\n', stdout);
}

static void print_csv(const predictions *p, const prediction *one)
{
    if (p->named)
        put_cell(one->name);
    else
        printf("%lld", (long long)one->index);
    if (p->labelled) fputc(',', stdout);
    if (has_label(p, one)) printf("%lld", (long long)one->label);
    for (int64_t i = 0; p->targeted && i < p->outputs; i++) {
        fputc(',', stdout);
        if (has_target(p, one)) printf("%.9g", one->target[i]);
    }
    for (int64_t i = 0; p->kind == PREDICTIONS_NUMBERS && i < p->outputs; i++) printf(",%.9g", one->values[i]);
    int64_t at = p->kind == PREDICTIONS_NUMBERS ? -1 : next_best(p, one->values, -1);
    for (int64_t k = 0; k < p->top && at >= 0; k++, at = next_best(p, one->values, at)) {
        const char *name = class_name(p, at);
        printf(",%lld,", (long long)at);
        put_cell(name ? name : "");
        printf(",%.9g", one->values[at]);
    }
    fputc('\n', stdout);
}

void predictions_print(const predictions *p, const prediction *one)
{
    (p->format == PREDICTIONS_JSON ? print_json : p->format == PREDICTIONS_CSV ? print_csv : print_text)(p, one);
}
