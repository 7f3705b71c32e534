"""The rough trial of a vendor's algorithms: short calls behind a hold, on a device that is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from kerneltui.evaluation import worker_cuda_lt as lt  # noqa: E402
from kerneltui.evaluation import worker_cuda_lt_product as lt_product  # noqa: E402
from kerneltui.evaluation.worker_cuda_held import HeldStream  # noqa: E402
from kerneltui.evaluation.worker_cuda_lt_product import Algorithm, LtProduct  # noqa: E402


class Device:
    """A stream and a host, each with a clock in nanoseconds: what is enqueued late begins late."""

    def __init__(self, host_ns: float) -> None:
        self.host_ns = host_ns
        self.now = 0.0  # of the host
        self.free = 0.0  # when the stream has done what it was given
        self.held: list[float] = []

    def sleep(self, cycles: int) -> None:
        self.held.append(cycles / 1.98)
        self.enqueue(cycles / 1.98)

    def enqueue(self, device_ns: float) -> None:
        self.free = max(self.free, self.now) + device_ns

    def call(self, device_ns: float) -> Callable[[int], None]:
        def run(index: int) -> None:
            self.now += self.host_ns
            self.enqueue(device_ns)

        return run

    def event(self, enable_timing: bool = False) -> Any:
        device = self

        class Event:
            def record(self) -> None:
                self.at = max(device.free, device.now)

            def query(self) -> bool:
                return device.now >= self.at

            def synchronize(self) -> None:
                device.now = max(device.now, self.at)

            def elapsed_time(self, end: Any) -> float:
                return (end.at - self.at) / 1e6

        return Event()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device(8_000.0)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "_sleep", made.sleep)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    clock = SimpleNamespace(perf_counter_ns=lambda: round(made.now))
    monkeypatch.setattr("kerneltui.evaluation.worker_cuda_held.time", clock)
    yield made


def held() -> HeldStream:
    return HeldStream(cast(Any, None))


@pytest.mark.parametrize("host_ns", [2_000.0, 8_000.0, 15_000.0, 60_000.0])
@pytest.mark.parametrize("device_ns", [3_000.0, 7_000.0, 40_000.0])
def test_short_calls_are_timed_and_not_their_host(device: Device, host_ns: float, device_ns: float):
    device.host_ns = host_ns
    stream = held()
    for calls in (1, 20, 20):
        found = stream.time_ns(device.call(device_ns), [0, 1, 2], calls)
        assert found == pytest.approx(device_ns, rel=1e-3)


def test_a_hold_is_no_longer_than_a_host_needs(device: Device):
    stream = held()
    for _ in range(3):
        stream.time_ns(device.call(5_000.0), [0], 20)
    assert len(device.held) == 3  # none was repeated
    assert all(160_000 < time_ns < 600_000 for time_ns in device.held)


def test_a_host_that_never_gets_ahead_gives_no_time(device: Device):
    device.host_ns = 5e6  # a call takes longer than the longest hold
    assert held().time_ns(device.call(5_000.0), [0], 20) is None
    assert 1 < len(device.held) <= 4
    assert max(device.held) < 5e6


def algorithm(number: int, trial_ns: float = 0.0) -> Algorithm:
    return Algorithm((number,), 0, 0, number, {"id": number}, trial_ns)


def test_a_trial_orders_algorithms_by_their_time_on_the_device(device: Device):
    times = {number: 2_000.0 + 700.0 * (7 * number % 10) for number in range(10)}
    used = [0]
    made = cast(LtProduct, LtProduct.__new__(LtProduct))
    made.product = cast(
        Any,
        SimpleNamespace(
            sets=[(), ()], draw=lambda sets: None, problem=SimpleNamespace(stream=None)
        ),
    )
    made.call = lambda index: device.call(times[used[0]])(index)
    made.use = lambda one: used.__setitem__(0, one.words[0])  # type: ignore[method-assign]
    tried = made.trial([algorithm(number) for number in range(10)])
    assert {one.words[0]: round(one.trial_ns) for one in tried} == pytest.approx(times, rel=1e-2)


def test_an_algorithm_without_a_time_comes_last_and_its_note_says_none():
    assert lt_product._rough_ns(lambda calls: None) == float("inf")
    assert replace(algorithm(1), trial_ns=float("inf")).note()["trial_us"] is None
    one_missed = iter([5_000.0, None, 6_000.0, 7_000.0])
    assert lt_product._rough_ns(lambda calls: next(one_missed)) == 6_500.0


class Asked:
    """What cuBLASLt is asked: offers by workspace, and a trial that takes the heuristic's own for slow."""

    product = call = None

    def __init__(self, own_ns: float) -> None:
        self._own_ns = own_ns
        self.note: dict[str, Any] = {}

    def offers(self, limit: int) -> Iterator[Algorithm]:
        first = {32 << 20: 7}.get(limit, 100 + lt.WORKSPACES.index(limit))
        yield algorithm(first)
        for number in range(20, 45):
            yield algorithm(number)

    def trial(self, algorithms: Any, seconds: float = 0.0) -> list[Algorithm]:
        return [
            replace(one, trial_ns=self._own_ns if one.words == (7,) else 1e3 + one.words[0])
            for one in algorithms
        ]

    def variants(self, tried: Any, most: int) -> list[Algorithm]:
        return []

    def use(self, one: Algorithm) -> None: ...

    def prepared(self, choices: Any, note: dict[str, Any], *, choose: bool) -> Any:
        return [one.words[0] for one in choices]


@pytest.mark.parametrize(("own_ns", "place"), [(9e9, 9), (float("inf"), 9), (1e3, 0)])
def test_what_the_heuristic_would_take_is_timed_again_however_its_trial_went(
    monkeypatch: pytest.MonkeyPatch, own_ns: float, place: int
):
    monkeypatch.setattr(lt, "proved_sums", lambda product, call: "shown")
    chosen = cast(Any, lt._tuned(cast(LtProduct, Asked(own_ns))))
    assert len(chosen) == 10
    assert chosen.index(7) == place
