/* libraries.cpp - what the module asks of cuBLASLt and cuDNN, where the files that load them leave themselves out.
 * There is no cuDNN; and of cuBLASLt a stand-in with two algorithms, for tests of how algorithms are chosen. Weak, so
 * that a file which answers itself is preferred.
 *
 * Environment:
 *   LK_CUDA_EMULATED_FASTEST=0 or 1   the stand-in is there, and a measurement finds this algorithm to be the faster
 *                                     one; the second adds in f64, so its results have other bits
 *   LK_CUDA_EMULATED_VERSION=TEXT     its version, default 1
 *   LK_CUDA_EMULATED_MEASURED=FILE    each measurement appends a line: "measured m n k"
 *   LK_CUDA_EMULATED_SECONDS=X        what a measurement takes, by the clock of tuning; default: what it takes */
#include "device/cuda/autotuning.h"
#include "device/cuda/backend.h"
#include "device/cuda/gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

__attribute__((weak)) void lk__cuda_blas_text(char *text, size_t bytes) { snprintf(text, bytes, "none (emulation)"); }
__attribute__((weak)) void lk__cuda_dnn_text(char *text, size_t bytes) { snprintf(text, bytes, "none (emulation)"); }
__attribute__((weak)) void lk__cuda_dnn_free(lk__cuda_device *) {}

typedef struct product_key {
    int64_t m, n, k;
    int32_t a_transposed, b_transposed, adds, bias;
} product_key;

typedef struct entry {
    struct entry    *next;
    lk__cuda_device *device;
    product_key      key;
    int32_t          algorithm;
} entry;
static entry *entries;

static bool supports_product(const lk__cuda_product *p)
{
    return p->type == LK_F32 && p->type_c == LK_F32 && p->batch == 1 && !p->saved && !p->a_sums && !p->b_sums &&
           (p->activation == LK__IDENTITY || p->activation == LK__RELU) && getenv("LK_CUDA_EMULATED_FASTEST");
}

static product_key key_of(const lk__cuda_product *p)
{
    return product_key{p->m, p->n, p->k, p->a_transposed, p->b_transposed, p->beta != 0, p->bias != NULL};
}

static entry *find_entry(const lk__cuda_device *device, const product_key *key)
{
    for (entry *e = entries; e; e = e->next)
        if (e->device == device && memcmp(&e->key, key, sizeof *key) == 0) return e;
    return NULL;
}

static double measured_seconds; /* by LK_CUDA_EMULATED_SECONDS */

double lk__cuda_tuning_clock(void)
{
    struct timespec t;
    if (getenv("LK_CUDA_EMULATED_SECONDS")) return measured_seconds;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int32_t measure(const product_key *key)
{
    const char *seconds = getenv("LK_CUDA_EMULATED_SECONDS");
    if (seconds) measured_seconds += atof(seconds);
    const char *path = getenv("LK_CUDA_EMULATED_MEASURED");
    FILE       *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "measured %lld %lld %lld\n", (long long)key->m, (long long)key->n, (long long)key->k);
        fclose(file);
    }
    return atoi(getenv("LK_CUDA_EMULATED_FASTEST"));
}

lk_status lk__cuda_blas_prepare(lk__device *base, const lk__cuda_product *p)
{
    lk__cuda_device *device = (lk__cuda_device *)base;
    product_key      key = key_of(p);
    const char      *version = getenv("LK_CUDA_EMULATED_VERSION");
    char             library[64];
    if (!supports_product(p) || base->by_heuristic) return LK_OK;
    snprintf(library, sizeof library, "stand-in %s", version ? version : "1");
    lk__cuda_question question = {library, &key, sizeof key};
    entry            *e = find_entry(device, &key);
    int32_t           algorithm = 0;
    lk__cuda_answer   answer = lk__cuda_choice_find(device, &question, &algorithm, sizeof algorithm);
    bool              known = answer == CHOICE_KEPT || answer == CHOICE_GIVEN, first = answer == CHOICE_FIRST;
    if (!known && !first) first = !lk__cuda_choice_measures(device);
    if (!known && !first) {
        algorithm = measure(&key);
        lk__cuda_choice_keep(device, &question, &algorithm, sizeof algorithm);
        known = true;
    }
    if (known) lk__cuda_choice_use(device, &question, &algorithm, sizeof algorithm);
    if (first) lk__cuda_choice_first(device, &question);
    if (!e && (e = (entry *)calloc(1, sizeof *e))) {
        *e = entry{entries, device, key, 0};
        entries = e;
    }
    if (!e) return LK_ENOMEM;
    e->algorithm = algorithm;
    return LK_OK;
}

static __global__ void add_in_f64(lk__cuda_product p)
{
    const float *a = (const float *)p.a, *b = (const float *)p.b;
    const float *bias = (const float *)p.bias;
    float       *c = (float *)p.c;
    EACH_INDEX(i, p.m * p.n)
    {
        int64_t row = i / p.n, column = i % p.n;
        double  sum = 0;
        for (int64_t k = 0; k < p.k; k++)
            sum += (double)a[p.a_transposed ? k * p.a_ld + row : row * p.a_ld + k] *
                   (double)b[p.b_transposed ? column * p.b_ld + k : k * p.b_ld + column];
        float *to = c + row * p.c_ld + column;
        sum = p.alpha * sum + (p.beta != 0 ? p.beta * (double)*to : 0) + (bias ? (double)bias[column] : 0);
        *to = (float)(p.activation == LK__RELU && sum < 0 ? 0 : sum);
    }
}

lk_status lk__cuda_blas_run(const lk__kernel_call *call, const lk__cuda_product *p)
{
    product_key  key = key_of(p);
    const entry *e = supports_product(p) ? find_entry(cuda_device(call), &key) : NULL;
    if (!e || e->algorithm != 1) return LK_EUNSUPPORTED;
    LAUNCH(add_in_f64, cuda_blocks(p->m * p->n, 64), 64, 0, cuda_stream(call), *p);
    return lk__cuda_launched(call);
}

bool lk__cuda_blas_load(lk__cuda_device *) { return false; }

void lk__cuda_blas_free(lk__cuda_device *device)
{
    for (entry **at = &entries; *at;) {
        entry *e = *at;
        if (e->device != device) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        free(e);
    }
}
