/* paths.c - creates the directories that options name, and tests that they are writable: with an unnamed file if the
 * file system supports it (O_TMPFILE), since permission bits do not cover root, read-only mounts and /proc. */
#define _GNU_SOURCE
#include "paths.h"

#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static int report_path(const char *command_name, const char *option, const char *path, const char *what, int error)
{
    print_error(command_name, "--%s %s: %s: %s", option, path, what, strerror(error));
    return EXIT_USER_ERROR;
}

/* 0, or errno. */
static int make_directories(const char *path)
{
    char text[PATH_BYTES];
    if (snprintf(text, sizeof text, "%s", path) >= (int)sizeof text) return ENAMETOOLONG;
    for (char *p = text + 1;; p++) {
        if (*p && *p != '/') continue;
        char end = *p;
        *p = 0;
        if (mkdir(text, 0777) != 0 && errno != EEXIST) {
            int         error = errno;
            struct stat about; /* a read-only file system may return another error for an existing directory */
            if (stat(text, &about) != 0) return error;
        }
        *p = end;
        if (!end) return 0;
    }
}

/* 0, or errno: whether a file can be created in a directory. */
static int try_directory(const char *path)
{
    char text[PATH_BYTES + 32];
    int  fd = open(path, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT)) {
        snprintf(text, sizeof text, "%.*s/.lockstep-XXXXXX", PATH_BYTES, path);
        if ((fd = mkostemp(text, O_CLOEXEC)) >= 0) unlink(text);
    }
    if (fd < 0) return errno;
    close(fd);
    return 0;
}

static int check_directory(const char *command_name, const char *option, const char *path)
{
    int error = make_directories(path);
    if (error) return report_path(command_name, option, path, "cannot create the directory", error);
    if ((error = try_directory(path))) return report_path(command_name, option, path, "cannot write there", error);
    return 0;
}

/* An existing file must be writable, and is not changed; otherwise its directory must be writable. */
static int check_file(const char *command_name, const char *option, const char *path)
{
    struct stat about;
    char        parent[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    if (stat(path, &about) == 0) {
        if (S_ISDIR(about.st_mode)) return report_path(command_name, option, path, "cannot write", EISDIR);
        if (!S_ISREG(about.st_mode)) return 0; /* a device or a pipe: opening it could block or have effects */
        int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
        if (fd < 0) return report_path(command_name, option, path, "cannot write", errno);
        close(fd);
        return 0;
    }
    int length = snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (length >= (int)sizeof parent) return report_path(command_name, option, path, "cannot write", ENAMETOOLONG);
    if (!slash || slash > path) {
        int error = make_directories(parent);
        if (error) return report_path(command_name, option, path, "cannot create its directory", error);
    }
    int error = try_directory(slash == path ? "/" : parent);
    return error ? report_path(command_name, option, path, "cannot write", error) : 0;
}

int paths_check(const char *command_name, const options *given, int rank)
{
    static const struct {
        const char *option;
        bool        directory, all_ranks;
    } table[] = {{"save", true, false},
                 {"trace", false, false},
                 {"log", false, false},
                 {"log-dir", true, true},
                 {"tensorboard", true, false}};
    int code = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table && code == 0; i++) {
        const char *path = options_text(given, table[i].option);
        if (!path || (rank != 0 && !table[i].all_ranks)) continue;
        code = (table[i].directory ? check_directory : check_file)(command_name, table[i].option, path);
    }
    return code;
}
