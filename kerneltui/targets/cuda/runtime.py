"""The CUDA target: a process for each GPU, buffers that the judge makes, and a clean end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kerneltui.model.limit import Ceilings
from kerneltui.model.reading import GpuReading
from kerneltui.model.record import canonical_json
from kerneltui.targets.buffers import SharedMemory
from kerneltui.targets.cuda import device_memory, driver
from kerneltui.targets.cuda.ceilings import (
    best_of,
    read_ceilings,
    stored_ceilings,
    write_ceilings,
)
from kerneltui.targets.cuda.company import Company
from kerneltui.targets.cuda.device import Gpus, MemoryWatch, device_environment
from kerneltui.targets.cuda.network import nccl_words
from kerneltui.targets.cuda.packages import Nccl, find_toolkit, installed_nccl
from kerneltui.targets.cuda.policy import DEFAULT_POLICY, MachinePolicy
from kerneltui.targets.cuda.quarantine import Quarantine
from kerneltui.targets.cuda.toolchain import CudaToolchain
from kerneltui.targets.device_lock import DeviceLock, named_locks
from kerneltui.targets.errors import TargetError
from kerneltui.targets.group import RankGroup
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.notices import Notices
from kerneltui.targets.port import (
    GroupRole,
    JudgePlace,
    KillProof,
    Limits,
    Toolchain,
)
from kerneltui.targets.ranks import HARNESS_COMMON, RankProcesses
from kerneltui.targets.traits import GroupTraits
from kerneltui.targets.windows import GroupLayout

__all__ = ["CudaTarget", "harness_source"]

WORKER_ENTRY = "kerneltui.evaluation.worker_cuda:main"
VENDORS_ENTRY = "kerneltui.evaluation.worker_cuda_vendors:main"
_PARTS = ("capture_order", "harness", "products", "serving", "rates")
_HARNESS = tuple(Path(__file__).parent / f"{part}.cu" for part in _PARTS)
_TICKS_SLACK_NS = 200_000  # the host sees the end of all streams some 100 microseconds later
_CLOCK_SLACK_NS = 5_000  # a flag takes 1 to 2 microseconds from one GPU to another
_CORES_OF_GPU, _CORES_OF_ENGINE = 4, 4
"""Kept free: for the ranks of candidate, incumbent and reference on a GPU; for engine, judge and servers."""

_MOST_BESIDE = 8
_WINDOWS = Path(__file__).parent / "nccl_windows.cu"
_ENVIRONMENT = {
    # The server must have one thread; OpenBLAS inside numpy starts more when it is loaded.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_DYNAMIC": "FALSE",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def harness_source() -> str:
    """The text of the timing harness."""
    return HARNESS_COMMON.read_text() + "".join(part.read_text() for part in _HARNESS)


class CudaTarget:
    """Runs kernels on the GPUs of this machine, rank r on GPU r. A context manager.

    Args:
        cache: Folder for built kernels.
        confine: False leaves ranks without sandbox, for a debugger or a profiler.
        lock: Keeps compiles and timing bursts apart.
        toolchain: Builds kernels; nvcc for the GPUs that are there by default.
        policy: What this machine forbids, and the environment that every child must have.
        vendors: Whether baselines need the bindings of vendor libraries.
        environment: What ranks find in their environment beside that; for a profiler.

    Attributes:
        notices: What the user must hear at once: others on the GPUs, a quarantine, a wait for a lock.
        device_lock: The locks of the site, held by whoever uses the GPUs for an evaluation.

    Raises:
        TargetError: If there is no GPU, no toolchain for it, or a lock of the site cannot be opened.
    """

    name = "cuda"

    def __init__(
        self,
        cache: Path,
        *,
        confine: bool = True,
        lock: MachineLock | None = None,
        toolchain: Toolchain | None = None,
        policy: MachinePolicy = DEFAULT_POLICY,
        vendors: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.cache = cache
        self.lock = lock or MachineLock()
        self.gpus = Gpus()
        self.arch = self.gpus.describe(0).arch
        self.toolchain: Toolchain = toolchain or CudaToolchain(
            cache / "builds", arch=self.arch, policy=policy, lock=self.lock
        )
        # Captures are the harness's own affair, and no kernel's.
        self._harness_toolchain = CudaToolchain(
            cache / "builds",
            arch=self.arch,
            policy=policy.without("capture_control"),
            lock=self.lock,
        )
        self._telemetry = self.gpus.telemetry()
        self._confine = confine
        self._cpus = len(os.sched_getaffinity(0))
        self.notices = Notices()
        self.device_lock = DeviceLock(
            named_locks(policy.device_locks),
            self.gpus.numbers,
            lambda text: self.notices.say(text, passing=True),
        )
        self._watch = MemoryWatch(self.gpus, range(self.gpus.count))
        self._quarantine = Quarantine(
            self.gpus.count, self._watch, self.notices.say, self.gpus.why_no_more
        )
        self._company = Company(self.gpus, self.notices.say)
        nccl = installed_nccl()
        self._nccl, self._words = _header(nccl), nccl_words(nccl)
        self._traits: GroupTraits[SharedMemory] = GroupTraits(
            make_memory=None,
            granularity=device_memory.granularity(0),
            connects_late=True,
            limits_addresses=False,
            enqueues=True,
            masks_inputs=True,
            clock_slack_ns=_CLOCK_SLACK_NS,
            ticks_slack_ns=_TICKS_SLACK_NS,
            ticks_late=True,
            windows=self._windows_library,
            settle=self._settle,
        )
        self._processes = RankProcesses(
            VENDORS_ENTRY if vendors else WORKER_ENTRY,
            {
                **(environment or {}),
                **_toolkit_environment(),
                **_ENVIRONMENT,
                **device_environment(policy),
            },
            self._traits,
        )
        self.policy = policy
        self._level: str | None = None

    @property
    def cores(self) -> int:
        """CPU cores that all ranks together use."""
        return self._cpus

    @property
    def spare_cores(self) -> int:
        """Half of what ranks, judge and engine leave: calls are enqueued before they are timed."""
        left = self._cpus - _CORES_OF_GPU * self.gpus.count - _CORES_OF_ENGINE
        return max(0, min(_MOST_BESIDE, left // 2))

    @property
    def cache_bytes(self) -> int:
        """Second-level cache of a GPU: buffers stay in it from call to call if they fit."""
        return driver.cache_bytes(0)

    @property
    def judge_place(self) -> JudgePlace:
        """Where the judge works: on the GPUs, where it makes the buffers too."""
        return JudgePlace("cuda", device_environment(self.policy))

    def threads_per_rank(self, ranks: int) -> int:
        """CPU threads of one rank: cores over ranks, at least one."""
        return max(1, self._cpus // max(1, ranks))

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
        """The GPUs and what joins them as text, for the record of an evaluation."""
        items: dict[str, str] = {}
        for index in range(self.gpus.count):
            items.update(self.gpus.describe(index).items())
        items.update(self._words)
        for index, others in self.foreign_load().items():
            items[f"others on gpu {index}"] = ", ".join(f"process {pid}" for pid in others)
        return items

    @property
    def multiprocessors(self) -> int:
        """SMs of one GPU."""
        return driver.multiprocessors(0)

    def readings(self, oldest_s: float = 0.0) -> tuple[GpuReading, ...]:
        """Clocks, power, heat and links of all GPUs; from any thread.

        Args:
            oldest_s: Readings that are no older may be given again.
        """
        return self._telemetry.latest(oldest_s)

    @property
    def quarantined(self) -> Mapping[int, str]:
        """GPUs that are not used any more, and why."""
        return self._quarantine.devices

    def foreign_load(self) -> Mapping[int, tuple[int, ...]]:
        """Processes on the GPUs that do not belong to this engine, by GPU; they disturb timing."""
        return self._company.others()

    def look(self, ranks: int) -> tuple[str, ...]:
        """Who else is on the first GPUs, in words; `notices` get whoever is new."""
        if not self._processes.started:
            return self._company.first(ranks)
        return self._company.look(ranks, running=bool(self._processes.layouts()))

    def start(self) -> None:
        """Starts the fork server and returns at once. From the main thread."""
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
    ) -> RankGroup[SharedMemory]:
        """Starts a group, rank r on GPU r, and waits until all ranks are ready and confined.

        Args:
            role: Whose code it runs.
            ranks: How many there are.
            limits: Times and sizes.
            compiles: Whether a kernel comes that compiles itself in its `setup`.
            blocking: Whether the host waits for each launch, to find the one that fails.

        Raises:
            RankFailure: If a rank does not start.
            ServerFailure: If there is no fork server, too few GPUs, or one is quarantined.
            CompileFailure: If the timing harness does not build here.
        """
        limits = limits or Limits()
        devices = self._quarantine.choose(ranks)
        harness = self._harness_toolchain.compile(harness_source())
        options = {
            "threads": self.threads_per_rank(ranks),
            "devices": devices,
            "device_bytes": limits.device_bytes,
            "nccl": self._nccl,
            "confine": self._confine,
            "harness": str(harness.library.resolve()),
            "readable": [str(self.cache.resolve())],
            "compiles": compiles,
            "blocking": blocking,
            "policy": canonical_json(self.policy).decode(),
        }
        group = self._processes.open(role, ranks, limits, options)
        self._watch.know(group.pids)
        self._level = group.sandbox_level
        return group

    def measure_ceilings(self, ranks: int, dtype: str = "bfloat16") -> Ceilings:
        """What the GPUs can do with all ranks busy, measured once and kept; see `ceilings`.

        Raises:
            RankFailure: If a rank fails.
        """
        stored = stored_ceilings(self, ranks, dtype)
        found = read_ceilings(stored)
        if found is None:
            with self.lock.burst(), self.open_group(GroupRole.BASELINE, ranks) as group:
                found = best_of(ranks, group.measure(dtype))
                others = self.look(ranks)
            if others:
                self.notices.say("what the GPUs reach is not kept: others were on them meanwhile")
            elif trouble := write_ceilings(stored, found):
                self.notices.say(trouble)
        return found

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

    def _windows_library(self) -> str:
        """The library that makes NCCL windows, built against the installed header; its path."""
        return str(self.toolchain.compile(_WINDOWS.read_text()).library.resolve())

    def _settle(self, proof: KillProof, layout: GroupLayout | None) -> str:
        """Waits until a group has left its GPUs; quarantines one that it has not."""
        self._company.know({e.pid for e in proof.exits} | set(proof.strays))
        # Buffers are the judge's. It gives those of this group back a moment later.
        layouts = self._processes.layouts() + ([layout] if layout else [])
        return self._quarantine.settle(proof, layouts)


def _toolkit_environment() -> dict[str, str]:
    """Where the toolkit is: CuPy would start a program to find its headers, which a rank refuses."""
    try:
        return {"CUDA_PATH": str(find_toolkit().root)}
    except TargetError:
        return {}


def _header(nccl: Nccl | None) -> dict[str, Any] | None:
    """What ranks are told of it."""
    if nccl is None:
        return None
    return {"include": str(nccl.include), "code": nccl.code, "origin": nccl.origin}
