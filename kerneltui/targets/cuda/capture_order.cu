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
 */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

namespace {

using Nodes = std::vector<cudaGraphNode_t>;

/* The names of these functions are those of CUDA 13; before 12.3 there was no data of edges. */
cudaError_t capture_now(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                        cudaGraph_t *graph, const cudaGraphNode_t **nodes, size_t *count) {
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData *edges = nullptr;
    return cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, &edges, count);
#elif CUDART_VERSION >= 12030
    const cudaGraphEdgeData *edges = nullptr;
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, &edges, count);
#else
    return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
#endif
}

/* All edges; data is asked for, or edges that have some are refused. */
cudaError_t edges_of(cudaGraph_t graph, Nodes &from, Nodes &to) {
    size_t count = 0;
#if CUDART_VERSION >= 13000
    cudaError_t e = cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count);
    std::vector<cudaGraphEdgeData> data(count);
    from.resize(count);
    to.resize(count);
    if (e == cudaSuccess && count) e = cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count);
#elif CUDART_VERSION >= 12030
    cudaError_t e = cudaGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count);
    std::vector<cudaGraphEdgeData> data(count);
    from.resize(count);
    to.resize(count);
    if (e == cudaSuccess && count) e = cudaGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &count);
#else
    cudaError_t e = cudaGraphGetEdges(graph, nullptr, nullptr, &count);
    from.resize(count);
    to.resize(count);
    if (e == cudaSuccess && count) e = cudaGraphGetEdges(graph, from.data(), to.data(), &count);
#endif
    return e;
}

/* The predecessors of all nodes; nodes are numbers from here on. */
class Before {
public:
    Before(Nodes nodes, const Nodes &from, const Nodes &to)
        : nodes_(std::move(nodes)), begin_(nodes_.size() + 1), before_(from.size()) {
        std::sort(nodes_.begin(), nodes_.end());
        for (const cudaGraphNode_t node : to) ++begin_[number(node) + 1];
        for (size_t i = 0; i < nodes_.size(); ++i) begin_[i + 1] += begin_[i];
        std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
        for (size_t i = 0; i < to.size(); ++i) before_[next[number(to[i])]++] = number(from[i]);
    }

    size_t size() const { return nodes_.size(); }
    size_t number(cudaGraphNode_t node) const {
        return size_t(std::lower_bound(nodes_.begin(), nodes_.end(), node) - nodes_.begin());
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
        size_t count = 0, nodes = 0;
        cudaError_t e = capture_now(stream_, &status, &id, &graph, &frontier, &count);
        if (e != cudaSuccess) return e;
        if (status == cudaStreamCaptureStatusInvalidated) return cudaSuccess; /* told when the capture ends */
        if (status == cudaStreamCaptureStatusNone || (!marks_.empty() && id != id_)) {
            left_ = true;
            return cudaSuccess;
        }
        id_ = id;
        e = cudaGraphGetNodes(graph, nullptr, &nodes);
        if (e == cudaSuccess) marks_.push_back({Nodes(frontier, frontier + count), nodes});
        return e;
    }

    /* Looks at the finished graph; writes what is wrong with it into `text`, or nothing. */
    cudaError_t check(cudaGraph_t graph, char *text, size_t room) const {
        if (left_) {
            std::snprintf(text, room, "run ends the capture of its stream, or begins one of its own");
            return cudaSuccess;
        }
        Nodes nodes, from, to;
        size_t count = 0;
        cudaError_t e = cudaGraphGetNodes(graph, nullptr, &count);
        nodes.resize(count);
        if (e == cudaSuccess) e = cudaGraphGetNodes(graph, nodes.data(), &count);
        if (e == cudaSuccess) e = edges_of(graph, from, to);
        if (e == cudaSuccess) look(Before(std::move(nodes), from, to), text, room);
        return e;
    }

private:
    struct Mark {
        Nodes frontier;
        size_t nodes;
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
