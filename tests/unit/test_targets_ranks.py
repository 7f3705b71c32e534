from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from kerneltui.targets.ranks import RankProcesses


class FakeGroup:
    """A group whose end asks what else is set up, as a target of GPUs does."""

    def __init__(self, processes: RankProcesses[Any], name: str) -> None:
        self.memory: Any = SimpleNamespace(layout=name)
        self.seen: list[Any] = []
        self._processes = processes

    def close(self) -> None:
        self.seen = self._processes.layouts()


def test_a_group_ends_while_the_others_still_count() -> None:
    """Their buffers lie on the same devices: without them, its own would seem to be still there."""
    processes: RankProcesses[Any] = RankProcesses("module:entry", {}, cast(Any, None))
    groups = [FakeGroup(processes, name) for name in ("a", "b", "c")]
    processes._groups = cast(Any, {group.memory.layout: group for group in groups})
    processes.close()
    assert [group.seen for group in groups] == [[], ["a"], ["a", "b"]]
    assert processes.layouts() == []
