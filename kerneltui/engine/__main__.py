"""The engine process: `python -m kerneltui.engine SETUP.json`, started by the launcher.

It is a session leader of its own, so a dropped terminal does not take it along. Its standard output and
error go to `engine.log`; why it could not start goes to `start-error`, one line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kerneltui.engine.errors import WorkloadUnfit
from kerneltui.engine.opening import Start
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.errors import UserError
from kerneltui.model.event import AcceptRule

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Runs an engine as a setup file describes it."""
    from kerneltui.engine.evaluator import make_evaluator

    plain: dict[str, Any] = json.loads(Path(arguments[0]).read_bytes())
    workload = plain["workload"]
    place = Place(Path(plain["session"]), Path(workload) if workload else None, plain["exists"])
    start = Start(
        target=plain["target"],
        agents=plain["agents"],
        seed=plain["seed"],
        rule=AcceptRule(plain["rule"]),
        candidates=plain["candidates"],
        time_ns=plain["time_ns"],
    )
    error_file = Path(arguments[0]).with_name("start-error")
    setup = EngineSetup(place, start, Options(), make_evaluator)
    try:
        _, reason, failure = run_engine(setup)
    except UserError as error:
        error_file.write_text(str(error), encoding="utf-8")
        return 3 if isinstance(error, WorkloadUnfit) else 2
    print(f"engine left: {reason}", file=sys.stderr)
    return 3 if failure is not None else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
