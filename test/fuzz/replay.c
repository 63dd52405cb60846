/* replay.c - runs a fuzzer's function over files, so that its corpus is tested without libFuzzer.
 * Usage: replay FILE-or-DIRECTORY… ; built together with one fuzz_*.c. */
#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    struct stat about;
    FILE       *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &about) != 0) {
        perror(path);
        return -1;
    }
    /* Exactly as large as the input, so that a sanitizer detects overruns. */
    size_t   size = (size_t)about.st_size;
    uint8_t *bytes = malloc(size ? size : 1);
    if (!bytes || fread(bytes, 1, size, file) != size) {
        perror(path);
        return -1;
    }
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
    return 1;
}

static int replay(const char *path)
{
    struct stat about;
    if (stat(path, &about) != 0) {
        perror(path);
        return -1;
    }
    if (!S_ISDIR(about.st_mode)) return replay_file(path);
    int            total = 0;
    struct dirent *entry;
    DIR           *directory = opendir(path);
    if (!directory) {
        perror(path);
        return -1;
    }
    while ((entry = readdir(directory))) {
        char name[4096];
        if (entry->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        int count = replay(name);
        if (count < 0) return -1;
        total += count;
    }
    closedir(directory);
    return total;
}

int main(int count, char **arguments)
{
    int total = 0;
    for (int i = 1; i < count; i++) {
        int n = replay(arguments[i]);
        if (n < 0) return 1;
        total += n;
    }
    printf("%d inputs\n", total);
    return total > 0 ? 0 : 1; /* a missing corpus is a failure */
}
