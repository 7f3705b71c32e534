"""The test of the workload before a session: it must tell right from wrong answers.

Wrong answers must be refused and right ones pass: in the judge, kept by the workload's hash. And a kernel
that is broken on purpose must fail through the real build, ranks and judge, every time: that shows that
what is built is what runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, cast

from kerneltui.evaluation.canary import broken_kernel
from kerneltui.evaluation.judge_client import JudgeFailure
from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.outcome import KernelFault, WorkloadRefused
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_shape
from kerneltui.model.kernel import Language, parse_kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.workload import TargetSpec
from kerneltui.targets.port import GroupRole

__all__ = ["run_workload_test"]


def run_workload_test(stand: Stand, spec: TargetSpec, cache: Path) -> tuple[str, ...]:
    """Tests the workload of a stand whose judge is ready.

    Args:
        stand: Target and judge.
        spec: The workload on this target; its seed is what gets broken.
        cache: Folder for the judge's part; may be deleted at any time.

    Returns:
        Names of the wrong answers that were refused.

    Raises:
        WorkloadRefused: The workload cannot tell right from wrong.
        TargetError: There are too few devices for its ranks.
    """
    name = stand.workload.name
    stored = cache / f"self-test-{_workload_hash(stand)}.json"
    rows = _read_rows(stored)
    if rows is None:
        _need_devices(stand)
        try:
            rows = stand.judge.self_test()
        except JudgeFailure as error:
            raise WorkloadRefused(f"{name}: {error}") from error
        bad = [row for row in rows if not row["ok"]]
        if bad:
            raise WorkloadRefused(_refusal(name, bad))
        _write_rows(stored, rows)
    _canary(stand, spec)
    return tuple(row["name"] for row in rows if row["kind"] == "mutant")


def _need_devices(stand: Stand) -> None:
    """Starts the largest group, which tells of devices that are missing; the judge would fail on them."""
    if stand.target.judge_place.device != "cpu":
        ranks = max(shape.ranks for shape in stand.workload.shapes)
        stand.target.open_group(GroupRole.BASELINE, ranks).close()


def _canary(stand: Stand, spec: TargetSpec) -> None:
    workload = stand.workload
    seed = workload.kernels / spec.seed
    on_device = stand.target.judge_place.device != "cpu"
    source = broken_kernel(
        seed.read_text(encoding="utf-8"), on_device=on_device, language=Language.of(seed.name)
    )
    kernel = parse_kernel(source, f"broken {seed.name}")
    shapes = [*workload.shapes_for("test"), *workload.shapes_for("tune")]
    shape = next((s for s in shapes if s.ranks == spec.ranks), shapes[0])
    lane: Lane | None = None
    try:
        build = stand.build(kernel)
        lane = stand.open_kernel(
            GroupRole.CANDIDATE, build, kernel.runtime, shape.ranks, Stage.VERIFY
        )
        verify_shape(lane, shape, VerifyPlan.for_shape(shape), Tally(), stand.checkpoint)
    except KernelFault as fault:
        if fault.stage is Stage.VERIFY and fault.kind is FailureKind.MISMATCH:
            return
        raise WorkloadRefused(
            f"{workload.name}: {seed.name}, broken on purpose, failed for another reason: {fault.reason}"
        ) from fault
    finally:
        if lane is not None:
            stand.release(lane)
    raise WorkloadRefused(
        f"{workload.name}: {seed.name}, broken on purpose, passed verification; its inputs or its "
        "tolerance hide a wrong element"
    )


def _workload_hash(stand: Stand) -> str:
    digest = hashlib.sha256(stand.workload.text.encode())
    digest.update(stand.workload.target.encode())
    digest.update((stand.workload.folder / "reference.py").read_bytes())
    digest.update(str(stand.judge.hello.get("version")).encode())
    return digest.hexdigest()[:24]


def _refusal(workload: str, bad: list[dict[str, Any]]) -> str:
    row = bad[0]
    what = {
        "mutant": "passes the judge, so wrong answers would be accepted",
        "honest": f"is refused, so right answers would be too: {row['text']}",
        "lint": f"does not hold, so inputs tell nothing: {row['text']}",
    }[row["kind"]]
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return f"{workload}: '{row['name']}' {what}{more}; change its inputs or its tolerance"


def _read_rows(path: Path) -> list[dict[str, Any]] | None:
    try:
        rows: Any = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return cast("list[dict[str, Any]]", rows) if isinstance(rows, list) else None


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(rows), encoding="utf-8")
        part.replace(path)
    except OSError:
        return  # only a cache: the test runs again next time
