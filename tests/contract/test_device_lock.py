"""Evaluations with real ranks and judge, beside other programs that lock the devices or sit on them."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerneltui.evaluation.outcome import Interrupted, Step, Update
from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.evaluation.timing import TimingProtocol
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.limit import Ceilings
from kerneltui.model.workload_file import load_workload
from kerneltui.targets import device_lock
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.device_lock import DeviceLock
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.notices import Notice

pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed"),
]

ROOT = Path(__file__).parents[2]
STRANGER = "process 4242, which is not ours, is on GPU 0: times may be wrong"
_ENOUGH_S = 90.0
_SHAPE = '\n[[shape]]\nM = 48\nN = 40\nK = 96\ntags = ["tune"]\n'
_PROTOCOL = TimingProtocol(
    sample_ns=200_000, kept=1, most_kept=1, looks=(3,), noise_rounds=3, early_look=1, abandon=1e6
)


class Desk:
    """An evaluator whose CPU target has what else only GPUs have: a lock, and company."""

    def __init__(self, folder: Path) -> None:
        root = folder / "project"
        (root / "workloads" / "gemm_allgather").mkdir(parents=True)
        source = ROOT / "workloads" / "gemm_allgather"
        text = (source / "workload.toml").read_text()
        workload = root / "workloads" / "gemm_allgather"
        (workload / "workload.toml").write_text(text[: text.index("[[shape]]")] + _SHAPE)
        shutil.copy(source / "reference.py", workload / "reference.py")
        shutil.copytree(ROOT / "kernels" / "gemm_allgather", root / "kernels" / "gemm_allgather")
        self.lock = folder / "gpu.lock"
        self.heard: list[Notice] = []
        self.waits = threading.Event()
        self.target = CpuTarget(folder / "cache", lock=MachineLock(folder))
        self.target.device_lock = DeviceLock(
            [str(self.lock)], say=lambda text: self.target.notices.say(text, passing=True)
        )
        self.evaluator = Evaluator(
            load_workload(workload),
            self.target,
            ceilings=lambda ranks: Ceilings(ranks, 1e12, 1e12, 1e11, 1e11, 100.0),
            cache=folder / "cache",
            protocol=_PROTOCOL,
        )
        self.evaluator.listen(self._hear)
        file = root / "kernels" / "gemm_allgather" / "host.cpp"
        self.kernel: Kernel = parse_kernel(file.read_text(), "host.cpp")

    def _hear(self, notice: Notice) -> None:
        self.heard.append(notice)
        self.waits.set()

    def free(self) -> bool:
        command = ["flock", "-n", str(self.lock), "true"]
        return subprocess.run(command, check=False).returncode == 0


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_lock, "_SAY_AFTER_S", 0.0)
        made = Desk(tmp_path_factory.mktemp("desk"))
        made.evaluator.start()
        try:
            yield made
        finally:
            made.evaluator.close()


def test_an_evaluation_waits_for_another_program_and_the_user_can_end_the_wait(desk: Desk) -> None:
    reached: list[Update] = []
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(Interrupted, match="waiting for the lock"):
            desk.evaluator.verify(desk.kernel, reached.append)
        ended.set()

    other = subprocess.Popen(
        ["flock", str(desk.lock), "sh", "-c", "echo held; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdin is not None and other.stdout is not None
    try:
        assert other.stdout.readline() == b"held\n"
        thread = threading.Thread(target=work)
        thread.start()
        assert desk.waits.wait(_ENOUGH_S)
        assert desk.heard == [Notice(f"waits for the lock {desk.lock}", passing=True)]
        desk.evaluator.interrupt()
        assert ended.wait(_ENOUGH_S)
        thread.join()
    finally:
        other.stdin.close()
        other.wait(_ENOUGH_S)
        other.stdout.close()
    assert not [update for update in reached if isinstance(update, Step)]  # built, and never run


def test_what_it_does_on_the_devices_it_does_under_the_lock(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def report(update: Update) -> None:
        if isinstance(update, Step):
            seen.append(desk.free())

    assert desk.free()
    desk.evaluator.verify(desk.kernel, report)
    assert seen and not any(seen)
    assert desk.free()
    seen.clear()
    desk.evaluator.calibrate(desk.kernel, lambda text: seen.append(desk.free()))
    assert seen and not any(seen)
    assert desk.free()

    # And who else was there while a candidate was timed stands beside its verdict.
    monkeypatch.setattr(desk.target, "look", lambda ranks: (STRANGER,))
    seen.clear()
    outcome = desk.evaluator.evaluate(desk.kernel, desk.kernel, against="c0000", report=report)
    assert outcome.measurement is not None, outcome.failure
    assert STRANGER in outcome.measurement.remarks
    assert seen[1:] and not any(seen)
    assert desk.free()
    monkeypatch.undo()
    outcome = desk.evaluator.evaluate(desk.kernel, desk.kernel, against="c0000", report=report)
    assert outcome.measurement is not None and STRANGER not in outcome.measurement.remarks
