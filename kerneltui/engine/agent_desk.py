"""What the engine does with news of agents that think: grants calls, keeps accounts, passes streams on.

The accounts are the folded state, so they are right again after a crash. A call is written down before it is
made; one that was under way when an engine died counts with all that it might have cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kerneltui.agents.model_port import ChunkKind, FailureKind, Usage
from kerneltui.agents.news import (
    CallBegins,
    CallEnds,
    CallGrows,
    HandOver,
    Heard,
    Migrates,
    NoProposal,
    Noted,
    Said,
    Thought,
    Withdrawn,
)
from kerneltui.engine.errors import Refused
from kerneltui.engine.lab_notes import lab_notes, write_notes
from kerneltui.engine.recorder import Recorder, now_ns
from kerneltui.model.agent_event import (
    HandedOver,
    Migrated,
    ModelCallEnded,
    ModelCallGrew,
    ModelCallStarted,
    ProposalFailed,
)
from kerneltui.model.event import AgentMessage

__all__ = ["NEWS", "AgentDesk"]

NEWS = (
    CallBegins,
    CallGrows,
    CallEnds,
    HandOver,
    Heard,
    Migrates,
    NoProposal,
    Noted,
    Said,
    Thought,
    Withdrawn,
)
"""What it takes."""

_WARN_AT = (50, 80)  # percent of the budget
_REASON_CHARACTERS = 500


def _no_end() -> str:
    return ""


def _nobody() -> list[CallBegins | CallGrows]:
    return []


@dataclass(slots=True)
class AgentDesk:
    """Handles news of agents in the engine's thread.

    Attributes:
        recorder: Writes events.
        say: Broadcasts progress: kind, about, text.
        over: Which budget is used, so that nothing more is paid for; empty while none is.
        refused: Why the last call was refused, while the budget stands.
    """

    recorder: Recorder
    say: Callable[[str, str, str], None]
    over: Callable[[], str] = _no_end
    refused: str = ""
    _level: int = 0
    _held: list[CallBegins | CallGrows] = field(default_factory=_nobody)

    def __post_init__(self) -> None:
        self._level = self._used()  # what an earlier engine has said

    def recover(self) -> None:
        """Closes the accounts of calls that an earlier engine did not see the end of."""
        for key, call in list(self.recorder.state.calls.items()):
            if call.outcome:
                continue
            self.recorder.record(
                ModelCallEnded(
                    at=now_ns(),
                    number=int(key),
                    model=call.model,
                    outcome="lost",
                    micro_usd=call.reserved_micro_usd,
                    reason="the engine went away; counted with what it might have cost at most",
                )
            )
        self.warn()

    def handle(self, news: object) -> None:
        """Takes a piece of news."""
        match news:
            case CallBegins():
                self._begin(news)
            case CallGrows():
                self._grow(news)
            case CallEnds():
                self._end(news)
            case Withdrawn():
                self._withdraw(news.begins)
            case Heard():
                self.say("stream", f"{news.agent}:{news.chunk.kind}", news.chunk.text)
            case Said():
                message = AgentMessage(at=now_ns(), agent=str(news.agent), text=news.text)
                self.recorder.record(message)
            case Noted():
                self._note(news)
            case HandOver():
                self._hand_over(news)
            case NoProposal():
                self._failed(news)
            case Migrates():
                self._migrate(news)
            case Thought():
                news.settled()
            case _:
                raise TypeError(f"{type(news).__name__} is no news of an agent")

    def go_on(self) -> None:
        """Lets calls be asked for again that were refused or held; budget and pause may be others now."""
        self.refused = ""
        self.warn()
        if self.recorder.state.paused:
            return
        held, self._held = self._held, []
        for news in held:
            if isinstance(news, CallGrows):
                self._grow(news)
            else:
                news.again = True
                news.answered.set()

    def no_money(self) -> str:
        """Why nothing more is paid for: a call was refused, or the budget is used while one still runs."""
        state = self.recorder.state
        budget, spent = state.budget_micro_usd, state.spent()
        running = any(not call.outcome for call in state.calls.values())
        if budget is not None and running and spent.micro_usd - spent.reserved >= budget:
            self.refused = f"the budget of ${budget / 1e6:.2f} is used; /budget raises it"
        return self.refused

    def _begin(self, news: CallBegins) -> None:
        state = self.recorder.state
        budget, so_far = state.budget_micro_usd, state.spent().micro_usd
        wanted = news.reserved_micro_usd
        over = self.over()
        if state.ended:
            news.refused, news.kind = f"the search has ended: {state.ended}", FailureKind.STOPPED
        elif over:
            news.refused = over
        elif state.paused:
            self._hold(news)
            return
        elif budget is not None and (so_far >= budget or so_far + (wanted or 0) > budget):
            self.refused = (
                f"the call may cost ${(wanted or 0) / 1e6:.2f}, ${so_far / 1e6:.2f} of the budget of "
                f"${budget / 1e6:.2f} are used; /budget raises it"
            )
            news.refused = self.refused
        else:
            news.number = 1 + max((int(key) for key in state.calls), default=0)
            self.recorder.record(
                ModelCallStarted(
                    at=now_ns(),
                    number=news.number,
                    agent=str(news.agent),
                    role=news.role,
                    model=news.model,
                    purpose=news.purpose,
                    reserved_micro_usd=wanted,
                )
            )
        news.answered.set()

    def _hold(self, news: CallBegins | CallGrows) -> None:
        """Leaves an agent waiting until the human goes on."""
        self._held.append(news)
        self.say("stream", f"{news.agent}:{ChunkKind.STATUS}", "paused: asks when you go on")

    def _withdraw(self, begins: CallBegins) -> None:
        """Ends a call that was granted while its agent was stopped: nothing was sent."""
        self._held = [news for news in self._held if news is not begins]
        if begins.number:
            reason = "stopped before anything was sent"
            self._end(
                CallEnds(
                    begins.agent,
                    begins.number,
                    str(FailureKind.STOPPED),
                    begins.model,
                    Usage(),
                    0,
                    0,
                    reason,
                )
            )

    def _grow(self, news: CallGrows) -> None:
        """Writes down what a further attempt may cost; whether it may be made is up to the meter."""
        if self.recorder.state.paused:
            self._hold(news)
            return
        self.recorder.record(
            ModelCallGrew(
                at=now_ns(), number=news.number, reserved_micro_usd=news.reserved_micro_usd
            )
        )
        news.answered.set()

    def _end(self, news: CallEnds) -> None:
        self._held = [held for held in self._held if held.number != news.number]
        self.recorder.record(
            ModelCallEnded(
                at=now_ns(),
                number=news.number,
                model=news.model,
                outcome=news.outcome,
                input_tokens=news.usage.input,
                output_tokens=news.usage.output,
                cache_read_tokens=news.usage.cache_read,
                cache_write_tokens=news.usage.cache_write,
                micro_usd=news.micro_usd,
                attempts=news.attempts,
                reason=news.reason[:_REASON_CHARACTERS],
            )
        )
        if news.outcome == FailureKind.BUDGET:
            self.refused = news.reason  # the meter knows limits that the state does not
        self.warn()

    def warn(self) -> None:
        """Says once when half and four fifths of the budget are used, after whatever may change that."""
        before, self._level = self._level, self._used()
        if self._level > before:
            budget = self.recorder.state.budget_micro_usd or 0
            text = f"{self._level} % of the budget of ${budget / 1e6:.2f} is used"
            self.recorder.record(AgentMessage(at=now_ns(), agent="engine", text=text))

    def _used(self) -> int:
        """The highest of the levels that is reached, or 0; what running calls may cost is not used yet."""
        spent, budget = self.recorder.state.spent(), self.recorder.state.budget_micro_usd
        used = spent.micro_usd - spent.reserved
        return max((p for p in _WARN_AT if budget and used * 100 >= p * budget), default=0)

    def _note(self, news: Noted) -> None:
        """Takes notes of a model, unless the human has written meanwhile."""
        try:
            if lab_notes(self.recorder) != news.notes:
                raise Refused("the human has changed them meanwhile")
            write_notes(self.recorder, news.text, by=str(news.agent), results=news.results)
        except Refused as error:
            text = f"lab notes not taken: {error}"
            self.recorder.record(AgentMessage(at=now_ns(), agent=str(news.agent), text=text))

    def _hand_over(self, news: HandOver) -> None:
        """Writes down what an agent learned, also into the lab notes, behind what is there."""
        agent = str(news.agent)
        self.recorder.record(
            HandedOver(at=now_ns(), agent=agent, candidate=news.candidate, text=news.text)
        )
        title = f"## Handed over by the {agent} path"
        parts = [lab_notes(self.recorder).rstrip(), f"{title}\n\n{news.text}"]
        try:
            write_notes(self.recorder, "\n\n".join(filter(None, parts)) + "\n", by=agent)
        except Refused as error:
            text = f"what it hands over is not in the lab notes: {error}"
            self.recorder.record(AgentMessage(at=now_ns(), agent=agent, text=text))

    def _failed(self, news: NoProposal) -> None:
        self.recorder.record(
            ProposalFailed(
                at=now_ns(),
                agent=str(news.agent),
                parent=news.parent,
                reason=news.reason[:_REASON_CHARACTERS],
                detail=news.detail[:4000],
                calls=news.calls,
                arm=news.arm,
                blameless=news.blameless,
            )
        )

    def _migrate(self, news: Migrates) -> None:
        state = self.recorder.state
        made = all(
            set(move.to) <= set(state.candidates[move.candidate].guest_of) for move in news.moves
        )
        if news.results > state.migrated and not made:  # once, however often it was told
            self.recorder.record(Migrated(at=now_ns(), results=news.results, moves=news.moves))
