/* checkpoint_image.c - the bytes of a checkpoint's two files: their tables of tensors, made for every save, and how
 * large they are at most, which is known from the plan. */
#include "train/checkpoint.h"

#include "run/exchange.h"
#include "train/load.h"

#include <stdio.h>
#include <string.h>

/* ---- sizes ---- */

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
        size_t                 name = strlen(state->name);
        for (int m = 0; m < sp->moments; m++)
            bytes[LK__FILE_OPTIMIZER] +=
                data + lk__safetensors_entry(name + 1 + strlen(plan->moments[m].name), shape->rank);
        if (state->not_saved) continue;
        bytes[LK__FILE_MODEL] += data + lk__safetensors_entry(name, shape->rank);
        for (size_t j = 0; j < state->aliases_count; j++)
            bytes[LK__FILE_MODEL] += data + lk__safetensors_entry(strlen(state->aliases[j]), shape->rank);
    }
}

/* ---- tables ---- */

/* A tensor's source is its state's index and part. */
static lk_status read_state(void *store, size_t source, uint64_t first, void *out, size_t bytes)
{
    return lk__store_read_bytes(store, source / LK_STATE_PART_COUNT, (lk_state_part)(source % LK_STATE_PART_COUNT),
                                (size_t)first, out, bytes);
}

static lk__safetensors_tensor tensor_of_state(const lk__train_saver *s, size_t index, lk_state_part part,
                                              const char *name)
{
    lk_state               state = lk_store_at(s->store, index);
    lk__safetensors_tensor t = {.name = name,
                                .dtype = state.dtype,
                                .rank = state.rank,
                                .read = read_state,
                                .user = s->store,
                                .source = index * LK_STATE_PART_COUNT + part};
    memcpy(t.dims, state.dims, sizeof t.dims);
    return t;
}

size_t lk__image_model(lk__train_saver *s)
{
    size_t count = 0;
    for (size_t i = 0; i < lk_store_count(s->store); i++) {
        const char *alias;
        lk_state    state = lk_store_at(s->store, i);
        if (state.not_saved) continue;
        s->tensors[count++] = tensor_of_state(s, i, LK_STATE_VALUE, state.name);
        for (size_t j = 0; (alias = lk_store_alias(s->store, i, j)); j++)
            s->tensors[count++] = tensor_of_state(s, i, LK_STATE_VALUE, alias);
    }
    return count;
}

static lk_status list_optimizer(lk__train_saver *s, size_t *count)
{
    *count = 0;
    for (size_t i = 0; i < lk_store_count(s->store); i++) {
        lk_state state = lk_store_at(s->store, i);
        for (int m = 0; m < state.moments; m++, (*count)++) {
            char *name = s->names[*count];
            int   n = snprintf(name, sizeof s->names[0], "%s.%s", state.name, lk_store_moment_name(s->store, i, m));
            if (n < 0 || (size_t)n >= sizeof s->names[0])
                return lk__fail(s->context, LK_EINVAL, "parameter name \"%s\" is too long to save", state.name);
            s->tensors[*count] = tensor_of_state(s, i, (lk_state_part)(LK_STATE_MOMENT_0 + m), name);
        }
    }
    return LK_OK;
}

lk_status lk__image_make(lk__train_saver *s, int file, lk__safetensors_image *image)
{
    size_t    count = 0;
    lk_status status = LK_OK;
    if (file == LK__FILE_MODEL)
        count = lk__image_model(s);
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
static size_t list_ranges(const lk__safetensors_image *image, uint64_t first, size_t bytes, lk__exchange_range *ranges)
{
    size_t   count = 0;
    uint64_t end = first + bytes;
    if (end <= image->header) return 0;
    if (first < image->header) first = image->header;
    first -= image->header, end -= image->header;
    for (size_t i = lk__safetensors_locate(image, first); first < end; i++) {
        const lk__safetensors_tensor *t = &image->content.tensors[i];
        uint64_t                      inside = first - t->offset;
        uint64_t                      now = t->bytes - inside < end - first ? t->bytes - inside : end - first;
        if (now)
            ranges[count++] =
                (lk__exchange_range){t->source / LK_STATE_PART_COUNT, (lk_state_part)(t->source % LK_STATE_PART_COUNT),
                                     (size_t)inside, (size_t)now};
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
        list->count = list_ranges(round.image, lk__chunks_offset(cut, index), lk__chunks_bytes(cut, index), ranges);
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
