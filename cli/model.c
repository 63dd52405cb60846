/* model.c - the model of --model: one of the library's, or lockstep_model of a shared object (lockstep/model.h). */
#include "model.h"

#include "command.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <lockstep/model.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static lk_model_function refuse(void *library, const char *command, const char *model, const char *why)
{
    print_error(command, "--model %s: %s", model, why);
    if (library) dlclose(library);
    return NULL;
}

/* dlopen searches the system's directories for names without a /. */
static void *open_file(const char *model)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", strchr(model, '/') ? "" : "./", model);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Whether the segments that dlopen maps are all in the file: it does not check that, and the process would end with
 * SIGBUS. */
static bool is_whole(const char *model)
{
    ElfW(Ehdr) head;
    ElfW(Phdr) segment;
    struct stat about;
    int         file = open(model, O_RDONLY | O_CLOEXEC);
    bool        whole = true; /* dlopen refuses what is no such file at all */
    if (file < 0) return true;
    if (fstat(file, &about) == 0 && pread(file, &head, sizeof head, 0) == (ssize_t)sizeof head &&
        memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 && head.e_phentsize == sizeof segment)
        for (int i = 0; i < head.e_phnum && whole; i++) {
            off_t at = (off_t)(head.e_phoff + (ElfW(Off))i * sizeof segment);
            whole = pread(file, &segment, sizeof segment, at) == (ssize_t)sizeof segment;
            if (whole && segment.p_type == PT_LOAD)
                whole = segment.p_offset <= (ElfW(Off))about.st_size &&
                        segment.p_filesz <= (ElfW(Off))about.st_size - segment.p_offset;
        }
    close(file);
    return whole;
}

static lk_model_function load_file(const char *command, const char *model, void **library)
{
    char why[512];
    if (access(model, R_OK) != 0) return refuse(NULL, command, model, "no such file, or not readable");
    if (!is_whole(model)) return refuse(NULL, command, model, "cannot be loaded: the file is truncated");
    void *opened = open_file(model);
    if (!opened) {
        snprintf(why, sizeof why, "cannot be loaded: %.400s", dlerror());
        return refuse(NULL, command, model, why);
    }
    const char *version = dlsym(opened, "lockstep_model_version");
    void       *symbol = dlsym(opened, "lockstep_model");
    if (!symbol || !version)
        return refuse(opened, command, model,
                      "does not export a model: define one with LK_EXPORT_MODEL of lockstep/model.h");
    if (strcmp(version, LK_MODEL_VERSION) != 0) {
        snprintf(why, sizeof why,
                 "compiled with the headers of Lockstep %.20s, but this is %s: recompile it with the headers of %s",
                 version, lk_version(), LK_MODEL_VERSION);
        return refuse(opened, command, model, why);
    }
    lk_model_function function;
    memcpy(&function, &symbol, sizeof function); /* POSIX: a symbol's address may be that of a function */
    *library = opened;
    return function;
}

lk_model_function model_load(const char *command, const char *model, void **library)
{
    *library = NULL;
    return options_is_file(model) ? load_file(command, model, library) : lk_model_find(model);
}

void model_unload(void *library)
{
    if (library) dlclose(library);
}
