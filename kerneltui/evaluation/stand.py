"""The test stand: target, judge and what every stage of an evaluation needs of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kerneltui.evaluation.judge_client import JudgeClient
from kerneltui.evaluation.kernel_text import element_define, identity_of, kernel_text
from kerneltui.evaluation.lane import Lane, MemoryGroup
from kerneltui.evaluation.lane_times import Spent
from kerneltui.evaluation.outcome import HarnessFault, Interrupted, KernelFault, fault_of
from kerneltui.evaluation.python_policy import check_policy
from kerneltui.evaluation.surroundings import Surroundings
from kerneltui.evaluation.timing import Timer, TimingProtocol
from kerneltui.model.kernel import Kernel, Language
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.reading import GpuReading
from kerneltui.model.workload import Workload
from kerneltui.targets.cuda.policy import MachinePolicy, PolicyRefusal
from kerneltui.targets.device_lock import DeviceLock
from kerneltui.targets.errors import CompileFailure, RankFailure
from kerneltui.targets.locks import LockTimeout, MachineLock
from kerneltui.targets.notices import Notices
from kerneltui.targets.port import Build, GroupRole, JudgePlace, Limits, Toolchain
from kerneltui.targets.python import PythonBuilds, is_python

__all__ = [
    "COMPILE_LIMIT_S",
    "MachineTarget",
    "Stand",
]

COMPILE_LIMIT_S = 120.0


class MachineTarget(Protocol):
    """A target of this machine, whose groups have buffers that the judge can map."""

    name: str
    lock: MachineLock
    cache: Path
    policy: MachinePolicy
    notices: Notices
    device_lock: DeviceLock

    @property
    def toolchain(self) -> Toolchain:
        """Builds kernels."""
        ...

    @property
    def cores(self) -> int:
        """Cores that all ranks together use."""
        ...

    @property
    def spare_cores(self) -> int:
        """Cores on which compilers may run while something is timed; 0 where that runs on cores itself."""
        ...

    @property
    def judge_place(self) -> JudgePlace:
        """Where the judge works."""
        ...

    @property
    def sandbox_level(self) -> str:
        """What confines a rank, in words."""
        ...

    def describe(self) -> Mapping[str, str]:
        """What there is beside the processor, for the record of an evaluation."""
        ...

    @property
    def multiprocessors(self) -> int:
        """SMs of one GPU; 0 where there are none."""
        ...

    def readings(self, oldest_s: float = 0.0) -> tuple[GpuReading, ...]:
        """What the GPUs do now, or did so many seconds ago at most; none on a target without."""
        ...

    def look(self, ranks: int) -> tuple[str, ...]:
        """Who else uses the first so many devices, in words; `notices` get whoever is new."""
        ...

    def start(self) -> None:
        """Starts the fork server."""
        ...

    def close(self) -> None:
        """Ends everything."""
        ...

    def open_group(
        self,
        role: GroupRole,
        ranks: int,
        *,
        limits: Limits | None = None,
        compiles: bool = False,
        blocking: bool = False,
    ) -> MemoryGroup:
        """Starts a group of ranks.

        Args:
            role: Whose code it runs.
            ranks: How many there are.
            limits: Times and sizes.
            compiles: Whether a kernel comes that compiles itself in its `setup`.
            blocking: Whether the host waits for each launch, to find the one that fails.
        """
        ...


class Stand:
    """Target, judge, timer and the wish to stop, in one place.

    Args:
        workload: What is computed.
        target: Where kernels run.
        protocol: Numbers of the timing.

    Attributes:
        before_build: Told of a kernel that is needed now, before it is built.
    """

    def __init__(self, workload: Workload, target: MachineTarget, protocol: TimingProtocol) -> None:
        self.workload = workload
        self.target = target
        self.protocol = protocol
        self.judge = JudgeClient(workload.folder, target.cores, workload.target, target.judge_place)
        self.timer = Timer(protocol, self.machine, self.checkpoint, target.readings)
        ranks = max(shape.ranks for shape in workload.shapes)
        self.surroundings = Surroundings(target, ranks)
        self.spent = Spent()
        self._stop = threading.Event()
        self._lanes: list[Lane] = []
        self._changing = threading.Lock()
        self._judge_ready = False
        self.before_build: Callable[[Kernel], None] = lambda kernel: None

    def start(self) -> None:
        """Starts fork server and judge, and waits for neither. From the main thread."""
        self.surroundings.look()  # before anything of ours is on the devices
        self.target.start()
        self.judge.start()

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes that are open."""
        with self._changing:
            return tuple(self._lanes)

    def ready(self) -> bool:
        """Waits for the judge, before its first use; starts a new one where the old one died.

        Returns:
            True if there is a new judge, which knows no group yet.

        Raises:
            JudgeFailure: It does not start.
        """
        if not self.judge.pid:
            self._judge_ready = False
            self.judge.start()
        if self._judge_ready:
            return False
        self.judge.wait()
        self._judge_ready = True
        return True

    def close(self) -> None:
        """Ends all processes."""
        self._stop.set()
        with self._changing:
            lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.thaw()
        self.judge.close()
        self.target.close()

    def interrupt(self) -> None:
        """Ends what runs: no further step, and the groups of candidates are killed now."""
        self._stop.set()
        for lane in self.lanes:
            if lane.group.role is GroupRole.CANDIDATE:
                lane.thaw()
                lane.group.kill()

    def begin(self) -> None:
        """Forgets an earlier wish to stop."""
        self._stop.clear()

    def checkpoint(self) -> None:
        """Raises if the end was asked for.

        Raises:
            Interrupted: It was.
        """
        if self._stop.is_set():
            raise Interrupted("the evaluation was interrupted")

    def build(self, kernel: Kernel) -> Build:
        """Compiles a kernel, and reads its identity back from the library.

        Raises:
            KernelFault: It does not compile.
            HarnessFault: The library is not built from this text.
        """
        self.before_build(kernel)
        return self._build(kernel)

    def build_ahead(self, kernel: Kernel, stop: Callable[[], bool], *, beside: bool) -> Build:
        """Does the same for a kernel that nobody waits for yet, until `stop` says so; from any thread.

        With `beside` it may overlap what is timed, as on cores that are to spare.
        """
        return self._build(kernel, stop=stop, needs_lock=not beside)

    def _build(self, kernel: Kernel, **how: Any) -> Build:
        text = kernel_text(kernel)
        compiled = partial(self._compile, **how)
        try:
            python = kernel.language is Language.PYTHON
            build = self._store(text, compiled) if python else compiled(text)
        except CompileFailure as error:
            kind = FailureKind.OVER_LIMIT if error.timed_out else FailureKind.COMPILE_ERROR
            kind = FailureKind.REFUSED if error.refused else kind
            raise KernelFault(Stage.COMPILE, kind, error.reason, error.log) from error
        if identity_of(kernel).encode() not in build.library.read_bytes():
            raise HarnessFault(
                f"the library {build.key[:12]} was not built from this source; delete the build cache"
            )
        return build

    def _store(self, text: str, compiled: Callable[[str], Build]) -> Build:
        """Stores a Python kernel for the ranks, unless the machine's policy forbids it."""
        build = PythonBuilds(self.target.cache / "builds", compiled).compile(text)
        found = check_policy(text, self.target.policy)
        if found:
            raise PolicyRefusal(found)
        return build

    def _compile(self, text: str, **how: Any) -> Build:
        """Compiles C++ or CUDA for the element type of the workload."""
        defines = element_define(self.workload.dtype)
        return self.target.toolchain.compile(text, defines=defines, limit_s=COMPILE_LIMIT_S, **how)

    def open_kernel(
        self,
        role: GroupRole,
        build: Build,
        runtime: dict[str, int],
        ranks: int,
        stage: Stage,
        *,
        how: Mapping[str, Any] | None = None,
    ) -> Lane:
        """Opens a group and loads a kernel in it.

        Args:
            role: Whose code it is.
            build: The kernel.
            runtime: Values of its run-time tunables.
            ranks: How many ranks.
            stage: Where a fault is found.
            how: Further arguments of the target's `open_group`.

        Raises:
            KernelFault: The kernel cannot be loaded.
            HarnessFault: The group cannot be opened.
        """
        group = self._open(role, ranks, compiles=is_python(build.library), **(how or {}))
        lane = self._track(Lane(group, self.judge, self.workload, runtime, self.spent))
        try:
            group.load(build.library)
        except RankFailure as error:
            self.release(lane)
            raise fault_of(error, stage) from error
        lane.freeze()
        return lane

    def open_baseline(self, name: str, ranks: int) -> Lane:
        """Opens a group with a trusted implementation.

        Raises:
            HarnessFault: It cannot be opened, or there is none of that name.
        """
        group = self._open(GroupRole.BASELINE, ranks)
        lane = self._track(Lane(group, self.judge, self.workload, {}, self.spent))
        try:
            group.load_baseline(name)
        except RankFailure as error:
            self.release(lane)
            raise HarnessFault(f"baseline {name}: {error.reason}") from error
        lane.freeze()
        return lane

    @contextmanager
    def kept_if_well(self, lane: Lane) -> Iterator[None]:
        """Ends a lane that was just opened if something fails before anybody else knows of it."""
        try:
            yield
        except BaseException:
            self.release(lane)
            raise

    def release(self, lane: Lane) -> None:
        """Ends a lane and its group."""
        with self._changing:
            if lane in self._lanes:
                self._lanes.remove(lane)
        lane.close()

    def _open(
        self, role: GroupRole, ranks: int, *, compiles: bool = False, **how: Any
    ) -> MemoryGroup:
        self.checkpoint()
        try:
            return self.target.open_group(role, ranks, compiles=compiles, **how)
        except RankFailure as error:
            raise HarnessFault(error.reason) from error

    def _track(self, lane: Lane) -> Lane:
        with self._changing:
            self._lanes.append(lane)
        return lane

    @contextmanager
    def machine(self) -> Iterator[None]:
        """Holds the machine alone: no compile, no burst of another engine.

        Raises:
            Interrupted: The end was asked for while waiting.
        """
        self.surroundings.look()
        try:
            with self.target.lock.burst(stop=self._stop.is_set):
                yield
        except LockTimeout as error:
            raise Interrupted(str(error)) from error

    @contextmanager
    def devices(self) -> Iterator[None]:
        """Holds the devices by the locks of the site, for all that an evaluation does there.

        Raises:
            Interrupted: The end was asked for while waiting.
        """
        try:
            with self.surroundings.held(self._stop.is_set):
                yield
        except LockTimeout as error:
            raise Interrupted(str(error)) from error
