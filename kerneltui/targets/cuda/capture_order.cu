/* Whether the calls of a captured graph run one after the other; the timing harness stands behind this text.
 *
 * Work that a call puts on the caller's stream comes after the call before. Work on streams of its own comes after
 * what these waited for, which may be long done: with an event of the first call, all calls of a sample could run
 * side by side, each right, and a call would seem to take a fraction of its time. In a graph it can be seen:
 *
 *   mark i       what the caller's stream stands on when call i has been captured (its frontier), and how many
 *                nodes the graph has by then
 *   part i       the nodes of call i: all before mark i, less those of the calls before
 *
 *   joined       every node that is there at mark i is before mark i, or in it
 *   in order     every node of part i is behind all of mark i - 1: those that have no predecessor in their part
 *                have all of that mark as predecessors
 *
 * An edge can begin before its first node has ended: when all blocks of a kernel have begun (its launch is complete),
 * or when they say so (programmatic launches). The first kind is none here. The second is, between the kernels of
 * one stream, since the later kernel waits by itself (lint L31); but no call may end so.
 */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {

using Nodes = std::vector<cudaGraphNode_t>;

#if CUDART_VERSION >= 12030
using EdgeData = cudaGraphEdgeData;
#else
struct EdgeData { /* edges have none */
    unsigned char from_port;
};
#endif
constexpr unsigned kLaunchPort = 2; /* cudaGraphKernelNodePortLaunchCompletion */

struct Edges {
    Nodes from, to;
    std::vector<EdgeData> data;

    void resize(size_t count) {
        from.resize(count);
        to.resize(count);
        data.resize(count);
    }
};

/* The names of these functions are those of CUDA 13. */
cudaError_t capture_now(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                        cudaGraph_t *graph, const cudaGraphNode_t **nodes, const EdgeData **edges, size_t *count) {
#if CUDART_VERSION >= 13000
    return cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, edges, count);
#elif CUDART_VERSION >= 12030
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, edges, count);
#else
    *edges = nullptr;
    return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
#endif
}

cudaError_t edges_of(cudaGraph_t graph, Edges &edges) {
    size_t count = 0;
#if CUDART_VERSION >= 13000
    cudaError_t e = cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count);
    edges.resize(count);
    if (e == cudaSuccess && count)
        e = cudaGraphGetEdges(graph, edges.from.data(), edges.to.data(), edges.data.data(), &count);
#elif CUDART_VERSION >= 12030
    cudaError_t e = cudaGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count);
    edges.resize(count);
    if (e == cudaSuccess && count)
        e = cudaGraphGetEdges_v2(graph, edges.from.data(), edges.to.data(), edges.data.data(), &count);
#else
    cudaError_t e = cudaGraphGetEdges(graph, nullptr, nullptr, &count);
    edges.resize(count);
    if (e == cudaSuccess && count) e = cudaGraphGetEdges(graph, edges.from.data(), edges.to.data(), &count);
#endif
    return e;
}

/* The predecessors of all nodes; nodes are numbers from here on. */
class Before {
public:
    Before(Nodes nodes, const Edges &edges) : nodes_(std::move(nodes)), begin_(nodes_.size() + 1) {
        std::sort(nodes_.begin(), nodes_.end());
        std::vector<std::pair<size_t, size_t>> pairs; /* a node, and one before it, which may have several edges */
        for (size_t i = 0; i < edges.to.size(); ++i)
            if (edges.data[i].from_port != kLaunchPort)
                pairs.emplace_back(number(edges.to[i]), number(edges.from[i]));
        std::sort(pairs.begin(), pairs.end());
        pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
        for (const auto &[node, other] : pairs) {
            ++begin_[node + 1];
            before_.push_back(other);
        }
        for (size_t i = 0; i < nodes_.size(); ++i) begin_[i + 1] += begin_[i];
    }

    size_t size() const { return nodes_.size(); }
    size_t number(cudaGraphNode_t node) const {
        const auto place = std::lower_bound(nodes_.begin(), nodes_.end(), node);
        if (place == nodes_.end() || *place != node) throw std::out_of_range("a node that its graph does not have");
        return size_t(place - nodes_.begin());
    }
    const size_t *begin(size_t node) const { return before_.data() + begin_[node]; }
    const size_t *end(size_t node) const { return before_.data() + begin_[node + 1]; }

private:
    Nodes nodes_;
    std::vector<size_t> begin_, before_;
};

class CaptureOrder {
public:
    explicit CaptureOrder(cudaStream_t stream) : stream_(stream) {}

    /* What has been captured by now ends a part: the gate is part 0, then each call, and what stands behind them. */
    cudaError_t mark() {
        cudaStreamCaptureStatus status;
        unsigned long long id = 0;
        cudaGraph_t graph = nullptr;
        const cudaGraphNode_t *frontier = nullptr;
        const EdgeData *edges = nullptr;
        size_t count = 0, nodes = 0;
        cudaError_t e = capture_now(stream_, &status, &id, &graph, &frontier, &edges, &count);
        if (e != cudaSuccess) return e;
        if (status == cudaStreamCaptureStatusInvalidated) return cudaSuccess; /* told when the capture ends */
        if (status == cudaStreamCaptureStatusNone || (!marks_.empty() && id != id_)) {
            left_ = true;
            return cudaSuccess;
        }
        id_ = id;
        bool ended = true; /* what comes next waits for the end of all of the frontier */
        for (size_t i = 0; edges && i < count; ++i) ended = ended && edges[i].from_port == 0;
        Nodes last(frontier, frontier + count);
        e = cudaGraphGetNodes(graph, nullptr, &nodes);
        if (e == cudaSuccess) marks_.push_back({std::move(last), nodes, ended});
        return e;
    }

    /* Whether the capture was ended, or another begun, before it was the harness's turn. */
    bool left() const { return left_; }

    /* Looks at the finished graph; writes what is wrong with it into `text`, or nothing. */
    cudaError_t check(cudaGraph_t graph, char *text, size_t room) const {
        Nodes nodes;
        Edges edges;
        size_t count = 0;
        cudaError_t e = cudaGraphGetNodes(graph, nullptr, &count);
        nodes.resize(count);
        if (e == cudaSuccess) e = cudaGraphGetNodes(graph, nodes.data(), &count);
        if (e == cudaSuccess) e = edges_of(graph, edges);
        if (e == cudaSuccess) look(Before(std::move(nodes), edges), text, room);
        return e;
    }

private:
    struct Mark {
        Nodes frontier;
        size_t nodes;
        bool ended;
    };

    void look(const Before &before, char *text, size_t room) const {
        constexpr size_t none = ~size_t(0);
        std::vector<size_t> part(before.size(), none);
        std::vector<char> followed(before.size()), last(before.size()); /* of the nodes up to the mark before */
        size_t found = 0;
        for (size_t i = 0; i < marks_.size(); ++i) {
            std::vector<size_t> own, open, ends;
            for (const cudaGraphNode_t node : marks_[i].frontier) open.push_back(before.number(node));
            for (const cudaGraphNode_t node : i ? marks_[i - 1].frontier : Nodes{}) {
                const size_t number = before.number(node);
                if (followed[number] || last[number]) continue; /* behind another of the mark */
                last[number] = 1;
                ends.push_back(number);
            }
            while (!open.empty()) {
                const size_t node = open.back();
                open.pop_back();
                if (part[node] != none) continue;
                part[node] = i;
                own.push_back(node);
                open.insert(open.end(), before.begin(node), before.end(node));
            }
            found += own.size();
            if (!marks_[i].ended) {
                std::snprintf(text, room, "call %zu of a graph returns with a stream that does not wait for the end of "
                              "its work", i);
                return;
            }
            if (found != marks_[i].nodes) {
                std::snprintf(text, room, "call %zu of a graph leaves work on a stream that is not joined when run "
                              "returns", i);
                return;
            }
            for (const size_t node : own)
                if (i && !behind(before, node, part, last, ends.size())) {
                    std::snprintf(text, room, "call %zu of a graph begins before call %zu has ended: a stream of its "
                                  "own must wait for what the caller's stream has when run is called", i, i - 1);
                    return;
                }
            for (const size_t node : ends) last[node] = 0;
            for (const size_t node : own)
                for (const size_t *at = before.begin(node); at != before.end(node); ++at) followed[*at] = 1;
        }
        if (found != before.size()) std::snprintf(text, room, "a graph has work that no call of it has captured");
    }

    /* Whether a node has a predecessor of its own part, or all `count` ends of the part before. */
    static bool behind(const Before &before, size_t node, const std::vector<size_t> &part,
                       const std::vector<char> &last, size_t count) {
        size_t met = 0;
        for (const size_t *at = before.begin(node); at != before.end(node); ++at) {
            if (part[*at] == part[node]) return true;
            met += size_t(last[*at]);
        }
        return met == count;
    }

    cudaStream_t stream_;
    unsigned long long id_ = 0;
    bool left_ = false;
    std::vector<Mark> marks_;
};

} // namespace
