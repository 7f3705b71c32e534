"""The modes of a side-by-side run: lanes that are set up on one shape, timed in turn."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Any

from kerneltui.evaluation.bench_plan import BenchPlan, gaps
from kerneltui.evaluation.bench_result import Mode, ModeTimes, ratios
from kerneltui.evaluation.bench_times import gpu_note, served
from kerneltui.evaluation.gpu_use import Watch, no_readings
from kerneltui.evaluation.lane import LATE, MASKED, Lane
from kerneltui.evaluation.lane_times import Served
from kerneltui.evaluation.rounds import Burst
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.sustained import sustain
from kerneltui.evaluation.timing import STREAM_NS, LaneFailure, WrongOutput
from kerneltui.model.statistics import median_interval
from kerneltui.targets.errors import RankFailure
from kerneltui.targets.sample import Sample

__all__ = ["Timed", "Track"]

_FAR = 1.25
"""A baseline that is slower than the fastest by this factor sits out once that is plain."""

_MOST_STEPS = 6  # to a sample that is long enough; one or two do
_SPARE = 1.05  # samples differ a little, and each is to be long enough

_WATCH_EVERY = 3  # rounds: a reading of the GPU takes as long as two samples


@dataclass(eq=False, slots=True)
class Track:
    """A lane on one shape, and what was found of it."""

    name: str
    lane: Lane
    baseline: bool
    bursts: dict[Mode, list[Burst]] = field(default_factory=dict[Mode, list[Burst]])
    times: dict[Mode, ModeTimes] = field(default_factory=dict[Mode, ModeTimes])
    note: dict[str, Any] = field(default_factory=dict[str, Any])


class Timed:
    """Times the tracks of one shape. A track that fails is left out, and `failed` is told why.

    Args:
        stand: Target and judge.
        plan: What is measured.
        tracks: Set up for the shape, and verified.
        failed: Told of a track that cannot go on, and loses the times that it has.
        lost: Told of one that cannot go on, but keeps the times that it has.
        say: Told what goes on, in one line.
    """

    def __init__(
        self,
        stand: Stand,
        plan: BenchPlan,
        tracks: Sequence[Track],
        failed: Callable[[Track, str], None],
        *,
        lost: Callable[[Track], None],
        say: Callable[[str], None],
    ) -> None:
        self._stand = stand
        self._plan = plan
        self._tracks = list(tracks)
        self._failed = failed
        self._lost = lost
        self._say = say
        self._gpu = bool(getattr(stand.target, "cache_bytes", 0))
        self.calls = 1
        self.call_ns = 1.0
        self._fastest_ns = 0.0  # of a call among many
        self._one_by_one = 1  # calls of a sample that is no graph: a gate holds no more back
        self.graph = False
        self._held: set[str] = set()

    @property
    def tracks(self) -> Sequence[Track]:
        """Those that have not failed."""
        return self._tracks

    def settle(self) -> None:
        """Finds out how many calls make a sample, and which choice of a baseline is the fastest."""
        for track in [*self._tracks]:
            with self._guard(track):
                # Sets that are not written anew before a sample must not hold zeros, which take less power.
                track.lane.fill(range(track.lane.sets))
                self._sample(track.lane, 1, check=True, late=True)
                once = self._sample(track.lane, 1)
                self._raise_calls(once.duration_ns)
                if once.held:
                    self._held.add(track.name)
        self._lengthen()
        self._one_by_one = self.calls
        self.graph = self._short()
        if self.graph:
            self._lengthen()
            self._check_late()
        tuned = {t: int(t.lane.group.facts.get("choices", 0)) for t in self._tracks}
        for track, count in tuned.items():
            if count > 1:
                with self._guard(track):
                    self._choose(track, count)
        if any(count > 1 for count in tuned.values()):
            self._lengthen()

    def offline(self) -> None:
        """Rounds with a cold cache until the intervals are narrow, then some with a warm one."""
        plan = self._plan
        sitting: set[str] = set()
        masked_at = secrets.randbelow(plan.least_rounds)
        for number in range(plan.rounds):
            self._stand.checkpoint()
            active = [track for track in self._tracks if track.name not in sitting]
            self._round(Mode.OFFLINE, active, number, checked=number == 0)
            if number == masked_at:
                self._check_masked()
            if not self._tracks:
                return
            if number + 1 >= plan.least_rounds:
                sitting |= self._far_behind()
                if self._narrow(sitting):
                    break
        more = [Mode.EAGER] if self.graph else []
        for mode in [Mode.WARM, *more] if self._gpu else []:
            for number in range(plan.warm_rounds):
                self._stand.checkpoint()
                self._round(mode, self._tracks, number, checked=False)
        for track in self._tracks:
            for mode, bursts in track.bursts.items():
                if bursts:
                    rows = tuple(burst.samples_ns for burst in bursts)
                    track.times[mode] = ModeTimes(rows, gpu_note(bursts))

    def server(self, shape: str) -> None:
        """Single calls after pauses, lanes in turn."""
        count = self._plan.per_chunk(self.call_ns)
        found: dict[str, list[Served]] = {track.name: [] for track in self._tracks}
        for chunk in range(self._plan.chunks):
            self._stand.checkpoint()
            pauses = gaps(self._plan, shape, chunk, count)
            order = [*self._tracks]
            for track in reversed(order) if chunk % 2 else order:
                with self._guard(track), self._stand.machine():
                    self._fill(track.lane, count)
                    found[track.name].append(track.lane.serve(pauses, evict=self._gpu))
        for track in self._tracks:
            track.times[Mode.SERVER] = served(found[track.name], evicted=self._gpu)

    def sustained(self, tracks: Sequence[Track]) -> None:
        """Calls without a pause for seconds, one lane after the other; on GPUs."""
        if not self._gpu:
            self._say("calls without a pause are measured on GPUs only: left out")
            return
        for track in tuple(tracks):
            self._stand.checkpoint()
            known = [times.time_ns for times in track.times.values()]
            try:
                with self._stand.machine():
                    track.lane.fill(range(track.lane.sets))
                    track.times[Mode.SUSTAINED] = sustain(
                        track.lane,
                        self._stand.target,
                        self._plan.sustained_s,
                        min(known, default=self.call_ns),
                    )
            except RankFailure as failure:  # what was measured before stands
                self._say(f"{track.name}: calls without a pause: {failure.reason}")
                track.note["sustained"] = failure.reason
                self._tracks.remove(track)
                self._lost(track)

    # Inside

    def _raise_calls(self, call_ns: float) -> None:
        self.call_ns = max(self.call_ns, call_ns)
        wanted = ceil(self._plan.sample_ns / max(1.0, call_ns))
        self.calls = max(self.calls, min(self._plan.most_calls, wanted))

    def _check_late(self) -> None:
        """One graph of every lane whose inputs are written when it has been made, and looked at."""
        for track in [*self._tracks]:
            with self._guard(track), self._stand.machine():
                self._sample(track.lane, self.calls, check=True, late=True)

    def _check_masked(self) -> None:
        """One sample of every kernel in which nobody can work before its turn."""
        for track in [*self._tracks]:
            calls = min(self._one_by_one, track.lane.sets)
            if not track.baseline and track.lane.can_mask(calls):
                with self._guard(track), self._stand.machine():
                    self._sample(track.lane, calls, check=True, masked=True, graph=False)

    def _short(self) -> bool:
        """Whether calls are timed as graphs: all lanes, or none."""
        in_graph = self._stand.protocol.in_graph
        lanes = [track.lane for track in self._tracks]
        known = self._fastest_ns > 0
        return known and all(
            lane.graph_safe and in_graph(self._fastest_ns, lane.group.ranks) for lane in lanes
        )

    @property
    def stream_share(self) -> float:
        """By how much equal lanes may differ by their streams alone, as a log-ratio; 0 for graphs."""
        call_ns, in_graph = self._fastest_ns, self._stand.protocol.in_graph
        short = any(in_graph(call_ns, track.lane.group.ranks) for track in self._tracks)
        return STREAM_NS / call_ns if call_ns > 0 and short and not self.graph else 0.0

    def _lengthen(self) -> None:
        """Raises the number of calls until a sample of the fastest lane takes as long as is wanted.

        A single call has the way to the device and back in its time, so it is no measure of one among
        many. A number of which a lane's gate cannot hold all back is not taken.
        """
        most = self._plan.most_calls
        for _ in range(_MOST_STEPS):
            taken: dict[str, Sample] = {}
            for track in [*self._tracks]:
                with self._guard(track), self._stand.machine():
                    taken[track.name] = self._sample(track.lane, self.calls, evict=True)
            if any(not sample.held and name in self._held for name, sample in taken.items()):
                most = max(1, self.calls // 2)
                self.calls = most
                continue
            least = min((sample.elapsed_ns for sample in taken.values()), default=0)
            self._fastest_ns = least / self.calls
            if least <= 0 or least >= self._plan.sample_ns or self.calls >= most:
                return
            wanted = ceil(_SPARE * self._plan.sample_ns * self.calls / least)
            self.calls = min(most, max(self.calls + 1, wanted))

    def _choose(self, track: Track, count: int) -> None:
        """Takes the fastest of a baseline's choices, each timed as kernels are."""
        found: list[float] = []
        with self._stand.machine():
            self._sample(track.lane, self.calls)
            for index in range(count):
                track.lane.choose(index)
                self._sample(track.lane, 1, graph=False)  # its code may be loaded now
                kept = [self._sample(track.lane, self.calls, evict=True) for _ in range(2)]
                found.append(min(sample.duration_ns for sample in kept))
        best = min(range(count), key=lambda index: found[index])
        track.lane.choose(best)
        self._sample(track.lane, self.calls, check=True)
        track.note = {"chosen": best, "choices_ns": [round(value) for value in found]}

    def _round(self, mode: Mode, tracks: Sequence[Track], number: int, *, checked: bool) -> None:
        warm, graph = mode is Mode.WARM, self.graph and mode is not Mode.EAGER
        calls = self._one_by_one if mode is Mode.EAGER else self.calls
        kept = self._stand.protocol.kept
        samples: dict[str, list[Sample]] = {track.name: [] for track in tracks}
        readings = no_readings if number % _WATCH_EVERY else self._stand.target.readings
        watch = Watch(readings, len(tracks))
        with self._stand.machine():
            if number == 0:
                for track in tracks:
                    with self._guard(track):
                        self._sample(track.lane, calls, warm=warm, graph=graph)
            chosen = {track.name: secrets.randbelow(kept) if checked else -1 for track in tracks}
            for turn in range(kept):
                places = range(len(tracks))
                for place in reversed(places) if (turn + number) % 2 else places:
                    track = tracks[place]
                    if track not in self._tracks:
                        continue
                    with self._guard(track):
                        check = chosen[track.name] == turn
                        sample = self._sample(
                            track.lane,
                            calls,
                            check=check,
                            warm=warm,
                            evict=not warm,
                            graph=graph,
                        )
                        samples[track.name].append(sample)
                        watch.sampled(place, sample)
        for place, track in enumerate(tracks):
            if track not in self._tracks:
                continue
            try:
                burst = Burst.of(samples[track.name], watch.burst(place))
            except ValueError as error:  # a clock of the group stood still
                self.drop(track, str(error))
                continue
            track.bursts.setdefault(mode, []).append(burst)

    def _sample(
        self,
        lane: Lane,
        calls: int,
        *,
        check: bool = False,
        late: bool = False,
        warm: bool = False,
        evict: bool = False,
        graph: bool | None = None,
        masked: bool = False,
    ) -> Sample:
        late = late and check and lane.enqueues
        sets = [0] if warm else lane.next_sets(calls)
        fresh = sets if late else self._fresh(sets)
        lane.fill(fresh)  # also before inputs that come late: a kernel sees new ones each time
        sample = lane.sample(
            calls,
            late_fill=late,
            evict=evict and self._gpu,
            warm=warm,
            graph=self.graph if graph is None else graph,
            masked=masked,
        )
        if late and not sample.held:
            return self._sample(lane, calls, check=True)
        if check:
            report = lane.check([secrets.choice(fresh)])
            if not report.passed:
                raise WrongOutput(lane, report, MASKED if masked else LATE if late else "")
        return sample

    def _fill(self, lane: Lane, calls: int) -> None:
        lane.fill(self._fresh(lane.next_sets(calls)))

    def _fresh(self, sets: Sequence[int]) -> list[int]:
        """Those of the sets that get new inputs; a kernel cannot know which."""
        if len(sets) <= self._plan.fresh:
            return [*sets]
        return secrets.SystemRandom().sample([*sets], self._plan.fresh)

    def _far_behind(self) -> set[str]:
        medians = self._medians()
        fastest = min(medians.values())
        return {
            track.name
            for track in self._tracks
            if track.baseline and medians[track.name] > _FAR * fastest
        }

    def _narrow(self, sitting: set[str]) -> bool:
        """Whether every lane that takes part is known well enough beside the fastest baseline."""
        medians = self._medians()
        baselines = [track for track in self._tracks if track.baseline]
        if not baselines:
            return True
        reference = min(baselines, key=lambda track: medians[track.name])
        for track in self._tracks:
            if track is reference or track.name in sitting:
                continue
            pairs = ratios(_rows(track), _rows(reference))
            interval = median_interval(pairs)
            half = (interval.high - interval.low) / 2
            if half > max(self._plan.narrow, abs(interval.estimate) / 20):
                return False
        return True

    def _medians(self) -> Mapping[str, float]:
        return {
            track.name: median(burst.value_ns for burst in track.bursts[Mode.OFFLINE])
            for track in self._tracks
        }

    def _guard(self, track: Track) -> _Guard:
        return _Guard(self, track)

    def drop(self, track: Track, reason: str) -> None:
        """Leaves a track out from here on."""
        if track in self._tracks:
            self._tracks.remove(track)
        self._failed(track, reason)


class _Guard:
    """Turns the failure of a track into its end; others go on."""

    def __init__(self, timed: Timed, track: Track) -> None:
        self._timed = timed
        self._track = track

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, (RankFailure, LaneFailure, WrongOutput)):
            reason = error.reason if isinstance(error, RankFailure) else str(error)
            self._timed.drop(self._track, reason)
            return True
        return False


def _rows(track: Track) -> ModeTimes:
    return ModeTimes(tuple(burst.samples_ns for burst in track.bursts[Mode.OFFLINE]))
