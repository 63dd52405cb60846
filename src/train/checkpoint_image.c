/* checkpoint_image.c - the bytes of a checkpoint's two files: their tables of tensors, which are built for every save,
 * and their maximum size, which is known from the plan. */
#include "train/checkpoint.h"

#include "run/exchange.h"
#include "train/list_names.h"
#include "train/load.h"

#include <stdio.h>
#include <string.h>

/* ---- sizes ---- */

/* Of the header, for all tensors that a file has of a state under a name, with `more` bytes at its end. */
static size_t entry_bytes(const char *name, size_t more, const lk__graph_shape *shape)
{
    bool   list = lk__list_is(name, shape->rank);
    size_t each = lk__safetensors_entry(strlen(name) + more + (list ? LK__LIST_DIGITS : 0), shape->rank);
    return lk__list_length(name, shape->rank, shape->dims) * each;
}

size_t lk__image_entries(const lk_plan *plan)
{
    size_t states = 0, moments = 0;
    for (size_t i = 0; i < plan->graph->states_count; i++) {
        const lk__graph_state *state = &plan->graph->states[i];
        const lk__graph_shape *shape = &plan->graph->values[state->value].shape;
        size_t                 length = lk__list_length(state->name, shape->rank, shape->dims);
        states += length;
        for (size_t j = 0; j < state->aliases_count; j++)
            states += lk__list_length(state->aliases[j], shape->rank, shape->dims);
        moments += (size_t)plan->states[i].moments * length;
    }
    return (states > moments ? states : moments) + 1;
}

void lk__image_bounds(const lk_plan *plan, uint64_t bytes[2])
{
    const lk_graph *g = plan->graph;
    bytes[LK__FILE_MODEL] = bytes[LK__FILE_OPTIMIZER] = LK__SAFETENSORS_HEADER;
    for (size_t i = 0; i < g->states_count; i++) {
        const lk__graph_state *state = &g->states[i];
        const lk__plan_state  *sp = &plan->states[i];
        const lk__graph_shape *shape = &g->values[state->value].shape;
        lk_dtype               type = sp->master ? lk__wide_type(shape->dtype) : shape->dtype;
        uint64_t               data = (uint64_t)lk__shape_elements(shape) * lk_dtype_size(type);
        for (int m = 0; m < sp->moments; m++)
            bytes[LK__FILE_OPTIMIZER] += data + entry_bytes(state->name, 1 + strlen(plan->moments[m].name), shape);
        if (state->not_saved) continue;
        bytes[LK__FILE_MODEL] += data + entry_bytes(state->name, 0, shape);
        for (size_t j = 0; j < state->aliases_count; j++)
            bytes[LK__FILE_MODEL] += data + entry_bytes(state->aliases[j], 0, shape);
    }
}

/* ---- tables ---- */

/* A tensor's source is its state's index and part, and which one of a list it is. */
typedef struct source {
    size_t        index, one;
    lk_state_part part;
} source;

static size_t pack_source(const lk_store *store, source s)
{
    return (s.one * lk_store_count(store) + s.index) * LK_STATE_PART_COUNT + s.part;
}

static source unpack_source(const lk_store *store, size_t packed)
{
    size_t states = lk_store_count(store), rest = packed / LK_STATE_PART_COUNT;
    return (source){rest % states, rest / states, (lk_state_part)(packed % LK_STATE_PART_COUNT)};
}

/* The bytes of the state before the tensor. */
static size_t first_byte(const lk_store *store, source s)
{
    lk_state state = lk_store_at(store, s.index);
    size_t   bytes = s.one * lk_dtype_size(state.dtype);
    for (int i = 1; i < state.rank; i++) bytes *= (size_t)state.dims[i];
    return bytes;
}

static lk_status read_state(void *store, size_t packed, uint64_t first, void *out, size_t bytes)
{
    source s = unpack_source(store, packed);
    return lk__store_read_bytes(store, s.index, s.part, first_byte(store, s) + (size_t)first, out, bytes);
}

/* Adds the tensors of an array of a state to the table; lists of them have names in the saver's memory. `name` may be
 * there already, at the first. */
static lk_status add_tensors(lk__train_saver *s, size_t index, lk_state_part part, const char *name, size_t *count)
{
    lk_state state = lk_store_at(s->store, index);
    bool     list = lk__list_is(name, state.rank);
    char     pattern[sizeof s->names[0]];
    if (list && snprintf(pattern, sizeof pattern, "%s", name) >= (int)sizeof pattern)
        return lk__fail(s->context, LK_EINVAL, "parameter name \"%s\" is too long to save", name);
    for (size_t one = 0, length = lk__list_length(name, state.rank, state.dims); one < length; one++, ++*count) {
        lk__safetensors_tensor *t = &s->tensors[*count];
        *t = (lk__safetensors_tensor){.name = list ? s->names[*count] : name,
                                      .dtype = state.dtype,
                                      .rank = state.rank - list,
                                      .read = read_state,
                                      .user = s->store,
                                      .source = pack_source(s->store, (source){index, one, part})};
        memcpy(t->dims, state.dims + list, (size_t)t->rank * sizeof *t->dims);
        if (list && !lk__list_name(pattern, one, s->names[*count], sizeof s->names[0]))
            return lk__fail(s->context, LK_EINVAL, "parameter name \"%s\" is too long to save", pattern);
    }
    return LK_OK;
}

lk_status lk__image_model(lk__train_saver *s, size_t *count)
{
    lk_status status = LK_OK;
    *count = 0;
    for (size_t i = 0; i < lk_store_count(s->store) && status >= 0; i++) {
        const char *alias;
        lk_state    state = lk_store_at(s->store, i);
        if (state.not_saved) continue;
        status = add_tensors(s, i, LK_STATE_VALUE, state.name, count);
        for (size_t j = 0; status >= 0 && (alias = lk_store_alias(s->store, i, j)); j++)
            status = add_tensors(s, i, LK_STATE_VALUE, alias, count);
    }
    return status;
}

static lk_status list_optimizer(lk__train_saver *s, size_t *count)
{
    lk_status status = LK_OK;
    *count = 0;
    for (size_t i = 0; i < lk_store_count(s->store) && status >= 0; i++) {
        lk_state state = lk_store_at(s->store, i);
        for (int m = 0; m < state.moments && status >= 0; m++) {
            char *name = s->names[*count];
            int   n = snprintf(name, sizeof s->names[0], "%s.%s", state.name, lk_store_moment_name(s->store, i, m));
            if (n < 0 || (size_t)n >= sizeof s->names[0])
                return lk__fail(s->context, LK_EINVAL, "parameter name \"%s\" is too long to save", state.name);
            status = add_tensors(s, i, (lk_state_part)(LK_STATE_MOMENT_0 + m), name, count);
        }
    }
    return status;
}

lk_status lk__image_make(lk__train_saver *s, int file, lk__safetensors_image *image)
{
    size_t    count = 0;
    lk_status status = LK_OK;
    if (file == LK__FILE_MODEL)
        status = lk__image_model(s, &count);
    else
        status = list_optimizer(s, &count);
    if (status >= 0)
        status = lk__safetensors_lay_out(
            s->context, lk__checkpoint_files[file],
            &(lk__safetensors_content){s->tensors, count, s->metadata, file == LK__FILE_MODEL ? 1 : 0}, image);
    if (status >= 0) s->cut[file] = (lk__chunks){image->bytes, s->chunk_bytes, s->writers.count, s->background != NULL};
    return status;
}

/* ---- chunks ---- */

/* Where a chunk's data is: returns how many ranges; the bytes of the header before them are not among these. */
static size_t list_ranges(const lk_store *store, const lk__safetensors_image *image, uint64_t first, size_t bytes,
                          lk__exchange_range *ranges)
{
    size_t   count = 0;
    uint64_t end = first + bytes;
    if (end <= image->header) return 0;
    if (first < image->header) first = image->header;
    first -= image->header, end -= image->header;
    for (size_t i = lk__safetensors_locate(image, first); first < end; i++) {
        const lk__safetensors_tensor *t = &image->content.tensors[i];
        source                        from = unpack_source(store, t->source);
        uint64_t                      inside = first - t->offset;
        uint64_t                      now = t->bytes - inside < end - first ? t->bytes - inside : end - first;
        if (now)
            ranges[count++] =
                (lk__exchange_range){from.index, from.part, first_byte(store, from) + (size_t)inside, (size_t)now};
        first += now;
    }
    return count;
}

size_t lk__image_exchange_bytes(const lk_plan *plan, int ranks, size_t entries)
{
    if (!lk__plan_fetch_sends(plan, ranks)) return 0;
    return lk__round_up(lk__store_exchange_bytes(ranks), LK__ALIGN) + (size_t)ranks * sizeof(lk__exchange_list) +
           (entries + (size_t)ranks) * sizeof(lk__exchange_range);
}

void lk__image_lists(const lk__train_saver *s, lk__checkpoint_round round, lk__exchange_list *lists,
                     lk__exchange_range *ranges)
{
    const lk__writers *w = &s->writers;
    const lk__chunks  *cut = &s->cut[round.file];
    for (int i = 0; i < w->world; i++) lists[i] = (lk__exchange_list){ranges, 0};
    for (int turn = 0; turn < w->count; turn++) {
        size_t index;
        if (!lk__chunks_find(cut, turn, round.number, &index)) continue;
        lk__exchange_list *list = &lists[lk__saver_writer(s, round.file, index)];
        list->ranges = ranges;
        list->count =
            list_ranges(s->store, round.image, lk__chunks_offset(cut, index), lk__chunks_bytes(cut, index), ranges);
        ranges += list->count;
    }
}

/* From the ranks that have the bytes: every rank knows what every writer needs. */
static lk_status fetch_chunks(lk__train_saver *s, lk__checkpoint_round round, void *mine)
{
    lk__exchange        with = {s->writers.comm, s->exchange};
    size_t              at = lk__round_up(lk__store_exchange_bytes(s->writers.world), LK__ALIGN);
    lk__exchange_list  *lists = (void *)(s->exchange + at);
    lk__exchange_range *ranges = (void *)(lists + s->writers.world);
    lk__image_lists(s, round, lists, ranges);
    return lk__store_fetch(s->store, &with, lists, mine);
}

/* The one place where a chunk's bytes are gathered: all ranks call it for every round of a file. */
lk_status lk__image_gather(lk__train_saver *s, lk__checkpoint_round round, void *out)
{
    const lk__safetensors_image *image = round.image;
    const lk__chunks            *cut = &s->cut[round.file];
    size_t                       index, header = 0;
    bool                         writes = lk__chunks_find(cut, lk__saver_turn(s, round.file), round.number, &index);
    uint64_t                     first = writes ? lk__chunks_offset(cut, index) : 0;
    size_t                       bytes = writes ? lk__chunks_bytes(cut, index) : 0;
    if (!s->exchange) return writes ? lk__safetensors_copy(image, first, out, bytes) : LK_OK;
    if (first < image->header) header = image->header - first < bytes ? (size_t)(image->header - first) : bytes;
    lk_status status = lk__safetensors_copy(image, first, out, header);
    return status < 0 ? status : fetch_chunks(s, round, (char *)out + header);
}
