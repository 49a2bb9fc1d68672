/*
 * The past, in SQLite. All rows are in memory; the file in the state folder is a copy that is
 * written at once. So the program goes on when the disk is full, the folder has gone or the file is
 * broken. It says so, tries again once a minute, and then writes what it has.
 */
#include "daemon.h"

#include <limits.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROWS_MOST 10000 /* of a record */
#define AGE_MOST_S (30 * 86400)
#define RETRY_NS 60000000000u

struct daemon_history {
    sqlite3 *db; /* main: memory; disk: the file, if it is attached */
    char path[PATH_MAX];
    char trouble[300];
    bool on_disk, begun; /* begun: the file's rows have been read, or there are none */
    uint64_t tried_ns, pruned_ns;
};

#define COLUMNS "record, name, kind, sentence, since, until"
#define TABLE(where)                                                                     \
    "CREATE TABLE IF NOT EXISTS " where ".history(record INTEGER NOT NULL, "             \
    "name TEXT NOT NULL, kind TEXT NOT NULL, sentence TEXT NOT NULL, "                   \
    "since INTEGER NOT NULL, until INTEGER NOT NULL, PRIMARY KEY(record, name, since)) " \
    "WITHOUT ROWID;"

/* ---- the file -------------------------------------------------------------------------------- */

static void leave_disk(struct daemon_history *h)
{
    snprintf(h->trouble, sizeof h->trouble, "the history is kept in memory alone: %.180s: %s",
             h->path, sqlite3_errmsg(h->db));
    sqlite3_exec(h->db, "ROLLBACK", NULL, NULL, NULL); /* if there is a transaction */
    sqlite3_exec(h->db, "DETACH disk", NULL, NULL, NULL);
    h->on_disk = false;
}

static bool attach(struct daemon_history *h)
{
    sqlite3_stmt *statement = NULL;
    bool good = sqlite3_prepare_v2(h->db, "ATTACH ? AS disk", -1, &statement, NULL) == SQLITE_OK &&
                sqlite3_bind_text(statement, 1, h->path, -1, SQLITE_STATIC) == SQLITE_OK &&
                sqlite3_step(statement) == SQLITE_DONE;
    sqlite3_finalize(statement);
    return good;
}

/* What the file has from before, and what memory has. */
static void join_disk(struct daemon_history *h)
{
    static const char read[] = "INSERT OR IGNORE INTO main.history SELECT record, "
                               "substr(name, 1, 1024), substr(kind, 1, 1024), "
                               "substr(sentence, 1, 1024), since, until FROM disk.history "
                               "ORDER BY until DESC LIMIT 40000;";
    static const char begin[] = "PRAGMA disk.journal_mode=WAL; PRAGMA disk.synchronous=NORMAL;"
                                "PRAGMA disk.max_page_count=16384;" TABLE("disk");
    static const char write[] = "INSERT OR REPLACE INTO disk.history SELECT " COLUMNS
                                " FROM main.history;";
    h->tried_ns = daemon_now_ns();
    h->on_disk = attach(h) && sqlite3_exec(h->db, begin, NULL, NULL, NULL) == SQLITE_OK &&
                 (h->begun || sqlite3_exec(h->db, read, NULL, NULL, NULL) == SQLITE_OK) &&
                 sqlite3_exec(h->db, write, NULL, NULL, NULL) == SQLITE_OK;
    if (h->on_disk) {
        h->trouble[0] = '\0';
        h->begun = true;
    } else {
        leave_disk(h);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool upsert(struct daemon_history *h, const char *sql, enum daemon_record record,
                   const struct daemon_row *row)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(h->db, sql, -1, &s, NULL) != SQLITE_OK)
        return false;
    sqlite3_bind_int(s, 1, (int)record);
    sqlite3_bind_text(s, 2, row->name, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 3, row->kind, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 4, row->sentence, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 5, row->since_s);
    sqlite3_bind_int64(s, 6, row->until_s);
    bool good = sqlite3_step(s) == SQLITE_DONE;
    sqlite3_finalize(s);
    return good;
}

void daemon_history_write(struct daemon_history *h, enum daemon_record record,
                          const struct daemon_row *row)
{
    upsert(h, "INSERT OR REPLACE INTO main.history(" COLUMNS ") VALUES(?,?,?,?,?,?)", record, row);
    if (h->on_disk &&
        !upsert(h, "INSERT OR REPLACE INTO disk.history(" COLUMNS ") VALUES(?,?,?,?,?,?)", record,
                row))
        leave_disk(h);
}

static const char *text_of(sqlite3_stmt *s, int column)
{
    const unsigned char *text = sqlite3_column_text(s, column);
    return text ? (const char *)text : "";
}

void daemon_history_read(struct daemon_history *h, enum daemon_record record, int most,
                         daemon_history_visit *visit, void *arg)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(h->db,
                           "SELECT name, kind, sentence, since, until FROM main.history "
                           "WHERE record=? ORDER BY until DESC, since DESC LIMIT ?",
                           -1, &s, NULL) != SQLITE_OK)
        return;
    sqlite3_bind_int(s, 1, (int)record);
    sqlite3_bind_int(s, 2, most);
    while (sqlite3_step(s) == SQLITE_ROW) {
        struct daemon_row row = {.name = text_of(s, 0),
                                 .kind = text_of(s, 1),
                                 .sentence = text_of(s, 2),
                                 .since_s = sqlite3_column_int64(s, 3),
                                 .until_s = sqlite3_column_int64(s, 4)};
        visit(arg, &row);
    }
    sqlite3_finalize(s);
}

static bool prune_in(struct daemon_history *h, const char *where)
{
    char sql[400];
    bool good = true;
    for (int record = 0; good && record < DAEMON_RECORDS; record++) {
        snprintf(sql, sizeof sql,
                 "DELETE FROM %s.history WHERE record=%d AND (until < %lld OR until < "
                 "(SELECT until FROM %s.history WHERE record=%d ORDER BY until DESC "
                 "LIMIT 1 OFFSET %d))",
                 where, record, (long long)time(NULL) - AGE_MOST_S, where, record, ROWS_MOST - 1);
        good = sqlite3_exec(h->db, sql, NULL, NULL, NULL) == SQLITE_OK;
    }
    return good;
}

void daemon_history_tick(struct daemon_history *h)
{
    uint64_t now_ns = daemon_now_ns();
    if (h->path[0] && !h->on_disk && now_ns - h->tried_ns >= RETRY_NS)
        join_disk(h);
    if (h->pruned_ns && now_ns - h->pruned_ns < RETRY_NS)
        return;
    h->pruned_ns = now_ns;
    prune_in(h, "main");
    if (h->on_disk && !prune_in(h, "disk"))
        leave_disk(h);
}

const char *daemon_history_trouble(const struct daemon_history *h)
{
    return h->trouble;
}

/* ---- opening --------------------------------------------------------------------------------- */

struct daemon_history *daemon_history_open(const char *folder)
{
    struct daemon_history *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    if (sqlite3_open(":memory:", &h->db) != SQLITE_OK ||
        sqlite3_exec(h->db, TABLE("main"), NULL, NULL, NULL) != SQLITE_OK) {
        daemon_history_close(h);
        return NULL;
    }
    if (folder[0] &&
        snprintf(h->path, sizeof h->path, "%s/history.db", folder) < (int)sizeof h->path)
        join_disk(h);
    return h;
}

void daemon_history_close(struct daemon_history *h)
{
    sqlite3_close(h->db);
    free(h);
}
