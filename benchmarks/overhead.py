"""What an evaluation costs beside compiling and calls, from the journal and notes of a session.

    python benchmarks/overhead.py SESSION|BUNDLE     a session that was recorded before
    python benchmarks/overhead.py                    tunes six candidates first

For each candidate, in seconds: wall time from the start of its evaluation to its result; compiling; making
sure that it is right (fresh inputs, calls and comparisons of the verification); time inside calls of the
timing; and the rest, which is the harness: processes, memory, fresh inputs between samples, requests to
ranks, git. Bar: the rest is at most 1.5 s a candidate on the CPU. What an acceptance costs
(confirmation in fresh processes, the noise of the new incumbent) is a column of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from kerneltui.engine.reader import opened_recording
from kerneltui.headless.output import table
from kerneltui.model.event import (
    CandidateFailed,
    CandidateMeasured,
    EvaluationStarted,
)

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = (
    "wall",
    "compile",
    "verify",
    "calls",
    "fresh inputs",
    "set-up",
    "other",
    "rest",
    "accepting",
)
TIMING = ("screen", "benchmark")


def parts(record: dict[str, Any], wall: float) -> list[float]:
    """Splits the wall time of one evaluation; the order is that of `COLUMNS`."""
    spent = record.get("spent", {})

    def total(stages: tuple[str, ...], name: str) -> float:
        return sum(spent.get(stage, {}).get(name, 0.0) for stage in stages)

    compiled, verified = total(("compile",), "wall"), total(("verify",), "wall")
    accepting = total(("confirm", "before"), "wall")
    inside, fill = total(TIMING, "inside"), total(TIMING, "fill") + total(TIMING, "check")
    setup = total(TIMING, "setup")
    rest = wall - compiled - verified - accepting - inside
    return [wall, compiled, verified, inside, fill, setup, rest - fill - setup, rest, accepting]


def rows(source: Path) -> list[tuple[str, list[float], str]]:
    """For each evaluated candidate: its name, its parts in seconds, and how it ended."""
    found: list[tuple[str, list[float], str]] = []
    started: dict[str, int] = {}
    with opened_recording(source) as recording:
        for event in recording.events:
            match event:
                case EvaluationStarted():
                    started[event.id] = event.at
                case CandidateMeasured() | CandidateFailed() if event.id in started:
                    sha = recording.recorder.state.candidates[event.id].sha
                    note = recording.recorder.session.read_note(sha)
                    record = json.loads(note) if note else {}
                    wall = (event.at - started[event.id]) / 1e9
                    end = "failed" if isinstance(event, CandidateFailed) else "measured"
                    if record.get("confirm"):
                        end = "confirmed"
                    found.append((event.id, parts(record, wall), end))
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("session", type=Path, nargs="?")
    session = parser.parse_args().session
    with tempfile.TemporaryDirectory() as folder:
        if session is None:
            session = Path(folder) / "session"
            command = ["tune", "workloads/gemm_allgather", "--candidates", "6", "--seed", "1"]
            subprocess.run(
                [sys.executable, "-m", "kerneltui", *command, "--session", str(session)],
                cwd=ROOT,
                check=False,
                stdout=subprocess.DEVNULL,
            )
        found = rows(session)
    lines = [["candidate", *COLUMNS, "ended"]]
    lines += [[name, *(f"{value:.2f}" for value in values), end] for name, values, end in found]
    print(table(lines, right=frozenset(range(1, 1 + len(COLUMNS)))))
    for end in ("failed", "measured", "confirmed"):
        rest = [values[COLUMNS.index("rest")] for _, values, ended in found if ended == end]
        if rest:
            print(f"{end}: rest median {median(rest):.2f} s, max {max(rest):.2f} s (bar 1.5 s)")


if __name__ == "__main__":
    main()
