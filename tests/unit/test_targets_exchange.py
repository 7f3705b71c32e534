"""Descriptors that come along with the answers of ranks: as many as were asked for, and none is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kerneltui.targets.channel import Channel
from kerneltui.targets.exchange import Answers, RankChannels


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture(autouse=True)
def no_descriptor_stays_open() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before


def answers_with(counts: Sequence[int], passing: int, *, ok: bool = True) -> Answers:
    """What comes of a request to ranks that send so many descriptors with their answers."""
    channels = RankChannels()
    far = [Channel(channels.add()) for _ in counts]

    def serve(end: Channel, count: int) -> None:
        message, _ = end.receive_with_descriptors(time.monotonic() + 20)
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
        end.send({"nonce": message["nonce"], "ok": ok}, files)
        for file in files:
            os.close(file)

    ranks = [threading.Thread(target=serve, args=pair) for pair in zip(far, counts, strict=True)]
    for rank in ranks:
        rank.start()
    try:
        return channels.ask({"do": "offer"}, time.monotonic() + 20, passing=passing)
    finally:
        for rank in ranks:
            rank.join()
        channels.close()
        for end in far:
            end.close()


def test_one_from_each_is_taken() -> None:
    found = answers_with([1, 1, 1], 1)
    assert [len(found.passed[rank]) for rank in range(3)] == [1, 1, 1]
    for (descriptor,) in found.passed.values():
        assert os.fstat(descriptor).st_rdev == Path(os.devnull).stat().st_rdev
    found.drop_passed()
    assert not found.passed


def test_what_nobody_asked_for_is_dropped() -> None:
    found = answers_with([3, 0], 0)
    assert found.passed == {0: [], 1: []}


def test_a_rank_that_sends_many_uses_up_nothing() -> None:
    found = answers_with([40, 0], 1)
    assert len(found.passed[0]) == 1
    assert found.passed[1] == []
    found.drop_passed()


def test_the_descriptors_of_a_refusal_are_there_to_be_closed() -> None:
    found = answers_with([1], 1, ok=False)
    assert found.failed
    found.drop_passed()


def test_answers_are_read_also_where_what_was_done_meanwhile_fails() -> None:
    channels = RankChannels()
    end = Channel(channels.add())

    def serve() -> None:
        for _ in range(2):
            message, _ = end.receive_with_descriptors(time.monotonic() + 20)
            end.send({"nonce": message["nonce"], "ok": True, "asked": message["do"]})

    def fail() -> None:
        raise ValueError("no inputs")

    rank = threading.Thread(target=serve)
    rank.start()
    try:
        with pytest.raises(ValueError, match="no inputs"):
            channels.ask({"do": "sample"}, time.monotonic() + 20, meanwhile=fail)
        found = channels.ask({"do": "teardown"}, time.monotonic() + 20)
        assert found.given[0]["asked"] == "teardown"
    finally:
        rank.join()
        channels.close()
        end.close()
