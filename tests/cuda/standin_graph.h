/*
 * What the stand-in's streams and graphs know of each other. A stream that is being captured has a
 * place in a graph: the nodes after which the next one comes. See standin_graph.cc.
 */
#ifndef FT_TESTS_STANDIN_GRAPH_H
#define FT_TESTS_STANDIN_GRAPH_H

#include <cuda.h>
#include <functional>
#include <memory>
#include <vector>

namespace standin
{

struct Node {
    std::function<void()> task;
    std::vector<Node *> after;
};
struct Capture;
struct Place {
    std::shared_ptr<Capture> capture;
    std::vector<Node *> after;
};

bool capturing(const Place &place); /* the capture has not ended */
/* Makes a node of the task there. False: nothing is being captured. */
bool capture(Place &place, const std::function<void()> &task);
/* A stream waits for an event that was recorded at `event`, so it is captured from now on. False:
 * the event was not captured. */
bool join(Place &place, const Place &event);
/* A call that is not allowed during a capture, unless its thread has said that it allows this. The
 * capture fails. */
bool unsafe();

/* standin.cc */
CUresult fault(const char *call);
Place *place_of(CUstream stream); /* nullptr: no stream */
void enqueue(CUstream stream, std::function<void()> task);

} // namespace standin

#endif
