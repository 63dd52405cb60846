/* schedule_mistakes.h - ten mistakes that test_schedule.c makes in schedules: in copies of the instructions, runs and
 * slices of one rank, and in the places and buckets of its plan, which are restored. */
#ifndef SCHEDULE_MISTAKES_H
#define SCHEDULE_MISTAKES_H

#include "schedule_plans.h"

enum { NEVER = 1u << 30 };

/* An instruction as it is run. */
typedef struct step {
    size_t run, at;
} step;

typedef struct subject {
    lk_plan              *plan;
    lk__plan_group        group;
    const char           *name;
    lk__schedule_kind     kind;
    const lk__plan_list  *list;
    lk__plan_instructions instructions;
    lk__plan_schedule     schedule;
    lk__plan_owned       *pieces;
    size_t                pieces_count;
    lk__plan_accesses     accesses;
    step                 *steps;
    size_t                steps_count;
    lk__plan_place       *places; /* as planned */
    lk__plan_bucket      *buckets;
} subject;

static lk__plan_checked checked_of(const subject *s)
{
    return (lk__plan_checked){s->plan,      s->group,  s->list,         &s->instructions,
                              &s->schedule, s->pieces, s->pieces_count, lk__schedule_name(s->kind)};
}

static void *copy_bytes(const void *from, size_t bytes)
{
    void *to = malloc(bytes + 1);
    REQUIRE(to);
    if (bytes) memcpy(to, from, bytes);
    return to;
}

static void list_steps(subject *s)
{
    s->steps_count = 0;
    s->steps = malloc(s->schedule.count * s->instructions.count * sizeof *s->steps);
    REQUIRE(s->steps);
    for (size_t r = 0; r < s->schedule.count; r++) {
        const lk__schedule_run *run = &s->schedule.runs[r];
        for (size_t i = lk__schedule_begin(&s->instructions.at, run); i < lk__schedule_end(&s->instructions.at, run);
             i++)
            if (!(s->instructions.all[i].when & ~run->flags)) s->steps[s->steps_count++] = (step){r, i};
    }
}

/* false: the plan has no schedule of this kind. */
static bool open_subject(const planned *p, lk__schedule_kind kind, const char *name, subject *s)
{
    *s = (subject){.plan = p->plan, .group = p->group, .kind = kind, .name = name};
    REQUIRE(lk__plan_schedule_make(p->plan, kind, &s->schedule) == LK_OK);
    if (s->schedule.count == 0) return false;
    s->list = s->schedule.runs[0].list;
    REQUIRE(lk__plan_instruct(p->plan, s->list, p->group, &s->instructions) == LK_OK);
    if (p->plan->shared && p->plan->trains) {
        s->pieces_count = lk__plan_list_owned(p->plan, lk__plan_own(p->plan), NULL);
        s->pieces = malloc((s->pieces_count + 1) * sizeof *s->pieces);
        lk__plan_list_owned(p->plan, lk__plan_own(p->plan), s->pieces);
    }
    REQUIRE(lk__accesses_create(p->plan, s->list, p->group, s->pieces, s->pieces_count, &s->accesses) == LK_OK);
    s->places = copy_bytes(s->list->places, s->list->places_count * sizeof *s->places);
    s->buckets = copy_bytes(p->plan->buckets, p->plan->buckets_count * sizeof *s->buckets);
    list_steps(s);
    return true;
}

static void close_subject(subject *s)
{
    if (s->list) {
        memcpy(s->list->places, s->places, s->list->places_count * sizeof *s->places);
        if (s->plan->buckets_count) memcpy(s->plan->buckets, s->buckets, s->plan->buckets_count * sizeof *s->buckets);
        lk__accesses_free(&s->accesses);
        lk__plan_instructions_free(s->plan->context, &s->instructions);
    }
    lk__plan_schedule_free(s->plan->context, &s->schedule);
    free(s->pieces);
    free(s->steps);
    free(s->places);
    free(s->buckets);
}

/* ---- what instructions access ---- */

static lk__plan_instruction *instruction_at(const subject *s, size_t i) { return &s->instructions.all[s->steps[i].at]; }

static bool is_start(const subject *s, size_t i)
{
    return lk__action_kind_of(instruction_at(s, i)->action) == LK__IS_START;
}

static const lk__plan_access *accesses_of(subject *s, size_t i, size_t *count)
{
    REQUIRE(lk__accesses_find(&s->accesses, &s->schedule.runs[s->steps[i].run], instruction_at(s, i)) == LK_OK);
    *count = s->accesses.count;
    return s->accesses.all;
}

static bool writes(const lk__plan_access *a) { return a->kind == LK__WRITES || a->kind == LK__COPIES; }

static bool meets(const lk__plan_access *a, size_t count, const lk__plan_access *b, size_t others, bool read)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < others; k++)
            if (writes(&a[i]) == read && writes(&b[k]) != read && a[i].space == b[k].space && a[i].begin < b[k].end &&
                b[k].begin < a[i].end)
                return true;
    return false;
}

/* The first step behind `from` that reads what step `start` writes; the number of steps: none. */
static size_t find_reader(subject *s, size_t start, size_t from)
{
    size_t                 count, others, i = from + 1;
    const lk__plan_access *at = accesses_of(s, start, &count);
    lk__plan_access       *mine = copy_bytes(at, count * sizeof *mine);
    for (; i < s->steps_count; i++) {
        const lk__plan_access *theirs = accesses_of(s, i, &others);
        if (meets(mine, count, theirs, others, true)) break;
    }
    free(mine);
    return i;
}

/* The last step before `start` that writes what it reads; the number of steps: none. */
static size_t find_writer(subject *s, size_t start)
{
    size_t                 count, others, i = start, found = s->steps_count;
    const lk__plan_access *at = accesses_of(s, start, &count);
    lk__plan_access       *mine = copy_bytes(at, count * sizeof *mine);
    while (i-- > 0 && found == s->steps_count) {
        const lk__plan_access *theirs = accesses_of(s, i, &others);
        if (meets(mine, count, theirs, others, false)) found = i;
    }
    free(mine);
    return found;
}

/* The place-th step that runs an instruction of this kind for the first time. */
static bool find_step(const subject *s, bool (*is)(const subject *, size_t), int place, size_t *found)
{
    for (size_t i = 0; i < s->steps_count; i++) {
        bool again = false;
        for (size_t k = 0; k < i && !again; k++) again = s->steps[k].at == s->steps[i].at;
        if (again || !is(s, i) || place-- > 0) continue;
        *found = i;
        return true;
    }
    return false;
}

/* ---- ten mistakes. Each makes the place-th of its kind; false: there is none ---- */

static bool is_wait(const subject *s, size_t i) { return instruction_at(s, i)->action == LK__DO_WAIT; }

static bool remove_wait(subject *s, int place)
{
    size_t i;
    if (!find_step(s, is_wait, place, &i)) return false;
    instruction_at(s, i)->when |= NEVER;
    return true;
}

/* To behind instruction `to`, in its section. */
static void move_instruction(subject *s, size_t from, size_t to)
{
    lk__plan_instructions *all = &s->instructions;
    lk__plan_instruction   moved = all->all[from];
    memmove(all->all + from, all->all + from + 1, (to - from) * sizeof *all->all);
    all->all[to] = moved;
    for (int i = 0; i < LK_SECTION_COUNT; i++) {
        if (all->at.receives[i] > from && all->at.receives[i] <= to) all->at.receives[i]--;
        if (all->at.begin[i] > from && all->at.begin[i] <= to) all->at.begin[i]--;
        if (all->at.end[i] > from && all->at.end[i] <= to) all->at.end[i]--;
    }
}

/* Of this wait's collective; the number of steps: none, where a rank's slice of a small bucket has no element. */
static size_t reader_of_wait(subject *s, size_t wait)
{
    size_t start = 0;
    while (!is_start(s, start) || instruction_at(s, start)->collective != instruction_at(s, wait)->collective) start++;
    return find_reader(s, start, wait);
}

static bool is_wait_with_reader(const subject *s, size_t i)
{
    return is_wait(s, i) && reader_of_wait((subject *)s, i) < s->steps_count;
}

static bool delay_wait(subject *s, int place)
{
    size_t wait;
    if (!find_step(s, is_wait_with_reader, place, &wait)) return false;
    size_t reader = reader_of_wait(s, wait);
    REQUIRE(s->steps[reader].at > s->steps[wait].at, "%s: its reader is before it", s->name);
    move_instruction(s, s->steps[wait].at, s->steps[reader].at);
    return true;
}

static bool is_collective(const subject *s, size_t i)
{
    return is_start(s, i) || lk__action_kind_of(instruction_at(s, i)->action) == LK__IS_COLLECTIVE;
}

/* In the section sync everything about a bucket stands together: two of them change places as a whole. */
static bool swap_buckets(subject *s, int first)
{
    lk__plan_instruction *starts[2] = {NULL, NULL};
    for (size_t i = s->instructions.at.begin[LK_SYNC]; i < s->instructions.at.end[LK_SYNC]; i++)
        for (int k = 0; k < 2; k++)
            if (lk__action_kind_of(s->instructions.all[i].action) == LK__IS_START &&
                s->instructions.all[i].bucket == first + k)
                starts[k] = &s->instructions.all[i];
    if (!starts[0] || !starts[1]) return false;
    int numbers[2] = {starts[0]->collective, starts[1]->collective}, nodes[2] = {starts[0]->node, starts[1]->node};
    for (size_t i = s->instructions.at.begin[LK_SYNC]; i < s->instructions.at.end[LK_SYNC]; i++) {
        lk__plan_instruction *in = &s->instructions.all[i];
        int                   which = in->bucket - first;
        if (which != 0 && which != 1) continue;
        in->bucket = first + 1 - which;
        if (in->collective >= 0) in->collective = numbers[1 - which];
        if (lk__action_kind_of(in->action) == LK__IS_START) in->node = nodes[1 - which];
    }
    return true;
}

static bool swap_collectives(subject *s, int place)
{
    size_t i, next;
    if (s->kind == LK__SCHEDULE_HELD && place >= 1000) return swap_buckets(s, place - 1000);
    if (!find_step(s, is_collective, place, &i)) return false;
    for (next = i + 1; next < s->steps_count && s->steps[next].run == s->steps[i].run && !is_collective(s, next);)
        next++;
    if (next == s->steps_count || s->steps[next].run != s->steps[i].run) return false;
    lk__plan_instruction one = *instruction_at(s, i);
    *instruction_at(s, i) = *instruction_at(s, next);
    *instruction_at(s, next) = one;
    return true;
}

/* A forward runs before the backward that reads what is in its slot; or two parts use one set of gradients. */
static bool reuse_slot(subject *s, int place)
{
    lk__schedule_run *runs = s->schedule.runs;
    for (size_t i = 0; i + 1 < s->schedule.count; i++) {
        if (runs[i].section == LK_BACKWARD && runs[i + 1].section == LK_FORWARD && place-- == 0) {
            lk__schedule_run early = runs[i + 1];
            runs[i + 1] = runs[i];
            runs[i] = early;
            return true;
        }
        if (runs[i + 1].set > 0 && runs[i + 1].through == LK_BACKWARD && place-- == 0) {
            runs[i + 1].set--;
            return true;
        }
    }
    return false;
}

static bool extend_slice(subject *s, int place)
{
    if ((size_t)place >= s->pieces_count || s->list != &s->plan->train) return false;
    s->pieces[place].count++;
    return true;
}

/* What the device makes of samples is a copy, too. The step block is not: what it holds is not followed. */
static bool is_copy(const subject *s, size_t i)
{
    lk__plan_action        action = instruction_at(s, i)->action;
    bool                   copies = action == LK__DO_BATCH_BEGIN || lk__action_kind_of(action) == LK__IS_COPY;
    size_t                 count;
    const lk__plan_access *all = accesses_of((subject *)s, i, &count);
    for (size_t k = 0; k < count; k++)
        if (copies && writes(&all[k])) return true;
    return false;
}

static bool drop_copy(subject *s, int place)
{
    size_t i;
    if (!find_step(s, is_copy, place, &i)) return false;
    instruction_at(s, i)->when |= NEVER;
    return true;
}

/* Steps in which the values of slot 0 are written for the first time, of part 0 or of all, and in which that is read
 * last. */
static void find_lives(subject *s, size_t *written, size_t *read)
{
    int *first = calloc(s->accesses.values, sizeof *first);
    REQUIRE(first);
    for (size_t v = 0; v < s->accesses.values; v++) written[v] = s->steps_count, read[v] = 0;
    for (size_t i = 0; i < s->steps_count; i++) {
        size_t                 count;
        const lk__plan_access *all = accesses_of(s, i, &count);
        for (size_t k = 0; k < count; k++) {
            const lk__plan_content *c = &all[k].content;
            if (all[k].space != lk__space_activations(0) || c->first > 0) continue;
            if (!writes(&all[k]) && c->first == first[c->value]) read[c->value] = i;
            if (writes(&all[k]) && written[c->value] == s->steps_count)
                written[c->value] = i, first[c->value] = c->first;
        }
    }
    free(first);
}

/* Onto that value beside it which is read after it was written. */
static bool shift_region(subject *s, int place)
{
    size_t values = s->accesses.values, *written = malloc(2 * values * sizeof *written), *read = written + values;
    lk__plan_place *places = s->list->places;
    size_t          nearest, v = 0;
    bool            done = false;
    find_lives(s, written, read);
    for (; v < values && !done; v++) {
        nearest = values;
        for (size_t u = 0; u < values && written[v] < s->steps_count; u++) {
            bool live =
                u != v && written[u] < written[v] && read[u] > written[v] && places[u].offset != places[v].offset;
            if (live &&
                (nearest == values || llabs((long long)places[u].offset - (long long)places[v].offset) <
                                          llabs((long long)places[nearest].offset - (long long)places[v].offset)))
                nearest = u;
        }
        if (nearest == values || place-- > 0) continue;
        for (size_t u = 0; u < values; u++)
            if (s->accesses.root[u] == (int)v && u != v) places[u].offset = places[nearest].offset;
        places[v].offset = places[nearest].offset;
        done = true;
    }
    free(written);
    return done;
}

static bool start_early(subject *s, int place)
{
    size_t i;
    if (!find_step(s, is_start, place, &i)) return false;
    size_t writer = find_writer(s, i);
    REQUIRE(writer < s->steps_count, "%s: nothing writes it", s->name);
    instruction_at(s, writer)->when |= NEVER;
    return true;
}

/* Its run, or the report itself. */
static bool update_early(subject *s, int place)
{
    lk__schedule_run *runs = s->schedule.runs;
    size_t            last = s->schedule.count - 1;
    if (runs[last].section != LK_UPDATE || place > 1) return false;
    if (place == 0) {
        lk__schedule_run update = runs[last];
        runs[last] = runs[last - 1];
        runs[last - 1] = update;
        return true;
    }
    for (size_t i = s->instructions.at.begin[LK_SYNC]; i < s->instructions.at.end[LK_UPDATE]; i++) {
        const lk__plan_instruction *in = &s->instructions.all[i];
        bool                        queued = s->kind == LK__SCHEDULE_QUEUED;
        bool                        reports = in->action == LK__DO_REPORT || in->action == LK__DO_REPORT_SHARED;
        if (queued ? in->action != LK__DO_BATCH_NUMBERS : !reports) continue;
        move_instruction(s, i, s->instructions.at.end[LK_UPDATE] - 1);
        return true;
    }
    return false;
}

/* Its last. */
static bool shrink_bucket(subject *s, int place)
{
    if (s->list != &s->plan->train || (size_t)place >= s->plan->buckets_count) return false;
    lk__plan_bucket *b = &s->plan->buckets[place];
    size_t           last = b->offset;
    for (size_t i = 0; i < s->plan->graph->states_count; i++) {
        const lk__plan_state *one = &s->plan->states[i];
        if (one->trained && one->gradient_offset < b->offset + b->bytes && one->gradient_offset > last)
            last = one->gradient_offset;
    }
    b->bytes = last - b->offset;
    return true;
}

static const struct {
    const char *name;
    bool (*make)(subject *s, int place);
    int kinds; /* of schedules that must have a place for it, at least */
} mistakes[] = {
    {"a wait removed", remove_wait, 2},
    {"a wait moved behind its reader", delay_wait, 2},
    {"two collectives swapped on one rank", swap_collectives, 2},
    {"a slot reused one run too early", reuse_slot, 3},
    {"a slice extended by one element", extend_slice, 2},
    {"a copy dropped", drop_copy, 4},
    {"a region shifted onto its neighbour", shift_region, 4},
    {"a start without its last writer", start_early, 2},
    {"an update before its report", update_early, 3},
    {"a bucket without one of its gradients", shrink_bucket, 3},
};
enum { MISTAKES = sizeof mistakes / sizeof *mistakes, SWAPPED = 2 };

#endif
