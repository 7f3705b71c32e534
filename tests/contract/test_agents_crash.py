"""The engine killed while agents work: money and state are right when the session is opened again.

`benchmarks/crash.py --agents --kills 200` is the same at random instants, in numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from loopback.engine_process import EngineProcess
from loopback.project import make_project
from loopback.script import Say, Step
from loopback.server import Loopback
from loopback.session_check import check_nothing_left, check_session, left_behind, marked_path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from live_engine import Terminal
from scripted_model import DESCRIBED, STAGE_A, STAGE_B, WINDOW, stated
from test_engine_loopback import ANCHOR, propose

from kerneltui.agents.model_port import Usage
from kerneltui.agents.pricing import SHIPPED_PRICES, price_of
from kerneltui.engine.launcher import running
from kerneltui.engine.opening import read_events
from kerneltui.engine.place import Place
from kerneltui.model.agent_event import ModelCallStarted
from kerneltui.model.candidate import Phase
from kerneltui.model.command import StopEngine
from kerneltui.model.event import Event
from kerneltui.model.state import State
from kerneltui.session.repository import Session

pytestmark = pytest.mark.slow


def answers() -> list[Step]:
    """A script that leads to three candidates, however often it is begun anew."""
    describe = Say("tool", json.dumps(DESCRIBED), "describe")
    idea = propose(
        reason="an idea",
        directive=stated(WINDOW),
        edits=[{"search": ANCHOR, "replace": f"inline int idea() {{ return 1; }}\n{ANCHOR}"}],
    )
    return [
        Step("describe", expect=("Describe it with the tool",), times=0, say=(describe,)),
        Step("stage A", expect=("Stage A\\.",), times=0, say=(propose(**STAGE_A),)),
        Step("stage B", expect=("Stage B\\.",), times=0, say=(propose(**STAGE_B),)),
        Step("idea", expect=("evolve regions",), times=0, say=(idea,)),
    ]


@dataclass
class Bench:
    """A session with agents behind a server, the engines that were started on it, and what they told."""

    folder: Path
    server: Loopback
    environment: dict[str, str]
    mark: str
    acknowledged: dict[int, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *options: str) -> EngineProcess:
        given = self.environment | {"ANTHROPIC_BASE_URL": self.server.url}
        engine = EngineProcess.start(self.folder, given, *options)
        self.started.append(engine.process)
        return engine

    def killed(self, condition: Callable[[list[str]], bool], *options: str) -> State:
        """The state after an engine was started, waited for and killed."""
        engine = self.start(*options)
        try:
            engine.until(condition)
        finally:
            engine.kill()
        return self.after(engine)

    def after(self, engine: EngineProcess) -> State:
        """The state that an ended engine has left; all of it is checked."""
        check_nothing_left(self.mark)
        self.acknowledged |= engine.acknowledged
        return check_session(self.folder, self.acknowledged)

    def events(self) -> list[Event]:
        with Session.open(self.folder, writable=False) as session:
            return list(read_events(session))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    mark = uuid.uuid4().hex
    environment = {
        "PATH": marked_path(mark),
        "ANTHROPIC_API_KEY": "sk-ant-loopback",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    with Loopback([]) as server:
        made = Bench(tmp_path / "session", server, environment, mark)
        yield made
        for process in made.started:
            process.kill()
            process.wait()


def told(line: str, times: int = 1) -> Callable[[list[str]], bool]:
    return lambda lines: lines.count(line) >= times


def in_mid_stream(kind: str) -> Step:
    """Stage A in a stream that goes on for minutes once some pieces have come."""
    whole = propose(**STAGE_A) if kind == "tool" else Say(kind, "x" * 24_000)
    return Step(kind, expect=("Stage A\\.",), say=(whole,), pace_ms=100)


def test_killed_in_the_middle_of_a_reply(bench: Bench) -> None:
    points = ["thinking", "text", "tool", "silence"]
    silence = Step("silence", expect=("Stage A\\.",), delay_ms=120_000)
    bench.server.steps += [*map(in_mid_stream, points[:3]), silence, *answers()]
    # The kernel is described in a call of a tool, too, before it is written.
    described = len(answers()[0].say[0].text) // 24 + 1
    lost: dict[str, int] = {}
    for point in points:
        pieces = 5 + (described if point == "tool" else 0)
        if point == "silence":
            state = bench.killed(lambda _: bench.server.wait_for("silence").step == "silence")
        else:
            state = bench.killed(told(f"heard {point}", pieces))
        (number,) = [key for key, call in state.calls.items() if not call.outcome]
        reserved = state.calls[number].reserved_micro_usd
        assert reserved
        assert state.spent().reserved == reserved
        lost[number] = reserved
        assert bench.server.wait_for(point).left.wait(120), "the line to the server was kept"

    engine = bench.start()
    assert engine.wait() == 0, engine.errors()
    state = bench.after(engine)
    finished(state)
    # Each of them counts once, with all that it may have cost, and is no part of any candidate.
    counted = {key: call.micro_usd for key, call in state.calls.items() if call.outcome == "lost"}
    assert counted == lost
    assert state.spent().reserved == 0
    paid = {number for c in state.candidates.values() for number in c.calls}
    assert not paid & set(map(int, lost))
    assert {call.outcome for call in state.calls.values()} == {"ok", "lost"}


def test_killed_in_a_further_attempt(bench: Bench) -> None:
    wrong = Say("tool", '{"reason": 3}', "propose")
    dear = {"input": 100, "output": 30_000}
    silence = Step("silence", expect=("Stage A\\.",), delay_ms=120_000)
    misused = Step("misused", expect=("Stage A\\.",), usage=dear, say=(wrong,))
    bench.server.steps += [misused, silence, *answers()]
    state = bench.killed(lambda _: bench.server.wait_for("silence").step == "silence")
    # What the first attempt did cost is not forgotten while the second one runs.
    call = state.calls["2"]
    assert not call.outcome
    price = price_of(SHIPPED_PRICES, call.model)
    assert price is not None
    paid = price.cost(Usage(input=100, output=30_000))
    began = next(e for e in bench.events() if isinstance(e, ModelCallStarted) and e.number == 2)
    assert call.reserved_micro_usd is not None
    assert began.reserved_micro_usd is not None
    assert call.reserved_micro_usd >= paid + began.reserved_micro_usd
    assert state.spent().reserved == call.reserved_micro_usd


def test_killed_between_a_reply_and_the_verdict(bench: Bench) -> None:
    bench.server.steps += answers()
    replied = bench.killed(told("holds model_call_ended"), "--hold", "model_call_ended:2")
    assert [call.outcome for call in replied.calls.values()] == ["ok", "ok"]
    assert list(replied.candidates) == [replied.base]

    written = bench.killed(told("holds commit"), "--hold", "commit:1")
    assert list(written.candidates) == [written.base]

    for kind in ("evaluation_started", "candidate_built"):
        state = bench.killed(told(f"holds {kind}"), "--hold", f"{kind}:1")
        assert list(state.candidates) == [state.base, "c0001"]

    engine = bench.start()
    assert engine.wait() == 0, engine.errors()
    state = bench.after(engine)
    finished(state)
    # A reply whose proposal was lost is paid for all the same, and belongs to nobody.
    assert all(state.calls[key] == call for key, call in replied.calls.items())
    paid = {number for c in state.candidates.values() for number in c.calls}
    assert 2 not in paid
    assert any("dropped c0001" in message.text for message in state.messages)
    assert state.candidates["c0001"].attempt == 3
    assert [c.attempt for c in state.candidates.values()][2:] == [1, 1]


@pytest.mark.timeout(600)
def test_killed_at_random_instants() -> None:
    kills = os.environ.get("KERNELTUI_KILL_ROUNDS", "8")
    script = Path(__file__).parents[2] / "benchmarks" / "crash.py"
    command = [sys.executable, str(script), "--agents", "--kills", kills, "--seed", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    assert "each is counted once" in done.stdout


@pytest.mark.timeout(600)
def test_a_real_engine_killed_with_ranks_at_work(bench: Bench, tmp_path: Path) -> None:
    """Real kernels in real ranks, started as the terminal starts an engine."""
    bench.server.steps += answers()
    place = Place(bench.folder, make_project(tmp_path, (256, 256, 1024)), exists=False)

    def engine() -> tuple[subprocess.Popen[bytes], Terminal]:
        given = {"session": str(place.session), "workload": str(place.workload), "target": "cpu"}
        how = {"agents": "claude", "seed": 1, "rule": "none", "candidates": 1, "time_ns": None}
        setup = tmp_path / "setup.json"
        setup.write_text(json.dumps(given | how | {"exists": (bench.folder / ".git").exists()}))
        environment = {**os.environ, **bench.environment, "ANTHROPIC_BASE_URL": bench.server.url}
        command = [sys.executable, "-m", "kerneltui.engine", str(setup)]
        with (tmp_path / "engine.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=environment, start_new_session=True, stdout=log, stderr=log
            )
        bench.started.append(process)
        end = time.monotonic() + 120
        while not running(place):
            assert process.poll() is None, log_of(tmp_path)
            assert time.monotonic() < end, log_of(tmp_path)
            time.sleep(0.05)
        return process, Terminal(place)

    def kill(process: subprocess.Popen[bytes], terminal: Terminal) -> State:
        assert len(left_behind(bench.mark)) >= 3, "the engine has no judge and no fork server"
        process.kill()
        process.wait()
        terminal.socket.close()
        check_nothing_left(bench.mark)
        return check_session(bench.folder, {})

    process, terminal = engine()
    terminal.socket.settimeout(200)
    terminal.wait(lambda state: is_at(state, "c0001", Phase.CHECKING, Phase.MEASURING))
    assert any("forkserver" in one for one in left_behind(bench.mark))
    state = kill(process, terminal)
    assert {call.outcome for call in state.calls.values()} <= {"ok", ""}

    process, terminal = engine()
    terminal.socket.settimeout(200)
    terminal.wait(lambda state: is_at(state, "c0001", Phase.MEASURED))
    assert terminal.state.candidates["c0001"].attempt == 2
    assert terminal.ask(StopEngine())["ok"]
    assert process.wait(120) == 0
    terminal.socket.close()
    check_nothing_left(bench.mark)
    assert check_session(bench.folder, {}).canonical() == terminal.state.canonical()


def is_at(state: State, candidate: str, *phases: Phase) -> bool:
    known = state.candidates.get(candidate)
    assert known is None or known.phase is not Phase.FAILED, known
    return known is not None and known.phase in phases


def log_of(project: Path) -> str:
    return (project / "engine.log").read_text(encoding="utf-8", errors="replace")[-2000:]


def finished(state: State) -> None:
    """The search has come to its end, with everything measured."""
    assert state.ended == "the budget of 3 candidates is used"
    phases = [c.phase for c in state.candidates.values() if c.id != state.base]
    assert phases == [Phase.MEASURED] * 3
