/* run_hosts.c - `lockstep run` on several hosts: the index of this one, where the ranks join, --rdzv-conf and
 * --hostfile. */
#include "run_hosts.h"

#include "command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_PORT = 29500, DEFAULT_RENDEZVOUS_PORT = 29400 };

static int user_error(const char *text)
{
    print_error("run", "%s", text);
    return EXIT_USER_ERROR;
}

/* HOST:PORT or HOST, [IPv6]:PORT; the port may be missing or 0. host has space for all of text. */
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

/* The values of --rdzv-conf. */
typedef struct rendezvous {
    double timeout; /* seconds; 0: not given */
    int    rank;    /* -1: not given */
    int    is_host; /* -1: not given */
} rendezvous;

#define KNOWN_KEYS "supported keys: join_timeout, timeout, read_timeout, rank, is_host"

static int report_key(const char *key, int length, const char *reason)
{
    print_error("run", "--rdzv-conf: '%.*s' %s; " KNOWN_KEYS, length, key, reason);
    return EXIT_USER_ERROR;
}

static bool is_word(const char *text, size_t length, const char *const *words)
{
    for (; *words; words++)
        if (strlen(*words) == length && memcmp(*words, text, length) == 0) return true;
    return false;
}

/* Parses one KEY=VALUE; both have the given lengths. */
static int parse_pair(const char *key, size_t key_length, const char *value, size_t length, rendezvous *conf)
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
            return report_key(key, (int)key_length, "needs a number of seconds");
        if (seconds > conf->timeout) conf->timeout = seconds;
    } else if (is_word(key, key_length, ranks)) {
        long rank = strtol(text, &end, 10);
        if (end == text || *end || rank < 0 || rank > 1000000)
            return report_key(key, (int)key_length, "needs a number of at least 0");
        conf->rank = (int)rank;
    } else if (is_word(key, key_length, hosts)) {
        conf->is_host = is_word(value, length, yes);
        if (!conf->is_host && !is_word(value, length, no))
            return report_key(key, (int)key_length, "needs true or false");
    } else if (is_word(key, key_length, elastic)) {
        return report_key(key, (int)key_length, "is for elastic sizes, which are not supported");
    } else {
        return report_key(key, (int)key_length, "is unknown");
    }
    return 0;
}

static int parse_conf(const options *given, rendezvous *conf)
{
    const char *at = options_text(given, "rdzv-conf");
    *conf = (rendezvous){0, -1, -1};
    while (at && *at) {
        size_t length = strcspn(at, ","), name = strcspn(at, "=,");
        if (name == 0 || at[name] != '=') return user_error("--rdzv-conf: expected KEY=VALUE,…; " KNOWN_KEYS);
        int code = parse_pair(at, name, at + name + 1, length - name - 1, conf);
        if (code != 0) return code;
        at += length + (at[length] == ',');
    }
    return 0;
}

/* The index of this host, from --node-rank or --rdzv-conf; -1: not given. */
static int find_node(const options *given, const rendezvous *conf, int *node)
{
    *node = options_given(given, "node-rank") ? (int)options_integer(given, "node-rank") : conf->rank;
    if (*node >= 0 && conf->rank >= 0 && *node != conf->rank)
        return user_error("--node-rank and rank in --rdzv-conf differ");
    if (*node >= 0 && conf->is_host >= 0 && conf->is_host != (*node == 0))
        return user_error(
            "--rdzv-conf: is_host must be true on host 0 and false on the others; it contradicts --node-rank");
    return 0;
}

int run_read_hosts(const options *given, lk_launch_config *config, char *host)
{
    rendezvous conf;
    int        node, code = parse_conf(given, &conf);
    if (code == 0) code = find_node(given, &conf, &node);
    if (code != 0) return code;
    config->local_address = options_text(given, "local-addr");
    config->join_timeout = options_given(given, "join-timeout") ? options_number(given, "join-timeout") : conf.timeout;
    const char *nodes = options_text(given, "nnodes"), *endpoint = options_text(given, "rdzv-endpoint");
    char       *end;
    if (options_flag(given, "standalone")) return 0;
    long count = strtol(nodes, &end, 10);
    if (*end == ':' && strtol(end + 1, NULL, 10) != count)
        return user_error("--nnodes MIN:MAX: elastic sizes are not supported; give one number");
    if (end == nodes || (*end && *end != ':') || count < 1 || count > 100000)
        return user_error("--nnodes: expected the number of hosts");
    config->nodes = (int)count;
    if (config->nodes == 1 && (node > 0 || conf.is_host == 0))
        return user_error("with one host, --node-rank must be 0 and is_host true");
    if (endpoint) {
        if (!split_endpoint(endpoint, host, &config->master_port))
            return user_error("--rdzv-endpoint: expected HOST:PORT");
        if (config->nodes > 1 || config->master_port) config->master_address = host;
        if (!config->master_port && config->nodes > 1) config->master_port = DEFAULT_RENDEZVOUS_PORT;
    }
    if (options_given(given, "master-addr")) config->master_address = options_text(given, "master-addr");
    if (options_given(given, "master-port")) config->master_port = (int)options_integer(given, "master-port");
    if (config->nodes == 1) return 0;
    if (node < 0)
        return user_error("with several hosts, each needs --node-rank, whatever the --rdzv-backend: 0 on the host at "
                          "--rdzv-endpoint or --master-addr");
    if (!config->master_address)
        return user_error("with several hosts, each needs --master-addr or --rdzv-endpoint: the address of host 0");
    if (options_given(given, "master-port") && !config->master_port)
        return user_error("--master-port 0: the other hosts cannot know the chosen port; give a number (a free port is "
                          "chosen only for one host or with --hosts)");
    if (!config->master_port) config->master_port = DEFAULT_PORT;
    config->node = node;
    if (config->node >= config->nodes) return user_error("--node-rank counts from 0, so it must be less than --nnodes");
    if (options_integer(given, "max-restarts"))
        return user_error(
            "--max-restarts: restarts are not supported with several hosts: each launcher controls only its own ranks");
    return 0;
}

char *run_read_hostfile(const char *path)
{
    FILE  *file = fopen(path, "re");
    char  *list = NULL, line[512], name[256];
    size_t used = 0;
    int    number = 0;
    if (!file) print_error("run", "%s: cannot open: %s", path, strerror(errno));
    while (file && fgets(line, sizeof line, file)) {
        char slots[32] = "";
        number++;
        line[strcspn(line, "#\r\n")] = 0;
        int words = sscanf(line, " %255s slots=%31[0-9]", name, slots);
        if (words < 1) continue;
        char *more = strchr(name, ',') ? NULL : realloc(list, used + strlen(name) + strlen(slots) + 3);
        if (!more) {
            print_error("run", "%s:%d: expected NAME, NAME:RANKS or NAME slots=RANKS", path, number);
            free(list);
            fclose(file);
            return NULL;
        }
        list = more;
        used += (size_t)sprintf(list + used, "%s%s%s%s", used ? "," : "", name, *slots ? ":" : "", slots);
    }
    if (file) fclose(file);
    if (file && !list) print_error("run", "%s contains no hosts", path);
    return list;
}
