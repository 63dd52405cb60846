/* record_share.c - sends what rank 0 read of a checkpoint to the other ranks. */
#include "record_share.h"

#include "command.h"
#include "fields.h"

#include <stdlib.h>
#include <string.h>

static bool is_first(const setup *s) { return !s->config.comm || lk_comm_rank(s->config.comm) == 0; }

/* A block of rank 0's memory, whose size only that rank knows; the others get memory of their own. */
static lk_status share_bytes(const setup *s, char **bytes, size_t *size)
{
    int64_t   count = (int64_t)*size;
    lk_status status = lk_comm_broadcast(s->config.comm, &count, 1, LK_I64, 0, NULL);
    if (status < 0) return status;
    *size = (size_t)count;
    if (!is_first(s) && !(*bytes = malloc(*size + 1))) return LK_ENOMEM;
    return *size ? lk_comm_broadcast(s->config.comm, *bytes, *size, LK_U8, 0, NULL) : LK_OK;
}

/* Name and value of each option, each with its NUL. */
static char *pack_options(const lk_description *d, size_t *bytes)
{
    const lk_record *r;
    size_t           used = 0;
    *bytes = 0;
    for (int i = 0; (r = lk_description_option(d, i)); i++) *bytes += strlen(r->name) + strlen(r->value) + 2;
    char *text = malloc(*bytes + 1);
    for (int i = 0; text && (r = lk_description_option(d, i)); i++) {
        memcpy(text + used, r->name, strlen(r->name) + 1);
        used += strlen(r->name) + 1;
        memcpy(text + used, r->value, strlen(r->value) + 1);
        used += strlen(r->value) + 1;
    }
    return text;
}

/* The status of rank 0, and whether it has a description. */
static lk_status share_status(setup *s, const char *name, lk_status status)
{
    lk_comm  *comm = s->config.comm;
    int64_t   head[2] = {status, s->described};
    char      error[1024] = "";
    lk_status sent = LK_OK;
    if (status < 0) snprintf(error, sizeof error, "%s", lk_context_error(s->context));
    if (comm) sent = lk_comm_broadcast(comm, head, 2, LK_I64, 0, NULL);
    if (comm && sent >= 0) sent = lk_comm_broadcast(comm, error, sizeof error, LK_U8, 0, NULL);
    if (sent < 0) return sent;
    if (head[0] < 0 && !is_first(s)) print_error(name, "rank 0: %s", error);
    s->described = head[1] != 0;
    return (lk_status)head[0];
}

lk_status record_share_options(setup *s, const char *name, lk_status status)
{
    s->record_bytes = 0;
    s->described = s->description != NULL;
    if (status >= 0 && s->description && !(s->record_text = pack_options(s->description, &s->record_bytes)))
        status = LK_ENOMEM;
    status = share_status(s, name, status);
    return status < 0 || !s->config.comm ? status : share_bytes(s, &s->record_text, &s->record_bytes);
}

lk_status record_share_fields(setup *s)
{
    size_t    bytes = 0;
    int       count = s->description ? lk_description_fields(s->description) : 0;
    lk_status status = LK_OK;
    if (count > 0 && !(s->expected_bytes = fields_pack(lk_description_field(s->description, 0), count, &bytes)))
        bytes = 0; /* data is read without them, as of a checkpoint that has none */
    if (s->config.comm) status = share_bytes(s, &s->expected_bytes, &bytes);
    if (status < 0 || bytes == 0) return status;
    if (!(s->expected_fields = fields_unpack(s->expected_bytes, bytes, &s->expected_count))) return LK_ENOMEM;
    s->expected = s->expected_fields;
    return LK_OK;
}

lk_status record_share_normalisation(setup *s)
{
    lk_transform *t = &s->normalisation;
    int64_t       channels = -1; /* there is none */
    lk_status     status = LK_OK;
    if (s->description && lk_description_normalisation(s->description, t)) channels = t->channels;
    if (s->config.comm) status = lk_comm_broadcast(s->config.comm, &channels, 1, LK_I64, 0, NULL);
    if (status < 0 || channels < 0) return status;
    s->normalised = true;
    t->channels = (int)channels;
    if (s->config.comm) status = lk_comm_broadcast(s->config.comm, t->mean, LK_MAX_CHANNELS, LK_F64, 0, NULL);
    if (status >= 0 && s->config.comm)
        status = lk_comm_broadcast(s->config.comm, t->std, LK_MAX_CHANNELS, LK_F64, 0, NULL);
    return status;
}
