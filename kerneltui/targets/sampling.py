"""Samples of a group of ranks: what is asked for, calls that a gate holds back, what the answers say."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic

from kerneltui.targets.diagnosis import (
    GO_ON_OFFSET,
    SLOT_BYTES,
    all_held,
    clock_conflict,
    rank_samples,
)
from kerneltui.targets.errors import FailureKind
from kerneltui.targets.sample import Sample
from kerneltui.targets.started import StartedRanks
from kerneltui.targets.traits import GroupTraits, Memory

__all__ = ["Sampling"]

_LONGEST_DELAY_NS = 1_000_000_000
_LOOK_S = 50e-6
_WORD = struct.Struct("=Q")
_UNHELD, _TRIED_AGAIN = 2, 16
"""After so many samples in a row whose calls could not be held back it is tried in one of so many."""


class Sampling(Generic[Memory]):
    """Has the ranks of a group make calls, all from a gate on.

    Args:
        ranks: Who makes them.
        traits: What is special of the target.
    """

    def __init__(self, ranks: StartedRanks[Memory], traits: GroupTraits[Memory]) -> None:
        self._ranks = ranks
        self._traits = traits
        self._gate = self._unheld = 0

    @property
    def enqueues(self) -> bool:
        """Whether calls are enqueued first and begin only when a gate opens."""
        return self._traits.enqueues and self._unheld < _UNHELD

    @property
    def _opens_first(self) -> bool:
        """Whether the gate opens before anything is enqueued: holding it back has failed.

        A gate that loses its patience leaves time in which work could be done unseen, and the engine's clock
        would take that time for hidden work.
        """
        return self._unheld >= _UNHELD and self._unheld % _TRIED_AGAIN != 0

    def begin(self) -> None:
        """Told of a new setup, whose calls may be such that can be held back."""
        self._unheld = 0

    def gates(self, count: int) -> int:
        """Takes so many gates, at which the ranks are going to meet; the number of the first."""
        first = self._gate + 1
        self._gate += count
        return first

    def take(
        self,
        what: str,
        *,
        calls: int,
        first_set: int,
        epoch: int,
        delays_ns: Sequence[int],
        limit_s: float,
        verifying: bool,
        between: Callable[[], None] | None = None,
        how: Mapping[str, object] | None = None,
    ) -> Sample:
        """Makes calls; `what` is the request, and the rest is as for `RankGroup.sample`.

        Raises:
            ValueError: If nothing is set up, or no such calls can be made.
            RankFailure: If a rank fails or hangs.
        """
        memory, count = self._ranks.memory, self._ranks.count
        if memory is None:
            raise ValueError("setup must come before a call")
        if calls < 1 or not 0 <= first_set < memory.layout.sets:
            raise ValueError(f"{calls} calls from set {first_set}")
        delays = list(delays_ns) or [0] * count
        if len(delays) != count or not all(0 <= d <= _LONGEST_DELAY_NS for d in delays):
            raise ValueError(f"delays of {delays_ns} ns for {count} ranks")
        if between is not None and (verifying or not self.enqueues):
            raise ValueError("nothing is held back here that something could be done before")
        gate = self.gates(1)
        begin = time.monotonic_ns()
        body = {
            "calls": calls,
            "first_set": first_set,
            "epoch": epoch,
            "verifying": verifying,
            "gate": gate,
            "hold": between is not None,
            "open_first": not verifying and self._opens_first and not (how or {}).get("graph"),
            "deadline_ns": begin + int(limit_s * 1e9),
            **(how or {}),
        }
        meanwhile = None if between is None else partial(self._hold, gate, between, limit_s)
        delayed = [{"delay_ns": d} for d in delays]
        answers = self._ranks.ask(what, body, limit_s, each=delayed, meanwhile=meanwhile)
        end = time.monotonic_ns()
        try:
            seen = rank_samples(answers, calls)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"a rank sent a broken sample: {error}"
            self._ranks.fail(what, FailureKind.ERROR, None, reason)
        if not verifying:
            self._unheld = self._unheld + 1 if any(rank.unheld for rank in seen) else 0
        return Sample(
            calls=calls,
            first_set=first_set,
            epoch=epoch,
            ranks=seen,
            wall_ns=end - begin,
            clock_conflict=clock_conflict(
                seen,
                begin,
                end,
                slack_ns=self._traits.ticks_slack_ns,
                may_be_late=self._traits.ticks_late,
            ),
            slack_ns=self._traits.clock_slack_ns,
        )

    def _hold(self, gate: int, between: Callable[[], None], limit_s: float) -> None:
        """Does something once all ranks have enqueued their calls, then lets the calls begin."""
        deadline = time.monotonic() + limit_s
        control, count = self._ranks.control, self._ranks.count
        try:
            while not all_held(control, count, gate):
                if self._ranks.answered() or time.monotonic() > deadline:
                    return
                time.sleep(_LOOK_S)
            between()
        finally:
            for rank in range(count):
                place = rank * SLOT_BYTES + GO_ON_OFFSET
                _WORD.pack_into(control, place, gate)
