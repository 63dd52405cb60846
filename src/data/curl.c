/* curl.c - loads libcurl when a download is requested, so that the library does not depend on it. */
#include "data/curl.h"

#include <dlfcn.h>
#include <string.h>

/* Copies the address by memcpy: ISO C has no cast from void * to a function pointer. */
static bool load_symbol(void *module, const char *name, void *function)
{
    void *address = dlsym(module, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

lk_status lk__curl_load(lk_context *context, lk__data_curl *curl)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    *curl = (lk__data_curl){0};
    /* RTLD_NODELETE: TLS libraries that libcurl uses do not support being unloaded. */
    for (size_t i = 0; i < sizeof names / sizeof *names && !curl->module; i++)
        curl->module = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!curl->module)
        return lk__fail(context, LK_EUNSUPPORTED,
                        "downloading needs libcurl (libcurl.so.4), which is not installed: install the package "
                        "libcurl4 (libcurl4t64 on newer systems)");
    if (load_symbol(curl->module, "curl_global_init", &curl->global_init) &&
        load_symbol(curl->module, "curl_global_cleanup", &curl->global_cleanup) &&
        load_symbol(curl->module, "curl_easy_init", &curl->easy_init) &&
        load_symbol(curl->module, "curl_easy_cleanup", &curl->easy_cleanup) &&
        load_symbol(curl->module, "curl_easy_setopt", &curl->easy_setopt) &&
        load_symbol(curl->module, "curl_easy_perform", &curl->easy_perform) &&
        load_symbol(curl->module, "curl_easy_getinfo", &curl->easy_getinfo) &&
        load_symbol(curl->module, "curl_easy_strerror", &curl->easy_strerror) &&
        curl->global_init(3) == 0) /* CURL_GLOBAL_DEFAULT */
        return LK_OK;
    dlclose(curl->module);
    curl->module = NULL;
    return lk__fail(context, LK_EUNSUPPORTED, "the installed libcurl is not usable: reinstall the package libcurl4");
}

void lk__curl_unload(lk__data_curl *curl)
{
    if (!curl->module) return;
    curl->global_cleanup();
    dlclose(curl->module);
    curl->module = NULL;
}
