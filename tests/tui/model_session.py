"""The made-up session with language models: calls, money, failed proposals, messages, a running stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tui_record import record
from tui_session import START, Session

from kerneltui.model.agent_event import (
    Migrated,
    ModelCallEnded,
    ModelCallStarted,
    Move,
    ProposalFailed,
)
from kerneltui.model.candidate import AgentName, Origin
from kerneltui.model.command import Progress
from kerneltui.model.event import (
    AgentMessage,
    BudgetSet,
    CandidateProposed,
    SessionOpened,
    SteerDelivered,
    Steered,
)

OPUS, SONNET, LOCAL = "claude-opus-5-5", "claude-sonnet-5-5", "qwen4-coder"
ARMS: Mapping[tuple[str, bool], Any] = {
    ("c0028", True): {"arm": OPUS, "island": 1, "inspirations": ("c0014", "c0012")},
    ("c0028", False): {"arm": OPUS, "island": 1},
    ("c0029", True): {"arm": OPUS, "island": 2},
    ("c0029", False): {"arm": LOCAL, "island": 2},
}


def with_models(
    start: int = START, *, priced: bool = True, budget: int | None = 5_000_000
) -> Session:
    """Returns the session; the last three candidates come from models, the slow path asks again."""
    s = record(start)
    for index, event in enumerate(s.events):
        if isinstance(event, SessionOpened):
            s.events[index] = replace(event, agents="claude")
        if isinstance(event, BudgetSet):
            s.events[index] = replace(event, micro_usd=budget)
        if isinstance(event, CandidateProposed) and event.id in ("c0028", "c0029"):
            numbers = (1, 2, 3) if event.id == "c0028" else (4,)
            origin = Origin.REWRITE if event.id == "c0028" else Origin.CROSSOVER
            s.events[index] = replace(event, calls=numbers, origin=origin, **ARMS[event.id, priced])
        elif isinstance(event, CandidateProposed) and event.agent is AgentName.SLOW:
            island = 1 + int(event.id[1:]) % 2
            s.events[index] = replace(event, arm="offline", island=island)
    first = next(i for i, e in enumerate(s.events) if getattr(e, "id", "") == "c0028")
    before, after = s.events[:first], s.events[first:]
    s.events = before
    at = before[-1].at

    def call(
        number: int, role: str, model: str, purpose: str, *, outcome: str = "ok", cost: int = 90_000,
        output: int = 2_400, reason: str = "", end: bool = True,
    ) -> None:  # fmt: skip
        price = cost if priced or model != LOCAL else None
        agent = "fast" if role == "judge" else role
        s.add(
            ModelCallStarted(
                at=at + number, number=number, agent=agent, role=role, model=model,
                purpose=purpose, reserved_micro_usd=None if price is None else cost * 2,
            )
        )  # fmt: skip
        if end:
            s.add(
                ModelCallEnded(
                    at=at + number, number=number, model=model, outcome=outcome, input_tokens=1_900,
                    output_tokens=output, cache_read_tokens=14_200, micro_usd=price, reason=reason,
                )
            )  # fmt: skip

    call(1, "slow", OPUS, "rewrite of c0025", cost=131_000)
    call(2, "slow", OPUS, "rewrite of c0025, repair 1", cost=47_000, output=700)
    call(3, "judge", SONNET, "diagnose c0024", cost=21_000)
    call(4, "slow", OPUS if priced else LOCAL, "crossover of c0025 with c0014")
    s.events += after
    at = s.at
    call(
        5,
        "slow",
        OPUS,
        "diff of c0028",
        outcome="refused",
        cost=30_000,
        reason="the model declined",
    )
    s.add(
        ProposalFailed(
            at=s.wait(1),
            agent="slow",
            parent="c0028",
            reason="refused: the model declined",
            calls=(5,),
            arm=OPUS,
        )
    )
    s.add(Migrated(at=s.wait(1), results=24, moves=(Move("c0028", (2,)),)))
    s.add(Steered(at=s.wait(1), number=3, to="slow", text="keep 96 rows, look at the tall shape"))
    s.add(
        SteerDelivered(
            at=s.wait(1),
            number=3,
            agent="slow",
            candidate="c0030",
            answer="kept; the tall shape waits for its flags",
        )
    )
    s.add(Steered(at=s.wait(1), number=4, to="all", text="goal: no shape slower than torch + gloo"))
    s.add(AgentMessage(at=s.wait(1), agent="fast", text="c0024: rank 1 reads a flag too early"))
    at = s.wait(1)
    call(6, "slow", OPUS, "rewrite of c0028", cost=40_000, end=False)
    s.at = at
    return s


def stream() -> list[Progress]:
    """What the running call has said so far."""
    thinking = (
        "The tall shape spends a fifth of its time on flags. With 96 rows there are four chunks "
        "a rank; the last one is published after the multiply, so the peer waits for it. "
    )
    text = "Publish the last chunk in two halves, so that the peer begins earlier."
    tool = '{"reason": "last chunk in halves", "edits": [{"search": "publish(flag, epoch);", "replace": "'
    code = "const int64_t half = rows / 2;\\npublish(flag + 0, epoch);\\npublish(flag + 1, epoch);"
    parts = (("thinking", thinking), ("text", text), ("tool", tool), ("tool", code))
    return [
        Progress("phase", "slow", "thinking"),
        Progress("phase", "fast", "landed at c0002"),
        *(
            Progress("stream", f"slow:{kind}", piece)
            for kind, text in parts
            for piece in halves(text)
        ),
    ]


def halves(text: str) -> tuple[str, str]:
    """A text in two pieces, as a stream brings it."""
    return text[: len(text) // 2], text[len(text) // 2 :]
