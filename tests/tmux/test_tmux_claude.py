"""Claude from the keyboard: a scripted model behind real HTTP, real compiles and timings, a real terminal."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from loopback.asked import added_line, crossed, parent_in, region_of, stated_of
from loopback.project import GATHERING, make_project
from loopback.script import Say, Step
from loopback.server import Loopback
from test_tmux_terminal import ROOT, Tmux

sys.path.insert(0, str(ROOT / "tests" / "unit"))

import rough_kernels
from rough_kernels import LANDED, PLAIN_SEED
from test_engine_agents import WINDOW, events_of, stated
from test_engine_loopback import ANCHOR, KINDS, fast_steps, propose

from kerneltui.engine.evaluator import make_evaluator
from kerneltui.engine.launcher import running
from kerneltui.engine.opening import Start
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.agent_event import ModelCallEnded, ProposalFailed
from kerneltui.model.candidate import AgentName, Origin, Phase
from kerneltui.model.event import AcceptRule, CandidateMeasured, Event, SteerDelivered
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.measurement import Measurement, Stage
from kerneltui.model.state import State, fold
from kerneltui.model.statistics import Verdict

pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing: apt install tmux"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    make_project(tmp_path, GATHERING)
    return tmp_path


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    server = Tmux(tmp_path)
    yield server
    subprocess.run(["tmux", "-L", server.name, "kill-server"], capture_output=True, check=False)


def test_what_the_model_proposes_is_measured_and_accepted_from_the_keyboard(
    project: Path, tmux: Tmux
) -> None:
    names = ("describe", "unproven", "stage A", "stage B")
    steps = [step for step in fast_steps() if step.name in names]
    good = propose(reason="stores to peers", directive=stated(WINDOW), rewrite=WINDOW)
    steps[-1] = Step("stage B", expect=("Stage B\\.",), say=(good,))
    idea = propose(
        reason="nothing new",
        directive=stated(WINDOW),
        edits=[{"search": ANCHOR, "replace": f"inline int idea() {{ return 1; }}\n{ANCHOR}"}],
    )
    steps.append(Step("slow", expect=("evolve regions",), times=0, say=(idea,)))
    with Loopback(steps) as server:
        environment = [
            f"ANTHROPIC_BASE_URL={server.url}",
            "ANTHROPIC_API_KEY=sk-ant-loopback",
            f"XDG_CONFIG_HOME={project / 'config'}",
            f"XDG_CACHE_HOME={project / 'cache'}",
        ]
        command = ["env", *environment, sys.executable, "-m", "kerneltui", "open"]
        line = " ".join(
            [*command, "workloads/gemm_allgather", "--target", "cpu", "--agents", "claude"]
        )
        tmux.run(
            "new-session", "-d", "-c", str(project), "-x", "120", "-y", "40", f"{line}; sleep 60"
        )
        tmux.until(lambda: measured(tmux, "c0002"), "c0002 measured", seconds=800)
        session = next((project / "sessions").iterdir())
        accept(tmux, "c0002", measurement_of(session, "c0002"))
        stop_engine(tmux, Place(session, project / "workloads" / "gemm_allgather", exists=True))
        main = git(session, "log", "-1", "--format=%B", "main")
        candidate = git(session, "log", "-1", "--format=%B", "refs/kerneltui/candidates/c0002")
    assert main.startswith("Accept c0002: stage B: stores to peers")
    assert "Kerneltui-Decision: human" in main
    assert "Kerneltui-Model: " in candidate
    assert "Kerneltui-Directive-backend: lsa" in candidate
    kernel = git(session, "show", "main:kernels/gemm_allgather/kernel.cpp")
    assert kernel.strip() == WINDOW.strip()


def improve(kind: Origin, number: int, question: str) -> list[Say]:
    """Makes the kernel in a question faster, the product of the other one's if it is a crossover."""
    parent = parent_in(question)
    line = f"static const int {kind}_{number} = {number};"  # of no other program
    fields: dict[str, Any] = {"directive": stated_of(parent), "answer": "there is one barrier less"}
    if kind is Origin.DIFF:
        wider = {"search": "constexpr int columns = 8;", "replace": "constexpr int columns = 64;"}
        known = wider["search"] in parent.source
        fields["edits"] = [added_line(parent, line), *([wider] if known else [])]
    else:
        product = region_of(parse_kernel(WINDOW), "product")
        if kind is Origin.CROSSOVER:
            product = crossed(question, "product")
        fields |= {"region": "product", "rewrite": f"{line}\n{product}"}
    return [propose(reason=f"{kind} {number}", **fields)]


def rough_steps(decided: threading.Event) -> list[Step]:
    """What the model says: both paths, and notes. The slow path's proposals take until the human decided."""
    notes = Say("tool", json.dumps({"notes": "Wider sums help."}), "write_notes")
    return [
        *fast_steps(rough_kernels.BAD, rough_kernels.FOUND, PLAIN_SEED, LANDED),
        *(
            Step(f"{kind} {number}", expect=(asked,), until=decided,
                 say=partial(improve, kind, number))
            for number in range(16)
            for kind, asked in KINDS.items()
        ),
        Step("notes", expect=("^tool write_notes$",), times=0, say=(notes,)),
    ]  # fmt: skip


class RoughDay:
    """The session of the loopback's rough day, with real compiles and timings."""

    def __init__(self, project: Path) -> None:
        self.folder = project / "session"
        workload = make_project(project, rough_kernels.SHAPE)
        rough_kernels.make_workload(workload)
        self.setup = EngineSetup(
            Place(self.folder, workload, exists=False),
            # With this seed the slow path is asked for a diff, a rewrite and a crossover in turn, and for
            # more crossovers then: on a busy machine a parent may be too good to be believed.
            Start("cpu", "claude", 21644, AcceptRule.NONE, 13, None),
            Options(ahead=0),
            make_evaluator,
            take_signals=False,
            models_alone=True,
            on_event=self._hear,
        )
        self.measured: dict[str, Measurement] = {}
        self.state = State()
        self._ended: list[tuple[State, str, Exception | None]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.until(lambda: self.state.session, "the session")

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits as long as the engine goes on: how long that takes is the machine's matter."""
        while not condition():
            assert self._thread.is_alive(), f"the engine is gone before {what}: {self._ended}"
            assert not self.state.ended, f"the search ended before {what}: {self.state.ended}"
            time.sleep(0.05)

    def end(self) -> State:
        self._thread.join(120)
        state, _, failure = self._ended[0]
        assert failure is None
        return state

    def from_slow_path(self) -> dict[str, Measurement]:
        """What the slow path made, as measured against the kernel with which the fast path landed."""
        made = self.state.candidates
        return {
            name: found
            for name, found in self.measured.items()
            if made[name].agent is AgentName.SLOW and found.against == "c0005"
        }

    def kinds(self) -> set[Origin]:
        return {self.state.candidates[name].origin for name in self.from_slow_path()}

    def _hear(self, event: Event, state: State) -> None:
        self.state = state
        if isinstance(event, CandidateMeasured):
            self.measured[event.id] = event.measurement

    def _run(self) -> None:
        self._ended.append(run_engine(self.setup))


@pytest.fixture
def decided() -> threading.Event:
    """Is set once the human has decided about the kernel of the fast path."""
    return threading.Event()


@pytest.fixture
def server(
    tmp_path: Path, decided: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Loopback]:
    """A server with the script of the rough day."""
    settings = tmp_path / "config" / "kerneltui" / "agents.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("[limits]\nfirst_wait_ms = 20\nreasks = 1\n")
    with Loopback(rough_steps(decided)) as server:
        for name, value in {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": "sk-ant-loopback",
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }.items():
            monkeypatch.setenv(name, value)
        yield server


def test_a_rough_day_is_compiled_measured_steered_and_won_from_the_keyboard(
    tmp_path: Path, tmux: Tmux, server: Loopback, decided: threading.Event
) -> None:
    day = RoughDay(tmp_path)
    day.start()
    line = f"{sys.executable} -m kerneltui open {day.folder}; sleep 60"
    tmux.run("new-session", "-d", "-c", str(tmp_path), "-x", "120", "-y", "40", line)
    day.until(lambda: "c0003" in tmux.screen(), "the first repair")
    tmux.keys("s")
    tmux.type("@slow fewer barriers, please")
    tmux.keys("Enter")
    tmux.until(lambda: bool(day.state.steers), "the message")
    day.until(lambda: "c0005" in day.measured, "the repaired kernel")
    day.until(lambda: measured(tmux, "c0005"), "c0005 on the screen")
    accept(tmux, "c0005", day.measured["c0005"])
    decided.set()
    day.until(lambda: day.kinds() == set(KINDS), "a diff, a rewrite and a crossover")
    found = day.from_slow_path()
    believed = [name for name, one in found.items() if one.acceptable_by_rule]
    winner = min(believed or found, key=lambda name: found[name].geomean.estimate)
    day.until(lambda: measured(tmux, winner), f"{winner} on the screen")
    accept(tmux, winner, found[winner])
    ask_to_stop(tmux)
    state = day.end()
    assert not server.problems

    events = events_of(day.folder)
    assert fold(events).canonical() == state.canonical()
    made = state.candidates
    fast = [candidate for candidate in made.values() if candidate.agent is AgentName.FAST]
    failed = [(c.phase, c.failure.stage if c.failure else None) for c in fast]
    assert failed == [
        (Phase.MEASURED, None),
        (Phase.FAILED, Stage.VERIFY),
        (Phase.FAILED, Stage.COMPILE),
        (Phase.FAILED, Stage.VERIFY),
        (Phase.MEASURED, None),
    ]
    assert fast[-1].reason.startswith("stage B: release order")
    crossed_of = next(made[name] for name in found if made[name].origin is Origin.CROSSOVER)
    assert len(crossed_of.parents) == 2
    assert not {"c0000", "c0001"} & {name for one in found for name in made[one].parents}
    ends = [event for event in events if isinstance(event, ModelCallEnded)]
    outcomes = {event.outcome for event in ends}
    assert {"ok", "refused"} <= outcomes <= {"ok", "refused", "stopped"}
    assert max(event.attempts for event in ends) == 4, "three times overloaded, then an answer"
    assert "cut" in {step.name for step in server.steps if step.taken}
    nothing = [e for e in events if isinstance(e, ProposalFailed) and not e.blameless]
    assert [event.reason.split(":")[0] for event in nothing] == ["refused"]
    told = [event for event in events if isinstance(event, SteerDelivered)]
    assert [(event.agent, event.answer) for event in told] == [
        ("slow", "there is one barrier less")
    ]
    assert state.incumbent == winner
    story = git(day.folder, "log", "--first-parent", "--format=%B", "main")
    assert f"Accept {winner}: {made[winner].reason}" in story
    assert "Accept c0005: stage B: release order" in story
    assert story.count("Kerneltui-Decision: human") == 2
    kernel = git(day.folder, "show", "main:kernels/gemm_allgather/kernel.cpp")
    assert kernel == git(
        day.folder, "show", f"{made[winner].sha}:kernels/gemm_allgather/kernel.cpp"
    )


def measurement_of(session: Path, candidate: str) -> Measurement:
    found = fold(events_of(session)).candidates[candidate].measurement
    assert found is not None
    return found


def accept(tmux: Tmux, candidate: str, found: Measurement) -> None:
    """Accepts a kernel. One that is UNCLEAR, or too fast to be believed, wants a reason."""
    assert found.verdict in (Verdict.FASTER, Verdict.UNCLEAR), found.verdict
    choose(tmux, candidate)
    press_until(tmux, "a", lambda: best(tmux, candidate) or asks_why(tmux, candidate))
    if found.verdict is Verdict.UNCLEAR or found.quarantine:
        assert asks_why(tmux, candidate)
        tmux.type("it writes to its peers itself")
        tmux.keys("Enter")
    tmux.until(lambda: best(tmux, candidate), f"{candidate} on main")


def ask_to_stop(tmux: Tmux) -> None:
    """Quits, and says that the engine should end, too."""
    press_until(tmux, "q", lambda: "leave the engine running" in tmux.screen())
    tmux.keys("s")


def stop_engine(tmux: Tmux, place: Place) -> None:
    """Stops the engine and waits until nobody answers at its socket any more."""
    assert running(place)
    ask_to_stop(tmux)
    tmux.until(lambda: not running(place), "the end of the engine", seconds=120)


def measured(tmux: Tmux, candidate: str) -> bool:
    return re.search(rf"{candidate} (PEND|QUAR|BEST)", tmux.screen()) is not None


def asks_why(tmux: Tmux, candidate: str) -> bool:
    return f"Accept {candidate} ━" in tmux.screen()


def best(tmux: Tmux, candidate: str) -> bool:
    return re.search(rf"{candidate} BEST", tmux.screen()) is not None


def choose(tmux: Tmux, candidate: str) -> None:
    """Goes down the list from its top until the candidate is the selected one."""
    if "a accept" not in tmux.screen():  # else the next key would be taken as one with alt
        tmux.keys("Escape")
        tmux.shows("a accept")
    press_until(tmux, "1", lambda: "┏━ 1 Candidates" in tmux.screen())
    for _ in range(3):  # the list may grow meanwhile
        tmux.keys("Home")
        tmux.until(lambda: at_the_top(tmux), "the top of the list")
        while (at := selected(tmux)) != candidate:
            tmux.keys("j")
            if not wait_for(lambda at=at: selected(tmux) != at):
                break  # the end of the list
        else:
            return
    raise AssertionError(f"{candidate} cannot be chosen\n{tmux.screen()}")


def selected(tmux: Tmux) -> str:
    """The candidate of the list at which the mark is; empty if there is none."""
    found = re.search(r"^. > \W*(c\d+) ", tmux.screen(), re.MULTILINE)
    return found[1] if found else ""


def at_the_top(tmux: Tmux) -> bool:
    return re.search(r"1 Candidates.*\n. > ", tmux.screen()) is not None


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether a condition holds in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def press_until(tmux: Tmux, key: str, condition: Callable[[], bool]) -> None:
    """Presses a key now and then: right after another candidate came on the screen it decides nothing."""
    for _ in range(10):
        tmux.keys(key)
        for _ in range(20):
            if condition():
                return
            time.sleep(0.1)
    raise AssertionError(f"{key} does nothing\n{tmux.screen()}")


def git(session: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(session), *arguments], check=True, capture_output=True, text=True
    ).stdout
