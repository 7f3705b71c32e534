"""A rank answers whatever goes wrong in a request: who only leaves gives no reason."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from kerneltui.evaluation.worker import serve
from kerneltui.evaluation.worker_kernel import KernelError, Rank
from kerneltui.targets.channel import Channel
from kerneltui.targets.cuda.driver import DriverError
from kerneltui.targets.errors import FailureKind, MemoryFailure
from kerneltui.targets.forkserver import RankStart


@contextmanager
def serving(rank: object) -> Iterator[Channel]:
    """A rank that serves in a thread until the channel is closed."""
    ours, theirs = socket.socketpair()
    start = RankStart(0, 1, theirs, {})
    thread = threading.Thread(target=serve, args=(start, lambda *_: (cast(Rank, rank), "none", 1)))
    thread.start()
    channel = Channel(ours)
    try:
        assert ask(channel, "begin")["ok"]
        yield channel
    finally:
        channel.close()
        thread.join()


def ask(channel: Channel, what: str) -> dict[str, Any]:
    channel.send({"do": what, "nonce": what})
    return channel.receive(time.monotonic() + 60.0)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (KernelError("it hung", FailureKind.HANG), FailureKind.HANG, "it hung"),
        (MemoryError(), FailureKind.OUT_OF_MEMORY, "the rank ran out of memory"),
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            FailureKind.OUT_OF_MEMORY,
            "the rank ran out of memory: CUDA out of memory",
        ),
        (
            MemoryFailure("no room"),
            FailureKind.OUT_OF_MEMORY,
            "the rank ran out of memory: no room",
        ),
        (DriverError("cuMemUnmap failed"), FailureKind.ERROR, "cuMemUnmap failed"),
        (RuntimeError("no cuBLAS"), FailureKind.ERROR, "RuntimeError: no cuBLAS"),
        (OSError(28, "No space left"), FailureKind.ERROR, "OSError: [Errno 28] No space left"),
    ],
)
@pytest.mark.parametrize("what", ["teardown", "rates"])
def test_what_goes_wrong_in_a_request_is_its_answer(
    what: str, error: Exception, kind: FailureKind, reason: str
):
    def fail(*_: object) -> None:
        raise error

    with serving(SimpleNamespace(teardown=fail, special=fail)) as channel:
        answer = ask(channel, what)
        assert answer == {"nonce": what, "ok": False, "kind": kind, "reason": reason}
        assert ask(channel, "ping")["ok"]  # it is still there
