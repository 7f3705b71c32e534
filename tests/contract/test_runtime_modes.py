"""Calls after pauses, and on one buffer set, with real ranks on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from runtime_kernels import COLUMNS, ROWS, kernel, layout

from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.errors import RankFailure
from kerneltui.targets.group import RankGroup
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.port import GroupRole, Limits

pytestmark = [pytest.mark.slow, pytest.mark.alone]

LIMITS = Limits(first_call_s=60.0, sample_s=60.0, load_s=60.0, setup_s=60.0)
NOTES = """
    // Window: how many calls there were on each buffer set, and the last epoch.
    uint64_t *words = static_cast<uint64_t *>(c.window[c.rank]);
    words[set]++;
    if (words[8] && epoch != words[8] + 1) return 7;
    words[8] = epoch;
"""
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuTarget]:
    folder = tmp_path_factory.mktemp("cache")
    with CpuTarget(folder, lock=MachineLock(folder)) as made:
        yield made


@pytest.fixture
def group(target: CpuTarget) -> Iterator[RankGroup]:
    build = target.toolchain.compile(kernel(NOTES))
    with target.open_group(GroupRole.CANDIDATE, 2, limits=LIMITS) as made:
        made.load(build.library)
        wanted = made.requirements({"M": ROWS, "N": COLUMNS}, {})
        made.setup(layout(2, wanted=wanted), {})
        yield made


def calls_by_set(group: RankGroup, rank: int = 0) -> list[int]:
    memory = group.memory
    assert memory is not None
    span = memory.layout.window
    place = memory.symmetric(rank)[span.offset : span.offset + 24]
    return [int.from_bytes(place[i : i + 8], "little") for i in range(0, 24, 8)]


def test_single_calls_come_after_their_pauses_on_sets_in_turn(group: RankGroup) -> None:
    body = {"gaps_ns": [2_000_000] * 7, "first_set": 1, "epoch": 5, "evict": False}
    begin = time.monotonic()
    answers = group.ask("serve", body, LIMIT_S, gates=7)
    assert time.monotonic() - begin >= 7 * 0.002
    assert len(answers) == 2
    for answer in answers:
        assert [len(answer[part]) for part in ("latency_ns", "device_ns")] == [4, 3]
        assert all(value > 0 for value in answer["latency_ns"])
    assert calls_by_set(group) == calls_by_set(group, 1) == [2, 3, 2]
    # Gates and epochs go on behind it.
    assert group.sample(3, 0, 12).calls == 3


def test_calls_on_one_set_stay_there(group: RankGroup) -> None:
    group.sample(5, 0, 1, how={"sets": 1})
    assert calls_by_set(group) == [5, 0, 0]


def test_what_a_target_does_not_know_is_refused_in_words(group: RankGroup) -> None:
    body = {"first_set": 0, "epoch": 1, "sustained_calls": 1, "chunk": 1}
    with pytest.raises(RankFailure, match="on GPUs only"):
        group.ask("sustain", body, LIMIT_S, gates=1)


def test_a_kernel_is_told_nothing_that_only_baselines_understand(group: RankGroup) -> None:
    with pytest.raises(RankFailure, match="no baseline that understands 'choose'"):
        group.ask("choose", {"index": 1}, LIMIT_S)


def test_calls_that_cannot_be_held_back_are_begun_by_the_gate(
    group: RankGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    ask, unheld = group._started.ask, True

    def of_a_gpu(what: str, body: dict[str, Any], *rest: Any, **more: Any) -> list[dict[str, Any]]:
        first = bool(body["open_first"])
        asked.append(first)
        return [{**answer, "unheld": first or unheld} for answer in ask(what, body, *rest, **more)]

    monkeypatch.setattr(group._started, "ask", of_a_gpu)
    for number in range(19):
        group.sample(1, 0, 1 + number)
    # Two are tried, and one of sixteen after that.
    assert [index for index, first in enumerate(asked) if not first] == [0, 1, 16]
    unheld = False
    for number in range(19, 36):
        group.sample(1, 0, 1 + number)
    # It is tried again at the next of these times, and stays.
    assert [index for index, first in enumerate(asked) if not first] == [0, 1, 16, 32, 33, 34, 35]


def test_a_graph_is_held_back_though_single_calls_cannot_be(
    group: RankGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    ask = group._started.ask

    def of_a_gpu(what: str, body: dict[str, Any], *rest: Any, **more: Any) -> list[dict[str, Any]]:
        asked.append(bool(body["open_first"]))
        unheld = not body.get("graph")
        return [{**answer, "unheld": unheld} for answer in ask(what, body, *rest, **more)]

    monkeypatch.setattr(group._started, "ask", of_a_gpu)
    for number, graph in enumerate((False, False, False, True)):
        group.sample(1, 0, 1 + number, how={"graph": graph})
    assert asked == [False, False, True, False]
