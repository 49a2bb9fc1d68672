/*
 * The value of each parameter. The order is: environment, NCCL's alias, configuration file,
 * default. This is the only file that calls getenv. Values are read once under a lock; afterwards
 * readers do not wait.
 */
#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { INT, STR };

static const struct param {
    const char *env;
    enum kind kind;
    int64_t def_int;
    const char *def_str;
    int64_t lo, hi;
    const char *unit, *alias, *help;
} table[FT_PARAM_COUNT] = {
#define DEF_INT(def) def, ""
#define DEF_STR(def) 0, def
#define X(id, name, k, def, l, h, u, a, text) {name, k, DEF_##k(def), l, h, u, a, text},
    FT_PARAMS(X)
#undef X
};

#define PREFIX "FTCCL_"
enum { PREFIX_LEN = sizeof PREFIX - 1, NAME_LEN = 40 };

/* Variables that are no parameters: of ftccl-run, the perf programs and the tests. */
static const char *const of_programs[] = {
    "FTCCL_UNIQUE_ID",       "FTCCL_RESTART",
    "FTCCL_RUN_START",       "FTCCL_RUN",
    "FTCCL_STANDBY", /* of processes that a launcher starts as standbys */
    "FTCCL_PERF_MEET",       "FTCCL_PERF_ALLTOALLV_SPREAD",
    "FTCCL_PREFIX",          /* where the Python package's build looks for the library */
    "FTCCL_TEST_NET_PLUGIN", /* the plugin that tests of transport net use */
    "FTCCL_TORCH_CACHE",     /* where ftccl.torch keeps what it built */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* stored with release after load(), read with acquire in ensure_loaded(): the two arrays below are
 * complete */
static atomic_int loaded;
static int64_t ints[FT_PARAM_COUNT];
static char *strs[FT_PARAM_COUNT]; /* NULL: the default; only ft_params_reload() replaces a value */
static struct {
    bool set;
    int64_t value;
    const char *text;
} other_default[FT_PARAM_COUNT];
static atomic_int told_unknown; /* relaxed: one thread tells */
static bool changing;           /* protected by the lock; true while the arrays are being changed */
static _Thread_local bool loading;

/* The thread that held the lock at fork does not exist in the child. The child makes a new lock,
 * and reads all values again if that thread was changing them. */
static void after_in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    if (!changing)
        return;
    memset(strs, 0, sizeof strs);
    changing = false;
    atomic_store_explicit(&loaded, 0, memory_order_relaxed);
}

/* Runs when the library is loaded, because the first value may be read during a fork. */
__attribute__((constructor)) static void install(void)
{
    pthread_atfork(NULL, NULL, after_in_child);
}

/* Returns a copy, or NULL without memory: then the log says that the default counts. */
static char *keep_value(const char *name, const char *value)
{
    char *copy = strdup(value);
    if (!copy)
        FT_LOG(WARN, "init", -1, "no memory for the value of %s: its default counts", name);
    return copy;
}

/* Reads lines of the form NAME=value; '#' starts a comment. A name is FTCCL's or NCCL's. */
static void read_file(const char *path, bool must_exist, char *found[FT_PARAM_COUNT])
{
    FILE *file = fopen(path, "re");
    if (!file) {
        if (must_exist)
            FT_LOG(WARN, "init", -1, "cannot read FTCCL_CONF_FILE %s: %s", path, strerror(errno));
        return;
    }
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        char *name = line + strspn(line, " \t");
        char *eq = strchr(name, '=');
        if (*name == '#' || !eq)
            continue;
        *eq = '\0';
        name[strcspn(name, " \t")] = '\0';
        char *value = eq + 1 + strspn(eq + 1, " \t");
        value[strcspn(value, "#\r\n")] = '\0';
        for (size_t end = strlen(value); end > 0 && strchr(" \t", value[end - 1]);)
            value[--end] = '\0';
        for (int id = 0; id < FT_PARAM_COUNT; id++)
            if (!found[id] && (!strcmp(name, table[id].env) ||
                               (*table[id].alias && !strcmp(name, table[id].alias))))
                found[id] = keep_value(name, value);
    }
    fclose(file);
}

static int64_t default_of(int id)
{
    return other_default[id].set ? other_default[id].value : table[id].def_int;
}

static void parse_int(int id, const char *text, const char *from)
{
    const struct param *p = &table[id];
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 0);
    static const char suffixes[] = "KMG";
    const char *suffix = *end ? strchr(suffixes, *end & ~0x20) : NULL;
    if (suffix && *suffix && !end[1] && end != text && llabs(value) < (1ll << 32)) {
        value <<= 10 * (suffix - suffixes + 1);
        end++;
    }
    if (end == text || *end || errno || value < p->lo || value > p->hi) {
        FT_LOG(WARN, "init", -1, "%s=%s is not a number from %lld to %lld; using %lld", from, text,
               (long long)p->lo, (long long)p->hi, (long long)default_of(id));
        return;
    }
    ints[id] = value;
}

/* The text of a parameter and the name under which it was found; NULL: nothing sets it. */
static const char *find_text(int id, const char *from_file, const char **name)
{
    const struct param *p = &table[id];
    const char *text = getenv(*name = p->env);
    if (!text && *p->alias)
        text = getenv(*name = p->alias);
    if (text)
        return text;
    *name = p->env;
    return from_file || p->kind == INT ? from_file : other_default[id].text;
}

static void load(void)
{
    char *file[FT_PARAM_COUNT] = {0};
    loading = changing = true;
    const char *conf = getenv("FTCCL_CONF_FILE");
    if (!conf)
        conf = getenv("NCCL_CONF_FILE");
    read_file(conf && *conf ? conf : "/etc/nccl.conf", conf && *conf, file);
    for (int id = 0; id < FT_PARAM_COUNT; id++) {
        const struct param *p = &table[id];
        const char *name, *text = find_text(id, file[id], &name);
        ints[id] = default_of(id);
        if (text && p->kind == STR)
            strs[id] = keep_value(name, text);
        if (text && p->kind == INT && *text)
            parse_int(id, text, name);
        free(file[id]);
    }
    loading = changing = false;
}

bool ft_params_loading(void)
{
    return loading;
}

/* Levenshtein's: letters to insert, to leave out or to replace. Names longer than NAME_LEN differ
 * in everything. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_LEN + 1];
    size_t m = strlen(a), n = strlen(b);
    if (m > NAME_LEN || n > NAME_LEN)
        return m + n;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = ft_min(ft_min(row[j], row[j - 1]) + 1, replaced);
        }
    }
    return row[n];
}

static bool is_known(const char *name)
{
    for (int id = 0; id < FT_PARAM_COUNT; id++)
        if (!strcmp(name, table[id].env))
            return true;
    for (size_t i = 0; i < FT_ARRAY_LEN(of_programs); i++)
        if (!strcmp(name, of_programs[i]))
            return true;
    return false;
}

/* The parameter whose name, or NCCL's name for it, is nearest; NULL if none is near. */
static const char *nearest(const char *name)
{
    const char *rest = name + PREFIX_LEN, *found = NULL;
    size_t best = strlen(rest) / 3 + 2;
    for (int id = 0; id < FT_PARAM_COUNT; id++) {
        const struct param *p = &table[id];
        if (strncmp(p->env, PREFIX, PREFIX_LEN))
            continue;
        size_t d = distance(rest, p->env + PREFIX_LEN);
        if (*rest && !strncmp(p->env, name, strlen(name)))
            d = 1; /* its unit, for example, is missing */
        if (*p->alias)
            d = ft_min(d, distance(rest, p->alias + sizeof "NCCL_" - 1));
        if (d < best) {
            best = d;
            found = p->env;
        }
    }
    return found;
}

/* Once in a process. Nothing is held: the log asks for parameters itself. */
static void tell_unknown(void)
{
    if (atomic_exchange_explicit(&told_unknown, 1, memory_order_relaxed))
        return;
    for (char **entry = environ; entry && *entry; entry++) {
        char name[PREFIX_LEN + NAME_LEN + 1];
        if (strncmp(*entry, PREFIX, PREFIX_LEN))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        if (is_known(name))
            continue;
        const char *meant = nearest(name);
        FT_LOG(WARN, "init", -1, "unknown variable %s in the environment%s%s%s", name,
               meant ? "; did you mean " : "", meant ? meant : "", meant ? "?" : "");
    }
}

static void ensure_loaded(void)
{
    if (atomic_load_explicit(&loaded, memory_order_acquire))
        return;
    pthread_mutex_lock(&lock);
    if (!atomic_load_explicit(&loaded, memory_order_relaxed)) {
        load();
        atomic_store_explicit(&loaded, 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    tell_unknown();
}

int64_t ft_param_int(enum ft_param_id id)
{
    ensure_loaded();
    return ints[id];
}

const char *ft_param_str(enum ft_param_id id)
{
    ensure_loaded();
    return strs[id] ? strs[id] : table[id].def_str;
}

/* Keeps a replaced value allocated, because engines hold pointers to it. */
static void retire(char *text)
{
    static struct retired {
        struct retired *next;
        char *text;
    } * retired;
    struct retired *node = malloc(sizeof *node);
    if (!node)
        return;
    *node = (struct retired){retired, text};
    retired = node;
}

void ft_params_reload(void)
{
    char *old[FT_PARAM_COUNT];
    pthread_mutex_lock(&lock);
    memcpy(old, strs, sizeof old);
    changing = true;
    memset(strs, 0, sizeof strs);
    load();
    for (int id = 0; id < FT_PARAM_COUNT; id++) {
        if (old[id] && strs[id] && !strcmp(old[id], strs[id])) {
            free(strs[id]);
            strs[id] = old[id];
        } else if (old[id])
            retire(old[id]);
    }
    atomic_store_explicit(&loaded, 1, memory_order_release);
    pthread_mutex_unlock(&lock);
    tell_unknown();
}

static void change_default(int id, int64_t value, const char *text)
{
    pthread_mutex_lock(&lock);
    other_default[id].set = true;
    other_default[id].value = value;
    other_default[id].text = text;
    bool known = atomic_load_explicit(&loaded, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    if (known)
        ft_params_reload();
}

void ft_param_set_default(enum ft_param_id id, int64_t value)
{
    change_default(id, value, NULL);
}
void ft_param_set_default_text(enum ft_param_id id, const char *text)
{
    change_default(id, 0, text);
}

static void value_text(int id, bool def, char *buf, size_t len)
{
    if (table[id].kind == INT)
        snprintf(buf, len, "%lld",
                 (long long)(def ? table[id].def_int : ft_param_int((enum ft_param_id)id)));
    else
        snprintf(buf, len, "%s",
                 id == FT_PARAM_SECRET && *ft_param_str(FT_PARAM_SECRET) && !def ? "(set)"
                 : def                                                           ? table[id].def_str
                       : ft_param_str((enum ft_param_id)id));
}

void ft_params_print(FILE *out)
{
    for (int id = 0; id < FT_PARAM_COUNT; id++) {
        const struct param *p = &table[id];
        char value[256], def[64];
        value_text(id, false, value, sizeof value);
        value_text(id, true, def, sizeof def);
        fprintf(out, "%s=%s\n    %s\n", p->env, value, p->help);
        fprintf(out, "    default %s%s%s", *def ? def : "(empty)", *p->unit ? " " : "", p->unit);
        if (p->kind == INT)
            fprintf(out, ", from %lld to %lld", (long long)p->lo, (long long)p->hi);
        if (*p->alias)
            fprintf(out, ", also %s", p->alias);
        fputc('\n', out);
    }
}
