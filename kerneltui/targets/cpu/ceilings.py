"""What this machine can do at best with all ranks busy: the rates behind bound and floor.

The probe is an ordinary kernel in an ordinary baseline group, so the rates hold under the conditions
in which kernels are timed. A ceiling is the best sample seen; its spread says how far the median lay
below. Results of a quiet machine are kept, by machine, number of ranks and toolchain.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from kerneltui.model.limit import Ceilings
from kerneltui.model.workload import Role
from kerneltui.targets.cpu.device import describe_cpu
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.group import RankGroup
from kerneltui.targets.keeping import keep
from kerneltui.targets.port import GroupRole, Limits
from kerneltui.targets.windows import DType, GroupLayout, TensorSpec

__all__ = ["MeasuredCeilings", "Rate", "measure_ceilings"]

_PROBE = Path(__file__).parent / "probe.cpp"
_FORMAT = 1
_FMA, _GEMM, _COPY, _STREAM, _FLAG, _READ = range(6)
_SAMPLES, _MOST_SAMPLES = 9, 27
_SETTLED = 1.1
_SETTLED_SPREAD = 0.15
_SAMPLE_NS = 3_000_000
_FMA_STEPS = 100_000
_ROUND_TRIPS, _FIRST_TRIPS, _TRIPS_NS = 200, 4, 50_000_000
_GEMM_SHAPES = ((256, 512, 512), (512, 1024, 1024), (1024, 2048, 512), (1024, 1024, 1024))
_COPY_BYTES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
_READ_BYTES = (1 << 20, 8 << 20, 48 << 20)
_LIMITS = Limits(load_s=60.0, setup_s=60.0, first_call_s=60.0, sample_s=60.0)


@dataclass(frozen=True, slots=True)
class Rate:
    """One measured rate of one rank while all ranks do the same.

    Attributes:
        what: Which configuration, in words.
        best: The best sample, per second (or nanoseconds, for a latency).
        spread: How far the median lay from the best, as a share of the best.
    """

    what: str
    best: float
    spread: float


@dataclass(frozen=True, slots=True)
class MeasuredCeilings:
    """All rates of a machine for one number of ranks. Per second and per rank.

    Attributes:
        ranks: Number of ranks.
        peak: Multiply-adds in registers alone, in operations: the floor against cheating.
        gemms: Verified vendor products, in operations.
        copies: Copies into the next rank's window, in bytes.
        reads: Reads of own memory, in bytes.
        latency: One-way time of a flag, in nanoseconds; 0 with one rank.
    """

    ranks: int
    peak: Rate
    gemms: tuple[Rate, ...]
    copies: tuple[Rate, ...]
    reads: tuple[Rate, ...]
    latency: Rate

    @property
    def model(self) -> Ceilings:
        """The rates that a bound is made of: the best of each kind."""
        flops = max(r.best for r in self.gemms)
        return Ceilings(
            ranks=self.ranks,
            flops=flops,
            # What was reached in a product can be reached: a busy neighbour may have hidden it.
            peak_flops=max(self.peak.best, flops),
            memory_bytes=max(r.best for r in self.reads),
            link_bytes=max(r.best for r in self.copies),
            latency_ns=self.latency.best,
        )

    @property
    def settled(self) -> bool:
        """True if the machine was quiet: the typical sample was near the best."""
        gemm = max(self.gemms, key=lambda r: r.best)
        return max(self.peak.spread, gemm.spread) <= _SETTLED_SPREAD

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: If it has another format.
            KeyError: If something is missing.
            TypeError: If something has another form.
        """
        if data["format"] != _FORMAT:
            raise ValueError(f"ceilings of format {data['format']!r}")
        several = {
            name: tuple(Rate(**r) for r in data[name]) for name in ("gemms", "copies", "reads")
        }
        return cls(
            ranks=int(data["ranks"]),
            peak=Rate(**data["peak"]),
            latency=Rate(**data["latency"]),
            **several,
        )


def measure_ceilings(
    target: CpuTarget,
    ranks: int,
    *,
    refresh: bool = False,
    stop: Callable[[], bool] | None = None,
) -> MeasuredCeilings:
    """Measures the ceilings of this machine, or gives those that were measured before.

    Takes the machine lock while it measures.

    Args:
        target: A started target.
        ranks: Number of ranks that are busy at once.
        refresh: Measures in any case.
        stop: Asked while waiting for the machine; True ends it.

    Raises:
        TargetError: If the probe does not build or run, or the vendor's product is wrong.
    """
    source = _PROBE.read_text()
    stored = target.cache / "ceilings" / f"{_key(target, ranks, source)}.json"
    if not refresh:
        try:
            return MeasuredCeilings.from_json(json.loads(stored.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not measured yet, or not readable: measured now
    build = target.toolchain.compile(source, stop=stop)
    with (
        target.lock.burst(stop=stop),
        target.open_group(GroupRole.BASELINE, ranks, limits=_LIMITS) as group,
    ):
        group.load(build.library)
        measured = _measure(group, target.threads_per_rank(ranks))
    if not measured.settled:
        return measured  # good for now, and measured again next time
    if trouble := keep(stored, json.dumps(measured.to_json(), indent=1)):
        target.notices.say(trouble)
    return measured


def _measure(group: RankGroup, threads: int) -> MeasuredCeilings:
    gemms = tuple(
        _rate(
            group,
            f"{m}x{n}x{k}",
            [
                TensorSpec("A", DType.FLOAT32, Role.INPUT, (m, k)),
                TensorSpec("B", DType.FLOAT32, Role.INPUT, (k, n)),
                TensorSpec("C", DType.FLOAT32, Role.OUTPUT, (m, n)),
            ],
            mode=_GEMM,
            work=2.0 * m * n * k,
        )
        for m, n, k in _GEMM_SHAPES
    )
    copies = tuple(
        _rate(
            group,
            f"{'copy' if mode == _COPY else 'streaming copy'} of {nbytes >> 10} KiB",
            [
                TensorSpec("FROM", DType.FLOAT32, Role.INPUT, (nbytes // 4,)),
                TensorSpec("TO", DType.FLOAT32, Role.OUTPUT, (nbytes // 4,), symmetric=True),
            ],
            mode=mode,
            work=float(nbytes),
        )
        for nbytes in _COPY_BYTES
        for mode in (_COPY, _STREAM)
    )
    reads = tuple(
        _rate(
            group,
            f"read of {nbytes >> 10} KiB",
            [TensorSpec("FROM", DType.FLOAT32, Role.INPUT, (nbytes // 4,))],
            mode=_READ,
            work=float(nbytes),
        )
        for nbytes in _READ_BYTES
    )
    return MeasuredCeilings(
        ranks=group.ranks,
        peak=_peak(group, threads),
        gemms=gemms,
        copies=copies,
        reads=reads,
        latency=_latency(group),
    )


def _peak(group: RankGroup, threads: int) -> Rate:
    # The probe writes how many elements one step of its loop multiplies and adds.
    width = TensorSpec("WIDTH", DType.INT32, Role.OUTPUT, (1,))
    elements: list[int] = []

    def read_width() -> None:
        memory = group.memory
        assert memory is not None
        with memory.view(0, memory.layout.ranks[0].tensor(0, width.name)) as view:
            elements.append(int.from_bytes(view, "little"))

    durations = _durations(group, [width], _FMA, _FMA_STEPS, then=read_width)
    work = 2.0 * _FMA_STEPS * elements[0] * threads
    return _as_rate("multiply-add in registers", durations, work)


def _latency(group: RankGroup) -> Rate:
    if group.ranks < 2:
        return Rate("flag between ranks", 0.0, 0.0)
    quickest = _first_calls(group, [], _FLAG, _FIRST_TRIPS)
    group.teardown()
    trips = _trips(quickest)
    durations = _durations(group, [], _FLAG, trips)
    one_way = [duration / trips / 2 for duration in durations]
    best = min(one_way)
    return Rate("flag between ranks", best, statistics.median(one_way) / best - 1)


def _trips(first_ns: float) -> int:
    """Round trips of a call, by the first few: with busy neighbours one may take milliseconds."""
    return max(1, min(_ROUND_TRIPS, int(_TRIPS_NS * _FIRST_TRIPS / max(1, first_ns))))


def _rate(
    group: RankGroup, what: str, tensors: Sequence[TensorSpec], *, mode: int, work: float
) -> Rate:
    return _as_rate(what, _durations(group, tensors, mode, 1), work)


def _durations(
    group: RankGroup,
    tensors: Sequence[TensorSpec],
    mode: int,
    count: int,
    then: Callable[[], None] | None = None,
) -> list[float]:
    """Nanoseconds of a call, for each of several samples of some milliseconds."""
    calls = max(1, round(_SAMPLE_NS / max(1, _first_calls(group, tensors, mode, count))))
    found: list[float] = []
    # Neighbours only ever make a sample slower: go on while the best looks like an exception.
    while len(found) < _SAMPLES or (
        len(found) < _MOST_SAMPLES and statistics.median(found) > _SETTLED * min(found)
    ):
        found.append(group.sample(calls, 0, 3 + len(found) * calls).duration_ns)
    if then is not None:
        then()
    group.teardown()
    return found


def _first_calls(group: RankGroup, tensors: Sequence[TensorSpec], mode: int, count: int) -> float:
    """Sets the probe up and makes two calls; nanoseconds of the shorter one."""
    layout = GroupLayout.plan(tensors, {}, ranks=group.ranks, sets=2, signal_words=1)
    group.setup(layout, {"MODE": mode, "COUNT": count})
    return min(group.run(0, 1).elapsed_ns, group.run(1, 2).elapsed_ns)


def _as_rate(what: str, durations_ns: Sequence[float], work: float) -> Rate:
    rates = [work / duration * 1e9 for duration in durations_ns]
    best = max(rates)
    return Rate(what, best, 1 - statistics.median(rates) / best)


def _key(target: CpuTarget, ranks: int, source: str) -> str:
    device = describe_cpu()
    parts = (
        device.model,
        str(target.cores),
        str(device.caches),
        str(ranks),
        str(target.pinned),
        target.toolchain.version,
        version("torch"),
        source,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
