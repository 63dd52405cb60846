/* huggingface_read.c - members of a config.json, with messages that name key and value. */
#include "train/huggingface.h"

#include <stdio.h>
#include <string.h>

lk_status lk__hf_open(lk__huggingface_reader *r, lk_context *c, const char *label, const char *text, size_t length)
{
    lk__json_error error;
    *r = (lk__huggingface_reader){.context = c, .label = label};
    if (!lk__json_parse(text, length, &r->root, &error))
        r->status = lk__fail(c, LK_EFORMAT, "%s: byte %zu: %s", label, error.offset, error.what);
    else if (r->root.kind != LK__JSON_OBJECT)
        r->status = lk__fail(c, LK_EFORMAT, "%s is not an object, so it is not a config.json", label);
    return r->status;
}

/* As JSON writes it; of a long one the beginning. */
static void show_value(const lk__json *value, char out[LK__SHOWN])
{
    char text[64];
    int  n = value->length < sizeof text - 4 ? (int)value->length : (int)sizeof text - 5;
    snprintf(text, sizeof text, "%.*s%s", n, value->text, (size_t)n < value->length ? "…" : "");
    lk__shown(text, out);
}

void lk__hf_refuse(lk__huggingface_reader *r, const char *key, const lk__json *value, const char *reason, ...)
{
    char    shown[LK__SHOWN], why[512];
    va_list arguments;
    if (r->status < 0) return;
    va_start(arguments, reason);
    vsnprintf(why, sizeof why, reason, arguments);
    va_end(arguments);
    show_value(value, shown);
    r->status = lk__fail(r->context, LK_EFORMAT, "%s: \"%s\" is %s: %s", r->label, key, shown, why);
}

/* Keys are literals, so their addresses stay valid. */
static void note_asked(lk__huggingface_reader *r, const char *key)
{
    for (int i = 0; i < r->asked_count; i++)
        if (strcmp(r->asked[i], key) == 0) return;
    if (r->asked_count < LK__HF_ASKED) r->asked[r->asked_count++] = key;
}

bool lk__hf_get(lk__huggingface_reader *r, const lk__json *object, const char *key, lk__json *value)
{
    if (object == &r->root) note_asked(r, key);
    lk__json      name, member;
    lk__json_walk walk = lk__json_begin(object);
    bool          found = false;
    while (r->status >= 0 && lk__json_next(&walk, &name, &member)) {
        if (!lk__json_equals(&name, key)) continue;
        if (found) r->status = lk__fail(r->context, LK_EFORMAT, "%s: \"%s\" appears twice", r->label, key);
        *value = member;
        found = true;
    }
    return r->status >= 0 && found && value->kind != LK__JSON_NULL;
}

/* Whether the object has the key; null is refused. */
static bool get_value(lk__huggingface_reader *r, const lk__json *object, const char *key, lk__json *value)
{
    if (lk__hf_get(r, object, key, value)) return true;
    if (r->status >= 0 && lk__json_get(object, key, value)) lk__hf_refuse(r, key, value, "expected a value");
    return false;
}

int64_t lk__hf_integer(lk__huggingface_reader *r, const lk__json *object, const char *key, int64_t missing)
{
    lk__json value;
    int64_t  number = 0;
    if (!get_value(r, object, key, &value)) return missing;
    if (lk__json_integer(&value, &number) && number >= 1 && number <= INT32_MAX) return number;
    lk__hf_refuse(r, key, &value, "expected an integer from 1 to %d", INT32_MAX);
    return missing;
}

double lk__hf_number(lk__huggingface_reader *r, const lk__json *object, const char *key, double missing)
{
    lk__json value;
    double   number = 0;
    if (!get_value(r, object, key, &value)) return missing;
    if (lk__json_number(&value, &number)) return number;
    lk__hf_refuse(r, key, &value, "expected a finite number");
    return missing;
}

double lk__hf_positive(lk__huggingface_reader *r, const lk__json *object, const char *key, double missing)
{
    lk__json value;
    double   number = lk__hf_number(r, object, key, missing);
    if (!(number > 0) && lk__hf_get(r, object, key, &value)) lk__hf_refuse(r, key, &value, "expected a number above 0");
    return number;
}

bool lk__hf_flag(lk__huggingface_reader *r, const lk__json *object, const char *key, bool missing)
{
    lk__json value;
    bool     flag = missing;
    if (!get_value(r, object, key, &value)) return missing;
    if (!lk__json_bool(&value, &flag)) lk__hf_refuse(r, key, &value, "expected true or false");
    return flag;
}

void lk__hf_require_flag(lk__huggingface_reader *r, const char *key, bool supported)
{
    lk__json value;
    bool     written = lk__hf_get(r, &r->root, key, &value) || (supported && lk__json_get(&r->root, key, &value));
    if (written && lk__hf_flag(r, &r->root, key, supported) != supported)
        lk__hf_refuse(r, key, &value, "only %s is supported", supported ? "true" : "false");
}

void lk__hf_require_text(lk__huggingface_reader *r, const char *key, const char *supported, bool null)
{
    lk__json value;
    bool     written = lk__hf_get(r, &r->root, key, &value) || (!null && lk__json_get(&r->root, key, &value));
    if (written && !lk__json_equals(&value, supported))
        lk__hf_refuse(r, key, &value, "only \"%s\" is supported", supported);
}

void lk__hf_require_one(lk__huggingface_reader *r, const lk__json *object, const char *key)
{
    lk__json value;
    bool     written = lk__hf_get(r, object, key, &value) || (object != &r->root && lk__json_get(object, key, &value));
    if (written && lk__hf_number(r, object, key, 1) != 1) lk__hf_refuse(r, key, &value, "only 1 is supported");
}

void lk__hf_require_null(lk__huggingface_reader *r, const char *key, const char *reason)
{
    lk__json value;
    if (lk__hf_get(r, &r->root, key, &value)) lk__hf_refuse(r, key, &value, "%s", reason);
}

void lk__hf_require_nothing(lk__huggingface_reader *r, const char *key, const char *reason)
{
    lk__json value;
    bool     flag = true;
    double   number = 1;
    if (!lk__hf_get(r, &r->root, key, &value)) return;
    bool container = value.kind == LK__JSON_OBJECT || value.kind == LK__JSON_ARRAY;
    bool nothing = container                     ? lk__json_count(&value) == 0
                   : value.kind == LK__JSON_BOOL ? lk__json_bool(&value, &flag) && !flag
                                                 : lk__json_number(&value, &number) && number == 0;
    if (!nothing) lk__hf_refuse(r, key, &value, "%s", reason);
}
