"""A group of ranks as the evaluation sees it: a kernel is loaded, set up, called, and torn down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self, cast

from kerneltui.targets.buffers import SharedMemory
from kerneltui.targets.client import ForkServerClient
from kerneltui.targets.errors import FailureKind, TargetError
from kerneltui.targets.output import KeptOutput
from kerneltui.targets.port import GroupRole, KillProof, Limits, Requirements
from kerneltui.targets.sample import Sample
from kerneltui.targets.sampling import Sampling
from kerneltui.targets.started import StartedRanks
from kerneltui.targets.traits import GroupTraits, Memory
from kerneltui.targets.windows import GroupLayout

__all__ = ["RankGroup"]


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
        self.facts: Mapping[str, Any] = {}
        self._traits = traits
        self._connected = not traits.connects_late
        self._has_windows = False
        self._started = StartedRanks(
            server,
            group_id,
            ranks,
            limits=limits,
            directory=directory,
            options={**options, "role": str(role)},
            traits=traits,
        )
        self._sampling = Sampling(self._started, traits)

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes, by rank."""
        return self._started.pids

    @property
    def sandbox_level(self) -> str:
        """What confines the ranks, in words."""
        return self._started.sandbox_level

    @property
    def memory(self) -> Memory | None:
        """The buffers that are set up, if there are."""
        return self._started.memory

    # What the evaluation asks for

    def load(self, library: Path) -> None:
        """Loads a kernel on every rank.

        Raises:
            RankFailure: If it cannot be loaded, or its constructors crash or hang.
        """
        self._started.ask("load", {"library": str(library)}, self.limits.load_s)

    def load_baseline(self, name: str) -> None:
        """Takes a trusted implementation by name.

        Raises:
            ValueError: If the group is no baseline group.
            RankFailure: If there is none of that name.
        """
        if self.role is not GroupRole.BASELINE:
            raise ValueError(f"a group of role {self.role} takes no baseline")
        self._started.ask("load_baseline", {"name": name}, self.limits.load_s)

    def requirements(
        self, dimensions: Mapping[str, int], runtime: Mapping[str, int]
    ) -> Requirements:
        """Asks the kernel what it needs for a shape; the largest answer over the ranks.

        Raises:
            RankFailure: If the kernel refuses the shape, or was built for another version.
        """
        body = {"dimensions": dict(dimensions), "runtime": dict(runtime)}
        answers = self._started.ask("requirements", body, self.limits.load_s)
        wanted = Requirements(
            signal_words=max(int(a["signal_words"]) for a in answers),
            window_bytes=max(int(a["window_bytes"]) for a in answers),
            scratch_bytes=max(int(a["scratch_bytes"]) for a in answers),
            host_collectives=any(a["host_collectives"] for a in answers),
            nccl_windows=any(a["nccl_windows"] for a in answers),
            graph_safe=all(a["graph_safe"] for a in answers),
        )
        if (wanted.host_collectives or wanted.nccl_windows) and not self._connected:
            met = self._started.ask("meet", {}, self.limits.load_s)
            self._started.ask("connect", {"meeting": met[0]["meeting"]}, self.limits.start_s)
            self._connected = True
        if wanted.nccl_windows and not self._has_windows:
            self._started.ask("windows", {"library": self._windows_library()}, self.limits.load_s)
            self._has_windows = True
        return wanted

    def _windows_library(self) -> str:
        if self._traits.windows is None:
            reason = "there are no NCCL windows on this target"
            self._started.fail("requirements", FailureKind.ERROR, None, reason)
        try:
            return self._traits.windows()
        except TargetError as error:
            self._started.fail("requirements", FailureKind.ERROR, None, f"no NCCL windows: {error}")

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
        return self._sampling.enqueues

    @property
    def masks_inputs(self) -> bool:
        """Whether the inputs of a call can be kept wrong until it is its turn."""
        return self._traits.masks_inputs

    def offer(self, layout: GroupLayout) -> list[int]:
        """Has each rank make its own symmetric file of a layout, for the next `setup`.

        Returns:
            A descriptor from each rank, which the caller closes. A rank is not to be believed: whoever
            maps them looks at what they hold.

        Raises:
            RankFailure: If a rank fails.
        """
        body = {"layout": layout.to_json()}
        answers = self._started.answers("offer", body, self.limits.setup_s, passing=1)
        for rank, passed in sorted(answers.passed.items()):
            if len(passed) != 1:
                answers.drop_passed()
                reason = f"rank {rank} offered no memory"
                self._started.fail("offer", FailureKind.ERROR, rank, reason)
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
        self._started.check_alive()
        made = make(layout) if make is not None else cast("Memory", memory)
        self._started.memory, self._started.layout = made, layout
        self._sampling.begin()
        files = made.files
        shared = [*(f.symmetric for f in files), *(f.signals for f in files)]
        answers = self._started.ask(
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
        return self._sampling.take(
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
                how many buffer sets calls rotate over, from set 0 on, `masked` keeps the inputs of each
                call wrong until the call before has ended, where the group `masks_inputs`.

        Raises:
            RankFailure: If a rank fails or hangs.
        """
        limit = self.limits.sample_s if limit_s is None else limit_s
        return self._sampling.take(
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
        self._started.ask("teardown", {}, self.limits.setup_s)
        self._started.release_memory()

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
        found = self._started.ask("rates", {"dtype": dtype}, self.limits.start_s)
        first = self._started.ask("flag", {}, self.limits.start_s)[0]
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
        deadline_ns = time.monotonic_ns() + int(limit_s * 1e9)
        message = {**body, "gate": self._sampling.gates(gates), "deadline_ns": deadline_ns}
        return self._started.ask(what, message, limit_s)

    def ping(self) -> float:
        """Asks all ranks for a sign of life; seconds that it took.

        Raises:
            RankFailure: If one gives none.
        """
        begin = time.monotonic()
        self._started.ask("ping", {}, self.limits.load_s)
        return time.monotonic() - begin

    # The end

    def kill(self) -> None:
        """Ends the group, from any thread. Whoever waits for it gets a `RankFailure`."""
        self._started.kill()

    def close(self) -> KillProof:
        """Ends the group and gives back its memory, files and descriptors. May be called again.

        Returns:
            The proof that its processes are gone.
        """
        return self._started.close()

    def __enter__(self) -> Self:
        """The group itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes."""
        self.close()

    @property
    def alive(self) -> bool:
        """False when the group has ended, for whatever reason."""
        return self._started.alive

    def output(self) -> tuple[KeptOutput, ...]:
        """What each rank wrote to standard output, then what each wrote to standard error."""
        return self._started.output()
