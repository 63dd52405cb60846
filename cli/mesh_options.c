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

static lk_axis first_axis(unsigned axes) { return (lk_axis)(axes & -axes); }

/* Options of axes that the mesh does not have: refused instead of ignored. */
static int check_axes(const setup *s, const char *name, const options *given)
{
    for (const option *row = given->table; row->name || row->doc; row++) {
        if (!row->axes || !options_chosen(given, row->name) || axis_extent(s, row->axes) > 1) continue;
        const char *text = options_find(given, row->name);
        if (text && !*text) continue; /* `plan --tactics` prints them */
        const char *axis = lk_axis_name(first_axis(row->axes));
        print_error(name, "--%s applies only to the %s axis of a mesh: give --mesh %s=N, or omit --%s", row->name, axis,
                    axis, row->name);
        return EXIT_USER_ERROR;
    }
    return 0;
}

const char *mesh_options_schedule(int index) { return lk_pipeline_schedule_name((lk_pipeline_schedule)index); }

static lk_pipeline_schedule find_schedule(const char *name)
{
    int i = 0;
    while (mesh_options_schedule(i) && strcmp(mesh_options_schedule(i), name) != 0) i++;
    return (lk_pipeline_schedule)i;
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
                        : bytes == MOST_BYTES                  ? "the file is larger than the limit of 1 MiB"
                        : memchr(s->tactics, 0, bytes)         ? "not a text file"
                        : strspn(s->tactics, " \t\n") >= bytes ? "the file is empty"
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
    int         code = check_axes(s, name, given);
    if (code != 0) return code;
    /* Ranks along expert alone replicate the other states, unless the user asks for a stage. */
    bool sliced = axis_extent(s, LK_AXIS_SHARD) > 1 || options_given(given, "shard-stage");
    s->config.shard_stage = sliced ? (int)options_integer(given, "shard-stage") : 0;
    s->config.blocks_in_flight = (int)options_integer(given, "blocks-in-flight");
    s->config.no_sequence_parallel = options_flag(given, "no-sequence-parallel");
    s->config.pieces = (int)options_integer(given, "pieces");
    if (axis_extent(s, LK_AXIS_PIPELINE) > 1) {
        s->config.stages = options_text(given, "stages");
        s->config.pipeline_schedule = find_schedule(options_text(given, "pipeline-schedule"));
    }
    /* A record's tactics do not apply without their axis. */
    if (!tactics || !*tactics || axis_extent(s, option_find(given->table, "tactics")->axes) == 1) return 0;
    return read_tactics(s, name, tactics);
}
