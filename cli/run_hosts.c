/* run_hosts.c - `lockstep run` on several hosts: which of them this is, where the ranks meet, and what --rdzv-conf and a file of hosts
 * say. */
#include "run_hosts.h"

#include "command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_PORT = 29500, DEFAULT_RENDEZVOUS_PORT = 29400 };

static int mistake(const char *what)
{
    complain("run", "%s", what);
    return EXIT_MISTAKE;
}

/* HOST:PORT or HOST, [IPv6]:PORT; the port may be missing or 0. host has room for all of text. */
static bool split_endpoint(const char *text, char *host, int *port)
{
    strcpy(host, text);
    *port = 0;
    char *colon = strrchr(host, ':');
    if (host[0] == '[') {
        char *close = strchr(host, ']');
        if (!close || (close[1] && close[1] != ':')) return false;
        colon = close[1] ? close + 1 : NULL;
        *close = 0;
        memmove(host, host + 1, strlen(host));
    } else if (colon && strchr(host, ':') != colon) {
        colon = NULL; /* an IPv6 address alone */
    }
    if (colon) {
        char *end;
        long  number = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end || number < 0 || number > 65535) return false;
        *port = (int)number;
        *colon = 0;
    }
    return *host != 0;
}

/* What --rdzv-conf says. */
typedef struct rendezvous {
    double timeout; /* seconds; 0: not said */
    int    rank;    /* -1: not said */
    int    is_host; /* -1: not said */
} rendezvous;

#define KNOWN_KEYS "join_timeout, timeout, read_timeout, rank and is_host are known"

static int refuse_key(const char *key, int length, const char *reason)
{
    complain("run", "--rdzv-conf: '%.*s' %s; " KNOWN_KEYS, length, key, reason);
    return EXIT_MISTAKE;
}

static bool is_word(const char *text, size_t length, const char *const *words)
{
    for (; *words; words++)
        if (strlen(*words) == length && memcmp(*words, text, length) == 0) return true;
    return false;
}

/* One KEY=VALUE of so many characters each. */
static int take_pair(const char *key, size_t key_length, const char *value, size_t length, rendezvous *said)
{
    static const char *const        times[] = {"join_timeout", "timeout", "read_timeout", NULL},
                             *const ranks[] = {"rank", NULL}, *const hosts[] = {"is_host", NULL},
                             *const yes[] = {"1", "true", "t", "yes", "y", NULL}, *const no[] = {"0",  "false", "f",
                                                                                                 "no", "n",     NULL};
    static const char *const elastic[] = {
        "last_call_timeout",      "close_timeout", "heartbeat_timeout", "keep_alive_interval",
        "keep_alive_max_attempt", "min_nodes",     "max_nodes",         NULL};
    char text[32], *end;
    snprintf(text, sizeof text, "%.*s", (int)length, value);
    if (is_word(key, key_length, times)) {
        double seconds = strtod(text, &end);
        if (end == text || *end || !(seconds >= 0.001 && seconds <= 1e7))
            return refuse_key(key, (int)key_length, "needs a number of seconds");
        if (seconds > said->timeout) said->timeout = seconds;
    } else if (is_word(key, key_length, ranks)) {
        long rank = strtol(text, &end, 10);
        if (end == text || *end || rank < 0 || rank > 1000000)
            return refuse_key(key, (int)key_length, "needs a number from 0 on");
        said->rank = (int)rank;
    } else if (is_word(key, key_length, hosts)) {
        said->is_host = is_word(value, length, yes);
        if (!said->is_host && !is_word(value, length, no)) return refuse_key(key, (int)key_length, "is true or false");
    } else if (is_word(key, key_length, elastic)) {
        return refuse_key(key, (int)key_length, "belongs to elastic sizes, which come later");
    } else {
        return refuse_key(key, (int)key_length, "has no meaning here");
    }
    return 0;
}

static int take_conf(const options *given, rendezvous *said)
{
    const char *at = options_text(given, "rdzv-conf");
    *said = (rendezvous){0, -1, -1};
    while (at && *at) {
        size_t length = strcspn(at, ","), name = strcspn(at, "=,");
        if (name == 0 || at[name] != '=')
            return mistake("--rdzv-conf: expected KEY=VALUE with commas between; " KNOWN_KEYS);
        int code = take_pair(at, name, at + name + 1, length - name - 1, said);
        if (code != 0) return code;
        at += length + (at[length] == ',');
    }
    return 0;
}

/* Which host this is, by --node-rank or --rdzv-conf; -1: nobody says. */
static int find_node(const options *given, const rendezvous *said, int *node)
{
    *node = options_given(given, "node-rank") ? (int)options_integer(given, "node-rank") : said->rank;
    if (*node >= 0 && said->rank >= 0 && *node != said->rank)
        return mistake("--node-rank and rank in --rdzv-conf differ: one of them");
    if (*node >= 0 && said->is_host >= 0 && said->is_host != (*node == 0))
        return mistake("--rdzv-conf: is_host is true on host 0 and nowhere else, and --node-rank says otherwise");
    return 0;
}

int run_place(const options *given, lk_launch_config *config, char *host)
{
    rendezvous said;
    int        node, code = take_conf(given, &said);
    if (code == 0) code = find_node(given, &said, &node);
    if (code != 0) return code;
    config->local_address = options_text(given, "local-addr");
    config->join_timeout = options_given(given, "join-timeout") ? options_number(given, "join-timeout") : said.timeout;
    const char *nodes = options_text(given, "nnodes"), *endpoint = options_text(given, "rdzv-endpoint");
    char       *end;
    if (options_flag(given, "standalone")) return 0;
    long count = strtol(nodes, &end, 10);
    if (*end == ':' && strtol(end + 1, NULL, 10) != count)
        return mistake("--nnodes MIN:MAX: elastic sizes come later; the number of hosts cannot change while a job runs "
                       "yet, so give one "
                       "number");
    if (end == nodes || (*end && *end != ':') || count < 1 || count > 100000)
        return mistake("--nnodes: give the number of hosts");
    config->nodes = (int)count;
    if (config->nodes == 1 && (node > 0 || said.is_host == 0))
        return mistake("--node-rank: with one host it can only be 0, and that is the host");
    if (endpoint) {
        if (!split_endpoint(endpoint, host, &config->master_port))
            return mistake("--rdzv-endpoint: expected HOST:PORT");
        if (config->nodes > 1 || config->master_port) config->master_address = host;
        if (!config->master_port && config->nodes > 1) config->master_port = DEFAULT_RENDEZVOUS_PORT;
    }
    if (options_given(given, "master-addr")) config->master_address = options_text(given, "master-addr");
    if (options_given(given, "master-port")) config->master_port = (int)options_integer(given, "master-port");
    if (config->nodes == 1) return 0;
    if (node < 0)
        return mistake("several hosts need --node-rank on each, with every --rdzv-backend: 0 on the one that "
                       "--rdzv-endpoint or --master-addr names");
    if (!config->master_address)
        return mistake("several hosts need --master-addr or --rdzv-endpoint: the address of node 0");
    if (options_given(given, "master-port") && !config->master_port)
        return mistake("--master-port 0: a free port can be chosen for one host, or by --hosts, but here the other "
                       "hosts could not know "
                       "it; give a number");
    if (!config->master_port) config->master_port = DEFAULT_PORT;
    config->node = node;
    if (config->node >= config->nodes) return mistake("--node-rank: counts from 0, so it must be less than --nnodes");
    if (options_integer(given, "max-restarts"))
        return mistake("--max-restarts: a restart needs all hosts to agree, and each launcher knows only its own "
                       "ranks; not with several --nnodes");
    return 0;
}

char *run_read_hostfile(const char *path)
{
    FILE  *file = fopen(path, "re");
    char  *list = NULL, line[512], name[256];
    size_t used = 0;
    int    number = 0;
    if (!file) complain("run", "%s: cannot open: %s", path, strerror(errno));
    while (file && fgets(line, sizeof line, file)) {
        char slots[32] = "";
        number++;
        line[strcspn(line, "#\r\n")] = 0;
        int words = sscanf(line, " %255s slots=%31[0-9]", name, slots);
        if (words < 1) continue;
        char *more = strchr(name, ',') ? NULL : realloc(list, used + strlen(name) + strlen(slots) + 3);
        if (!more) {
            complain("run", "%s:%d: expected NAME, NAME:RANKS or NAME slots=RANKS", path, number);
            free(list);
            fclose(file);
            return NULL;
        }
        list = more;
        used += (size_t)sprintf(list + used, "%s%s%s%s", used ? "," : "", name, *slots ? ":" : "", slots);
    }
    if (file) fclose(file);
    if (file && !list) complain("run", "%s: names no host", path);
    return list;
}
