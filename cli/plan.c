/* plan.c - `lockstep plan`: what a training run will hold, to the byte, and what it will run; nothing is allocated. */
#include "json.h"
#include "ranks.h"
#include "training.h"

#include <string.h>

static const option plan_options[] = {
    MODEL_OPTIONS,
    DATA_OPTIONS,
    TRAINING_OPTIONS,
    HEADING("Ranks"),
    INTEGER_LETTER('n', "ranks", "N", "1", 1, 4096, "Plan for rank 0 of so many"),
    PARALLEL_OPTIONS,
    HEADING("Printing"),
    CHOICE("graph", "FORM", NULL, "text|dot",
           "Print the model's graph as a listing, or for Graphviz: `… --graph dot | dot -Tsvg`"),
    FLAG("sections", "Print every instruction of every section, and where its result lies"),
    MACHINE_OPTIONS,
    FLAG("json", "Print the memory as one JSON object"),
    CONFIG,
    OPTIONS_END,
};

static void write_out(void *user, const char *text, size_t bytes) { fwrite(text, 1, bytes, user); }

static const lk_memory shown[] = {LK_MEMORY_PARAMETERS, LK_MEMORY_GRADIENTS,   LK_MEMORY_OPTIMIZER,
                                  LK_MEMORY_BUFFERS,    LK_MEMORY_ACTIVATIONS, LK_MEMORY_WORKSPACE,
                                  LK_MEMORY_LOADER,     LK_MEMORY_CHECKPOINT};
enum { SHOWN = sizeof shown / sizeof *shown };

static void print_memory(const size_t *memory)
{
    size_t total = 0;
    for (int i = 0; i < SHOWN; i++) {
        printf("%-16s %15zu bytes  %10.2f MiB\n", lk_memory_name(shown[i]), memory[shown[i]],
               (double)memory[shown[i]] / 1048576);
        total += memory[shown[i]];
    }
    printf("%-16s %15zu bytes  %10.2f MiB\n", "total", total, (double)total / 1048576);
}

static void print_json(const size_t *memory, const lk_plan *plan)
{
    size_t total = 0;
    char   fingerprint[32];
    json   j = json_to(stdout);
    json_open(&j, NULL, '{');
    for (int i = 0; i < SHOWN; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s", lk_memory_name(shown[i]));
        for (char *c = key; *c; c++)
            if (*c == ' ') *c = '_';
        json_integer(&j, key, (int64_t)memory[shown[i]]);
        total += memory[shown[i]];
    }
    json_integer(&j, "total", (int64_t)total);
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)lk_plan_fingerprint(plan));
    json_text(&j, "fingerprint", fingerprint);
    json_close(&j, '}');
    json_line(&j);
}

static int run(const options *given)
{
    setup       s = {0};
    lk_graph   *graph = NULL;
    lk_plan    *plan = NULL;
    size_t      memory[LK_MEMORY_COUNT];
    const char *form = options_text(given, "graph");
    int         code = setup_make(&s, "plan", given, SETUP_SIZES);
    if (code == 0) code = training_make(&s, "plan", given);
    if (code == 0) code = ranks_make(&s, "plan", given);
    s.config.plan_world = (int)options_integer(given, "ranks");
    if (code == 0) {
        lk_status status = lk_trainer_plan(s.context, &s.config, &graph, &plan, memory);
        if (status < 0) code = report("plan", s.context, status);
    }
    if (code == 0) {
        if (form && strcmp(form, "dot") == 0)
            lk_graph_dot(graph, write_out, stdout);
        else if (form)
            lk_graph_print(graph, write_out, stdout);
        if (options_flag(given, "sections")) lk_plan_print(plan, write_out, stdout);
        if (options_flag(given, "json"))
            print_json(memory, plan);
        else if (!form)
            print_memory(memory);
    }
    lk_plan_free(plan);
    lk_graph_free(graph);
    setup_free(&s);
    return code;
}

const command command_plan = {
    "plan",
    "say what a run will hold, to the byte, before it starts",
    "Takes the options of `lockstep train` and prints the bytes of parameters, gradients, optimizer state, "
    "activations, workspace, "
    "loader and checkpoint staging that the run will hold: exactly these. A known data set need not be there yet: then "
    "its published size is taken.\n\n"
    "Example: lockstep plan --model resnet18 --batch 128",
    NULL,
    0,
    0,
    plan_options,
    run,
};
