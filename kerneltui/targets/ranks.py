"""The rank processes of a target: its fork server, and the groups that were opened under it."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic

from kerneltui.targets.client import ForkServerClient
from kerneltui.targets.errors import FailureKind, RankFailure, ServerFailure
from kerneltui.targets.group import RankGroup
from kerneltui.targets.port import GroupRole, Limits
from kerneltui.targets.traits import GroupTraits, Memory
from kerneltui.targets.windows import GroupLayout

__all__ = ["HARNESS_COMMON", "RankProcesses"]

HARNESS_COMMON = Path(__file__).parent / "harness_common.h"
"""What the timing harnesses of all targets begin with."""

_SERVER_START_S = 180.0  # importing torch takes 2 s on a quiet machine


class RankProcesses(Generic[Memory]):
    """Starts groups of ranks under a fork server, and ends them all.

    Args:
        entry: What runs in a rank, as `module:function`.
        environment: What server and ranks find in their environment.
        traits: What is special of the target.

    Attributes:
        directory: The folder of all groups, once started.
    """

    def __init__(
        self, entry: str, environment: Mapping[str, str], traits: GroupTraits[Memory]
    ) -> None:
        self._entry = entry
        self._environment = dict(environment)
        self._traits = traits
        self._server: ForkServerClient | None = None
        self.directory: Path | None = None
        self._groups: dict[str, RankGroup[Memory]] = {}
        self._numbers = itertools.count(1)
        self._changing = threading.Lock()

    @property
    def started(self) -> bool:
        """True between `start` and `close`."""
        return self._server is not None

    @property
    def pid(self) -> int:
        """Process of the fork server.

        Raises:
            ServerFailure: If it is not started.
        """
        return self._running().pid

    def start(self) -> None:
        """Starts the fork server and returns at once; torch is imported meanwhile.

        From the main thread, if the kernel shall end the server with this process (see
        `ForkServerClient.start`).
        """
        if self._server is not None:
            return
        self.directory = Path(tempfile.mkdtemp(prefix="kerneltui-ranks-"))
        server = ForkServerClient(self._entry, self.directory, self._environment)
        server.start()
        self._server = server

    def layouts(self) -> list[GroupLayout]:
        """The layouts that are set up in groups that live."""
        with self._changing:
            groups = list(self._groups.values())
        return [memory.layout for group in groups if (memory := group.memory) is not None]

    def close(self) -> None:
        """Ends all groups, the fork server, and everything that is left under it."""
        # One after the other: what a group's end is held against are the buffers of those that still live.
        while True:
            with self._changing:
                if not self._groups:
                    break
                _, group = self._groups.popitem()
            group.close()
        if self._server is not None:
            self._server.close()
            self._server = None

    def open(
        self, role: GroupRole, ranks: int, limits: Limits, options: Mapping[str, Any]
    ) -> RankGroup[Memory]:
        """Starts a group of ranks and waits until all are ready and confined.

        Raises:
            RankFailure: If a rank does not start.
            ServerFailure: If there is no fork server.
        """
        if ranks < 1:
            raise ValueError(f"{ranks} ranks")
        server = self._running()
        server.wait_ready(_SERVER_START_S)
        assert self.directory is not None
        group_id = f"{role}-{next(self._numbers)}"
        try:
            group = RankGroup(
                server,
                group_id,
                role,
                ranks,
                limits=limits,
                directory=self.directory / group_id,
                options=options,
                traits=self._traits,
            )
        except RankFailure as failure:
            raise RankFailure(
                FailureKind.START, failure.rank, f"cannot start: {failure.reason}", failure.detail
            ) from failure
        with self._changing:
            self._groups = {k: g for k, g in self._groups.items() if g.alive}
            self._groups[group_id] = group
        return group

    def _running(self) -> ForkServerClient:
        if self._server is None:
            raise ServerFailure("the target is not started; start comes before its first group")
        return self._server
