"""Whether the calls of a captured graph run in order: graphs that a model of streams makes, without a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerneltui.targets.cuda import runtime

SOURCE = Path(runtime.__file__).parent / "capture_order.cu"
SIDES = 2
ROOM = 256
RUNTIME = """
#pragma once
#include <cstddef>
#include <cstring>
enum cudaError_t { cudaSuccess };
using cudaStream_t = void *;
using cudaGraph_t = void *;
using cudaGraphNode_t = void *;
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated
};
struct Now {
    int status;
    unsigned long long id;
    cudaGraphNode_t *frontier, *nodes, *from, *to;
    const unsigned char *frontier_ports, *edge_ports;
    size_t frontier_count, node_count, edge_count;
};
inline Now now;
inline cudaError_t fake_info(cudaStreamCaptureStatus *status, unsigned long long *id,
                             const cudaGraphNode_t **nodes, size_t *count) {
    *status = cudaStreamCaptureStatus(now.status); *id = now.id;
    *nodes = now.frontier; *count = now.frontier_count;
    return cudaSuccess;
}
inline cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t *nodes, size_t *count) {
    if (nodes) std::memcpy(nodes, now.nodes, *count * sizeof *nodes);
    *count = now.node_count;
    return cudaSuccess;
}
inline cudaError_t fake_edges(cudaGraphNode_t *from, cudaGraphNode_t *to, size_t *count) {
    if (from) std::memcpy(from, now.from, *count * sizeof *from);
    if (to) std::memcpy(to, now.to, *count * sizeof *to);
    *count = now.edge_count;
    return cudaSuccess;
}
#if CUDART_VERSION >= 12030
struct cudaGraphEdgeData { unsigned char from_port, to_port, type, reserved[5]; };
inline cudaGraphEdgeData frontier_data[64];
#define WITH_DATA(type, name) type name,
#if CUDART_VERSION >= 13000
#define INFO cudaStreamGetCaptureInfo
#define EDGES cudaGraphGetEdges
#else
#define INFO cudaStreamGetCaptureInfo_v3
#define EDGES cudaGraphGetEdges_v2
#endif
#else
#define WITH_DATA(type, name)
#define INFO cudaStreamGetCaptureInfo_v2
#define EDGES cudaGraphGetEdges
#endif
inline cudaError_t INFO(cudaStream_t, cudaStreamCaptureStatus *status, unsigned long long *id,
                        cudaGraph_t *, const cudaGraphNode_t **nodes,
                        WITH_DATA(const cudaGraphEdgeData **, data) size_t *count) {
#if CUDART_VERSION >= 12030
    for (size_t i = 0; i < now.frontier_count; ++i) frontier_data[i] = {now.frontier_ports[i], 0, 0, {}};
    *data = frontier_data;
#endif
    return fake_info(status, id, nodes, count);
}
inline cudaError_t EDGES(cudaGraph_t, cudaGraphNode_t *from, cudaGraphNode_t *to,
                         WITH_DATA(cudaGraphEdgeData *, data) size_t *count) {
#if CUDART_VERSION >= 12030
    for (size_t i = 0; data && i < *count; ++i) data[i] = {now.edge_ports[i], 0, 0, {}};
#endif
    return fake_edges(from, to, count);
}
"""
FRAME = """
#include "{source}"
extern "C" {{
void *order_begin() {{ return new CaptureOrder(nullptr); }}
void order_end(void *order) {{ delete static_cast<CaptureOrder *>(order); }}
int order_mark(void *order, int status, unsigned long long id, void **frontier, const unsigned char *ports,
               size_t count, size_t nodes) {{
    now.status = status; now.id = id;
    now.frontier = frontier; now.frontier_ports = ports; now.frontier_count = count; now.node_count = nodes;
    return static_cast<CaptureOrder *>(order)->mark();
}}
bool order_edges_have_data() {{ return CUDART_VERSION >= 12030; }}
int order_left(void *order) {{ return static_cast<CaptureOrder *>(order)->left(); }}
int order_check(void *order, void **nodes, size_t count, void **from, void **to, const unsigned char *ports,
                size_t edges, char *text, size_t room) {{
    now.nodes = nodes; now.node_count = count;
    now.from = from; now.to = to; now.edge_ports = ports; now.edge_count = edges;
    return static_cast<CaptureOrder *>(order)->check(nullptr, text, room);
}}
}}
"""
ACTIVE, INVALIDATED = 1, 2


@pytest.fixture(scope="module", params=[12000, 12030, 13000], ids=lambda version: f"CUDA {version}")
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    """What looks at graphs, built for a runtime of that version that has no device."""
    folder = tmp_path_factory.mktemp("order")
    (folder / "cuda_runtime.h").write_text(RUNTIME)
    (folder / "order.cpp").write_text(FRAME.format(source=SOURCE))
    command = [
        *("g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
        *(f"-DCUDART_VERSION={request.param}", f"-I{folder}", str(folder / "order.cpp")),
        *("-o", str(folder / "order.so")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(folder / "order.so"))
    loaded.order_begin.restype = ctypes.c_void_p
    loaded.order_edges_have_data.restype = ctypes.c_bool
    return loaded


END, PROGRAMMATIC, LAUNCH = 0, 1, 2
"""Where an edge begins: at the end of its first node, when that says so, when all its blocks have begun."""

Front = frozenset[tuple[int, int]]
"""What comes next waits for: nodes, and which of these."""


@dataclass
class Capture:
    """Streams that are captured, as the runtime does it; stream 0 is the caller's."""

    before: list[Front] = field(default_factory=list[Front])
    """What every node waits for."""
    fronts: dict[int, Front] = field(default_factory=lambda: {0: Front()})
    events: list[Front] = field(default_factory=list[Front])
    prunes: bool = False
    """Whether a node has no edge from what is behind another of its predecessors anyway."""
    marks: list[tuple[Front, int]] = field(default_factory=list[tuple[Front, int]])

    def launch(self, stream: int) -> None:
        if stream in self.fronts:  # else it is not captured
            front = self.fronts[stream]
            if self.prunes:
                known = frozenset[int]().union(
                    *(self.behind(node) for node, port in front if not port)
                )
                front = Front((node, port) for node, port in front if port or node not in known)
            self.before.append(front)
            self.fronts[stream] = Front([(len(self.before) - 1, END)])

    def behind(self, node: int) -> frozenset[int]:
        """All that has ended when a node has, if the later of two kernels in a row waits by itself."""
        nodes = frozenset(other for other, port in self.before[node] if port != LAUNCH)
        return nodes.union(*(self.behind(other) for other in nodes))

    def wait(self, stream: int, front: Front) -> None:
        self.fronts[stream] = self.fronts.get(stream, Front()) | front

    def mark(self) -> None:
        self.marks.append((self.fronts[0], len(self.before)))

    def do(self, what: tuple[str, int, int]) -> None:
        name, stream, number = what
        if name == "launch":
            self.launch(stream)
        elif name == "fork":
            self.wait(1 + stream % SIDES, self.fronts[0])
        elif name == "join" and stream in self.fronts:
            self.wait(0, self.fronts[stream])
        elif name == "record" and stream in self.fronts:
            self.events.append(self.fronts[stream])
        elif name == "early" and stream in self.fronts:  # an event of the launch of the last kernel
            port = PROGRAMMATIC if number % 2 else LAUNCH
            self.events.append(Front((node, port) for node, _ in self.fronts[stream]))
        elif name == "wait" and self.events:
            self.wait(stream, self.events[number % len(self.events)])


def captured(calls: list[list[tuple[str, int, int]]], *, prunes: bool = False) -> Capture:
    """A gate, the calls, and a stamp."""
    made = Capture(prunes=prunes)
    made.launch(0)
    made.mark()
    for call in calls:
        for step in call:
            made.do(step)
        made.mark()
    made.launch(0)
    made.mark()
    return made


def expected(made: Capture) -> str:
    """What is wrong, by looking at all pairs."""
    behind = [made.behind(node) for node in range(len(made.before))]
    begin = 0
    for number, (front, end) in enumerate(made.marks):
        if any(port for _, port in front):
            return f"call {number} of a graph returns"
        joined = frozenset(node for node, _ in front).union(*(behind[node] for node, _ in front))
        if joined != frozenset(range(end)):
            return f"call {number} of a graph leaves"
        if any(not behind[node] >= frozenset(range(begin)) for node in range(begin, end)):
            return f"call {number} of a graph begins"
        begin = end
    return ""


def places(nodes: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Nodes as addresses, in an order that says nothing."""
    return (ctypes.c_void_p * len(nodes))(*((node * 7919 + 13) % 104729 * 16 for node in nodes))


def verdict(
    library: ctypes.CDLL, made: Capture, states: list[tuple[int, int]] | None = None
) -> str:
    """What the harness says of it."""
    size = ctypes.c_size_t
    order = ctypes.c_void_p(library.order_begin())
    try:
        for number, (front, count) in enumerate(made.marks):
            status, name = states[number] if states else (ACTIVE, 5)
            nodes, ports = (
                [node for node, _ in sorted(front)],
                bytes(port for _, port in sorted(front)),
            )
            assert not library.order_mark(
                *(order, status, ctypes.c_ulonglong(name), places(nodes), ports),
                *(size(len(nodes)), size(count)),
            )
        if library.order_left(order):
            return "left"
        nodes = places(list(range(len(made.before)))[::-1])
        edges = [(a, port, b) for b, front in enumerate(made.before) for a, port in front]
        text = ctypes.create_string_buffer(ROOM)
        assert not library.order_check(
            *(order, nodes, size(len(nodes)), places([a for a, _, _ in edges])),
            *(places([b for _, _, b in edges]), bytes(port for _, port, _ in edges)),
            *(size(len(edges)), text, size(ROOM)),
        )
        return text.value.decode()
    finally:
        library.order_end(order)


PLAIN = ["launch", "launch", "fork", "join", "record", "wait"]


def steps(names: list[str]) -> st.SearchStrategy[list[list[tuple[str, int, int]]]]:
    step = st.tuples(st.sampled_from(names), st.integers(0, SIDES), st.integers(0, 5))
    return st.lists(st.lists(step, max_size=6), max_size=5)


@settings(max_examples=500)
@given(calls=steps(PLAIN), prunes=st.booleans())
def test_it_says_what_all_pairs_of_nodes_say(
    library: ctypes.CDLL, calls: list[list[tuple[str, int, int]]], prunes: bool
) -> None:
    made = captured(calls, prunes=prunes)
    wanted, found = expected(made), verdict(library, made)
    assert found.startswith(wanted) and bool(found) == bool(wanted)


@settings(max_examples=500)
@given(calls=steps([*PLAIN, "early", "wait"]))
def test_it_says_so_where_edges_begin_before_an_end(
    library: ctypes.CDLL, calls: list[list[tuple[str, int, int]]]
) -> None:
    if not library.order_edges_have_data():
        pytest.skip("edges have no data there")
    made = captured(calls)
    wanted, found = expected(made), verdict(library, made)
    assert found.startswith(wanted) and bool(found) == bool(wanted)


FORKED = [("fork", 1, 0), ("launch", 0, 0), ("launch", 2, 0), ("join", 2, 0)]
AT_FIRST = ("record", 0, 0)
SIDEWAYS = [("wait", 1, 0), ("launch", 1, 0), ("join", 1, 0)]


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([[("launch", 0, 0)] * 3] * 50, ""),
        ([FORKED] * 50, ""),
        ([[]] * 3, ""),
        ([[AT_FIRST, ("launch", 0, 0)], *[SIDEWAYS] * 2], "call 2 of a graph begins before call 1"),
        ([FORKED, [("launch", 2, 0), ("join", 2, 0)]], "call 2 of a graph begins before call 1"),
        ([[("fork", 1, 0), ("launch", 2, 0)], [("join", 2, 0)]], "call 1 of a graph leaves work"),
    ],
    ids=["one stream", "forked and joined", "nothing", "first call", "half a call", "joined late"],
)
def test_the_ways_that_kernels_take(
    library: ctypes.CDLL, calls: list[list[tuple[str, int, int]]], says: str
) -> None:
    found = verdict(library, captured(calls))
    assert found.startswith(says) and bool(found) == bool(says)


EARLY_SIDE = [("fork", 1, 0), ("launch", 2, 0), ("early", 2, 0)]


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([[*EARLY_SIDE, ("wait", 0, 0)]], "call 1 of a graph returns"),
        (
            [[*EARLY_SIDE, ("wait", 1, 0), ("launch", 1, 0), ("join", 1, 0)]],
            "call 1 of a graph leaves",
        ),
        (
            [[*EARLY_SIDE, ("wait", 1, 0), ("launch", 1, 0), ("join", 1, 0), ("join", 2, 0)]],
            "call 1 of a graph begins",
        ),
        (
            [
                [
                    *EARLY_SIDE,
                    ("fork", 0, 0),
                    ("wait", 1, 0),
                    ("launch", 1, 0),
                    ("join", 1, 0),
                    ("join", 2, 0),
                ]
            ],
            "",
        ),
    ],
    ids=["waits for a launch", "another does", "joined, not forked", "forked and joined"],
)
def test_a_launch_is_no_end(
    library: ctypes.CDLL, calls: list[list[tuple[str, int, int]]], says: str
) -> None:
    if library.order_edges_have_data():
        found = verdict(library, captured(calls))
        assert found.startswith(says) and bool(found) == bool(says)


def test_a_capture_that_is_not_the_harness_s_is_told(library: ctypes.CDLL) -> None:
    made = captured([[("launch", 0, 0)]] * 2)
    for states in ([(ACTIVE, 5), (0, 0)], [(ACTIVE, 5), (ACTIVE, 6)]):
        assert verdict(library, made, [*states, (ACTIVE, 5), (ACTIVE, 5)]) == "left"


def test_work_that_nobody_captured_is_told(library: ctypes.CDLL) -> None:
    made = captured([[("launch", 0, 0)]])
    made.launch(0)  # behind the last mark
    assert "no call of it" in verdict(library, made)


def test_an_invalidated_capture_is_told_when_it_ends(library: ctypes.CDLL) -> None:
    """By the runtime: marks in it are no fault of their own."""
    order = ctypes.c_void_p(library.order_begin())
    for status in (ACTIVE, INVALIDATED, INVALIDATED):
        one, nothing = ctypes.c_size_t(1), ctypes.c_size_t(0)
        assert not library.order_mark(
            *(order, status, ctypes.c_ulonglong(5), places([0]), bytes(1)), *(nothing, one)
        )
    assert not library.order_left(order)
    library.order_end(order)
