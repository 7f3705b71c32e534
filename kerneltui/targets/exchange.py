"""One request to all ranks of a group, and their answers, with a nonce and a deadline."""

from __future__ import annotations

import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kerneltui.targets.channel import Channel, ChannelClosed, ChannelTimeout

__all__ = ["Answers", "FarEnds", "RankChannels"]

_LAST_WORDS_S = 0.05


@dataclass(slots=True)
class Answers:
    """What came of a request.

    Attributes:
        given: Answers by rank; each has `ok`.
        gone: Ranks that closed their channel.
        silent: Ranks that had not answered when the deadline passed.
        passed: Descriptors that came along, by rank. Whoever has the answers closes them.
    """

    given: dict[int, dict[str, Any]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    silent: list[int] = field(default_factory=list)
    passed: dict[int, list[int]] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """True if a rank is gone or reports a failure."""
        return bool(self.gone) or any(not answer["ok"] for answer in self.given.values())

    def drop_passed(self) -> None:
        """Closes the descriptors that came along."""
        for descriptors in self.passed.values():
            for descriptor in descriptors:
                os.close(descriptor)
        self.passed = {}


@dataclass(slots=True)
class FarEnds:
    """What the ranks get: for each its channel, standard output and standard error.

    A context manager that closes them here, when they have been sent.
    """

    descriptors: list[int] = field(default_factory=list)

    def add(self, channel: socket.socket, *pipes: int) -> None:
        """Takes the ends of the next rank over."""
        self.descriptors += [channel.detach(), *pipes]

    def __enter__(self) -> FarEnds:
        """The ends themselves."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes them."""
        for fd in self.descriptors:
            os.close(fd)


class RankChannels:
    """The engine's ends of the channels of a group. One thread asks; any may shut them down."""

    def __init__(self) -> None:
        self._channels: list[Channel] = []

    def add(self) -> socket.socket:
        """Makes the channel of the next rank; its far end."""
        ours, theirs = socket.socketpair()
        self._channels.append(Channel(ours))
        return theirs

    def ask(
        self,
        request: Mapping[str, Any],
        deadline: float,
        *,
        each: Sequence[Mapping[str, Any]] | None = None,
        descriptors: Sequence[Sequence[int]] | None = None,
        meanwhile: Callable[[], None] | None = None,
        passing: int = 0,
    ) -> Answers:
        """Sends a request to all ranks and waits for all answers, for a failure, or for the deadline.

        Args:
            request: The part that is the same for all.
            deadline: By `time.monotonic()`.
            each: Further parts, by rank.
            descriptors: Descriptors to go along, by rank.
            meanwhile: What is done between sending and waiting.
            passing: So many descriptors may come along with each answer.
        """
        nonce = secrets.token_hex(8)
        answers = Answers()
        for rank, channel in enumerate(self._channels):
            message = {**request, "nonce": nonce, **(each[rank] if each else {})}
            try:
                channel.send(message, descriptors[rank] if descriptors else ())
            except (ChannelClosed, ChannelTimeout):
                answers.gone.add(rank)
        try:
            if meanwhile is not None:
                meanwhile()
        finally:  # also where that failed: answers that stay unread would belong to no request
            self._collect(nonce, answers, deadline, passing)
        return answers

    def _collect(self, nonce: str, answers: Answers, deadline: float, passing: int) -> None:
        waiting = {
            channel.fileno(): rank
            for rank, channel in enumerate(self._channels)
            if rank not in answers.gone
        }
        while waiting and not answers.failed:
            # The clock is asked each time: a rank that sends byte after byte wins no time by it.
            in_time = time.monotonic() < deadline
            if not in_time or not self._take(waiting, nonce, answers, deadline, passing):
                answers.silent = sorted(waiting.values())
                return
        if waiting:
            # A rank that dies makes its peers fail, and its end may be seen a moment after that.
            self._take(waiting, nonce, answers, time.monotonic() + _LAST_WORDS_S)

    def answered(self) -> bool:
        """Whether a rank has sent something, or is gone."""
        poll = select.poll()
        for channel in self._channels:
            poll.register(channel.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def shutdown(self) -> None:
        """Ends all channels; who waits for them wakes up."""
        for channel in self._channels:
            channel.shutdown()

    def close(self) -> None:
        """Closes all channels."""
        for channel in self._channels:
            channel.close()
        self._channels = []

    def _take(
        self,
        waiting: dict[int, int],
        nonce: str,
        answers: Answers,
        deadline: float,
        passing: int = 0,
    ) -> bool:
        """Waits for something from the waiting ranks and takes it. False if nothing came."""
        poll = select.poll()
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        for fd, _ in ready:
            rank = waiting[fd]
            channel = self._channels[rank]
            try:
                channel.feed(descriptors=passing)
                message = channel.pending()
            except ChannelClosed:
                answers.gone.add(rank)
                del waiting[fd]
                continue
            if message is not None:
                if message.get("nonce") != nonce or not isinstance(message.get("ok"), bool):
                    message = {"ok": False, "reason": "it answered to what was not asked"}
                answers.given[rank] = message
                answers.passed[rank] = channel.taken()
                del waiting[fd]
        return bool(ready)
