"""The terminal killed while agents stream: the engine goes on, and who attaches again sees what it knows."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback.engine_process import EngineProcess
from loopback.script import Step
from loopback.server import Loopback
from loopback.session_check import check_nothing_left, check_session, marked_path
from test_tmux_terminal import ROOT, Tmux

sys.path.insert(0, str(ROOT / "tests" / "unit"))

from live_engine import Terminal
from test_engine_loopback import endless_steps

from kerneltui.engine.launcher import running
from kerneltui.engine.place import Place
from kerneltui.model.command import StopEngine
from kerneltui.tui.draw.spend import spend_line

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]
KILLS = int(os.environ.get("KERNELTUI_TERMINAL_KILLS", "8"))
CANDIDATES = 40


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    server = Tmux(tmp_path)
    yield server
    end(server)


def end(tmux: Tmux) -> None:
    subprocess.run(["tmux", "-L", tmux.name, "kill-server"], capture_output=True, check=False)


def attach(tmux: Tmux, place: Place) -> int:
    """Opens the session in a new tmux; the process of the terminal."""
    line = f"exec {sys.executable} -m kerneltui open {place.session}"
    tmux.run("new-session", "-d", "-x", "140", "-y", "40", line)
    return int(tmux.run("display-message", "-p", "#{pane_pid}"))


def kill(tmux: Tmux, terminal: int, how: str) -> None:
    """Ends the terminal as a dropped line or a killed process does."""
    if how == "server":
        end(tmux)
    else:
        os.kill(terminal, signal.SIGKILL if how == "kill" else signal.SIGHUP)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{terminal}").exists():
        assert time.monotonic() < deadline, f"the terminal outlives {how}"
        time.sleep(0.02)
    end(tmux)


class Observer:
    """A second terminal that only listens: what the engine knows, event by event."""

    def __init__(self, place: Place) -> None:
        self.terminal = Terminal(place, readonly=True)

    def now(self):
        self.terminal.socket.settimeout(0.05)
        try:
            while True:
                self.terminal.until(lambda frame: False)
        except TimeoutError:
            return self.terminal.state

    def shown_by(self, tmux: Tmux) -> bool:
        """Whether the screen has the spend, the candidates and the incumbent of this moment."""
        state, screen = self.now(), tmux.screen()
        count = f"{len(state.candidates)} ({len(list(state.pending()))} pending"
        best = f"{state.incumbent} {state.state_of(state.incumbent)}"
        spent = "".join(text for text, _ in spend_line(state))
        return spent in screen and count in screen and best in screen


def test_terminals_that_are_killed_lose_nothing(tmux: Tmux, tmp_path: Path) -> None:
    dice, mark = random.Random(11), uuid.uuid4().hex
    place = Place(tmp_path / "session", None, exists=True)
    silence = Step("silence", times=0, delay_ms=600_000)
    with Loopback([*endless_steps(pace_ms=20), silence]) as server:
        environment = {
            "PATH": marked_path(mark),
            "ANTHROPIC_API_KEY": "sk-ant-loopback",
            "ANTHROPIC_BASE_URL": server.url,
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }
        options = ("--candidates", str(CANDIDATES), "--slow", "0.1", "--stay")
        engine = EngineProcess.start(place.session, environment, *options)
        try:
            engine.until(lambda lines: "heard tool" in lines)
            observer = Observer(place)
            for number in range(KILLS):
                terminal = attach(tmux, place)
                if number % 2:  # else it dies on its way to the first picture
                    tmux.until(lambda: observer.shown_by(tmux), "the engine's spend and state")
                time.sleep(dice.uniform(0.0, 1.0))
                kill(tmux, terminal, dice.choice(["kill", "hangup", "server"]))
                assert engine.process.poll() is None, engine.errors()
            before = observer.now()
            attach(tmux, place)
            tmux.until(lambda: observer.shown_by(tmux), "the engine's spend and state")
            observer.terminal.socket.settimeout(60)
            observer.terminal.wait(lambda state: bool(state.ended))
            tmux.until(lambda: observer.shown_by(tmux), "the end of the search")
            assert (
                list(before.candidates) == list(observer.now().candidates)[: len(before.candidates)]
            )
            end(tmux)
            last = Terminal(place)
            seen = last.state.canonical()
            assert seen == observer.now().canonical()
            assert last.ask(StopEngine())["ok"]
            assert engine.wait() == 0, engine.errors()
            last.socket.close()
            observer.terminal.socket.close()
        finally:
            engine.kill()
    assert not running(place)
    check_nothing_left(mark)
    state = check_session(place.session, engine.acknowledged)
    assert state.canonical() == seen
    assert {call.outcome for call in state.calls.values()} <= {"ok", "stopped"}
    assert len(state.candidates) == CANDIDATES + 1
