/* mesh_options.c - reads the options of a mesh's axes. */
#define _GNU_SOURCE
#include "mesh_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20 }; /* of a file of tactics */

static int axis_extent(const setup *s, unsigned axes) { return s->mesh ? lk_mesh_extent(s->mesh, axes) : 1; }

int mesh_options_parts(const setup *s)
{
    if (s->mesh) return lk_mesh_extent(s->mesh, LK_AXES_BATCH);
    if (s->config.comm) return lk_comm_size(s->config.comm);
    return s->config.plan_world > 1 ? s->config.plan_world : 1;
}

/* An option of an axis, instead of being ignored without it. Those of shard apply to ranks along expert, too. */
static int check_axis(const setup *s, const char *name, const options *given, const char *option, lk_axis axis)
{
    unsigned axes = axis == LK_AXIS_SHARD ? LK_AXIS_SHARD | LK_AXIS_EXPERT : axis;
    if (!options_chosen(given, option) || axis_extent(s, axes) > 1) return 0;
    print_error(name, "--%s belongs to the axis %s of a mesh: give --mesh %s=N, or omit --%s", option,
                lk_axis_name(axis), lk_axis_name(axis), option);
    return EXIT_USER_ERROR;
}

static int read_tactics(setup *s, const char *name, const char *path)
{
    FILE  *file = fopen(path, "re");
    size_t bytes = 0;
    s->tactics = file ? malloc(MOST_BYTES + 1) : NULL;
    if (s->tactics) bytes = fread(s->tactics, 1, MOST_BYTES, file);
    const char *wrong = !file                                  ? strerror(errno)
                        : !s->tactics                          ? "out of memory"
                        : ferror(file)                         ? strerror(errno)
                        : bytes == MOST_BYTES                  ? "it is longer than 1 MiB, the limit"
                        : memchr(s->tactics, 0, bytes)         ? "it is not a text file"
                        : strspn(s->tactics, " \t\n") >= bytes ? "it is empty"
                                                               : NULL;
    if (file) fclose(file);
    if (wrong) {
        print_error(name, "--tactics %s: %s", path, wrong);
        return EXIT_USER_ERROR;
    }
    s->tactics[bytes] = 0;
    s->config.tactics = s->tactics;
    return 0;
}

int mesh_options_make(setup *s, const char *name, const options *given)
{
    const char *tactics = options_known(given, "tactics") ? options_text(given, "tactics") : NULL;
    int         code = check_axis(s, name, given, "shard-stage", LK_AXIS_SHARD);
    if (code == 0) code = check_axis(s, name, given, "blocks-in-flight", LK_AXIS_SHARD);
    if (code == 0) code = check_axis(s, name, given, "no-sequence-parallel", LK_AXIS_TENSOR);
    if (code != 0) return code;
    s->config.shard_stage = (int)options_integer(given, "shard-stage");
    s->config.blocks_in_flight = (int)options_integer(given, "blocks-in-flight");
    s->config.no_sequence_parallel = options_flag(given, "no-sequence-parallel");
    if (!tactics || !*tactics || (axis_extent(s, LK_AXIS_TENSOR) == 1 && !options_chosen(given, "tactics"))) return 0;
    code = check_axis(s, name, given, "tactics", LK_AXIS_TENSOR);
    return code != 0 ? code : read_tactics(s, name, tactics);
}
