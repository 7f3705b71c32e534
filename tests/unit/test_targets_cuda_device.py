"""GPUs as the management library shows them, played by a list."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kerneltui.targets.cuda import device as module
from kerneltui.targets.cuda.device import DeviceUse, MemoryWatch, device_environment
from kerneltui.targets.cuda.policy import DEFAULT_POLICY

GIB = 1 << 30


class Fake:
    """One GPU whose use goes through a list; the last entry stays."""

    def __init__(self, *uses: tuple[int, Mapping[int, int | None]]) -> None:
        self.uses = [DeviceUse(used, processes) for used, processes in uses]
        self.asked = 0

    def use(self, index: int) -> DeviceUse:
        self.asked += 1
        return self.uses.pop(0) if len(self.uses) > 1 else self.uses[0]


def watch(fake: Fake) -> MemoryWatch:
    return MemoryWatch(fake, [0])  # pyright: ignore[reportArgumentType]


def test_a_group_that_has_left_leaves_nothing_to_say() -> None:
    fake = Fake((GIB, {}), (9 * GIB, {7: 8 * GIB}), (GIB, {}))
    assert watch(fake).wait_gone({7}, [0], [0]) == {}
    assert fake.asked == 3  # it waited for the second look


def test_a_process_that_stays_is_named() -> None:
    found = watch(Fake((GIB, {}), (9 * GIB, {7: 8 * GIB}))).wait_gone({7}, [0], [0], patience_s=0.0)
    assert found == {0: "processes 7 are still on it"}


def test_memory_that_belongs_to_nobody_is_told() -> None:
    found = watch(Fake((GIB, {}), (5 * GIB, {}))).wait_gone({7}, [0], [0], patience_s=0.0)
    assert found == {0: "4096 MiB are in use that belong to no process"}


def test_memory_of_other_processes_and_buffers_is_none_of_the_groups_business() -> None:
    fake = Fake((GIB, {}), (9 * GIB, {8: 4 * GIB}))
    assert watch(fake).wait_gone({7}, [0], [4 * GIB], patience_s=0.0) == {}


def test_where_the_driver_does_not_say_how_much_processes_count_alone() -> None:
    fake = Fake((GIB, {}), (9 * GIB, {8: None}))
    assert watch(fake).wait_gone({7}, [0], [0], patience_s=0.0) == {}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, ["a", "b", "c"]),
        ("", []),
        ("2,0", ["c", "a"]),
        ("GPU-12", ["b"]),
        ("1,9,0", ["b"]),
    ],
)
def test_the_users_choice_of_devices_is_kept(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, expected: list[str]
) -> None:
    monkeypatch.delenv(module.VISIBLE, raising=False)
    if chosen is not None:
        monkeypatch.setenv(module.VISIBLE, chosen)
    assert module._chosen(["a", "b", "c"], ["GPU-01", "GPU-12", "GPU-23"]) == expected
    assert device_environment(DEFAULT_POLICY).get(module.VISIBLE) == chosen
