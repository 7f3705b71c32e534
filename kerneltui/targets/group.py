"""A group of ranks as the engine sees it: requests with nonces and deadlines, and a certain end."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NoReturn, Self, cast

from kerneltui.targets.buffers import SharedMemory
from kerneltui.targets.client import ForkServerClient
from kerneltui.targets.diagnosis import (
    GO_ON_OFFSET,
    SLOT_BYTES,
    all_held,
    clock_conflict,
    describe_exit,
    describe_refusal,
    last_epochs,
    one_line,
    rank_samples,
    unremarkable,
)
from kerneltui.targets.ending import end_ranks
from kerneltui.targets.errors import FailureKind, RankFailure, TargetError
from kerneltui.targets.exchange import Answers, FarEnds, RankChannels
from kerneltui.targets.output import KeptOutput, OutputKeeper
from kerneltui.targets.port import (
    GroupRole,
    KillProof,
    Limits,
    Requirements,
    Sample,
)
from kerneltui.targets.traits import GroupTraits, Memory
from kerneltui.targets.windows import GroupLayout

__all__ = ["RankGroup"]

_ANSWER_S = 0.5  # the harness gives up first and can say who was late; the engine waits this longer
_DETAIL_CHARACTERS = 2000
_LONGEST_DELAY_NS = 1_000_000_000
_LOOK_S = 50e-6
_WORD = struct.Struct("=Q")
_UNHELD, _TRIED_AGAIN = 2, 16
"""After so many samples in a row whose calls could not be held back it is tried in one of so many."""


class RankGroup(Generic[Memory]):
    """Ranks of one role. Made by the `open_group` of a target.

    Args:
        server: Forks the ranks.
        group_id: Unique name.
        role: Whose code it runs.
        ranks: Number of ranks.
        limits: Times and sizes.
        directory: A folder of this group's own; removed at the end.
        options: For the workers.
        traits: What is special of the target.
    """

    def __init__(
        self,
        server: ForkServerClient,
        group_id: str,
        role: GroupRole,
        ranks: int,
        *,
        limits: Limits,
        directory: Path,
        options: Mapping[str, Any],
        traits: GroupTraits[Memory],
    ) -> None:
        self.group_id = group_id
        self.role = role
        self.ranks = ranks
        self.limits = limits
        self.pids: tuple[int, ...] = ()
        self.sandbox_level = ""
        self.threads = 0
        self.memory: Memory | None = None
        self.layout: GroupLayout | None = None
        self.facts: Mapping[str, Any] = {}
        self.left_behind = ""
        self._traits = traits
        self._connected = not traits.connects_late
        self._has_windows = False
        self._server = server
        self._directory = directory
        self._channels = RankChannels()
        self._outputs = [(OutputKeeper(), OutputKeeper()) for _ in range(ranks)]
        self._ending = threading.Lock()
        self._proof: KillProof | None = None
        self._killed = self._settled = False
        self._gate = self._unheld = 0
        self._control_fd = os.memfd_create("kerneltui-control", os.MFD_CLOEXEC)
        os.ftruncate(self._control_fd, -(-ranks * SLOT_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._control = mmap.mmap(self._control_fd, 0)
        try:
            self._open(options)
        except BaseException:
            self.close()
            raise

    # What the evaluation asks for

    def load(self, library: Path) -> None:
        """Loads a kernel on every rank.

        Raises:
            RankFailure: If it cannot be loaded, or its constructors crash or hang.
        """
        self._ask("load", {"library": str(library)}, self.limits.load_s)

    def load_baseline(self, name: str) -> None:
        """Takes a trusted implementation by name.

        Raises:
            ValueError: If the group is no baseline group.
            RankFailure: If there is none of that name.
        """
        if self.role is not GroupRole.BASELINE:
            raise ValueError(f"a group of role {self.role} takes no baseline")
        self._ask("load_baseline", {"name": name}, self.limits.load_s)

    def requirements(
        self, dimensions: Mapping[str, int], runtime: Mapping[str, int]
    ) -> Requirements:
        """Asks the kernel what it needs for a shape; the largest answer over the ranks.

        Raises:
            RankFailure: If the kernel refuses the shape, or was built for another version.
        """
        body = {"dimensions": dict(dimensions), "runtime": dict(runtime)}
        answers = self._ask("requirements", body, self.limits.load_s)
        wanted = Requirements(
            signal_words=max(int(a["signal_words"]) for a in answers),
            window_bytes=max(int(a["window_bytes"]) for a in answers),
            scratch_bytes=max(int(a["scratch_bytes"]) for a in answers),
            host_collectives=any(a["host_collectives"] for a in answers),
            nccl_windows=any(a["nccl_windows"] for a in answers),
        )
        if (wanted.host_collectives or wanted.nccl_windows) and not self._connected:
            met = self._ask("meet", {}, self.limits.load_s)
            self._ask("connect", {"meeting": met[0]["meeting"]}, self.limits.start_s)
            self._connected = True
        if wanted.nccl_windows and not self._has_windows:
            self._ask("windows", {"library": self._windows_library()}, self.limits.load_s)
            self._has_windows = True
        return wanted

    def _windows_library(self) -> str:
        if self._traits.windows is None:
            reason = "there are no NCCL windows on this target"
            self._fail("requirements", FailureKind.ERROR, None, reason)
        try:
            return self._traits.windows()
        except TargetError as error:
            self._fail("requirements", FailureKind.ERROR, None, f"no NCCL windows: {error}")

    @property
    def makes_memory(self) -> bool:
        """True if `setup` makes the buffers itself, False if it must be given them."""
        return self._traits.make_memory is not None

    @property
    def granularity(self) -> int:
        """What the files of a layout must be multiples of, in bytes."""
        return self._traits.granularity

    @property
    def enqueues(self) -> bool:
        """Whether calls are enqueued first and begin only when a gate opens."""
        return self._traits.enqueues and self._unheld < _UNHELD

    @property
    def _opens_first(self) -> bool:
        """Whether the gate opens before anything is enqueued: holding it back has failed.

        A gate that loses its patience leaves time in which work could be done unseen, and the engine's clock
        would take that time for hidden work.
        """
        return self._unheld >= _UNHELD and self._unheld % _TRIED_AGAIN != 0

    def offer(self, layout: GroupLayout) -> list[int]:
        """Has each rank make its own symmetric file of a layout, for the next `setup`.

        Returns:
            A descriptor from each rank, which the caller closes. A rank is not to be believed: whoever
            maps them looks at what they hold.

        Raises:
            RankFailure: If a rank fails.
        """
        body = {"layout": layout.to_json()}
        answers = self._answers("offer", body, self.limits.setup_s, passing=1)
        for rank, passed in sorted(answers.passed.items()):
            if len(passed) != 1:
                answers.drop_passed()
                reason = f"rank {rank} offered no memory"
                self._fail("offer", FailureKind.ERROR, rank, reason)
        return [answers.passed[rank][0] for rank in range(self.ranks)]

    def setup(
        self, layout: GroupLayout, runtime: Mapping[str, int], memory: SharedMemory | None = None
    ) -> None:
        """Maps the buffers of a layout in the ranks, and calls the kernel's `setup`.

        Args:
            layout: Where everything lies.
            runtime: Values of the run-time tunables.
            memory: The buffers, which the group owns from here on; made here if `makes_memory`.

        Raises:
            MemoryFailure: If the machine has no room.
            RankFailure: If a rank fails.
        """
        if len(layout.ranks) != self.ranks:
            raise ValueError(f"a layout of {len(layout.ranks)} ranks for {self.ranks}")
        if self.memory is not None:
            raise ValueError("teardown must come before the next setup")
        make = self._traits.make_memory
        if (make is None) is (memory is None):
            raise ValueError("the buffers of a group are made here, or given to setup")
        self._check_alive()
        self.memory = make(layout) if make is not None else cast("Memory", memory)
        self.layout = layout
        self._unheld = 0
        files = self.memory.files
        shared = [*(f.symmetric for f in files), *(f.signals for f in files)]
        answers = self._ask(
            "setup",
            {"layout": layout.to_json(), "runtime": dict(runtime)},
            self.limits.setup_s,
            descriptors=[[files[rank].private, *shared] for rank in range(self.ranks)],
        )
        self.facts = answers[0].get("facts", {})

    def run(self, set_index: int, epoch: int, delays_ns: Sequence[int] = ()) -> Sample:
        """Makes one call, within the limit of a first call.

        Args:
            set_index: Which buffer set.
            epoch: One more than that of the call before.
            delays_ns: For each rank, how much later than the others it starts; none if empty.

        Raises:
            RankFailure: If a rank fails or hangs.
        """
        return self._sample(
            "run",
            calls=1,
            first_set=set_index,
            epoch=epoch,
            delays_ns=delays_ns,
            limit_s=self.limits.first_call_s,
            verifying=True,
        )

    def sample(
        self,
        calls: int,
        first_set: int,
        epoch: int,
        delays_ns: Sequence[int] = (),
        *,
        verifying: bool = False,
        limit_s: float | None = None,
        between: Callable[[], None] | None = None,
        how: Mapping[str, object] | None = None,
    ) -> Sample:
        """Makes `calls` back-to-back calls over the rotating sets, with epochs from `epoch` on.

        Args:
            calls: Number of calls on every rank.
            first_set: Buffer set of the first call.
            epoch: Epoch of the first call; the next calls count up.
            delays_ns: For each rank, how much later than the others it starts; none if empty.
            verifying: Whether the end of each call is wanted, rather than nothing but the calls.
            limit_s: Instead of the group's limit for a sample.
            between: Done while all calls are enqueued and none has begun; only of a group that `enqueues`.
            how: Further parts of the request: `evict` empties a GPU's second-level cache first, `sets` is
                how many buffer sets calls rotate over, from set 0 on.

        Raises:
            RankFailure: If a rank fails or hangs.
        """
        limit = self.limits.sample_s if limit_s is None else limit_s
        return self._sample(
            "sample",
            calls=calls,
            first_set=first_set,
            epoch=epoch,
            delays_ns=delays_ns,
            limit_s=limit,
            verifying=verifying,
            between=between,
            how=how,
        )

    def teardown(self) -> None:
        """Calls the kernel's `teardown`, unmaps the memory in the ranks and gives it back.

        Raises:
            RankFailure: If a rank fails.
        """
        self._ask("teardown", {}, self.limits.setup_s)
        self._release_memory()

    def measure(self, dtype: str) -> list[dict[str, Any]]:
        """Has every rank measure the rates of its device, all at the same time.

        Returns:
            What each measured; where targets know it, with the one-way time of a flag as `flag_ns`.

        Raises:
            ValueError: If the group is no baseline group.
            RankFailure: If a rank fails, or its target measures nothing.
        """
        if self.role is not GroupRole.BASELINE:
            raise ValueError(f"a group of role {self.role} measures nothing")
        found = self._ask("rates", {"dtype": dtype}, self.limits.start_s)
        first = self._ask("flag", {}, self.limits.start_s)[0]
        return [{**rates, "flag_ns": float(first["ns"])} for rates in found]

    def ask(
        self, what: str, body: Mapping[str, Any], limit_s: float, *, gates: int = 0
    ) -> list[dict[str, Any]]:
        """Asks all ranks for something that only some targets or baselines know.

        Args:
            what: The request.
            body: The rest of it.
            limit_s: How long it may take.
            gates: At so many gates the ranks meet in it.

        Raises:
            RankFailure: If a rank fails, or knows no such request.
        """
        message = {**body, "gate": self._gate + 1, "deadline_ns": _after(limit_s)}
        self._gate += gates
        return self._ask(what, message, limit_s)

    def ping(self) -> float:
        """Asks all ranks for a sign of life; seconds that it took.

        Raises:
            RankFailure: If one gives none.
        """
        begin = time.monotonic()
        self._ask("ping", {}, self.limits.load_s)
        return time.monotonic() - begin

    # The end

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
        self._release_memory()
        if not self._settled:
            self._settled = True
            self.left_behind = self._traits.settle(proof, self.layout)
        with self._ending:
            self._channels.close()
            if not self._control.closed:
                self._control.close()
                os.close(self._control_fd)
            shutil.rmtree(self._directory, ignore_errors=True)
            self._server.forget(self.group_id)
        return proof

    def __enter__(self) -> Self:
        """The group itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes."""
        self.close()

    @property
    def alive(self) -> bool:
        """False when the group has ended, for whatever reason."""
        return self._proof is None

    def output(self) -> tuple[KeptOutput, ...]:
        """What each rank wrote to standard output, then what each wrote to standard error."""
        return tuple(self._outputs[r][i].kept() for i in (0, 1) for r in range(self.ranks))

    # Inside

    def _open(self, options: Mapping[str, Any]) -> None:
        limits = {
            name: getattr(self.limits, name)
            for name in ("memory_bytes", "shared_bytes", "file_bytes")
        }
        limits["addresses"] = self._traits.limits_addresses
        request = {
            "do": "open",
            "group": self.group_id,
            "ranks": self.ranks,
            "limits": limits,
            "options": {**options, "role": str(self.role), "directory": str(self._directory)},
        }
        try:
            with FarEnds() as far:
                self._directory.mkdir(mode=0o700, parents=True)
                for rank in range(self.ranks):
                    (self._directory / f"rank{rank}").mkdir(mode=0o700)
                    pipes = [os.pipe2(os.O_CLOEXEC) for _ in self._outputs[rank]]
                    far.add(self._channels.add(), *(writer for _, writer in pipes))
                    for (reader, _), keeper in zip(pipes, self._outputs[rank], strict=True):
                        self._server.watch(reader, keeper)
                answer = self._server.ask(request, far.descriptors, timeout_s=self.limits.start_s)
            self.pids = tuple(answer["pids"])
        except OSError as error:
            raise RankFailure(
                FailureKind.START, None, f"cannot start {self.ranks} ranks: {error.strerror}"
            ) from error
        answers = self._ask(
            "begin", {}, self.limits.start_s, descriptors=[[self._control_fd]] * self.ranks
        )
        self.sandbox_level = str(answers[0]["sandbox"])
        self.threads = int(answers[0]["threads"])

    def _sample(
        self,
        what: str,
        *,
        calls: int,
        first_set: int,
        epoch: int,
        delays_ns: Sequence[int],
        limit_s: float,
        verifying: bool,
        between: Callable[[], None] | None = None,
        how: Mapping[str, object] | None = None,
    ) -> Sample:
        if self.memory is None:
            raise ValueError("setup must come before a call")
        if calls < 1 or not 0 <= first_set < self.memory.layout.sets:
            raise ValueError(f"{calls} calls from set {first_set}")
        delays = list(delays_ns) or [0] * self.ranks
        if len(delays) != self.ranks or not all(0 <= d <= _LONGEST_DELAY_NS for d in delays):
            raise ValueError(f"delays of {delays_ns} ns for {self.ranks} ranks")
        if between is not None and (verifying or not self.enqueues):
            raise ValueError("nothing is held back here that something could be done before")
        self._gate += 1
        begin = time.monotonic_ns()
        body = {
            "calls": calls,
            "first_set": first_set,
            "epoch": epoch,
            "verifying": verifying,
            "gate": self._gate,
            "hold": between is not None,
            "open_first": not verifying and self._opens_first,
            "deadline_ns": begin + int(limit_s * 1e9),
            **(how or {}),
        }
        meanwhile = None if between is None else partial(self._hold, between, limit_s)
        delayed = [{"delay_ns": d} for d in delays]
        answers = self._ask(what, body, limit_s, each=delayed, meanwhile=meanwhile)
        end = time.monotonic_ns()
        try:
            seen = rank_samples(answers, calls)
        except (KeyError, TypeError, ValueError) as error:
            self._fail(what, FailureKind.ERROR, None, f"a rank sent a broken sample: {error}")
        if not verifying:
            self._unheld = self._unheld + 1 if any(rank.unheld for rank in seen) else 0
        return Sample(
            calls=calls,
            first_set=first_set,
            epoch=epoch,
            ranks=seen,
            wall_ns=end - begin,
            clock_conflict=clock_conflict(
                seen,
                begin,
                end,
                slack_ns=self._traits.ticks_slack_ns,
                may_be_late=self._traits.ticks_late,
            ),
            slack_ns=self._traits.clock_slack_ns,
        )

    def _ask(
        self,
        what: str,
        body: Mapping[str, Any],
        limit_s: float,
        *,
        each: Sequence[Mapping[str, Any]] | None = None,
        descriptors: Sequence[Sequence[int]] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Sends one request to all ranks; their answers, or the end of the group."""
        answers = self._answers(
            what, body, limit_s, each=each, descriptors=descriptors, meanwhile=meanwhile
        )
        return [answers.given[rank] for rank in range(self.ranks)]

    def _answers(
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
        self._check_alive()
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

    def _hold(self, between: Callable[[], None], limit_s: float) -> None:
        """Does something once all ranks have enqueued their calls, then lets the calls begin."""
        deadline = time.monotonic() + limit_s
        try:
            while not all_held(self._control, self.ranks, self._gate):
                if self._channels.answered() or time.monotonic() > deadline:
                    return
                time.sleep(_LOOK_S)
            between()
        finally:
            for rank in range(self.ranks):
                place = rank * SLOT_BYTES + GO_ON_OFFSET
                _WORD.pack_into(self._control, place, self._gate)

    def _check_alive(self) -> None:
        if self._killed or self._proof is not None:
            raise RankFailure(FailureKind.KILLED, None, f"group {self.group_id} has ended")

    def _fail_answers(self, what: str, answers: Answers) -> NoReturn:
        if answers.gone:
            exits = {
                rank: self._server.wait_exit(self.group_id, rank, 1.0) for rank in answers.gone
            }
            # If several are gone, the one that died of a signal of its own explains the others.
            rank = min(answers.gone, key=lambda r: (unremarkable(exits[r]), r))
            kind, reason = describe_exit(rank, exits[rank], what)
        else:
            rank = min(r for r, answer in answers.given.items() if not answer["ok"])
            kind, reason = describe_refusal(rank, answers.given[rank], what)
            if kind is FailureKind.HANG:
                reason += f"; {last_epochs(self._control, self.ranks)}"
        self._fail(what, kind, rank, reason)

    def _fail_hang(self, what: str, silent: list[int], limit_s: float) -> NoReturn:
        names = "rank" if len(silent) == 1 else "ranks"
        who = " and ".join(str(r) for r in silent)
        reason = f"{names} {who} hung in {what}: no answer within {limit_s:g} s"
        if what in ("run", "sample"):
            reason += f"; {last_epochs(self._control, self.ranks)}"
        self._fail(what, FailureKind.HANG, silent[0] if len(silent) == 1 else None, reason)

    def _fail(self, what: str, kind: FailureKind, rank: int | None, reason: str) -> NoReturn:
        if self._killed:
            kind, reason = FailureKind.KILLED, f"group {self.group_id} was ended"
        reason = one_line(reason)
        proof = self.close()
        detail = [describe_exit(e.rank, e, what)[1] for e in proof.exits]
        for writer, (_, errors) in enumerate(self._outputs):
            last = errors.kept().text[-_DETAIL_CHARACTERS:].strip()
            if last:
                detail.append(f"rank {writer} wrote: {last}")
        if not proof.gone:
            reason += f"; processes {', '.join(map(str, proof.left))} cannot be killed"
        if self.left_behind:
            reason += f"; {self.left_behind}"
        raise RankFailure(kind, rank, reason, "\n".join(detail))

    def _end(self) -> KillProof:
        with self._ending:
            if self._proof is not None:
                return self._proof
            self._channels.shutdown()
            self._proof = end_ranks(self._server, self.group_id, self.pids)
            return self._proof

    def _release_memory(self) -> None:
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()


def _after(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)
