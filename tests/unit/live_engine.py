"""A running engine for tests, and a client of it as the terminal is one."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_fakes import FakeEvaluator

from kerneltui.engine.connection import connect
from kerneltui.engine.opening import Start
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.command import Command, StopEngine, TakeOver, encode_command
from kerneltui.model.event import AcceptRule, decode_event
from kerneltui.model.frames import PROTOCOL, FrameReader, encode_frame
from kerneltui.model.record import canonical_json, from_plain
from kerneltui.model.state import State

WORKLOAD = Path(__file__).parents[2] / "workloads" / "gemm_allgather"


def setup_of(
    session: Path,
    evaluator: FakeEvaluator,
    *,
    candidates: int = 8,
    rule: AcceptRule = AcceptRule.AUTO,
    agents: str = "offline",
    leave: bool = True,
    undecided: int | None = None,
) -> EngineSetup:
    place = Place(session, WORKLOAD, exists=(session / ".git").exists())
    start = Start("cpu", agents, 1, rule, candidates, None)
    options = Options(undecided=undecided, leave_when_done=leave)
    return EngineSetup(place, start, options, lambda workload, spec: evaluator, take_signals=False)


def git(session: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(session), *arguments], check=True, capture_output=True, text=True
    )
    return result.stdout


class Terminal:
    """A client as the terminal is one: folds events, sends commands, waits for what it needs."""

    def __init__(self, place: Place, readonly: bool = False) -> None:
        self.socket = connect(place.socket)
        self.socket.settimeout(20)
        self.reader = FrameReader()
        self.frames: list[dict] = []
        self.state = State()
        self.writer = False
        self.number = 0
        hello = {"frame": "hello", "protocol": PROTOCOL, "readonly": readonly}
        self.socket.sendall(encode_frame(hello))
        self.until(lambda frame: frame["frame"] == "welcome")

    def until(self, holds) -> dict:
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                self.take(frame)
                if holds(frame):
                    return frame
            data = self.socket.recv(65536)
            assert data, "the engine hung up"
            self.frames += self.reader.feed(data)

    def take(self, frame: dict) -> None:
        if frame["frame"] == "welcome":
            self.state = from_plain(State, frame["state"])
            self.writer = frame["writer"]
        elif frame["frame"] == "event":
            assert frame["position"] == self.state.position + 1
            self.state.apply(decode_event(canonical_json(frame["event"])))
        elif frame["frame"] == "writer":
            self.writer = frame["writer"]

    def ask(self, command: Command) -> dict:
        self.number += 1
        number = self.number
        frame = {"frame": "command", "id": number, "command": encode_command(command)}
        self.socket.sendall(encode_frame(frame))
        return self.until(lambda f: f["frame"] == "reply" and f["id"] == number)

    def wait(self, holds) -> None:
        if not holds(self.state):
            self.until(lambda frame: holds(self.state))


@contextmanager
def live_engine(session: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts engines with a terminal, and ends them; the evaluation answers at once."""
    started: list[threading.Thread] = []
    terminals: list[Terminal] = []

    def start(evaluator: FakeEvaluator, **options) -> Terminal:
        setup = setup_of(session, evaluator, leave=False, **options)
        thread = threading.Thread(target=run_engine, args=(setup,), daemon=True)
        thread.start()
        started.append(thread)
        end = time.monotonic() + 60
        while True:
            try:
                terminals.append(Terminal(setup.place))
                return terminals[-1]
            except OSError:
                assert time.monotonic() < end, "no engine"
                time.sleep(0.02)

    yield start
    place = Place(session, WORKLOAD, exists=True)
    for thread in started:
        if thread.is_alive():
            terminal = Terminal(place)
            terminal.ask(TakeOver())
            terminal.ask(StopEngine())
            thread.join(60)
            assert not thread.is_alive()
            terminal.socket.close()
    for terminal in terminals:
        terminal.socket.close()
