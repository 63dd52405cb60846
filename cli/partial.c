/* partial.c - lists by name what --init-partial loaded and what it did not. */
#include "partial.h"

#include "terminal.h"

enum { RESULTS = 4 };

static const struct {
    lk_load_result result;
    const char    *key, *text;
} results[RESULTS] = {{LK_LOAD_LOADED, "loaded", "loaded"},
                      {LK_LOAD_MISSING, "missing", "missing from the file"},
                      {LK_LOAD_MISMATCHED, "mismatched", "with a different shape or type, not loaded"},
                      {LK_LOAD_UNEXPECTED, "unexpected", "only in the file"}};

static int count_result(const lk_load_report *report, lk_load_result result)
{
    const lk_load_entry *e;
    int                  count = 0;
    for (size_t i = 0; (e = lk_load_report_at(report, i)); i++) count += e->result == result;
    return count;
}

void partial_print(const char *name, const char *file, const lk_load_report *report)
{
    const lk_load_entry *e;
    for (int k = 0; k < RESULTS; k++) {
        int count = count_result(report, results[k].result), n = 0;
        if (count == 0) continue;
        terminal_print(stderr, "lockstep %s: --init-partial %s: %d tensor%s %s:", name, file, count,
                       count == 1 ? "" : "s", results[k].text);
        for (size_t i = 0; (e = lk_load_report_at(report, i)); i++)
            if (e->result == results[k].result)
                terminal_print(stderr, "%s %s%s%s", n++ ? "," : "", e->name, e->text[0] ? " is " : "", e->text);
        fputc('\n', stderr);
    }
}

void partial_json(json *j, const lk_load_report *report)
{
    const lk_load_entry *e;
    json_open(j, "init_partial", '{');
    for (int k = 0; k < RESULTS; k++) {
        json_open(j, results[k].key, '[');
        for (size_t i = 0; (e = lk_load_report_at(report, i)); i++)
            if (e->result == results[k].result) json_text(j, NULL, e->name);
        json_close(j, ']');
    }
    json_close(j, '}');
}
