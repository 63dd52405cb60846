/* test_schedule.c - the verifier of schedules (plan/verify_schedule.h): every schedule of every kind of plan is right,
 * on every rank, and all ranks have the same order of collectives. And the verifier finds each of ten mistakes, made
 * one at a time wherever a schedule has a place for it: here they are made in copies of its instructions, runs, slices,
 * places and buckets.
 *
 * ctest: timeout 240 */
#include "base/environment.h"
#include "schedule_mistakes.h"

#include <lockstep/program.h>
#include <time.h>

enum { MOST_PLACES = 16 }; /* of a mistake in one schedule */
static int found[MISTAKES][LK__SCHEDULE_COUNT], by_order;

/* ---- each of them in each schedule ---- */

/* Whether the verifier of this rank, or the comparison with another, finds the mistake. */
static bool is_found(const subject *s, const lk__plan_order_list *right, int mistake, char *text, size_t bytes)
{
    lk__plan_checked checked = checked_of(s);
    lk_status        status = lk__schedule_verify(&checked, text, bytes);
    CHECK(status == LK_OK || status == LK_EMISMATCH, "%d", (int)status);
    if (status < 0) {
        CHECK(strlen(text) > 20, "\"%s\"", text);
        return true;
    }
    if (mistake != SWAPPED) return false;
    lk__plan_order_list wrong = {.all = NULL};
    REQUIRE(lk__collective_order(&checked, &wrong) == LK_OK);
    status = lk__collective_order_compare(right, 0, &wrong, 1, text, bytes);
    lk__collective_order_free(s->plan->context, &wrong);
    by_order += status == LK_EMISMATCH;
    return status == LK_EMISMATCH;
}

static void make_mistakes(const planned *p, const layout *l, lk__schedule_kind kind, const lk__plan_order_list *right)
{
    char text[1024];
    for (int m = 0; m < MISTAKES; m++)
        for (int place = 0, last = -1; place < MOST_PLACES || m == SWAPPED; place++) {
            subject s;
            if (place == MOST_PLACES) place = 1000; /* whole buckets */
            if (place == 1000 + MOST_PLACES) break;
            bool made = open_subject(p, kind, l->name, &s) && mistakes[m].make(&s, place);
            if (made) {
                bool one = is_found(&s, right, m, text, sizeof text);
                CHECK(one, "%s, %s: %s, place %d, is not found", l->name, lk__schedule_name(kind), mistakes[m].name,
                      place);
                found[m][kind] += one;
                if (getenv("LK_TEST_VERBOSE") && last < 0) printf("%s: %s\n    %s\n", l->name, mistakes[m].name, text);
                last = place;
            }
            close_subject(&s);
            if (!made && m == SWAPPED && place < MOST_PLACES)
                place = MOST_PLACES - 1;
            else if (!made)
                break;
        }
}

static void verify_plan(const planned *p, const layout *l, int rank, lk__plan_order_list *orders)
{
    for (int kind = 0; kind < LK__SCHEDULE_COUNT; kind++) {
        subject s;
        char    text[1024];
        if (open_subject(p, (lk__schedule_kind)kind, l->name, &s)) {
            lk__plan_checked checked = checked_of(&s);
            lk_status        status = lk__schedule_verify(&checked, text, sizeof text);
            CHECK(status == LK_OK, "%s, rank %d: %s", l->name, rank, text);
            REQUIRE(lk__collective_order(&checked, &orders[kind]) == LK_OK);
        }
        close_subject(&s);
    }
}

static void every_schedule_of_every_plan_is_right_and_every_mistake_is_found(void)
{
    for (int i = 0; i < LAYOUTS; i++) {
        const layout       *l = &layouts[i];
        planned             first = open_plan(l, 0);
        lk__plan_order_list right[LK__SCHEDULE_COUNT] = {{.all = NULL}};
        char                text[1024];
        verify_plan(&first, l, 0, right);
        for (int rank = 1; rank < l->world; rank++) {
            planned             p = open_plan(l, rank);
            lk__plan_order_list orders[LK__SCHEDULE_COUNT] = {{.all = NULL}};
            verify_plan(&p, l, rank, orders);
            for (int kind = 0; kind < LK__SCHEDULE_COUNT; kind++) {
                CHECK(lk__collective_order_compare(&right[kind], 0, &orders[kind], rank, text, sizeof text) == LK_OK,
                      "%s: %s", l->name, text);
                if (rank == l->world - 1) make_mistakes(&p, l, (lk__schedule_kind)kind, &orders[kind]);
                lk__collective_order_free(p.context, &orders[kind]);
            }
            close_plan(&p);
        }
        for (int kind = 0; kind < LK__SCHEDULE_COUNT; kind++) {
            make_mistakes(&first, l, (lk__schedule_kind)kind, &right[kind]);
            lk__collective_order_free(first.context, &right[kind]);
        }
        close_plan(&first);
    }
    for (int m = 0; m < MISTAKES; m++) {
        int kinds = 0, all = 0;
        for (int kind = 0; kind < LK__SCHEDULE_COUNT; kind++) kinds += found[m][kind] > 0, all += found[m][kind];
        printf("     %s: found in %d places of %d kinds of schedules\n", mistakes[m].name, all, kinds);
        CHECK(kinds >= mistakes[m].kinds, "%s: in %d kinds of schedules", mistakes[m].name, kinds);
    }
    CHECK(by_order > 0, "no order was wrong that is right for one rank");
}

/* ---- programs ---- */

static void a_program_with_a_wrong_schedule_is_refused(void)
{
    for (int asked = 0; asked < 2; asked++) {
        planned     p = open_plan(&layouts[0], 0);
        lk_store   *store;
        lk_program *program;
        int         weight = p.plan->train.numbers[LK__NUMBER_WEIGHT], sum = p.plan->train.numbers[LK__NUMBER_SUM];
        setenv("LOCKSTEP_VERIFY_SCHEDULE", asked ? "1" : "0", 1);
        lk__context_read_environment(p.context);
        p.plan->train.places[weight] = p.plan->train.places[sum];
        REQUIRE(lk_store_create(p.plan, 1, &store) == LK_OK);
        lk_status status = lk_program_create(p.plan, store, NULL, &program);
        CHECK(status == (asked ? LK_EMISMATCH : LK_OK), "%d", (int)status);
        CHECK(!asked || strstr(lk_context_error(p.context), "internal error in the schedule of a step: run 0 (forward"),
              "%s", lk_context_error(p.context));
        lk_program_free(program);
        lk_store_free(store);
        close_plan(&p);
    }
}

/* ---- the time it takes ---- */

static void a_plan_of_the_size_of_gpt2_is_verified(void)
{
    lk_context           *context;
    lk_graph             *g;
    lk_plan              *plan;
    lk_transformer_config model = LK_TRANSFORMER_CONFIG_INIT;
    lk_plan_config        config = LK_PLAN_CONFIG_INIT;
    lk_optimizer_config   optimizer = LK_OPTIMIZER_CONFIG_INIT;
    struct timespec       begin, end;
    REQUIRE(lk_context_create(NULL, &context) == LK_OK && lk_graph_create(context, LK_F32, &g) == LK_OK);
    REQUIRE(lk_transformer_preset("gpt2", &model));
    lk_tensor             tokens = lk_input(g, "tokens", LK_I32, 2, ((int64_t[]){4, 1024}));
    lk_tensor             labels = lk_input(g, "labels", LK_I32, 2, ((int64_t[]){4, 1024}));
    lk_transformer_result r = lk_transformer(tokens, &model);
    config.loss = lk_linear_cross_entropy(r.hidden, r.head, labels);
    optimizer.kind = LK_ADAMW;
    optimizer.clip = 1;
    config.optimizer = &optimizer;
    config.parallel = (lk_parallel){.world = 8, .rank = 3, .micro_batches = 4};
    REQUIRE(lk_plan_create(g, &config, &plan) == LK_OK, "%s", lk_context_error(context));
    clock_gettime(CLOCK_MONOTONIC, &begin);
    CHECK(lk__plan_verify(plan, (lk__plan_group){.overlaps = true}) == LK_OK, "%s", lk_context_error(context));
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("     all schedules of GPT-2, 8 ranks, 4 micro-batches: %.1f ms\n",
           (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6);
    lk_plan_free(plan);
    lk_graph_free(g);
    lk_context_free(context);
}

int main(void)
{
    RUN(every_schedule_of_every_plan_is_right_and_every_mistake_is_found);
    RUN(a_program_with_a_wrong_schedule_is_refused);
    RUN(a_plan_of_the_size_of_gpt2_is_verified);
    return check_failures != 0;
}
