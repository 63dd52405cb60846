/* mpi_load.c - which MPI is this, and where is its module: liblockstep links none, and loads one when it is asked for. */
#define _GNU_SOURCE
#include "comm/mpi/mpi.h"
#include "comm/rendezvous/identity.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where an installed command finds the modules, from its own directory. */
#ifndef LK_MODULES_FROM_BIN
#define LK_MODULES_FROM_BIN "../lib/lockstep"
#endif

/* An MPI that the program has loaded already is the one; else that of whoever started the process. NULL: neither. */
static const char *flavour(void)
{
    static const struct {
        const char *name, *library, *variable;
    } signs[] = {
        {"openmpi", "libmpi.so.40", NULL},  {"mpich", "libmpich.so.12", NULL},
        {"mpich", "libmpi.so.12", NULL},    {"openmpi", NULL, "OMPI_COMM_WORLD_SIZE"},
        {"mpich", NULL, "HYDI_CONTROL_FD"}, {"mpich", NULL, "PMI_SIZE"},
        {"mpich", NULL, "PMI_RANK"},        {"openmpi", NULL, "PMIX_RANK"},
    };
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        void *there = signs[i].library ? dlopen(signs[i].library, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (there) dlclose(there);
        if (there || (signs[i].variable && getenv(signs[i].variable))) return signs[i].name;
    }
    return NULL;
}

/* The directory of what this function is in: the shared library, or a program that is linked with the static one. The
 * kernel knows it whole; the loader's name for it can be relative, as mpirun's empty part of LD_LIBRARY_PATH makes it. */
static bool own_directory(char *out, size_t bytes)
{
    char          line[PATH_MAX + 128];
    unsigned long here = (unsigned long)(uintptr_t)own_directory, first, end;
    FILE         *maps = fopen("/proc/self/maps", "re");
    char         *path = NULL;
    while (maps && !path && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &first, &end) == 2 && first <= here && here < end) path = strchr(line, '/');
    if (maps) fclose(maps);
    if (!path) return false;
    *strrchr(path, '/') = 0;
    return (size_t)snprintf(out, bytes, "%s", path) < bytes;
}

/* LOCKSTEP_MODULES alone where it is set; otherwise beside the library, in its lockstep folder, or from bin. */
static bool find_module(const char *name, char *path, size_t bytes)
{
    static const char *const places[] = {"", "lockstep/", LK_MODULES_FROM_BIN "/"};
    const char              *given = getenv("LOCKSTEP_MODULES");
    char                     own[PATH_MAX];
    if (given && *given) {
        snprintf(path, bytes, "%s/lockstep_mpi_%s.so", given, name);
        return access(path, R_OK) == 0;
    }
    if (!own_directory(own, sizeof own)) return false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, bytes, "%s/%slockstep_mpi_%s.so", own, places[i], name);
        if (access(path, R_OK) == 0) return true;
    }
    snprintf(path, bytes, "%s/lockstep_mpi_%s.so", own, name); /* for the message */
    return false;
}

lk_status lk__mpi_load(lk_context *context, const lk__mpi_module **module)
{
    const char *name = flavour();
    char        path[2 * PATH_MAX];
    if (!name)
        return lk__fail(
            context, LK_EUNSUPPORTED,
            "backend mpi: nothing in the environment says that Open MPI or MPICH started this process: start "
            "it with mpirun, mpiexec or srun");
    if (!find_module(name, path, sizeof path))
        return lk__fail(
            context, LK_EUNSUPPORTED,
            "backend mpi: there is no %s: this build has no module for %s; build Lockstep where mpicc.%s is, or "
            "say where the module is with LOCKSTEP_MODULES=DIR",
            path, strcmp(name, "mpich") == 0 ? "MPICH" : "Open MPI", name);
    /* Global, because MPI loads parts of itself that look for its symbols; for good, because it cannot be unloaded. */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!library) return lk__fail(context, LK_EUNSUPPORTED, "backend mpi: %s does not load: %s", path, dlerror());
    void         *symbol = dlsym(library, LK__MPI_SYMBOL);
    lk__mpi_entry entry;
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from data to function pointers */
    *module = symbol ? entry() : NULL;
    dlclose(library);
    if (!*module || (*module)->version != LK__MPI_VERSION)
        return lk__fail(context, LK_EUNSUPPORTED, "backend mpi: %s is of another version of Lockstep", path);
    return LK_OK;
}

static bool says(const char *variable, int value)
{
    const char *text = getenv(variable);
    return text && atoi(text) == value;
}

bool lk__mpi_offers(const lk__rendezvous_identity *place)
{
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"}};
    const char              *name = flavour();
    char                     path[2 * PATH_MAX];
    if (!name || !find_module(name, path, sizeof path)) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (says(names[i][0], place->rank) && says(names[i][1], place->world)) return true;
    return false;
}
