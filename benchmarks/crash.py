"""Kills the engine and all under it at random instants and opens the session again.

    python benchmarks/crash.py --kills 200          the evaluation is replaced by a quick stand-in
    python benchmarks/crash.py --kills 10 --real    real ranks, real kernels
    python benchmarks/crash.py --kills 50 --agents  agents ask a model, whose replies stream over HTTP

Checked after every kill: the session opens; every event that was acknowledged is there, byte for byte;
the fold works; at most the evaluation that was running is repeated; git finds nothing wrong. With agents:
each call counts once, with what it did cost or what it may have cost at most, and no process is left.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KILLS_PER_SESSION = 25


def child(session: Path, real: bool) -> None:
    """Runs an engine that writes `position hash` to standard output for each durable event."""
    sys.path.insert(0, str(ROOT / "tests" / "unit"))
    from engine_fakes import FakeEvaluator

    from kerneltui.engine.evaluator import make_evaluator
    from kerneltui.engine.opening import Start
    from kerneltui.engine.place import Place
    from kerneltui.engine.run import EngineSetup, run_engine
    from kerneltui.engine.tuner import Options
    from kerneltui.model.event import AcceptRule, Event, encode_event
    from kerneltui.model.state import State

    class Slow(FakeEvaluator):
        def evaluate(self, *arguments: object, **options: object) -> object:
            time.sleep(random.uniform(0.0, 0.03))
            outcome = super().evaluate(*arguments, **options)  # type: ignore[arg-type]
            time.sleep(random.uniform(0.0, 0.03))
            return outcome

    def acknowledge(event: Event, state: State) -> None:
        digest = hashlib.sha256(encode_event(event)).hexdigest()
        os.write(1, f"{state.position} {digest}\n".encode())

    workload = ROOT / "workloads" / "gemm_allgather"
    place = Place(session, workload, exists=(session / ".git" / "HEAD").exists())
    setup = EngineSetup(
        place=place,
        start=Start("cpu", "offline", 1, AcceptRule.AUTO, 100_000, None),
        options=Options(undecided=None, leave_when_done=True),
        make_evaluator=make_evaluator if real else lambda workload, spec: Slow(),
        on_event=acknowledge,
    )
    run_engine(setup)


def kill_once(session: Path, real: bool, longest: float, *, wait: bool) -> tuple[int, int]:
    """Starts, kills, opens again; returns events in the journal and events acknowledged this time.

    It takes long to start, and little happens then: with `wait` the kill comes after the first event.
    """
    command = [sys.executable, __file__, "--child", str(session)] + (["--real"] if real else [])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    acknowledged: dict[int, str] = {}
    heard = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            position, digest = line.split()
            acknowledged[int(position)] = digest.decode()
            heard.set()
        heard.set()

    listener = threading.Thread(target=listen)
    listener.start()
    if wait:
        heard.wait()
    time.sleep(random.uniform(0.0 if wait else 0.2, longest))
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    listener.join()
    assert code == -signal.SIGKILL, f"it ended by itself, with code {code}"
    return check(session, acknowledged), len(acknowledged)


def check(session: Path, acknowledged: dict[int, str]) -> int:
    """Opens the session as its next writer would, and holds it against what was acknowledged."""
    from kerneltui.engine.opening import load_state, read_events
    from kerneltui.model.candidate import Phase
    from kerneltui.model.event import encode_event
    from kerneltui.model.state import fold
    from kerneltui.session.repository import Session

    if not (session / ".git").exists():
        assert not acknowledged, "events were acknowledged, but there is no session"
        return 0
    with Session.open(session, writable=True) as opened:
        events = list(read_events(opened))
        for position, digest in acknowledged.items():
            assert position <= len(events), f"event {position} was acknowledged and is lost"
            found = hashlib.sha256(encode_event(events[position - 1])).hexdigest()
            assert found == digest, f"event {position} is not the one that was acknowledged"
        state = load_state(opened)
        assert state.canonical() == fold(events).canonical(), "the snapshot differs from the fold"
        running = (Phase.BUILDING, Phase.CHECKING, Phase.MEASURING)
        cut = [c.id for c in state.candidates.values() if c.phase in running]
        assert len(cut) <= 1, f"more than one evaluation was cut off: {cut}"
    return len(events)


def run_with_agents(kills: int, longest: float) -> None:
    """Kills engines whose agents ask a model that streams its replies, and prints what was found."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "unit")]
    from loopback.engine_process import EngineProcess
    from loopback.server import Loopback
    from loopback.session_check import check_nothing_left, check_session, marked_path
    from test_engine_loopback import endless_steps

    began, total, lost, mark = time.monotonic(), 0, 0, uuid.uuid4().hex
    with (
        tempfile.TemporaryDirectory(prefix="kerneltui-crash-") as name,
        Loopback(endless_steps(pace_ms=2)) as server,
    ):
        folder = Path(name)
        environment = {
            "PATH": marked_path(mark),
            "ANTHROPIC_API_KEY": "sk-ant-loopback",
            "ANTHROPIC_BASE_URL": server.url,
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        acknowledged: dict[int, str] = {}
        for done in range(1, kills + 1):
            session = folder / f"session-{(done - 1) // KILLS_PER_SESSION}"
            if not session.exists():
                acknowledged = {}
            options = ("--candidates", "100000", "--slow", "0.05")
            engine = EngineProcess.start(session, environment, *options)
            # It takes long to start, and little happens then: most kills come when a reply streams.
            first = "event" if random.random() < 0.25 else "heard"
            engine.until(lambda lines, first=first: any(line.startswith(first) for line in lines))
            time.sleep(random.uniform(0.0, longest))
            if engine.process.poll() is not None:
                raise AssertionError(f"it ended by itself: {engine.errors()}")
            engine.kill()
            check_nothing_left(mark)
            acknowledged |= engine.acknowledged
            total += len(engine.acknowledged)
            state = check_session(session, acknowledged)
            lost += sum(not call.outcome for call in state.calls.values())
            spent = state.spent()
            print(
                f"{done} kills: {state.position} events, {spent.calls} calls, {spent.text} spent, "
                f"{len(state.candidates)} candidates",
                flush=True,
            )
        assert not server.problems, server.problems[0]
    assert total, "no event was acknowledged, so none could be lost"
    minutes = (time.monotonic() - began) / 60
    print(
        f"{kills} kills in {minutes:.1f} minutes, {total} events acknowledged, none lost; {lost} calls "
        "were under way, each is counted once"
    )


def run(kills: int, real: bool, longest: float) -> None:
    """Kills so many times and prints what was found."""
    done = total = 0
    began = time.monotonic()
    while done < kills:
        with tempfile.TemporaryDirectory(prefix="kerneltui-crash-") as folder:
            session = Path(folder) / "session"
            last = min(KILLS_PER_SESSION, kills - done) - 1
            for number in range(last + 1):
                # One of four at any instant, but the last one finds a session.
                wait = number == last or random.random() >= 0.25
                events, acknowledged = kill_once(session, real, longest, wait=wait)
                total += acknowledged
                done += 1
            subprocess.run(
                ["git", "-C", str(session), "fsck", "--strict", "--no-dangling"],
                check=True,
                capture_output=True,
            )
            print(f"{done} kills, {events} events in this session, no event lost", flush=True)
    assert total, "no event was acknowledged, so none could be lost"
    minutes = (time.monotonic() - began) / 60
    print(f"{done} kills in {minutes:.1f} minutes, {total} events acknowledged, none lost")


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--real", action="store_true", help="real ranks and kernels")
    parser.add_argument("--agents", action="store_true", help="agents that ask a model")
    parser.add_argument(
        "--seed", type=int, help="of the instants; another one each time if left out"
    )
    parser.add_argument("--longest", type=float, default=3.0, help="seconds until the kill")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.child, arguments.real)
        return
    random.seed(arguments.seed)
    if arguments.agents:
        run_with_agents(arguments.kills, arguments.longest)
    else:
        run(arguments.kills, arguments.real, arguments.longest)


if __name__ == "__main__":
    main()
