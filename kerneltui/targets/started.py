"""The started ranks of one group: asked with nonces and deadlines, and ended for certain."""

from __future__ import annotations

import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NoReturn

from kerneltui.targets.client import ForkServerClient
from kerneltui.targets.diagnosis import (
    SLOT_BYTES,
    describe_exit,
    describe_refusal,
    last_epochs,
    one_line,
    unremarkable,
)
from kerneltui.targets.ending import end_ranks
from kerneltui.targets.errors import FailureKind, RankFailure
from kerneltui.targets.exchange import Answers, FarEnds, RankChannels
from kerneltui.targets.output import KeptOutput, OutputKeeper
from kerneltui.targets.port import KillProof, Limits
from kerneltui.targets.traits import GroupTraits, Memory
from kerneltui.targets.windows import GroupLayout

__all__ = ["StartedRanks"]

_ANSWER_S = 0.5  # the harness gives up first and can say who was late; the engine waits this longer
_EXIT_S = 10.0  # for the fork server to tell how a rank ended that is gone
_DETAIL_CHARACTERS = 2000


class StartedRanks(Generic[Memory]):
    """The processes of a group, with everything that is given back at their end.

    A rank that fails, hangs or is gone is the end of all of them.

    Args:
        server: Forks the ranks.
        group_id: Unique name.
        count: Number of ranks.
        limits: Times and sizes.
        directory: A folder of this group's own; removed at the end.
        options: For the workers.
        traits: What is special of the target.

    Attributes:
        count: Number of ranks.
        pids: Processes, by rank.
        sandbox_level: What confines them, in words.
        control: The page in which the harnesses say how far they came.
        memory: The buffers that are set up, if there are; closed at the end.
        layout: Of the buffers that were set up last.

    Raises:
        RankFailure: If a rank does not start.
    """

    def __init__(
        self,
        server: ForkServerClient,
        group_id: str,
        count: int,
        *,
        limits: Limits,
        directory: Path,
        options: Mapping[str, Any],
        traits: GroupTraits[Memory],
    ) -> None:
        self.count = count
        self.pids: tuple[int, ...] = ()
        self.sandbox_level = ""
        self.memory: Memory | None = None
        self.layout: GroupLayout | None = None
        self._group_id = group_id
        self._limits = limits
        self._traits = traits
        self._server = server
        self._directory = directory
        self._channels = RankChannels()
        self._outputs = [(OutputKeeper(), OutputKeeper()) for _ in range(count)]
        self._ending = threading.Lock()
        self._proof: KillProof | None = None
        self._killed = self._settled = False
        self._left_behind = ""
        self._control_fd = os.memfd_create("kerneltui-control", os.MFD_CLOEXEC)
        os.ftruncate(self._control_fd, -(-count * SLOT_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.control = mmap.mmap(self._control_fd, 0)
        try:
            self._open(options)
        except BaseException:
            self.close()
            raise

    # Requests

    def ask(
        self,
        what: str,
        body: Mapping[str, Any],
        limit_s: float,
        *,
        each: Sequence[Mapping[str, Any]] | None = None,
        descriptors: Sequence[Sequence[int]] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Sends one request to all ranks; their answers, by rank.

        Args:
            what: The request.
            body: The part of it that is the same for all.
            limit_s: How long it may take.
            each: Further parts, by rank.
            descriptors: Descriptors to go along, by rank.
            meanwhile: What is done between sending and waiting.

        Raises:
            RankFailure: If a rank fails or hangs; all have been ended then.
        """
        answers = self.answers(
            what, body, limit_s, each=each, descriptors=descriptors, meanwhile=meanwhile
        )
        return [answers.given[rank] for rank in range(self.count)]

    def answers(
        self,
        what: str,
        body: Mapping[str, Any],
        limit_s: float,
        *,
        each: Sequence[Mapping[str, Any]] | None = None,
        descriptors: Sequence[Sequence[int]] | None = None,
        meanwhile: Callable[[], None] | None = None,
        passing: int = 0,
    ) -> Answers:
        """The same, with `passing` descriptors at most that come along with each answer."""
        self.check_alive()
        answers = self._channels.ask(
            {"do": what, **body},
            time.monotonic() + limit_s + _ANSWER_S,
            each=each,
            descriptors=descriptors,
            meanwhile=meanwhile,
            passing=passing,
        )
        if answers.failed or answers.silent:
            answers.drop_passed()
        if answers.failed:
            self._fail_answers(what, answers)
        if answers.silent:
            self._fail_hang(what, answers.silent, limit_s)
        return answers

    def answered(self) -> bool:
        """Whether a rank has sent something, or is gone."""
        return self._channels.answered()

    def check_alive(self) -> None:
        """Looks whether anybody is there to ask.

        Raises:
            RankFailure: If the group has ended.
        """
        if self._killed or self._proof is not None:
            raise RankFailure(FailureKind.KILLED, None, f"group {self._group_id} has ended")

    def fail(self, what: str, kind: FailureKind, rank: int | None, reason: str) -> NoReturn:
        """Ends all ranks for something that one of them did.

        Args:
            what: In which request.
            kind: What it is.
            rank: Who, if it was one.
            reason: In one line.

        Raises:
            RankFailure: Always; with what the ranks wrote, and how they ended.
        """
        if self._killed:
            kind, reason = FailureKind.KILLED, f"group {self._group_id} was ended"
        reason = one_line(reason)
        proof = self.close()
        detail = [describe_exit(e.rank, e, what)[1] for e in proof.exits]
        for writer, (_, errors) in enumerate(self._outputs):
            last = errors.kept().text[-_DETAIL_CHARACTERS:].strip()
            if last:
                detail.append(f"rank {writer} wrote: {last}")
        if not proof.gone:
            reason += f"; processes {', '.join(map(str, proof.left))} cannot be killed"
        if self._left_behind:
            reason += f"; {self._left_behind}"
        raise RankFailure(kind, rank, reason, "\n".join(detail))

    def output(self) -> tuple[KeptOutput, ...]:
        """What each rank wrote to standard output, then what each wrote to standard error."""
        return tuple(self._outputs[r][i].kept() for i in (0, 1) for r in range(self.count))

    # The end

    @property
    def alive(self) -> bool:
        """False when the group has ended, for whatever reason."""
        return self._proof is None

    def kill(self) -> None:
        """Ends the group, from any thread. Whoever waits for it gets a `RankFailure`."""
        self._killed = True
        self._end()

    def close(self) -> KillProof:
        """Ends the group and gives back its memory, files and descriptors. May be called again.

        Returns:
            The proof that its processes are gone.
        """
        proof = self._end()
        self.release_memory()
        if not self._settled:
            self._settled = True
            self._left_behind = self._traits.settle(proof, self.layout)
        with self._ending:
            self._channels.close()
            if not self.control.closed:
                self.control.close()
                os.close(self._control_fd)
            shutil.rmtree(self._directory, ignore_errors=True)
            self._server.forget(self._group_id)
        return proof

    def release_memory(self) -> None:
        """Closes the buffers that are set up, if there are."""
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()

    def _open(self, options: Mapping[str, Any]) -> None:
        limits = {
            name: getattr(self._limits, name)
            for name in ("memory_bytes", "shared_bytes", "file_bytes")
        }
        limits["addresses"] = self._traits.limits_addresses
        request = {
            "do": "open",
            "group": self._group_id,
            "ranks": self.count,
            "limits": limits,
            "options": {**options, "directory": str(self._directory)},
        }
        try:
            with FarEnds() as far:
                self._directory.mkdir(mode=0o700, parents=True)
                for rank in range(self.count):
                    (self._directory / f"rank{rank}").mkdir(mode=0o700)
                    pipes = [os.pipe2(os.O_CLOEXEC) for _ in self._outputs[rank]]
                    far.add(self._channels.add(), *(writer for _, writer in pipes))
                    for (reader, _), keeper in zip(pipes, self._outputs[rank], strict=True):
                        self._server.watch(reader, keeper)
                answer = self._server.ask(request, far.descriptors, timeout_s=self._limits.start_s)
            self.pids = tuple(answer["pids"])
        except OSError as error:
            raise RankFailure(
                FailureKind.START, None, f"cannot start {self.count} ranks: {error.strerror}"
            ) from error
        answers = self.ask(
            "begin", {}, self._limits.start_s, descriptors=[[self._control_fd]] * self.count
        )
        self.sandbox_level = str(answers[0]["sandbox"])

    def _fail_answers(self, what: str, answers: Answers) -> NoReturn:
        if answers.gone:
            exits = {
                rank: self._server.wait_exit(self._group_id, rank, _EXIT_S) for rank in answers.gone
            }
            # If several are gone, the one that died of a signal of its own explains the others.
            rank = min(answers.gone, key=lambda r: (unremarkable(exits[r]), r))
            kind, reason = describe_exit(rank, exits[rank], what)
        else:
            rank = min(r for r, answer in answers.given.items() if not answer["ok"])
            kind, reason = describe_refusal(rank, answers.given[rank], what)
            if kind is FailureKind.HANG:
                reason += f"; {last_epochs(self.control, self.count)}"
        self.fail(what, kind, rank, reason)

    def _fail_hang(self, what: str, silent: list[int], limit_s: float) -> NoReturn:
        names = "rank" if len(silent) == 1 else "ranks"
        who = " and ".join(str(r) for r in silent)
        reason = f"{names} {who} hung in {what}: no answer within {limit_s:g} s"
        if what in ("run", "sample"):
            reason += f"; {last_epochs(self.control, self.count)}"
        self.fail(what, FailureKind.HANG, silent[0] if len(silent) == 1 else None, reason)

    def _end(self) -> KillProof:
        with self._ending:
            if self._proof is not None:
                return self._proof
            self._channels.shutdown()
            self._proof = end_ranks(self._server, self._group_id, self.pids)
            return self._proof
