"""GPUs that a group did not leave: they are not used any more, and the user is told at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from kerneltui.targets.cuda.device import MemoryWatch
from kerneltui.targets.errors import ServerFailure
from kerneltui.targets.port import KillProof
from kerneltui.targets.windows import GroupLayout

__all__ = ["Quarantine"]


class Quarantine:
    """Which GPUs may be used. Safe to use from several threads.

    Args:
        count: How many GPUs there are.
        watch: Knows whether processes have left a GPU, and their memory with them.
        say: Tells the user, in one line.
        why_no_more: Why there are no more GPUs than those, if the user should know.
    """

    def __init__(
        self,
        count: int,
        watch: MemoryWatch,
        say: Callable[[str], None],
        why_no_more: str = "",
    ) -> None:
        self._count = count
        self._watch = watch
        self._say = say
        self._why_no_more = why_no_more
        self._said_unseen = False
        self._changing = threading.Lock()
        self._why: dict[int, str] = {}

    @property
    def devices(self) -> Mapping[int, str]:
        """GPUs that are not used any more, and why."""
        with self._changing:
            return dict(self._why)

    def choose(self, ranks: int) -> list[int]:
        """The GPUs of a group, by rank.

        Raises:
            ServerFailure: There are too few, or one is quarantined.
        """
        if ranks > self._count:
            why = f": {self._why_no_more}" if self._why_no_more else ""
            raise ServerFailure(f"{ranks} ranks need {ranks} GPUs, there are {self._count}{why}")
        given_up = self.devices
        for index in range(ranks):
            if index in given_up:
                raise ServerFailure(f"GPU {index} is quarantined: {given_up[index]}; {_REMEDY}")
        return list(range(ranks))

    def settle(self, proof: KillProof, layouts: Sequence[GroupLayout]) -> str:
        """Waits until a group has left its GPUs; quarantines those that it has not.

        Args:
            proof: Which processes it had.
            layouts: Buffers that the judge holds now, or gives back in a moment.

        Returns:
            What is quarantined and why, in words; empty if all is well.
        """
        pids = {e.pid for e in proof.exits} | set(proof.strays) | set(proof.left)
        buffers = [sum(_rank_bytes(one, i) for one in layouts) for i in range(self._count)]
        left = self._watch.wait_gone(pids, range(self._ranks(proof)), buffers, living=proof.left)
        with self._changing:
            new = {index: text for index, text in left.items() if index not in self._why}
            self._why.update(left)
            say_unseen = self._watch.names_ours is False and not self._said_unseen
            self._said_unseen = self._said_unseen or say_unseen
        if say_unseen:
            self._say(_UNSEEN)
        for index, text in new.items():
            self._say(f"GPU {index} is quarantined, nothing runs on it any more: {text}; {_REMEDY}")
        return "; ".join(f"GPU {index} is quarantined: {text}" for index, text in left.items())

    def _ranks(self, proof: KillProof) -> int:
        """How many GPUs the group had at most: a rank that does not end is among those that are left."""
        known = len(proof.exits) + len(proof.left) if proof.exits else self._count
        return min(known, self._count)


_REMEDY = "end what holds it, then start again"
_UNSEEN = (
    "the driver does not name this engine's own processes (as in a container): by /proc alone is known that "
    "a group has left its GPUs, and memory that it leaves behind is not seen"
)


def _rank_bytes(layout: GroupLayout, rank: int) -> int:
    """Device memory of one rank's buffers."""
    if rank >= len(layout.ranks):
        return 0
    item = layout.ranks[rank]
    return item.private_bytes + item.symmetric_bytes + layout.signal_bytes
