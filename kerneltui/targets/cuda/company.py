"""Processes on the GPUs that are not ours: whoever computes beside us makes times wrong.

Ours are those below this process. In a container the driver may know processes by the numbers of another
namespace, or show none: then it is said that others are not seen, and nobody is suspected.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from kerneltui.targets.cuda.device import DeviceUse
from kerneltui.targets.processes import descendants

__all__ = ["Company"]

_LEAVING_S = 0.3  # the driver lists a process for some tenths of a second after its end
_UNSEEN_BYTES = 2 << 30  # the driver itself takes less of an idle GPU


class _Gpus(Protocol):
    """The management library."""

    @property
    def count(self) -> int: ...

    def use(self, index: int) -> DeviceUse: ...


class Company:
    """Looks who else is on the GPUs, and tells of each once. Safe to use from several threads.

    Args:
        gpus: The management library.
        say: Tells the user, in one line.
        ours: Asks for the processes of this engine.
    """

    def __init__(
        self,
        gpus: _Gpus,
        say: Callable[[str], None],
        ours: Callable[[], Collection[int]] | None = None,
    ) -> None:
        self._gpus = gpus
        self._say = say
        self._ask_ours = ours or _family
        self._changing = threading.Lock()
        self._ours: set[int] = set()
        self._told: set[str] = set()
        self._names_ours: bool | None = None  # nobody knows until a process of ours is on a GPU
        self._at_start: dict[int, tuple[int, ...]] = {}

    def know(self, pids: Collection[int]) -> None:
        """Takes note of processes of ours, which may be gone before the driver notices it."""
        with self._changing:
            self._ours |= set(pids)

    def first(self, ranks: int) -> tuple[str, ...]:
        """Looks before anything of ours is on a GPU, when all that is there is of others."""
        with self._changing:
            found = self._at_start = self._strangers(ranks)
            texts = [text for index, pids in found.items() for text in _words(index, pids)]
            for index in range(min(ranks, self._gpus.count)):
                unseen = self._gpus.use(index).unaccounted_bytes
                if index not in found and unseen is not None and unseen > _UNSEEN_BYTES:
                    texts.append(
                        f"{unseen / 2**30:.1f} GiB of GPU {index} are in use, by nobody who can be seen "
                        "from here: times may be wrong"
                    )
            return self._tell(texts)

    def look(self, ranks: int, *, running: bool) -> tuple[str, ...]:
        """Looks while processes of ours may be on the GPUs.

        Args:
            ranks: The first so many GPUs count.
            running: Whether ranks of ours are on them for certain.

        Returns:
            Who else is there, in words.
        """
        with self._changing:
            found = self._strangers(ranks)
            if not self._names_ours:
                if self._named():
                    self._names_ours = True
                elif running and self._names_ours is None:
                    self._names_ours = False
                    self._say(
                        "the driver does not name this engine's own processes (as in a container): "
                        "whether others use the GPUs meanwhile cannot be seen"
                    )
            if not self._names_ours:
                return ()
            return self._tell([t for index, pids in found.items() for t in _words(index, pids)])

    def others(self) -> Mapping[int, tuple[int, ...]]:
        """Processes of others by GPU, as far as they can be told from ours."""
        with self._changing:
            return self._strangers(self._gpus.count) if self._names_ours else self._at_start

    def _tell(self, texts: list[str]) -> tuple[str, ...]:
        for text in texts:
            if text not in self._told:
                self._say(text)
        self._told = set(texts)  # who comes again is told again
        return tuple(texts)

    def _strangers(self, ranks: int) -> dict[int, tuple[int, ...]]:
        found = self._listed(ranks)
        if any(pids - self._ours for pids in found.values()):
            self._ours |= set(self._ask_ours())
            if any(pids - self._ours for pids in found.values()):
                time.sleep(_LEAVING_S)
                again = self._listed(ranks)
                found = {index: pids & again[index] for index, pids in found.items()}
        rest = {index: tuple(sorted(pids - self._ours)) for index, pids in found.items()}
        return {index: pids for index, pids in rest.items() if pids}

    def _listed(self, ranks: int) -> dict[int, set[int]]:
        count = min(ranks, self._gpus.count)
        return {index: set(self._gpus.use(index).processes) for index in range(count)}

    def _named(self) -> bool:
        """Whether the driver lists a process of ours."""
        return any(pids & self._ours for pids in self._listed(self._gpus.count).values())


def _words(index: int, pids: tuple[int, ...]) -> list[str]:
    who = ", which is not ours, is on GPU"
    return [f"process {pid}{who} {index}: times may be wrong" for pid in pids]


def _family() -> set[int]:
    return descendants([os.getpid()]) | {os.getpid()}
