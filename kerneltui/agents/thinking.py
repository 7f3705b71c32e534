"""Thoughts of an agent in a thread of their own: model calls that the engine grants, and what they give."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from kerneltui.agents.model_port import (
    Chunk,
    FailureKind,
    ModelCall,
    ModelFailure,
    ModelPort,
    ModelReply,
    Role,
)
from kerneltui.agents.news import (
    CallBegins,
    CallEnds,
    CallGrows,
    Heard,
    News,
    NoProposal,
    Noted,
    Said,
    Thought,
    Withdrawn,
)
from kerneltui.agents.port import Proposal, SearchView
from kerneltui.agents.rests import Rests, rest_text
from kerneltui.model.candidate import AgentName

__all__ = ["NothingProposed", "Talk", "Thinker"]

_LOOK_S = 0.2
_BLAMELESS = (FailureKind.STOPPED, FailureKind.BUDGET, FailureKind.RESTING)


class NothingProposed(Exception):
    """A thought came to nothing; one readable line, and what there is to say beside it."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def _numbers() -> list[int]:
    return []


@dataclass(slots=True)
class Talk:
    """What a thought may do: ask a model, say something. Made by a `Thinker`."""

    agent: AgentName
    model: ModelPort
    tell: Callable[[News], None]
    stopped: Callable[[], bool]
    rests: Rests = field(default_factory=Rests)
    calls: list[int] = field(default_factory=_numbers)

    def ask(self, call: ModelCall) -> ModelReply:
        """Asks a model once the engine has written down that it is asked.

        Raises:
            ModelFailure: Nothing usable came, the engine refuses since it would go over a budget or the
                search is over, or the server wants the model not to be asked yet.
        """
        begins = self._granted(call)
        name, price = begins.model, begins.reserved_micro_usd
        self.calls.append(begins.number)
        reserved = price or 0

        def hear(chunk: Chunk) -> None:
            nonlocal reserved
            self.tell(Heard(self.agent, chunk))
            further = chunk.reserved_micro_usd
            if further is not None and further > reserved:
                reserved = further
                grows = CallGrows(self.agent, begins.number, further)
                self.tell(grows)
                self._written(grows.answered)  # the model looks itself whether it is to end

        try:
            reply = self.model.ask(call, hear, self.stopped)
        except ModelFailure as failure:
            if failure.wait_ms:
                self.rests.begin(name, failure.wait_ms)
            self._ended(begins.number, str(failure.kind), failure, failure.reason)
            raise
        except Exception as error:  # nobody knows what it has cost: all that it may have
            reason = f"{type(error).__name__}: {error}"
            cost = None if price is None else reserved
            unseen = ModelFailure(FailureKind.REQUEST, reason, model=name, micro_usd=cost)
            self._ended(begins.number, "lost", unseen, reason)
            raise
        self._ended(begins.number, "ok", reply)
        return reply

    def _granted(self, call: ModelCall) -> CallBegins:
        """Waits until the engine has written down that a call is made; while the search is paused, too.

        Raises:
            ModelFailure: It is not to be made.
        """
        while True:  # what it costs is asked anew after a pause: another model may be chosen
            name, price = self.model.quote(call)
            until = self.rests.until(name)
            if until is not None:
                text = f"{name} {rest_text(until, self.rests.clock())}"
                raise ModelFailure(FailureKind.RESTING, text, model=name)
            begins = CallBegins(self.agent, str(call.role), name, call.purpose, price)
            self.tell(begins)
            if not self._written(begins.answered):
                self.tell(Withdrawn(self.agent, begins))
                raise ModelFailure(FailureKind.STOPPED, "stopped before the call")
            if begins.refused:
                raise ModelFailure(begins.kind, begins.refused, model=name)
            if not begins.again:
                return begins

    def say(self, text: str) -> None:
        """Says something that is kept in the session."""
        self.tell(Said(self.agent, text))

    def note(self, text: str, notes: str, results: tuple[str, ...]) -> None:
        """Hands in lab notes, made from others and from results of candidates."""
        self.tell(Noted(self.agent, text, notes, results))

    def _written(self, answered: threading.Event) -> bool:
        """Waits until the engine has written something down; False if it is to end before that."""
        while not answered.wait(_LOOK_S):
            if self.stopped():
                return False
        return True

    def _ended(
        self, number: int, outcome: str, found: ModelReply | ModelFailure, reason: str = ""
    ) -> None:
        self.tell(
            CallEnds(
                agent=self.agent,
                number=number,
                outcome=outcome,
                model=found.model,
                usage=found.usage,
                micro_usd=found.micro_usd,
                attempts=found.attempts,
                reason=reason,
            )
        )


class Thinker:
    """Runs one thought at a time. All methods are for the engine's thread.

    Args:
        agent: Whose thoughts.
        model: Whom it asks.
        tell: Takes news to the engine; from any thread.
        rests: The models that are not asked for a while; shared by all that ask the same ones.
    """

    def __init__(
        self,
        agent: AgentName,
        model: ModelPort,
        tell: Callable[[News], None],
        rests: Rests | None = None,
    ) -> None:
        self._agent = agent
        self._model = model
        self._tell = tell
        self._rests = Rests() if rests is None else rests
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._made: list[Proposal] = []
        self._settled = 0

    @property
    def busy(self) -> bool:
        """Whether a thought is under way, or what it told was not handled yet."""
        return self._thread is not None

    def rests_until(self, view: SearchView, role: Role, model: str = "") -> float | None:
        """When a model may be asked again that its server wants to be left alone; None if it may be now.

        Args:
            view: The state now; all agents are asked about the same moment.
            role: Whose model.
            model: Which of the role's; empty is its first.
        """
        name = model or next(iter(self._model.models(role)), "")
        return self._rests.until(name, view.now)

    def start(self, parent: str, thought: Callable[[Talk], Proposal | None], arm: str = "") -> None:
        """Begins a thought; `Thought` is told when it has ended.

        Args:
            parent: The candidate that it is about.
            thought: What is done, in the other thread. It may raise `NothingProposed`, and gives None if
                it was not about a proposal.
            arm: Of the slow path, which is blamed if nothing comes of it.
        """
        if self.busy:
            raise RuntimeError("one thought at a time")
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._think,
            args=(parent, thought, arm),
            name=f"agent-{self._agent}",
            daemon=True,
        )
        self._thread.start()

    def take(self) -> Proposal | None:
        """The oldest proposal that was not taken yet, once all that its thought told was handled."""
        if not self._settled:
            return None
        self._settled -= 1
        return self._made.pop(0)

    def leftovers(self) -> list[Proposal]:
        """Takes out all that waits to be taken."""
        left = list(self.waiting)
        del self._made[: self._settled]
        self._settled = 0
        return left

    @property
    def waiting(self) -> tuple[Proposal, ...]:
        """Proposals that wait to be taken, oldest first."""
        return tuple(self._made[: self._settled])

    def tell(self, news: News) -> None:
        """Tells the engine something that needs no thought."""
        self._tell(news)

    def interrupt(self) -> None:
        """Ends the thought that is under way, soon."""
        self._stop.set()

    def close(self) -> None:
        """Ends everything."""
        self.interrupt()
        self._model.close()
        if self._thread is not None:
            self._thread.join(10.0)

    def _think(self, parent: str, thought: Callable[[Talk], Proposal | None], arm: str) -> None:
        talk = Talk(self._agent, self._model, self._tell, self._stop.is_set, self._rests)
        try:
            made = thought(talk)
            if made is not None:
                self._made.append(made)
        except NothingProposed as nothing:
            self._nothing(parent, nothing.reason, nothing.detail, talk, arm)
        except ModelFailure as failure:
            reason = f"{failure.kind}: {failure.reason}"
            blameless = failure.kind in _BLAMELESS
            self._nothing(parent, reason, "", talk, "" if blameless else arm, blameless=blameless)
        except Exception as error:  # the engine must hear of it; a thread that dies tells nobody
            reason = f"{type(error).__name__}: {error}"
            self._nothing(parent, reason, traceback.format_exc(), talk, arm)
        finally:
            self._tell(Thought(self._agent, self._settle))

    def _settle(self) -> None:
        self._thread = None
        self._settled = len(self._made)

    def _nothing(
        self,
        parent: str,
        reason: str,
        detail: str,
        talk: Talk,
        arm: str,
        *,
        blameless: bool = False,
    ) -> None:
        calls = tuple(talk.calls)
        self._tell(NoProposal(self._agent, parent, reason, detail, calls, arm, blameless))
