/* image.c - decodes one file: divides the scratch memory between the steps, and runs them. */
#include "data/image/decode.h"

void *lk__arena_take(lk__image_arena *a, size_t bytes)
{
    size_t need = lk__round_up(bytes ? bytes : 1, LK__ALIGN);
    if (bytes > a->size || need > a->size - a->used) return NULL;
    a->latest = a->base + a->used;
    a->used += need;
    return a->latest;
}

void lk__arena_return(lk__image_arena *a, void *memory)
{
    if (!memory || memory != a->latest) return;
    a->used = (size_t)((unsigned char *)memory - a->base);
    a->latest = NULL;
}

/* How one file is decoded, and the offsets of its scratch memory. */
typedef struct plan {
    int            reduction;     /* by libjpeg, while it decodes */
    int            stored;        /* components of the decoder's rows */
    int64_t        width, height; /* of the decoder's rows */
    bool           turned, resized;
    lk__image_axis across, down; /* of the resize, in the image as shown */
    size_t         arena_bytes, arena, raw, row, turned_image, resize, total;
} plan;

/* libjpeg reduces by 2, 4 or 8 at little cost. The image stays at least 3 times as large as the target on each axis, so
 * that the triangle filter still determines the result: docs/data.md has the differences that were measured. */
static int choose_reduction(const lk__image_info *info, int64_t height, int64_t width)
{
    enum { MARGIN = 4 };
    int reduction = 1;
    while (info->format == LK__IMAGE_JPEG && reduction < 8 && info->height >= MARGIN * 2 * reduction * height &&
           info->width >= MARGIN * 2 * reduction * width)
        reduction *= 2;
    return reduction;
}

static size_t place(plan *p, size_t bytes)
{
    size_t at = p->total;
    p->total += lk__round_up(bytes, LK__ALIGN);
    return at;
}

/* The resize along one axis. Reduced by libjpeg, the pixel at the end of the stored axis may stand for less than a
 * whole one: it is the first pixel if the orientation reverses the axis. */
static lk__image_axis make_axis(int64_t stored, int reduction, bool reversed, int64_t out)
{
    lk__image_axis axis = {
        .in = (stored + reduction - 1) / reduction, .out = out, .extent = (double)stored / reduction};
    if (reversed) axis.begin = (double)axis.in - axis.extent;
    return axis;
}

static void plan_resize(plan *p, const lk__image_info *info, const lk__image_target *target)
{
    int64_t wide = p->turned ? info->height : info->width, high = p->turned ? info->width : info->height;
    int     o = info->orientation;
    p->resized = target->height && (target->height != high || target->width != wide);
    if (!p->resized) return;
    p->reduction =
        choose_reduction(info, p->turned ? target->width : target->height, p->turned ? target->height : target->width);
    p->across = make_axis(wide, p->reduction, o == 2 || o == 3 || o == 6 || o == 7, target->width);
    p->down = make_axis(high, p->reduction, o == 3 || o == 4 || o == 7 || o == 8, target->height);
}

static plan make_plan(const lk__image_info *info, const lk__image_target *target)
{
    plan p = {.reduction = 1, .turned = info->orientation > 4};
    plan_resize(&p, info, target);
    p.width = (info->width + p.reduction - 1) / p.reduction;
    p.height = (info->height + p.reduction - 1) / p.reduction;
    p.stored = info->components < 3 ? 1 : info->format == LK__IMAGE_PNG ? 3 : info->components;
    size_t raw_row = (size_t)p.width * (size_t)p.stored, row = (size_t)p.width * (size_t)target->channels;
    p.arena_bytes = info->format == LK__IMAGE_PNG ? lk__png_arena(info) : lk__jpeg_arena(info);
    p.arena = place(&p, p.arena_bytes);
    p.raw = place(&p, info->interlaced ? raw_row * (size_t)p.height : raw_row);
    p.row = place(&p, row);
    p.turned_image = place(&p, p.turned ? row * (size_t)p.height : 0);
    p.resize = place(&p, p.resized ? lk__resize_bytes(target->channels, &p.across, &p.down) : 0);
    return p;
}

size_t lk__image_scratch(const lk__image_info *info, const lk__image_target *target)
{
    return make_plan(info, target).total;
}

lk_status lk__image_decode(const lk__image_file *file, const lk__image_target *target, void *scratch,
                           unsigned char *out, char message[LK__IMAGE_MESSAGE])
{
    const lk__image_info *info = file->info;
    plan                  p = make_plan(info, target);
    unsigned char        *memory = scratch;
    lk__image_arena       arena = {.base = memory + p.arena, .size = p.arena_bytes};
    lk__image_rows        rows = {.stored = p.stored,
                                  .channels = target->channels,
                                  .orientation = info->orientation,
                                  .width = p.width,
                                  .height = p.height,
                                  .row = memory + p.row,
                                  .turned = memory + p.turned_image,
                                  .resized = p.resized,
                                  .out = out};
    if (p.resized) lk__resize_init(&rows.resize, target->channels, &p.across, &p.down, memory + p.resize);
    lk__image_decoding d = {&arena, memory + p.raw, &rows, message};
    lk_status          status =
        info->format == LK__IMAGE_PNG ? lk__png_decode(file, &d) : lk__jpeg_decode(file, p.reduction, &d);
    if (status == LK_OK) lk__rows_finish(&rows);
    return status;
}
