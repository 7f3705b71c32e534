"""The rough time of calls that are enqueued from Python: of the device, and never of the host.

A spinning kernel holds the stream until all calls are enqueued. That it did is looked at each time: the
event behind it must not have passed when the last call is enqueued. A host that takes longer, 8 us a
call and more, would be timed in place of calls that are short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import ceil

import torch

__all__ = ["HeldStream"]

_CYCLES_PER_NS = 2.0  # GPUs run slower, so the hold only gets longer
_FIRST_HOST_NS = 10_000.0  # of a call, before one was enqueued
_SPARE = 2.0  # a hold is so much longer than the host has needed
_LEAST_CYCLES = 100_000
_MOST_CYCLES = 8_000_000  # 4 ms
_MOST_TRIES = 4


class HeldStream:
    """A stream on which calls are timed behind a hold.

    Args:
        stream: On which the calls run.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._host_ns = _FIRST_HOST_NS

    def time_ns(self, call: Callable[[int], None], sets: Sequence[int], calls: int) -> float | None:
        """Nanoseconds of a call on the device; None if the host could not get ahead of it.

        Args:
            call: Enqueues one on a buffer set.
            sets: Buffer sets, in turn.
            calls: How many are enqueued.

        Raises:
            RuntimeError: From the call.
        """
        cycles = _LEAST_CYCLES
        for _ in range(_MOST_TRIES):
            wanted = ceil(_SPARE * self._host_ns * (calls + 1) * _CYCLES_PER_NS)
            cycles = min(_MOST_CYCLES, max(cycles, wanted))
            found = self._try(call, sets, calls, cycles)
            if found is not None:
                return found
            cycles *= 2
        return None

    def _try(
        self, call: Callable[[int], None], sets: Sequence[int], calls: int, cycles: int
    ) -> float | None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(cycles)
            begin.record()
            before = time.perf_counter_ns()
            for number in range(calls):
                call(sets[number % len(sets)])
            end.record()
            self._host_ns = (time.perf_counter_ns() - before) / calls
            ahead = not begin.query()
        end.synchronize()
        return begin.elapsed_time(end) * 1e6 / calls if ahead else None
