/* huggingface_rope.c - rotary positions in a config.json. Version 5 has "rope_parameters" with everything; version 4
 * "rope_theta", and "rope_scaling" where positions are scaled. Both versions take "rope_scaling" where a file has
 * both. */
#include "train/huggingface.h"

typedef lk__huggingface_reader reader;

/* Rotary positions of layers by their type, as {"full_attention": {…}}. */
static void refuse_nested(reader *r, const lk__json *rope)
{
    lk__json      key, value;
    lk__json_walk walk = lk__json_begin(rope);
    char          name[64];
    while (r->status >= 0 && lk__json_next(&walk, &key, &value))
        if (value.kind == LK__JSON_OBJECT && lk__json_string(&key, name, sizeof name) != SIZE_MAX)
            lk__hf_refuse(r, name, &value, "rotary positions that differ between layers are not supported");
}

static double read_required(reader *r, const lk__json *rope, const char *place, const char *kind, const char *key)
{
    lk__json value;
    if (!lk__json_get(rope, key, &value))
        lk__hf_refuse(r, place, rope, "rotary positions of the kind %s need \"%s\"", kind, key);
    return lk__hf_positive(r, rope, key, 1);
}

/* A value beside "rope_scaling" has precedence in version 5, and is not read by version 4. */
static int64_t read_original(reader *r, const lk__json *rope, int64_t context)
{
    static const char key[] = "original_max_position_embeddings";
    lk__json          value;
    int64_t           inner = lk__hf_integer(r, rope, key, context);
    if (!lk__hf_get(r, &r->root, key, &value)) return inner;
    int64_t outer = lk__hf_integer(r, &r->root, key, inner);
    if (outer != inner)
        lk__hf_refuse(
            r, key, &value,
            "the value next to the rope type is %lld; different versions of transformers read such a file differently",
            (long long)inner);
    return outer;
}

static void read_scaling(reader *r, const lk__json *rope, const char *place, lk_transformer_config *c)
{
    lk__json    value;
    const char *key = lk__json_get(rope, "rope_type", &value) ? "rope_type" : "type";
    if (!lk__json_get(rope, key, &value) || lk__json_equals(&value, "default")) return;
    bool llama3 = lk__json_equals(&value, "llama3");
    if (!llama3 && !lk__json_equals(&value, "linear"))
        lk__hf_refuse(r, key, &value, "the supported kinds of rotary positions are default, linear and llama3");
    c->rope_scaling = llama3 ? LK_ROPE_LLAMA3 : LK_ROPE_LINEAR;
    c->rope_factor = read_required(r, rope, place, llama3 ? "llama3" : "linear", "factor");
    if (!llama3) return;
    c->rope_low = read_required(r, rope, place, "llama3", "low_freq_factor");
    c->rope_high = read_required(r, rope, place, "llama3", "high_freq_factor");
    c->rope_context = read_original(r, rope, c->context);
}

void lk__hf_read_rope(reader *r, lk_transformer_config *c)
{
    lk__json    rope, parameters, value;
    bool        scaling = lk__hf_get(r, &r->root, "rope_scaling", &rope);
    bool        given = lk__hf_get(r, &r->root, "rope_parameters", &parameters);
    const char *place = "rope_scaling";
    c->rope_theta =
        lk__hf_positive(r, &r->root, "rope_theta", c->experts > 0 && !c->qk_norm ? 1e6 : 10000); /* Mixtral's */
    lk__hf_require_one(r, &r->root, "partial_rotary_factor");
    if (given && (!scaling || (rope.kind == LK__JSON_OBJECT && lk__json_count(&rope) == 0)))
        rope = parameters, place = "rope_parameters";
    if (!scaling && !given) return;
    if (rope.kind != LK__JSON_OBJECT) {
        lk__hf_refuse(r, place, &rope, "expected an object");
        return;
    }
    refuse_nested(r, &rope);
    double inner = lk__hf_positive(r, &rope, "rope_theta", c->rope_theta);
    if (inner != c->rope_theta && lk__hf_get(r, &r->root, "rope_theta", &value))
        lk__hf_refuse(r, "rope_theta", &value,
                      "it is %g in \"%s\"; different versions of transformers read such a file differently", inner,
                      place);
    c->rope_theta = inner;
    lk__hf_require_one(r, &rope, "partial_rotary_factor");
    read_scaling(r, &rope, place, c);
}
