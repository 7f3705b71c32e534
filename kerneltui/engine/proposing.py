"""How proposals become candidates: whose turn it is, what is held against them, what they may use."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kerneltui.agents.fast_path import MOST_TRIES, landing_point
from kerneltui.agents.news import CallBegins
from kerneltui.agents.port import Agent, Proposal, SearchView
from kerneltui.agents.rests import rest_text
from kerneltui.engine.agent_desk import NEWS, AgentDesk
from kerneltui.engine.notes import failure_log, read_note
from kerneltui.engine.proposal_check import ProposalCheck
from kerneltui.engine.recorder import Recorder, now_ns
from kerneltui.engine.search_clock import SearchClock
from kerneltui.model.agent_event import ProposalFailed
from kerneltui.model.candidate import AgentName, Phase
from kerneltui.model.event import AgentMessage, CandidateFailed, SteerDelivered
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.statistics import Verdict

__all__ = ["Again", "Ended", "Proposing"]

_MOST_CUTS = 2
"""Times that the human has to interrupt a kernel on which the search stands, before that ends it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The search is over, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Again:
    """Nothing is left to propose before a candidate without a verdict is evaluated once more."""

    candidate: str


def _texts() -> dict[str, str]:
    return {}


@dataclass(slots=True)
class Proposing:
    """Asks the agents of a session.

    Attributes:
        recorder: Writes events.
        agents: Asked in this order.
        kernel_file: The name of kernel files on this target.
        undecided: How many candidates may wait for the human before the search waits; None: any.
        ahead: How many proposals of an agent may wait, made while evaluations run.
        say: Broadcasts progress: kind, about, text.
        queued: Candidates that wait for their evaluation.
        patience_s: How long the search waits for a model that is to be left alone, and does not end.
    """

    recorder: Recorder
    agents: Sequence[Agent]
    kernel_file: str
    undecided: int | None
    ahead: int
    say: Callable[[str, str, str], None]
    queued: Callable[[], Collection[str]]
    patience_s: float
    desk: AgentDesk = field(init=False)
    _check: ProposalCheck = field(init=False)
    _said: dict[str, str] = field(default_factory=_texts)
    _clock: SearchClock = field(init=False)

    def __post_init__(self) -> None:
        self._check = ProposalCheck(self.recorder, self.kernel_file)
        self._clock = SearchClock(self.recorder)
        self.desk = AgentDesk(self.recorder, self.say, self._budget_over)

    def kernel(self, candidate: str) -> Kernel:
        """Parses the kernel of a candidate."""
        return self._check.kernel(candidate)

    def add(self, proposal: Proposal) -> tuple[str, bool]:
        """Records a proposal.

        Returns:
            Its id, and whether it is worth an evaluation.
        """
        steers = self._steers(proposal)
        problem = self._check.problem(proposal)
        candidate = self.recorder.propose(proposal, steers, self._check.findings(proposal))
        for number in steers:
            self._deliver(number, proposal, candidate)
        if problem is not None:
            self.recorder.record(CandidateFailed(at=now_ns(), id=candidate, failure=problem))
        return candidate, problem is None

    @property
    def waiting(self) -> list[Proposal]:
        """The proposals that agents have ready."""
        return [proposal for agent in self.agents for proposal in agent.waiting]

    def worth(self, proposal: Proposal) -> Kernel | None:
        """Returns the kernel of a proposal; None if it is not worth an evaluation as things are."""
        if self._check.problem(proposal) is not None:
            return None
        return parse_kernel(proposal.source, self.kernel_file)

    def next(self) -> Proposal | Again | Ended | None:
        """Returns the next proposal, what comes in its place, or None if there is nothing now."""
        waits = self._waits()
        if waits is not None:
            return None if waits == "" else Ended(waits)
        view = self._view()
        for agent in self.agents:
            proposal = agent.propose(view)
            self._pass_on_refusals(agent)
            self._tell_status(str(agent.name), agent.status(view))
            if proposal is not None:
                return proposal
        if any(agent.busy for agent in self.agents):
            return None
        left = _without_verdict(view)
        return Again(left) if left else self._idle(view)

    def _idle(self, view: SearchView) -> Ended | None:
        """Why the search ends where no agent has anything; None if a server's wait is worth waiting for."""
        rests = [(agent.rests_until(view), str(agent.name)) for agent in self.agents]
        known = [(until, name) for until, name in rests if until is not None]
        if not known:
            return Ended("the search has nothing left to propose")
        until, name = min(known)
        if until - view.now <= self.patience_s:
            return None
        return Ended(f"{name} {rest_text(until, view.now)}, and nothing else can propose")

    def think(self, queued: int) -> None:
        """Lets agents begin with their next proposals, while `queued` candidates wait or run.

        Where a budget is used, what they think about is cut: nothing would come of what it costs.
        """
        self._clock.look()
        self._answer_for_done()
        if self._budget_over():
            self.interrupt()
            return
        if not self.agents or self._waits() is not None or (queued and not self.ahead):
            return
        view = self._view()
        for agent in self.agents:
            agent.think(view)
            self._tell_status(str(agent.name), agent.status(view))

    def interrupt(self, *, unheard: bool = False) -> list[str]:
        """Ends what agents do in the background; returns `slow thinks about (diff of c0002)` for each.

        Args:
            unheard: Whether only what was begun before a message came that waits for its agent.
        """
        busy = [agent for agent in self.agents if agent.busy]
        if unheard:
            busy = [agent for agent in busy if self._unheard(agent)]
        open_calls = {c.agent: c for c in self.recorder.state.calls.values() if not c.outcome}
        found: list[str] = []
        for agent in busy:
            agent.interrupt()
            call = open_calls.get(str(agent.name))
            found.append(f"{agent.name} thinks about" + (f" ({call.purpose})" if call else ""))
        return found

    def _unheard(self, agent: Agent) -> bool:
        """Whether a message waits for an agent that is not part of what it thinks about."""
        steers = self.recorder.state.steers
        return any(s.waits_for(str(agent.name)) and s.number not in agent.heard for s in steers)

    def close(self, inbox: queue.SimpleQueue[Any]) -> None:
        """Ends the agents, books what they tell of it, and keeps the proposals that still wait.

        Args:
            inbox: Of the engine.
        """
        for agent in self.agents:
            agent.close()
        while not inbox.empty():
            item = inbox.get()
            # A call that was not granted is not made: its agent has stopped waiting.
            if isinstance(item, NEWS) and not isinstance(item, CallBegins):
                self.desk.handle(item)
        for agent in self.agents:
            for proposal in agent.leftovers():
                self._keep(proposal)

    def _keep(self, proposal: Proposal) -> None:
        """Records a proposal for which there was no time: the next engine evaluates it, if it may."""
        budget = self.recorder.state.budget_candidates
        if budget is None or self._proposed() < budget:
            self.add(proposal)
            return
        self.recorder.record(
            ProposalFailed(
                at=now_ns(),
                agent=str(proposal.agent),
                parent=proposal.parents[0],
                reason=f"made, but the budget of {budget} candidates is used: {proposal.reason}",
                calls=proposal.calls,
                blameless=True,
            )
        )

    def _waits(self) -> str | None:
        """None if a proposal is wanted, nothing if one may be wanted later, or why the search ends."""
        state = self.recorder.state
        if state.paused or state.ended:
            return ""
        if not self.agents:
            return "agents are off"
        over = self._budget_over()
        if over:
            return over
        waiting = self._waiting()
        if self.undecided is not None and waiting >= self.undecided:
            self._tell_status("slow", f"waits: {waiting} candidates are undecided")
            return ""
        return None

    def _waiting(self) -> int:
        """Counts the undecided candidates that are worth a look: a SLOWER one does not hold us up."""
        return sum(
            candidate.measurement is None or candidate.measurement.verdict is not Verdict.SLOWER
            for candidate in self.recorder.state.pending()
        )

    def _budget_over(self) -> str:
        state = self.recorder.state
        if state.budget_candidates is not None and self._proposed() >= state.budget_candidates:
            return f"the budget of {state.budget_candidates} candidates is used"
        if state.budget_ns is not None and self._elapsed_ns() >= state.budget_ns:
            return f"the budget of {state.budget_ns / 60e9:.3g} minutes is used"
        return self.desk.no_money()

    def _view(self) -> SearchView:
        shapes = [shape.dimensions for shape in self.recorder.state.shapes]
        return SearchView(
            self.recorder.state,
            self.recorder.source,
            shapes,
            self.kernel_file,
            record=partial(read_note, self.recorder),
            log=partial(failure_log, self.recorder),
            elapsed_ns=self._elapsed_ns(),
            queued=self.queued(),
            room=self._room(),
        )

    def _room(self) -> int:
        """How many proposals may wait: no more than are wanted of those that are not decided or made yet."""
        room = max(self.ahead, 1)
        if self.undecided is not None:
            room = min(room, self.undecided - self._waiting())
        budget = self.recorder.state.budget_candidates
        return room if budget is None else min(room, budget - self._proposed())

    def _proposed(self) -> int:
        candidates = self.recorder.state.candidates.values()
        return sum(candidate.agent is not AgentName.HUMAN for candidate in candidates)

    def _elapsed_ns(self) -> int:
        """How much of the budget of time is used; nothing where there is none."""
        return self._clock.used_ns() if self.recorder.state.budget_ns is not None else 0

    def _tell_status(self, agent: str, text: str) -> None:
        if self._said.get(agent) != text:
            self._said[agent] = text
            self.say("phase", agent, text)

    def _pass_on_refusals(self, agent: Agent) -> None:
        for text in agent.refusals():
            self.recorder.record(AgentMessage(at=now_ns(), agent=str(agent.name), text=text))

    def _steers(self, proposal: Proposal) -> tuple[int, ...]:
        """The messages that a proposal follows: those its agent saw, or all that wait for it."""
        if proposal.agent is AgentName.HUMAN:
            return ()
        waiting = tuple(
            steer.number
            for steer in self.recorder.state.steers
            if steer.waits_for(str(proposal.agent))
            and (proposal.steers is not None or not steer.delivered_to)
        )
        if proposal.steers is None:
            return waiting
        return tuple(number for number in waiting if number in proposal.steers)

    def _answer_for_done(self) -> None:
        """Answers messages to an agent that proposes nothing more: no proposal would ever answer them.

        One to all is left to the others first.
        """
        steers = self.recorder.state.steers
        for agent in self.agents:
            name = str(agent.name)
            waiting = [s for s in steers if s.waits_for(name) and (s.to == name or s.delivered_to)]
            why = agent.done(self._view()) if waiting else ""
            for steer in waiting if why else ():
                others = ", ".join(f"@{a.name}" for a in self.agents if a is not agent)
                answer = f"{why}; write to {others}" if steer.to == name and others else why
                self.recorder.record(
                    SteerDelivered(at=now_ns(), number=steer.number, agent=name, answer=answer)
                )

    def _deliver(self, number: int, proposal: Proposal, candidate: str) -> None:
        agent = next(agent for agent in self.agents if agent.name is proposal.agent)
        steer = next(s for s in self.recorder.state.steers if s.number == number)
        self.recorder.record(
            SteerDelivered(
                at=now_ns(),
                number=number,
                agent=str(proposal.agent),
                answer=proposal.answer or agent.answer(steer.text),
                candidate=candidate,
            )
        )


def _without_verdict(view: SearchView) -> str:
    """A kernel of the fast path that is to be evaluated again while none has landed; empty without.

    It was interrupted once, or met by faults of the harness.
    """
    if landing_point(view) is not None:
        return ""
    for candidate in view.state.candidates.values():
        cut = candidate.phase is Phase.INTERRUPTED and candidate.attempt < _MOST_CUTS
        missed = candidate.harness_fault and candidate.attempt < MOST_TRIES
        if candidate.agent is AgentName.FAST and (cut or missed):
            return candidate.id
    return ""
