/* module.cu - the module's interface to liblockstep: its entry, and the lines about GPUs and libraries for `lockstep
 * info`. */
#include "device/cuda/autotuning.h"
#include "device/cuda/backend.h"
#include "device/cuda/dnn.h"
#include "device/cuda/spans.h"

#include <stdio.h>

static void start_module(const lk__cuda_library *library) { lk__cuda_host = *library; }

static const char *gpu_line(int number, char *text, size_t bytes)
{
    cudaDeviceProp p;
    char           uuid[LK__DEVICE_UUID_TEXT];
    if (cudaGetDeviceProperties(&p, number) != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(text, bytes, "cuda:%d: cannot read its properties", number);
    } else {
        snprintf(text, bytes, "cuda:%d: %s, compute capability %d.%d, %.1f GiB, %d multiprocessors, %s", number, p.name,
                 p.major, p.minor, (double)p.totalGlobalMem / 1073741824.0, p.multiProcessorCount,
                 lk__cuda_host.uuid_text((const unsigned char *)p.uuid.bytes, uuid));
    }
    return text;
}

static const char *describe_line(int i, char *text, size_t bytes)
{
    char why[256] = "", blas[64] = "", dnn[64] = "", supports[64] = "no driver", cupti[320] = "";
    int  count = lk__cuda_count(why, sizeof why), driver = 0;
    if (count == 0 && i == 0) {
        snprintf(text, bytes, "no GPU: %s", why);
        return text;
    }
    if (i < count) return gpu_line(i, text, bytes);
    if (i - (count ? count : 1) == 1) return lk__cuda_tuning_text(text, bytes) ? text : NULL;
    if (i - (count ? count : 1) != 0) return NULL;
    (void)cudaDriverGetVersion(&driver);
    lk__cuda_blas_text(blas, sizeof blas);
    int version = lk__dnn_library_version(why, sizeof why);
    if (version) snprintf(dnn, sizeof dnn, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    if (driver) snprintf(supports, sizeof supports, "driver for CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    lk__cuda_cupti_text(cupti, sizeof cupti);
    snprintf(text, bytes, "%s, runtime %d.%d, cuBLASLt %s, cuDNN %s, CUPTI %s", supports, CUDART_VERSION / 1000,
             CUDART_VERSION % 1000 / 10, *blas ? blas : "not found", *dnn ? dnn : "not found", cupti);
    return text;
}

static const lk__cuda_module module = {LK__CUDA_VERSION, LK__OP_COUNT,  &lk__cuda_backend,    start_module,
                                       lk__cuda_count,   describe_line, lk__cuda_measure_held};

extern "C" __attribute__((visibility("default"))) const lk__cuda_module *lk__cuda_module_entry(void) { return &module; }
