/* load.c - finds out which MPI is used, and loads its module: liblockstep itself links no MPI. */
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

/* The MPI that the program has loaded already, else the one that started the process. NULL: neither. */
static const char *find_mpi(void)
{
    static const struct {
        const char *name, *library, *variable;
    } markers[] = {
        {"openmpi", "libmpi.so.40", NULL},  {"mpich", "libmpich.so.12", NULL},
        {"mpich", "libmpi.so.12", NULL},    {"openmpi", NULL, "OMPI_COMM_WORLD_SIZE"},
        {"mpich", NULL, "HYDI_CONTROL_FD"}, {"mpich", NULL, "PMI_SIZE"},
        {"mpich", NULL, "PMI_RANK"},        {"openmpi", NULL, "PMIX_RANK"},
    };
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
        void *loaded = markers[i].library ? dlopen(markers[i].library, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (loaded) dlclose(loaded);
        if (loaded || (markers[i].variable && getenv(markers[i].variable))) return markers[i].name;
    }
    return NULL;
}

/* The directory of the shared library, or of a program that is linked with the static one. From the kernel, as an
 * absolute path; the loader's can be relative, because of the empty element that mpirun adds to LD_LIBRARY_PATH. */
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

/* Only in LOCKSTEP_MODULES where it is set; otherwise in the library's directory, its lockstep subdirectory, or relative
 * to bin. */
static bool find_module(const char *name, char *path, size_t bytes)
{
    static const char *const directories[] = {"", "lockstep/", LK_MODULES_FROM_BIN "/"};
    const char              *given = getenv("LOCKSTEP_MODULES");
    char                     own[PATH_MAX];
    if (given && *given) {
        snprintf(path, bytes, "%s/lockstep_mpi_%s.so", given, name);
        return access(path, R_OK) == 0;
    }
    if (!own_directory(own, sizeof own)) return false;
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        snprintf(path, bytes, "%s/%slockstep_mpi_%s.so", own, directories[i], name);
        if (access(path, R_OK) == 0) return true;
    }
    snprintf(path, bytes, "%s/lockstep_mpi_%s.so", own, name); /* for the message */
    return false;
}

lk_status lk__mpi_load(lk_context *context, const lk__mpi_module **module)
{
    const char *name = find_mpi();
    char        path[2 * PATH_MAX];
    if (!name)
        return lk__fail(
            context, LK_EUNSUPPORTED,
            "backend mpi: this process was not started by Open MPI or MPICH, according to its environment: start "
            "it with mpirun, mpiexec or srun");
    if (!find_module(name, path, sizeof path))
        return lk__fail(
            context, LK_EUNSUPPORTED,
            "backend mpi: there is no %s: this build has no module for %s; build Lockstep where mpicc.%s is "
            "installed, or give the module's directory with LOCKSTEP_MODULES=DIR",
            path, strcmp(name, "mpich") == 0 ? "MPICH" : "Open MPI", name);
    /* Global, because MPI loads plugins that need its symbols; NODELETE, because MPI cannot be unloaded. */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!library) return lk__fail(context, LK_EUNSUPPORTED, "backend mpi: %s cannot be loaded: %s", path, dlerror());
    void         *symbol = dlsym(library, LK__MPI_SYMBOL);
    lk__mpi_entry entry;
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from data to function pointers */
    *module = symbol ? entry() : NULL;
    dlclose(library);
    if (!*module || (*module)->version != LK__MPI_VERSION)
        return lk__fail(context, LK_EUNSUPPORTED, "backend mpi: %s belongs to another version of Lockstep", path);
    return LK_OK;
}

static bool variable_equals(const char *variable, int value)
{
    const char *text = getenv(variable);
    return text && atoi(text) == value;
}

bool lk__mpi_available(const lk__rendezvous_identity *identity)
{
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"}};
    const char              *name = find_mpi();
    char                     path[2 * PATH_MAX];
    if (!name || !find_module(name, path, sizeof path)) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (variable_equals(names[i][0], identity->rank) && variable_equals(names[i][1], identity->world)) return true;
    return false;
}
