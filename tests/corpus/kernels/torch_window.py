"""GEMM + AllGather in torch: each rank multiplies in chunks, copies each chunk to its peers and flags it.

The same file runs on the CPU and on GPUs. On GPUs the copies are the copy engine's and the flags are
enqueued, so that the host never waits; copies on a side stream go on while the next chunk is computed.
"""
# ruff: noqa: ANN001, ANN201, D103 - the contract says what they are and get

# kerneltui: directive backend copy_engine
# kerneltui: directive issuer thread
# kerneltui: directive placement from PLACEMENT
# kerneltui: directive sync flag_per_chunk
# kerneltui: directive chunk_bytes = CHUNK_ROWS * N * 2

from contextlib import nullcontext

import torch

# kerneltui: tunable PLACEMENT in sequential stream_overlap
PLACEMENT = "stream_overlap"
# kerneltui: tunable CHUNK_ROWS in 64 128 256 512 1024 2048
CHUNK_ROWS = 512
# kerneltui: runtime FIRST_PEER in 0 1 default 1

LINE = 16  # words: flags of two ranks do not share a cache line


def requirements(problem):
    return {"signal_words": LINE * problem.ranks, "side_streams": 1}


def setup(context):
    if len(context.buffers) < 2:
        raise ValueError("needs two buffer sets, since a peer may be one call ahead")
    rows = context.dimensions["M"]
    first = context.rank * rows // context.ranks
    last = (context.rank + 1) * rows // context.ranks
    chunks = [(low, min(low + CHUNK_ROWS, last)) for low in range(first, last, CHUNK_ROWS)]
    start = context.rank * context.tunables["FIRST_PEER"]
    order = [(start + step) % context.ranks for step in range(context.ranks)]
    side = PLACEMENT == "stream_overlap" and len(context.side_streams) > 0
    return {
        "chunks": chunks,
        "first": first,
        "peers": [peer for peer in order if peer != context.rank],
        "copies": context.side_streams[0] if side else None,
        "events": [torch.cuda.Event() for _ in range(1 + len(chunks))] if side else [],
    }


def run(context, state, set, epoch):
    a, b, c = (context.buffers[set][name] for name in ("A", "B", "C"))
    copies, first = state["copies"], state["first"]
    # kerneltui: evolve begin exchange
    for number, (low, high) in enumerate(state["chunks"]):
        torch.mm(a[low - first : high - first], b, out=c[low:high])
        if copies is not None:
            state["events"][number].record(context.stream)
            copies.wait_event(state["events"][number])
        with torch.cuda.stream(copies) if copies is not None else nullcontext():
            for peer in state["peers"]:
                context.peers[set]["C"][peer][low:high].copy_(c[low:high], non_blocking=True)
    with torch.cuda.stream(copies) if copies is not None else nullcontext():
        for peer in state["peers"]:
            context.raise_flag(peer, LINE * context.rank, epoch)
    if copies is not None:
        state["events"][-1].record(copies)
        context.stream.wait_event(state["events"][-1])
    for peer in state["peers"]:
        context.wait_flag(LINE * peer, epoch)
    # kerneltui: evolve end
