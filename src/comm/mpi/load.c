/* load.c - finds out which MPI is used, and loads its module: liblockstep itself links no MPI. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "base/module.h"
#include "comm/mpi/mpi.h"
#include "comm/rendezvous/identity.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The MPI that the program has loaded already, else the one that started the process. NULL: neither. */
static const char *find_mpi(const lk_context *context)
{
    static const struct {
        const char        *name, *library;
        lk__environment_id variable; /* where there is no library */
    } markers[] = {
        {"openmpi", "libmpi.so.40", LK__ENV_COUNT}, {"mpich", "libmpich.so.12", LK__ENV_COUNT},
        {"mpich", "libmpi.so.12", LK__ENV_COUNT},   {"openmpi", NULL, LK__ENV_OMPI_COMM_WORLD_SIZE},
        {"mpich", NULL, LK__ENV_HYDI_CONTROL_FD},   {"mpich", NULL, LK__ENV_PMI_SIZE},
        {"mpich", NULL, LK__ENV_PMI_RANK},          {"openmpi", NULL, LK__ENV_PMIX_RANK},
    };
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
        void *loaded = markers[i].library ? dlopen(markers[i].library, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (loaded) dlclose(loaded);
        if (loaded || (!markers[i].library && lk__environment(context, markers[i].variable))) return markers[i].name;
    }
    return NULL;
}

static bool find_module(const char *name, char *path, size_t bytes)
{
    char file[64];
    snprintf(file, sizeof file, "lockstep_mpi_%s.so", name);
    return lk__module_find(file, path, bytes);
}

lk_status lk__mpi_load(lk_context *context, const lk__mpi_module **module)
{
    const char *name = find_mpi(context);
    char        path[2 * PATH_MAX];
    if (!name)
        return lk__fail(
            context, LK_EUNSUPPORTED,
            "backend mpi: this process was not started by Open MPI or MPICH, according to its environment: start "
            "it with mpirun, mpiexec or srun");
    if (!find_module(name, path, sizeof path))
        return lk__fail(context, LK_EUNSUPPORTED,
                        "backend mpi: %s not found: this build has no module for %s; build Lockstep where mpicc.%s is "
                        "installed, or set LOCKSTEP_MODULES=DIR to the module's directory",
                        path, strcmp(name, "mpich") == 0 ? "MPICH" : "Open MPI", name);
    /* Global, because MPI loads plugins that need its symbols; NODELETE, because MPI cannot be unloaded. */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!library) return lk__fail(context, LK_EUNSUPPORTED, "backend mpi: cannot load %s: %s", path, dlerror());
    void         *symbol = dlsym(library, LK__MPI_SYMBOL);
    lk__mpi_entry entry;
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from data to function pointers */
    *module = symbol ? entry() : NULL;
    dlclose(library);
    if (!*module || (*module)->version != LK__MPI_VERSION)
        return lk__fail(context, LK_EUNSUPPORTED, "backend mpi: %s was built for a different version of Lockstep",
                        path);
    return LK_OK;
}

static bool variable_equals(const lk_context *context, lk__environment_id variable, int value)
{
    const char *text = lk__environment(context, variable);
    return text && atoi(text) == value;
}

bool lk__mpi_available(const lk_context *context, const lk__rendezvous_identity *identity)
{
    static const lk__environment_id names[][2] = {{LK__ENV_OMPI_COMM_WORLD_RANK, LK__ENV_OMPI_COMM_WORLD_SIZE},
                                                  {LK__ENV_PMI_RANK, LK__ENV_PMI_SIZE},
                                                  {LK__ENV_PMIX_RANK, LK__ENV_SLURM_STEP_NUM_TASKS}};
    const char                     *name = find_mpi(context);
    char                            path[2 * PATH_MAX];
    if (!name || !find_module(name, path, sizeof path)) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (variable_equals(context, names[i][0], identity->rank) &&
            variable_equals(context, names[i][1], identity->world))
            return true;
    return false;
}
