/*
 * ftccl-top in a terminal: the table, the details of one rank, and keys.
 */
#include "top.h"

#ifdef FT_HAVE_NCURSES

#include <curses.h>
#include <string.h>

#define FIRST_LINE 4 /* of the rows */
#define KEY_ESCAPE 27

struct view {
    struct top *top;
    struct top_request *request;
    uint64_t chosen; /* engine of the rank that is marked */
    int place;       /* its row */
    bool frozen, details;
    char trouble[300];
};

/* The marked rank keeps its mark when rows move. */
static void follow_chosen(struct view *view)
{
    const struct top *top = view->top;
    for (int i = 0; i < top->n; i++)
        if (top->row[i].id == view->chosen)
            view->place = i;
    if (view->place >= top->n)
        view->place = top->n > 0 ? top->n - 1 : 0;
    view->chosen = top->n > 0 ? top->row[view->place].id : 0;
}

static void draw_head(const struct view *view)
{
    char head[256];
    mvprintw(0, 0, "ftccl-top: %s; by %s%s", view->top->job, top_sort_name(view->request->sort),
             view->frozen ? "; FROZEN" : "");
    attron(A_BOLD);
    mvaddnstr(1, 0, view->trouble[0] ? view->trouble : view->top->verdict, COLS);
    attroff(A_BOLD);
    mvaddnstr(2, 0, "q quit  s sort  f freeze  up, down choose  Enter details", COLS);
    top_head(head, sizeof head);
    attron(A_REVERSE);
    mvaddnstr(FIRST_LINE - 1, 0, head, COLS);
    attroff(A_REVERSE);
}

static void draw_rows(const struct view *view)
{
    int room = LINES - FIRST_LINE, first = view->place >= room ? view->place - room + 1 : 0;
    char line[384];
    for (int i = first; i < view->top->n && i - first < room; i++) {
        top_line(&view->top->row[i], line, sizeof line);
        attr_t style = (i == view->place ? A_STANDOUT : 0) |
                       (view->top->row[i].state == RANK_CULPRIT ? A_BOLD : 0);
        attron(style);
        mvaddnstr(FIRST_LINE + i - first, 0, line, COLS);
        attroff(style);
    }
}

static void draw_details(const struct view *view)
{
    if (view->top->n == 0)
        return;
    const struct top_row *row = &view->top->row[view->place];
    mvprintw(FIRST_LINE, 2, "rank %d, process %d (%s) on %s", row->rank, row->pid, row->program,
             row->host);
    mvprintw(FIRST_LINE + 1, 2, "call: %s; %llu collectives behind", row->call,
             (unsigned long long)row->behind);
    if (row->waits_for >= 0)
        mvprintw(FIRST_LINE + 2, 2, "waits %.1f s %s rank %d", row->waits_s,
                 row->sends ? "until something is taken by" : "for something from", row->waits_for);
    else
        mvprintw(FIRST_LINE + 2, 2, "waits for nobody");
    if (row->step_ms > 0)
        mvprintw(FIRST_LINE + 3, 2, "step: %.4g ms", row->step_ms);
    if (row->inside >= 0)
        mvprintw(FIRST_LINE + 4, 2, "in collectives: %.0f%% of the time, outside %.0f%%",
                 100 * row->inside, 100 - 100 * row->inside);
    mvprintw(FIRST_LINE + 5, 2, "sent: %.3f GB", (double)row->sent / 1e9);
    for (int p = 0; p < FT_LATENCY_PARTS; p++)
        if (row->large_ms[p] >= 0)
            mvprintw(FIRST_LINE + 7 + p, 2, "large messages wait for %s: %.3g ms", top_part_name(p),
                     row->large_ms[p]);
    if (row->worst_peer >= 0)
        mvprintw(FIRST_LINE + 6, 2, "longest on the way: to rank %d, %.3g ms a message",
                 row->worst_peer, row->worst_ms);
}

static void draw(const struct view *view)
{
    erase();
    draw_head(view);
    if (view->details)
        draw_details(view);
    else
        draw_rows(view);
    refresh();
}

static void choose(struct view *view, int down)
{
    int place = view->place + down;
    if (place < 0 || place >= view->top->n)
        return;
    view->place = place;
    view->chosen = view->top->row[place].id;
}

/* Returns false to leave. */
static bool take_key(struct view *view, int key)
{
    switch (key) {
    case 'q':
        return false;
    case 's':
        view->request->sort = (view->request->sort + 1) % TOP_SORT_COUNT;
        top_sort_rows(view->top, view->request->sort);
        follow_chosen(view);
        break;
    case 'f':
        view->frozen = !view->frozen;
        break;
    case KEY_UP:
    case KEY_DOWN:
        choose(view, key == KEY_DOWN ? 1 : -1);
        break;
    case '\n':
    case KEY_ENTER:
        view->details = !view->details;
        break;
    case KEY_ESCAPE:
        view->details = false;
        break;
    default:
        break;
    }
    return true;
}

/* An error stays in sight, and the next look may succeed. */
static void look(struct view *view)
{
    bool good = top_look(view->top, view->request) == FT_OK;
    snprintf(view->trouble, sizeof view->trouble, "%.290s", good ? "" : ft_fail_text());
    follow_chosen(view);
}

int top_screen(struct top *top, struct top_request *request)
{
    struct view view = {.top = top, .request = request};
    SCREEN *screen = newterm(NULL, stdout, stdin);
    if (!screen) {
        fprintf(stderr, "ftccl-top: this terminal cannot be used; see --once\n");
        return 2;
    }
    cbreak();
    noecho();
    curs_set(0);
    keypad(stdscr, TRUE);
    set_escdelay(50);
    timeout((int)(request->delay_s * 1000));
    int key = ERR;
    do {
        if (key == ERR && !view.frozen)
            look(&view);
        draw(&view);
        key = getch();
    } while (take_key(&view, key));
    endwin();
    delscreen(screen);
    return 0;
}

#else

int top_screen(struct top *top, struct top_request *request)
{
    (void)top, (void)request;
    fprintf(stderr, "ftccl-top: built without ncurses, so there is only --once\n");
    return 2;
}

#endif
