"""The CPU target: a toolchain, a fork server, and groups of ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kerneltui.model.reading import GpuReading
from kerneltui.targets.cpu.memory import GroupMemory
from kerneltui.targets.cpu.toolchain import CpuToolchain
from kerneltui.targets.cuda.policy import DEFAULT_POLICY
from kerneltui.targets.device_lock import DeviceLock
from kerneltui.targets.group import RankGroup
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.notices import Notices
from kerneltui.targets.port import GroupRole, JudgePlace, Limits
from kerneltui.targets.ranks import HARNESS_COMMON, RankProcesses
from kerneltui.targets.traits import GroupTraits

__all__ = ["CpuTarget", "harness_source"]

WORKER_ENTRY = "kerneltui.evaluation.worker:main"
_HARNESS = Path(__file__).parent / "harness.cpp"
# The server must have one thread; OpenBLAS inside numpy starts more when it is loaded.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_DYNAMIC": "FALSE",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def harness_source() -> str:
    """The text of the timing harness."""
    return HARNESS_COMMON.read_text() + _HARNESS.read_text()


class CpuTarget:
    """Runs kernels in processes of this machine. A context manager.

    Args:
        cache: Folder for built kernels and measured ceilings.
        cores: Cores to use; all that this process may use by default.
        pin: Whether each rank keeps to cores of its own, where there are enough.
        confine: False leaves ranks without sandbox, for a debugger or a profiler.
        lock: Keeps compiles and timing bursts apart.
    """

    name = "cpu"

    def __init__(
        self,
        cache: Path,
        *,
        cores: int | None = None,
        pin: bool = False,
        confine: bool = True,
        lock: MachineLock | None = None,
    ) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))[:cores]
        self._pin = pin
        self._confine = confine
        self.cache = cache
        self.lock = lock or MachineLock()
        self.notices = Notices()
        self.device_lock = DeviceLock()  # locks of the site are about GPUs
        self.policy = DEFAULT_POLICY
        self.toolchain = CpuToolchain(cache / "builds", lock=self.lock)
        self._processes = RankProcesses(
            WORKER_ENTRY, _ENVIRONMENT, GroupTraits(make_memory=GroupMemory.create)
        )
        self._level: str | None = None

    @property
    def cores(self) -> int:
        """Cores that all ranks together use."""
        return len(self._cpus)

    @property
    def spare_cores(self) -> int:
        """None: a compiler on any core takes cache, memory and clock from what is timed."""
        return 0

    @property
    def pinned(self) -> bool:
        """True if ranks keep to cores of their own, where there are enough."""
        return self._pin

    @property
    def judge_place(self) -> JudgePlace:
        """Where the judge works."""
        return JudgePlace()

    def threads_per_rank(self, ranks: int) -> int:
        """CPU threads of one rank: cores over ranks, at least one."""
        return max(1, self.cores // max(1, ranks))

    @property
    def sandbox_level(self) -> str:
        """What confines a rank, in words; opens a group for a moment if none ever was open."""
        if self._level is None:
            self.open_group(GroupRole.BASELINE, 1).close()
        assert self._level is not None
        return self._level

    @property
    def server_pid(self) -> int:
        """Process of the fork server.

        Raises:
            ServerFailure: If the target is not started.
        """
        return self._processes.pid

    def describe(self) -> Mapping[str, str]:
        """What there is beside the processor: nothing."""
        return {}

    @property
    def multiprocessors(self) -> int:
        """SMs of one GPU: there is none."""
        return 0

    def readings(self, oldest_s: float = 0.0) -> tuple[GpuReading, ...]:
        """Clocks and power of GPUs: none."""
        del oldest_s
        return ()

    def look(self, ranks: int) -> tuple[str, ...]:
        """Who else uses the processor: that is in the load."""
        del ranks
        return ()

    def start(self) -> None:
        """Starts the fork server and returns at once; torch is imported meanwhile.

        From the main thread, if the kernel shall end the server with this process (see
        `ForkServerClient.start`).
        """
        self._processes.start()

    def close(self) -> None:
        """Ends all groups, the fork server, and everything that is left under it."""
        self._processes.close()

    def open_group(
        self,
        role: GroupRole,
        ranks: int,
        *,
        limits: Limits | None = None,
        compiles: bool = False,
        blocking: bool = False,
    ) -> RankGroup[GroupMemory]:
        """Starts a group of ranks and waits until all are ready and confined.

        Args:
            role: Whose code it runs.
            ranks: How many there are.
            limits: Times and sizes.
            compiles: Whether a kernel comes that compiles itself in its `setup`; nothing can here.
            blocking: Whether the host waits for each launch; nothing is launched here.

        Raises:
            RankFailure: If a rank does not start.
            ServerFailure: If there is no fork server.
            CompileFailure: If the timing harness does not build here.
        """
        limits = limits or Limits()
        harness = self.toolchain.compile(harness_source())
        options = {
            "threads": self.threads_per_rank(ranks),
            "cpus": self._shares(ranks),
            "confine": self._confine,
            "harness": str(harness.library.resolve()),
            "readable": [str(self.cache.resolve())],
            "gloo_timeout_s": limits.start_s,
        }
        group = self._processes.open(role, ranks, limits, options)
        self._level = group.sandbox_level
        return group

    def __enter__(self) -> Self:
        """Starts."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()

    def _shares(self, ranks: int) -> list[list[int]]:
        """Cores of each rank; empty if ranks are not to be pinned, or there are too few cores."""
        share = self.cores // max(1, ranks)
        if not self._pin or share < 1:
            return []
        return [self._cpus[r * share : (r + 1) * share] for r in range(ranks)]
