/* curl.c - finds libcurl when a download is asked for, so that the library itself does not need it. */
#include "data/curl.h"

#include <dlfcn.h>
#include <string.h>

/* A function's address by way of memory: ISO C knows no cast from void * to it. */
static bool find(void *module, const char *name, void *function)
{
    void *address = dlsym(module, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

lk_status lk__curl_load(lk_context *context, lk__data_curl *curl)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    *curl = (lk__data_curl){0};
    /* Never taken out of memory again: TLS libraries below it do not survive that. */
    for (size_t i = 0; i < sizeof names / sizeof *names && !curl->module; i++)
        curl->module = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!curl->module)
        return lk__fail(
            context, LK_EUNSUPPORTED,
            "downloading needs libcurl (libcurl.so.4), which is not on this machine: install the package libcurl4 "
            "(libcurl4t64 on newer systems)");
    if (find(curl->module, "curl_global_init", &curl->global_init) &&
        find(curl->module, "curl_global_cleanup", &curl->global_cleanup) &&
        find(curl->module, "curl_easy_init", &curl->easy_init) &&
        find(curl->module, "curl_easy_cleanup", &curl->easy_cleanup) &&
        find(curl->module, "curl_easy_setopt", &curl->easy_setopt) &&
        find(curl->module, "curl_easy_perform", &curl->easy_perform) &&
        find(curl->module, "curl_easy_getinfo", &curl->easy_getinfo) &&
        find(curl->module, "curl_easy_strerror", &curl->easy_strerror) &&
        curl->global_init(3) == 0) /* CURL_GLOBAL_DEFAULT */
        return LK_OK;
    dlclose(curl->module);
    curl->module = NULL;
    return lk__fail(context, LK_EUNSUPPORTED,
                    "this machine's libcurl cannot be used: install the package libcurl4 again");
}

void lk__curl_unload(lk__data_curl *curl)
{
    if (!curl->module) return;
    curl->global_cleanup();
    dlclose(curl->module);
    curl->module = NULL;
}
