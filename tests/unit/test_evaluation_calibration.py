"""Noise of an incumbent against itself: as many rounds as it takes to know that it does not matter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from evaluation_fakes import burst

from kerneltui.evaluation import calibration
from kerneltui.evaluation.calibration import Calibrator
from kerneltui.evaluation.rounds import ShapeRounds
from kerneltui.evaluation.timing import GPU_PROTOCOL, TimingProtocol

PROTOCOL = TimingProtocol(early_look=4, least_delta=0.01)


class Stand:
    """Lanes that need nothing, and a timer with scripted rounds."""

    def __init__(self, ratio: Callable[[int], float]) -> None:
        self.protocol = PROTOCOL
        self.workload = SimpleNamespace(shapes_for=lambda tag: ())
        self.timer = SimpleNamespace(rounds=self.rounds)
        self.asked: list[int] = []
        self.warm: list[bool] = []
        self.open: list[object] = []
        self._ratio = ratio

    def build(self, kernel: Any) -> None: ...

    def open_kernel(self, *_: Any) -> Any:
        lane = SimpleNamespace(setup=lambda *a: None, teardown=lambda: None)
        self.open.append(lane)
        return lane

    def release(self, lane: object) -> None:
        self.open.remove(lane)

    def rounds(self, rounds: ShapeRounds, count: int, *_: Any, warm: bool) -> None:
        self.asked.append(count)
        self.warm.append(warm)
        for _ in range(count):
            rounds.candidate.append(burst(self._ratio(len(rounds.candidate))))
            rounds.incumbent.append(burst(1.0))
            rounds.reference.append(None)


def noise_of(stand: Stand, most: int) -> float:
    yard: Any = SimpleNamespace(
        shape=SimpleNamespace(ranks=2), incumbent=None, reference=None, sets=3, calls=1, kept=3,
        remember=lambda ratios, graph: None, noise=0.0, rounds=lambda lane: ShapeRounds("s", 1),
    )  # fmt: skip
    calibrator = Calibrator(stand, None, lambda ranks: None, lambda text: None)  # type: ignore[arg-type]
    kernel: Any = SimpleNamespace(runtime={})
    calibrator.noise(kernel, {"s": yard}, most)
    assert stand.open == []
    return yard.noise


@pytest.mark.parametrize(
    ("spread", "asked"),
    [(1e-4, [4]), (0.05, [4, 4, 4, 4, 4, 2])],
    ids=["quiet", "noisy"],
)
def test_a_quiet_machine_needs_few_rounds(spread: float, asked: list[int]) -> None:
    stand = Stand(lambda index: 1.0 + spread * (-1) ** index)
    noise_of(stand, 22)
    assert stand.asked == asked
    assert stand.warm == [False] + [True] * (len(asked) - 1)


def test_fewer_rounds_than_a_look_are_all_that_is_taken() -> None:
    stand = Stand(lambda index: 1.0)
    noise_of(stand, 3)
    assert stand.asked == [3]


def test_the_baselines_of_a_shape_are_all_timed_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first call decides: one among many has no way to the device and back in its time."""
    monkeypatch.setattr(calibration, "verify_shape", lambda *_: None)
    monkeypatch.setattr(calibration, "set_bytes", lambda *_: 1)
    stand = Stand(lambda index: 1.0)
    stand.protocol = GPU_PROTOCOL
    stand.machine, stand.checkpoint = nullcontext, lambda: None
    taken: list[tuple[int, bool]] = []

    def take(lane: Any, calls: int, *, graph: bool = False, **_: Any) -> Any:
        taken.append((calls, graph))
        return SimpleNamespace(value_ns=lane.call_ns)

    stand.timer.burst = take
    calibrator = Calibrator(stand, None, lambda ranks: None, lambda text: None)  # type: ignore[arg-type]
    shape: Any = SimpleNamespace(name="s", ranks=1)
    for first, second, graph in ((99e3, 101e3, True), (101e3, 99e3, False)):
        calibrator._short.clear()
        for call_ns in (first, second):
            del taken[:]
            nothing = {"setup": lambda *a: None, "teardown": lambda: None}
            lane: Any = SimpleNamespace(call_ns=call_ns, **nothing)
            assert calibrator._time_baseline(lane, shape) == [call_ns] * 5
            assert (max(calls for calls, _ in taken) > 1) is graph
            assert any(in_graph for _, in_graph in taken) is graph


@pytest.mark.parametrize(
    ("call_ns", "asked"), [(100_000.0, [1, 29]), (9e6, [1]), (1_000.0, [1, 64])]
)
def test_a_call_is_timed_among_as_many_as_make_a_sample(call_ns: float, asked: list[int]) -> None:
    stand = Stand(lambda index: 1.0)
    taken: list[int] = []

    def take(lane: Any, calls: int, **_: Any) -> Any:
        taken.append(calls)
        return SimpleNamespace(value_ns=call_ns + 5_000.0 / calls)  # the way to the device and back

    stand.timer.burst = take
    calibrator = Calibrator(stand, None, lambda ranks: None, lambda text: None)  # type: ignore[arg-type]
    lane = SimpleNamespace(shape=SimpleNamespace(ranks=1))
    found = calibrator._call_ns(lane)  # type: ignore[arg-type]
    assert taken == asked
    assert found == call_ns + 5_000.0 / asked[-1]
