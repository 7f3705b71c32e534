"""The made-up session itself: what was proposed, measured and decided, and the logs of what failed."""

from __future__ import annotations

from dataclasses import replace

from tui_kernels import Kernel
from tui_session import START, Session

from kerneltui.model.candidate import AgentName, Origin
from kerneltui.model.event import (
    AgentMessage,
    ConstraintKind,
    ConstraintSet,
    Decision,
    SteerDelivered,
    Steered,
)
from kerneltui.model.measurement import (
    FailureKind,
    Stage,
)


def record(start: int = START) -> Session:
    """Returns the session: 31 candidates, four of them still to be decided, one on the bench."""
    s = Session(at=start)
    s.open()
    base = Kernel()
    s.whole(
        "c0002",
        "c0001",
        base,
        "rows written to the peer's window",
        0.92,
        agent=AgentName.FAST,
        origin=Origin.TRANSFORM,
    )
    s.decide(Decision.ACCEPT, "c0002", "lands the device-initiated form")
    message = "c0002 is verified: the rank stores its rows into its peer's window itself."
    s.add(AgentMessage(at=s.wait(1), agent="fast", text=message))
    chunk24 = Kernel(chunk=24)
    s.whole("c0003", "c0002", chunk24, "CHUNK_ROWS 8 -> 24", 0.995, generation=1)
    s.whole("c0004", "c0002", Kernel(kc=512), "KC 128 -> 512", 0.90, generation=1)
    s.decide(Decision.REJECT, "c0004")
    s.decide(Decision.ACCEPT, "c0003")
    split = Kernel("split_put_wait", "flag_per_chunk", "COPY_MEMCPY", 24, 128)
    s.whole("c0005", "c0003", split, "publish each chunk when it is multiplied", 1.21, generation=2)
    s.propose(
        "c0006",
        "c0003",
        Kernel(chunk=192, sync="flag_per_chunk"),
        "a flag for every chunk",
        generation=2,
    )
    s.start("c0006")
    s.build("c0006")
    s.fail(
        "c0006",
        Stage.VERIFY,
        FailureKind.MISMATCH,
        "rank 1 stale: 128 rows of 1000x777x333 still hold the values of the call before",
        "9f1c",
    )
    s.decide(Decision.ACCEPT, "c0005")
    stream = Kernel("split_put_wait", "flag_per_chunk", "COPY_STREAM", 24, 128, fence=True)
    s.propose(
        "c0007",
        "c0005",
        Kernel("split_put_wait", "flag_per_chunk", "COPY_STREAM", 24, 128),
        "non-temporal stores to the peer",
        generation=3,
    )
    s.start("c0007")
    s.fail(
        "c0007",
        Stage.COMPILE,
        FailureKind.COMPILE_ERROR,
        "kernel.cpp:44:5: error: '_mm_sfence' was not declared in this scope",
        "77ab",
    )
    s.whole(
        "c0008", "c0005", stream, "non-temporal stores, fence before the flag", 1.33, generation=3
    )
    s.decide(Decision.ACCEPT, "c0008")
    s.add(
        Steered(at=s.wait(5), number=1, to="slow", text="try larger chunks, the flag costs a line")
    )
    s.add(
        SteerDelivered(
            at=s.wait(2),
            number=1,
            agent="slow",
            answer="next: CHUNK_ROWS 48 and 96 on c0008",
            candidate="c0009",
        )
    )
    s.add(
        ConstraintSet(at=s.wait(1), kind=ConstraintKind.BAN, field="COPY_KIND", value="COPY_MOVSB")
    )
    number = 9
    parent = "c0008"
    chunks = (48, 96, 192, 24)
    for index in range(16):
        id_ = f"c{number:04d}"
        number += 1
        kernel = Kernel(
            "split_put_wait",
            "flag_per_chunk",
            "COPY_STREAM" if index % 3 else "COPY_MEMCPY",
            chunks[index % 4],
            (128, 256, 512)[index % 3],
            packed=index > 5,
            fence=True,
        )
        changed = [
            f"{key} {old} -> {new}"
            for (key, old), new in zip(
                s.kernels[parent].configuration().items(),
                kernel.configuration().values(),
                strict=True,
            )
            if old != new
        ]
        reason = ", ".join(changed) or "rows of A packed once per chunk"
        agent = AgentName.FAST if index % 5 == 4 else AgentName.SLOW
        if index in (3, 11):
            s.propose(id_, parent, kernel, reason, generation=4 + index // 4, agent=agent)
            s.start(id_)
            s.build(id_)
            s.verify(id_)
            s.fail(id_, Stage.SCREEN, FailureKind.TOO_SLOW, "1.8x the time of the incumbent")
            continue
        speed = s.speed[s.incumbent] * (1 + (0.035 if index in (1, 6, 13) else -0.02 * (index % 4)))
        s.whole(id_, parent, kernel, reason, speed, generation=4 + index // 4, agent=agent)
        if index in (1, 6, 13):
            s.decide(Decision.ACCEPT, id_, by="rule" if index == 6 else "human")
            parent = id_
        else:
            s.decide(Decision.REJECT, id_, "slower on the small shape" if index == 2 else "")
    last = s.incumbent
    kernel = Kernel(
        "split_put_wait", "flag_per_chunk", "COPY_STREAM", 48, 512, packed=True, fence=True
    )
    s.whole("c0025", last, kernel, "B packed by the first chunk that needs it", 1.557, generation=8)
    s.whole(
        "c0026",
        last,
        Kernel("split_put_wait", "flag_per_chunk", "COPY_STREAM", 24, 256, packed=True, fence=True),
        "faster than the bound",
        3.9,
        generation=8,
        quarantine="faster than the bound on 4 of 5 shapes",
    )
    s.whole(
        "c0027",
        last,
        Kernel("split_put_wait", "world", "COPY_STREAM", 96, 256, packed=True, fence=True),
        "one flag for all rows",
        s.speed[last] * 1.004,
        generation=8,
        wide=2.2,
    )
    s.decide(Decision.ACCEPT, "c0025")
    s.whole(
        "c0028",
        "c0025",
        Kernel("split_put_wait", "flag_per_chunk", "COPY_STREAM", 96, 512, packed=True, fence=True),
        "CHUNK_ROWS 48 -> 96, fewer flags for the tall shape",
        1.613,
        generation=9,
        inspiration="c0014",
    )
    s.whole(
        "c0031",
        "c0025",
        replace(s.kernels["c0025"], sync="world", chunk=24),
        "one flag for all rows, smaller chunks",
        s.speed["c0025"] * 1.004,
        generation=9,
        wide=2.2,
    )
    note = (
        "c0025 spends a fifth of the tall shape on flags: one line per chunk and peer. Twice the "
        "rows halve them; a chunk of 96 rows still fits the level-2 cache with KC 512."
    )
    s.add(AgentMessage(at=s.wait(1), agent="slow", text=note))
    s.propose(
        "c0029",
        "c0025",
        Kernel("fused", "flag_per_chunk", "COPY_STREAM", 48, 512, packed=True, fence=True),
        "tiles stored to the peer from registers",
        generation=9,
    )
    s.start("c0029")
    s.build("c0029")
    s.verify("c0029")
    s.propose(
        "c0030",
        "c0028",
        Kernel("split_put_wait", "flag_per_chunk", "COPY_STREAM", 96, 256, packed=True, fence=True),
        "KC 512 -> 256",
        generation=10,
        agent=AgentName.FAST,
    )
    s.add(Steered(at=s.wait(1), number=2, to="fast", text="also check odd row counts on rank 1"))
    return s


LOGS = {
    "9f1c": "verify: 1000x777x333, seed 2 of 6, rank 1\n"
    "rows 500..627 differ from the expected product\n"
    "they equal the product of epoch 6; the flag of chunk 0 was set before the rows came\n",
    "77ab": "kernel.cpp: In function 'void publish(uint64_t*, uint64_t)':\n"
    "kernel.cpp:44:5: error: '_mm_sfence' was not declared in this scope\n"
    "   44 |     _mm_sfence();\n      |     ^~~~~~~~~~\n",
}
