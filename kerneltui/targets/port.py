"""What the evaluation may ask of a target, and the plain data that goes across."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from kerneltui.model.reading import GpuReading
from kerneltui.targets.buffers import SharedMemory
from kerneltui.targets.output import KeptOutput
from kerneltui.targets.sample import Sample
from kerneltui.targets.windows import GroupLayout

__all__ = [
    "Build",
    "Group",
    "GroupRole",
    "JudgePlace",
    "KillProof",
    "Limits",
    "RankExit",
    "Requirements",
    "Target",
    "Toolchain",
]


class GroupRole(StrEnum):
    """Whose code a group of ranks runs."""

    BASELINE = "baseline"
    """Trusted: vendor libraries."""
    INCUMBENT = "incumbent"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how large. Times in seconds.

    Attributes:
        start_s: From the request for a group to all ranks ready.
        load_s: Loading a library, and asking for requirements.
        setup_s: `kerneltui_setup` and `kerneltui_teardown`.
        first_call_s: One verified call.
        sample_s: One sample, on top of nothing: the whole of it.
        memory_bytes: Private memory that a rank may take beyond what it has when it starts.
        shared_bytes: Further address space, for the shared buffers.
        device_bytes: Memory of its GPU that a kernel may take beyond its buffers.
        file_bytes: Largest file that a rank may write.
    """

    start_s: float = 60.0
    load_s: float = 10.0
    setup_s: float = 10.0
    first_call_s: float = 10.0
    sample_s: float = 10.0
    memory_bytes: int = 4 << 30
    shared_bytes: int = 8 << 30
    device_bytes: int = 16 << 30
    file_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Build:
    """A kernel that was compiled.

    Attributes:
        library: The shared library. Only ranks load it.
        key: Content address: source, flags, compiler, header.
        cached: True if nothing had to be compiled.
        seconds: Time of the compiler, also of a cached build's.
        log: Kept part of the compiler's output: warnings.
    """

    library: Path
    key: str
    cached: bool
    seconds: float
    log: str


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a kernel asks for, the largest over the ranks; `graph_safe` if it is so on all of them."""

    signal_words: int
    window_bytes: int
    scratch_bytes: int
    host_collectives: bool
    nccl_windows: bool = False
    graph_safe: bool = False


@dataclass(frozen=True, slots=True)
class RankExit:
    """How a rank ended.

    Attributes:
        rank: Which.
        pid: Its process.
        exit_code: Its exit code, or None if a signal ended it.
        signal: The signal that ended it, or None.
        peak_bytes: Its largest resident size.
        oom_suspected: True if the machine's or the rank's own memory limit looks like the cause.
    """

    rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    peak_bytes: int
    oom_suspected: bool


@dataclass(frozen=True, slots=True)
class KillProof:
    """That the processes of a group are gone.

    Attributes:
        group_id: Which group.
        exits: How each rank ended.
        strays: Further processes that were found under the group and killed.
        seconds: From the order to the proof.
        gone: True if /proc shows none of them any more.
        left: Those that are still there, if any.
    """

    group_id: str
    exits: tuple[RankExit, ...]
    strays: tuple[int, ...]
    seconds: float
    gone: bool
    left: tuple[int, ...]


def _no_environment() -> dict[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class JudgePlace:
    """Where the judge of a target makes and compares values.

    Attributes:
        device: "cpu", or "cuda": on the GPUs themselves.
        environment: What it finds in its environment beside the short list.
    """

    device: str = "cpu"
    environment: Mapping[str, str] = field(default_factory=_no_environment)


class Toolchain(Protocol):
    """Builds kernels."""

    def compile(
        self,
        source_text: str,
        *,
        defines: Mapping[str, str] | None = None,
        limit_s: float = 120.0,
        stop: Callable[[], bool] | None = None,
        needs_lock: bool = True,
    ) -> Build:
        """Builds a kernel, or gives the stored build of the same text.

        Args:
            source_text: The whole file.
            defines: Further macros.
            limit_s: Time for the compiler.
            stop: Asked meanwhile; True ends it.
            needs_lock: False if it may overlap a timing burst: the caller holds the machine, or what is
                timed does not run on the cores.

        Raises:
            CompileFailure: If it does not build, in time.
        """
        ...


class Group(Protocol):
    """A group of ranks: one process each, killable as a whole.

    Every method but `kill`, `close` and `output` raises `RankFailure`; the group is dead then, and
    its processes are gone. Only one thread may use a group at a time; `kill` may come from any.
    """

    @property
    def group_id(self) -> str:
        """Name of the group, unique in the engine."""
        ...

    @property
    def role(self) -> GroupRole:
        """Whose code it runs."""
        ...

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes, by rank."""
        ...

    def load(self, library: Path) -> None:
        """Loads a kernel on every rank."""
        ...

    def load_baseline(self, name: str) -> None:
        """Takes a trusted implementation by name; in baseline groups only."""
        ...

    def requirements(
        self, dimensions: Mapping[str, int], runtime: Mapping[str, int]
    ) -> Requirements:
        """Asks the kernel what it needs for a shape."""
        ...

    @property
    def makes_memory(self) -> bool:
        """True if `setup` makes the buffers itself, False if it must be given them."""
        ...

    @property
    def granularity(self) -> int:
        """What the files of a layout must be multiples of, in bytes."""
        ...

    def offer(self, layout: GroupLayout) -> list[int]:
        """Has each rank make its own symmetric file, where a layout says so; descriptors, by rank."""
        ...

    def setup(
        self, layout: GroupLayout, runtime: Mapping[str, int], memory: SharedMemory | None = None
    ) -> None:
        """Maps the buffers of a layout in the ranks and calls the kernel's `setup`."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a baseline says of itself since `setup`; empty for a kernel. See `PreparedBaseline`."""
        ...

    def ask(
        self, what: str, body: Mapping[str, Any], limit_s: float, *, gates: int = 0
    ) -> list[dict[str, Any]]:
        """Asks all ranks for something that only some targets or baselines know."""
        ...

    def run(self, set_index: int, epoch: int, delays_ns: Sequence[int] = ()) -> Sample:
        """Makes one call, for verification."""
        ...

    def sample(
        self,
        calls: int,
        first_set: int,
        epoch: int,
        delays_ns: Sequence[int] = (),
        *,
        verifying: bool = False,
        between: Callable[[], None] | None = None,
        how: Mapping[str, object] | None = None,
    ) -> Sample:
        """Makes `calls` back-to-back calls with epochs from `epoch` on, and times them.

        `between` is done while all calls are enqueued and none has begun, where there is such a time.
        `how` has further parts of the request, see `RankGroup.sample`.
        """
        ...

    def teardown(self) -> None:
        """Calls the kernel's `teardown` and gives the memory back."""
        ...

    def kill(self) -> None:
        """Ends the group from any thread; whoever waits for it gets a `RankFailure`."""
        ...

    def close(self) -> KillProof:
        """Ends the group and gives everything back."""
        ...

    def output(self) -> tuple[KeptOutput, ...]:
        """What each rank printed."""
        ...


class Target(Protocol):
    """Where kernels run."""

    name: str

    @property
    def toolchain(self) -> Toolchain:
        """Builds kernels for this target."""
        ...

    @property
    def sandbox_level(self) -> str:
        """What confines candidate code, in words."""
        ...

    @property
    def spare_cores(self) -> int:
        """Cores on which compilers may run while something is timed; 0 where that runs on cores itself."""
        ...

    @property
    def multiprocessors(self) -> int:
        """SMs of one GPU; 0 where there are none."""
        ...

    def readings(self, oldest_s: float = 0.0) -> tuple[GpuReading, ...]:
        """What the GPUs do now, or did so many seconds ago at most; none on a target without."""
        ...

    def start(self) -> None:
        """Starts what has to be there before a group can be opened; returns at once."""
        ...

    def close(self) -> None:
        """Ends all groups and everything else that was started."""
        ...

    def open_group(self, role: GroupRole, ranks: int, *, limits: Limits) -> Group:
        """Starts the ranks of a group and waits until they are ready."""
        ...

    def __enter__(self) -> Self:
        """Starts."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes."""
        ...
