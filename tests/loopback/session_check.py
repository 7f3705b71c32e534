"""What must hold of a session whose engine was killed, and of the processes that it had."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerneltui.agents.model_port import Usage
from kerneltui.agents.pricing import SHIPPED_PRICES, price_of
from kerneltui.engine.opening import load_state, read_events
from kerneltui.model.agent_event import ModelCallEnded, ModelCallGrew, ModelCallStarted
from kerneltui.model.event import encode_event
from kerneltui.model.state import State, fold
from kerneltui.session.repository import Session


def marked_path(mark: str) -> str:
    """A PATH with a mark in it: the variable that children of children get as well."""
    return f"{os.environ['PATH']}{os.pathsep}/{mark}"


def check_session(folder: Path, acknowledged: Mapping[int, str]) -> State:
    """Opens the session as its next writer would; returns its state.

    Everything that was called durable is there, the cached state is the fold, and git finds nothing wrong.
    """
    with Session.open(folder, writable=True) as session:
        events = list(read_events(session))
        state = load_state(session)
    for position, digest in acknowledged.items():
        assert position <= len(events), f"event {position} was acknowledged and is lost"
        found = hashlib.sha256(encode_event(events[position - 1])).hexdigest()
        assert found == digest, f"event {position} is not the one that was acknowledged"
    assert state.canonical() == fold(events).canonical(), "the snapshot differs from the fold"
    check_money(state, events)
    git = ["git", "-C", str(folder), "fsck", "--strict", "--no-dangling", "--no-progress"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return state


def check_money(state: State, events: list[Any]) -> None:
    """Adds the calls up anew: each is counted once, with what it did cost or what it may cost at most."""
    reserved: dict[int, int | None] = {}
    cost: dict[int, int] = {}
    for event in events:
        if isinstance(event, ModelCallStarted):
            assert event.number not in reserved, f"call {event.number} began twice"
            reserved[event.number] = event.reserved_micro_usd
        elif isinstance(event, ModelCallGrew):
            assert event.reserved_micro_usd > (reserved[event.number] or 0)
            reserved[event.number] = event.reserved_micro_usd
        elif isinstance(event, ModelCallEnded):
            assert event.number not in cost, f"call {event.number} ended twice"
            assert event.micro_usd is not None
            cost[event.number] = event.micro_usd
            if event.outcome == "ok" and event.attempts == 1:
                assert event.micro_usd == cost_of(event), f"call {event.number}"
            elif event.outcome == "lost":
                assert event.micro_usd == reserved[event.number]
    running = sum(reserved[number] or 0 for number in reserved if number not in cost)
    assert state.spent().micro_usd == sum(cost.values()) + running


def cost_of(event: ModelCallEnded) -> int:
    """What the tokens of a call in one attempt cost."""
    price = price_of(SHIPPED_PRICES, event.model)
    assert price is not None, event.model
    return price.cost(
        Usage(
            event.input_tokens,
            event.output_tokens,
            event.cache_read_tokens,
            event.cache_write_tokens,
        )
    )


def left_behind(mark: str) -> list[str]:
    """The commands of processes that have the mark in their environment."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{entry.name} {command}")
        except OSError:
            continue
    return found


def check_nothing_left(mark: str, seconds: float = 20) -> None:
    """Waits until no process with the mark is there."""
    end = time.monotonic() + seconds
    while (left := left_behind(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, f"still there: {left}"
