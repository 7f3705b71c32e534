"""The engine's end of the judge: starts the process, asks, and tells its death from a verdict."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerneltui.evaluation.values import Report, ValueClass
from kerneltui.model.errors import UserError
from kerneltui.targets.buffers import RankFiles, SharedMemory
from kerneltui.targets.channel import Channel, ChannelClosed, ChannelTimeout
from kerneltui.targets.errors import FailureKind, MemoryFailure, RankFailure
from kerneltui.targets.patterns import Poison
from kerneltui.targets.port import JudgePlace
from kerneltui.targets.windows import GroupLayout

__all__ = ["JudgeClient", "JudgeFailure"]

_START_S = 60.0
_ANSWER_S = 60.0
_SELF_TEST_S = 120.0
_KEPT_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")


class JudgeFailure(UserError):
    """The judge is gone, or cannot answer: a fault of the harness, never of a kernel.

    Attributes:
        no_room: Whether there was no memory for its values, or the system ended it as if there was none.
    """

    def __init__(self, text: str, *, no_room: bool = False) -> None:
        super().__init__(text)
        self.no_room = no_room


@dataclass(slots=True)
class _JudgeMade:
    """Device memory that the judge made, as the engine holds it: by descriptor."""

    layout: GroupLayout
    files: tuple[RankFiles, ...]
    _open: bool = True

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(fd for f in self.files for fd in (f.private, f.symmetric, f.signals))

    def close(self) -> None:
        if self._open:
            self._open = False
            for fd in self.descriptors:
                os.close(fd)


class JudgeClient:
    """Asks the judge. One thread at a time.

    Args:
        folder: The workload's folder.
        threads: Threads that the judge may use; ranks are idle while it works.
        target: Whose dtypes and shapes; those of the first target in the file by default.
        place: Where the judge works.
    """

    def __init__(
        self,
        folder: Path,
        threads: int,
        target: str | None = None,
        place: JudgePlace | None = None,
    ) -> None:
        self._folder = folder.resolve()
        self._threads = threads
        self._target = target or ""
        self._place = place or JudgePlace()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self.hello: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        """The process of the judge."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Starts the process without waiting for it; call `wait` before the first request.

        It dies with the thread that called this, so that thread must live as long as the engine.
        """
        ours, theirs = socket.socketpair()
        environment = {k: v for k, v in os.environ.items() if k in _KEPT_ENVIRONMENT}
        environment.update(self._place.environment)
        environment["OMP_NUM_THREADS"] = str(self._threads)
        # Keep freed memory: expected values come and go in blocks of the same few sizes, and fresh
        # pages cost more than the arithmetic on them.
        environment["MALLOC_MMAP_MAX_"] = "0"
        environment["MALLOC_TRIM_THRESHOLD_"] = str(1 << 34)
        command = [
            sys.executable, "-I", "-m", "kerneltui.evaluation.judge",
            str(theirs.fileno()), str(self._folder), str(self._threads), str(os.getpid()),
            self._target, self._place.device,
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise JudgeFailure(f"the judge cannot start: {error}") from error
        finally:
            theirs.close()
        self._channel = Channel(ours)

    def wait(self) -> None:
        """Waits until the judge has loaded the workload.

        Raises:
            JudgeFailure: It could not.
        """
        self.hello, _ = self._receive(time.monotonic() + _START_S)

    def attach(
        self, group: str, shape: str, layout: GroupLayout, descriptors: Sequence[int]
    ) -> None:
        """Gives the judge the memory of a group, set up at one shape. Guard bands are written."""
        request = {"op": "attach", "group": group, "shape": shape, "layout": layout.to_json()}
        self._ask(request, descriptors=descriptors)

    def allocate(
        self, group: str, shape: str, layout: GroupLayout, offered: Sequence[int] = ()
    ) -> SharedMemory:
        """Has the judge make the memory of a group on GPUs. Guard bands are written.

        Args:
            group: Whose.
            shape: At which shape.
            layout: Where everything lies.
            offered: Descriptors of the symmetric files, by rank, if ranks made them; closed here.

        Raises:
            MemoryFailure: A GPU has no room.
            RankFailure: What a rank offered is not what the layout says.
        """
        request = {"op": "allocate", "group": group, "shape": shape, "layout": layout.to_json()}
        try:
            _, descriptors = self._exchange(request, descriptors=offered)
        finally:
            for descriptor in offered:
                os.close(descriptor)
        triples = [descriptors[i : i + 3] for i in range(0, len(descriptors), 3)]
        return _JudgeMade(layout, tuple(RankFiles(*triple) for triple in triples))

    def detach(self, group: str) -> None:
        """Takes the memory of a group away."""
        self._ask({"op": "detach", "group": group})

    def prepare(self, shape: str, values: ValueClass, *, renew: bool = False) -> None:
        """Has expected values computed; with `renew`, from a fresh seed."""
        self._ask({"op": "prepare", "shape": shape, "values": values, "renew": renew})

    def fill(
        self,
        group: str,
        sets: Sequence[int],
        values: ValueClass = ValueClass.NATURAL,
        poison: Poison | None = Poison.NAN,
    ) -> None:
        """Writes fresh inputs into buffer sets, and poisons their outputs unless told not to.

        Without poison the output of an earlier call stays there. It belongs to other inputs, so a kernel
        that writes nothing is found out all the same, and the timed calls run on warm memory.
        """
        self._ask({"op": "fill", "group": group, "sets": [*sets], "values": values,
                   "poison": poison})  # fmt: skip

    def edit(self, group: str, sets: Sequence[int], poison: Poison = Poison.NAN) -> None:
        """Changes one element of one input in place, and poisons the outputs."""
        self._ask({"op": "edit", "group": group, "sets": [*sets], "poison": poison})

    def poison(self, group: str, sets: Sequence[int], poison: Poison = Poison.PLAUSIBLE) -> None:
        """Poisons outputs, and leaves inputs as they are."""
        self._ask({"op": "poison", "group": group, "sets": [*sets], "poison": poison})

    def check(self, group: str, sets: Sequence[int], *, digest: bool = False) -> Report:
        """Compares buffer sets with what they must hold."""
        request = {"op": "check", "group": group, "sets": [*sets], "digest": digest}
        return Report.from_json(self._ask(request))

    def seeds(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """Takes the seeds that nothing is made from any more; `everything` retires all of them."""
        return self._ask({"op": "seeds", "all": everything})

    def self_test(self) -> list[dict[str, Any]]:
        """Runs the test of the workload; rows of `name`, `kind`, `ok`, `text`."""
        return self._ask({"op": "self_test"}, timeout_s=_SELF_TEST_S)

    def close(self) -> None:
        """Ends the judge and waits for its end."""
        if self._channel:
            self._channel.close()
            self._channel = None
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _ask(
        self,
        request: dict[str, Any],
        *,
        descriptors: Sequence[int] = (),
        timeout_s: float = _ANSWER_S,
    ) -> Any:
        return self._exchange(request, descriptors=descriptors, timeout_s=timeout_s)[0]

    def _exchange(
        self,
        request: dict[str, Any],
        *,
        descriptors: Sequence[int] = (),
        timeout_s: float = _ANSWER_S,
    ) -> tuple[Any, list[int]]:
        if self._channel is None:
            raise JudgeFailure("the judge is not running")
        try:
            self._channel.send(request, descriptors)
        except (ChannelClosed, ChannelTimeout) as error:
            raise self._gone() from error
        return self._receive(time.monotonic() + timeout_s)

    def _receive(self, deadline: float) -> tuple[Any, list[int]]:
        if self._channel is None:
            raise JudgeFailure("the judge is not running")
        try:
            answer, descriptors = self._channel.receive_with_descriptors(deadline)
        except ChannelTimeout:
            self.close()
            raise JudgeFailure("the judge did not answer in time and was ended") from None
        except ChannelClosed:
            raise self._gone() from None
        if answer.get("memory"):
            raise MemoryFailure(str(answer["error"]))
        if "rank" in answer:
            raise RankFailure(FailureKind.ERROR, int(answer["rank"]), str(answer["error"]))
        if answer.get("broken"):
            self.close()  # the next one to need a judge gets a new one
        if "error" in answer:
            raise JudgeFailure(f"the judge: {answer['error']}", no_room=bool(answer.get("no_room")))
        return answer["ok"], descriptors

    def _gone(self) -> JudgeFailure:
        process = self._process
        self.close()
        code = process.returncode if process else None
        no_room = code == -signal.SIGKILL  # nobody else does that
        return JudgeFailure(f"the judge is gone (exit code {code})", no_room=no_room)
