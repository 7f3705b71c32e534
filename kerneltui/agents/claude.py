"""Claude, or what speaks its Messages API, behind the port that agents ask through.

A question may take several attempts. Where the server or the line is at fault, it is asked again after a
while; where the reply is, it is asked again with a note. Every attempt is counted before it is sent and
settled after it, so whatever happens, the meter is right.
"""

from __future__ import annotations

import os
import re
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from kerneltui.agents.agent_config import AgentConfig, RoleModel
from kerneltui.agents.claude_client import VENDOR_URL, Server, host_of, server_address
from kerneltui.agents.claude_errors import Trouble, trouble_of
from kerneltui.agents.claude_request import estimated_tokens, request_of, with_note
from kerneltui.agents.claude_stream import Attempt, Ending, Heard
from kerneltui.agents.model_port import (
    Chunk,
    ChunkKind,
    FailureKind,
    ModelCall,
    ModelFailure,
    ModelReply,
    Role,
    ToolUse,
    Usage,
)
from kerneltui.agents.pricing import ModelPrice, price_of, usd
from kerneltui.agents.retry import Waiting, wait_ms
from kerneltui.agents.secrets import Keys, one_line
from kerneltui.agents.spend import Hold, OverBudget, Spend, SpendFact, candidate_of
from kerneltui.agents.tool_schema import InputProblem, check_schema, parse_input

__all__ = ["ClaudeModel"]

_SHOWN_AGAIN = 8_000
_CUT_REASONS = ("max_tokens", "model_context_window_exceeded")


@dataclass(frozen=True, slots=True)
class _Fault:
    """A reply that is of no use, and the note with which it is asked again."""

    kind: FailureKind
    line: str
    note: str


class ClaudeModel:
    """A `ModelPort` on the Messages API. May be asked from several threads at the same time.

    Args:
        config: Models, limits, prices.
        spend: The meter; shared with whoever else spends from the same budget.
        environment: Where keys are; that of this process by default.
        waiting: How to wait.
    """

    def __init__(
        self,
        config: AgentConfig,
        spend: Spend,
        environment: Mapping[str, str] | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        found = os.environ if environment is None else environment
        self.spend = spend
        self.keys = Keys.of(found)
        self.waiting = waiting or Waiting()
        self._config = config
        self._address = server_address(config.base_url, found)
        self._server: Server | None = None
        self._guard = threading.Lock()
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"ClaudeModel({self.host})"

    @property
    def config(self) -> AgentConfig:
        """As it is now; `set_model` changes it."""
        return self._config

    @property
    def host(self) -> str:
        """The server's name, for messages."""
        return host_of(self._address)

    @property
    def usable(self) -> bool:
        """Whether there is a key, or a server that may want none."""
        return self.keys.present or self._address != VENDOR_URL

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def set_model(self, role: Role, model: str) -> None:
        """Names another model for a role, or several, from the next question on."""
        with self._guard:
            self._config = self._config.with_model(role, model)

    def models(self, role: Role) -> Sequence[str]:
        """The models that may be asked in a role."""
        return self._config.roles[role].names

    def quote(self, call: ModelCall) -> tuple[str, int | None]:
        """The model that would be asked, and what one attempt may cost at most; None if nobody knows."""
        model = self._config.asked(call.role, call.model)
        price = price_of(self._config.prices, model.model)
        if price is None:
            return model.model, None
        return model.model, price.worst(estimated_tokens(request_of(call, model)), model.max_tokens)

    def ask(
        self,
        call: ModelCall,
        hear: Callable[[Chunk], None],
        stop: Callable[[], bool],
    ) -> ModelReply:
        """Asks and waits; see `ModelPort.ask`.

        Raises:
            ModelFailure: Nothing usable came.
            ValueError: The call itself is wrong: a tool with a schema that is not held here, or no question.
        """
        for tool in call.in_request:
            check_schema(tool.schema)
        return _Question(self, call, hear, stop).answer()

    def server(self) -> Server:
        """The SDK, opened at the first use."""
        with self._guard:
            if self._server is None:
                self._server = Server(self._address, self.keys, self._config.limits)
            return self._server

    def set_budget(self, micro_usd: int | None) -> None:
        """Changes the budget of the meter: attempts and re-asks of a call count, too."""
        self.spend.set_budget(micro_usd)

    def close(self) -> None:
        """Ends connections; questions that are open end soon, new ones at once."""
        self._closed.set()
        with self._guard:
            server, self._server = self._server, None
        if server is not None:
            server.close()


class _Question:
    """One call of `ask`, with what its attempts have cost so far."""

    def __init__(
        self,
        owner: ClaudeModel,
        call: ModelCall,
        hear: Callable[[Chunk], None],
        stop: Callable[[], bool],
    ) -> None:
        self._owner = owner
        self._call = call
        self._hear = hear
        self._stop = lambda: owner.closed or stop()
        self._limits = owner.config.limits
        self._model: RoleModel = owner.config.asked(call.role, call.model)
        self._price: ModelPrice | None = price_of(owner.config.prices, self._model.model)
        self._request = request_of(call, self._model)
        self._candidate = candidate_of(call.purpose)
        self._usage = Usage()
        self._micro: int | None = 0
        self._attempts = 0
        self._failures = 0
        self._reasks = 0
        self._by = ""

    def answer(self) -> ModelReply:
        if not self._owner.usable:
            raise self._failure(
                FailureKind.REQUEST,
                "there is no key: set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN for a gateway)",
            )
        while True:
            if self._stop():
                raise self._failure(FailureKind.STOPPED, "stopped")
            outcome = self._attempt()
            if isinstance(outcome, Heard):
                outcome = self._judge(outcome)
            if isinstance(outcome, ModelReply):
                return outcome
            if isinstance(outcome, _Fault):
                self._again_with_note(outcome)
            else:
                self._again_after_a_while(outcome)

    def _attempt(self) -> Heard | Trouble:
        """Sends the question once; the meter is settled however it ends."""
        hold = self._hold()
        if isinstance(hold, str):
            raise self._failure(FailureKind.BUDGET, hold)
        self._attempts += 1
        request = self._request
        attempt = Attempt(
            lambda: self._owner.server().stream(request),
            self._limits.call_ms,
            self._owner.waiting.clock,
        )
        ending: Ending | None = None
        trouble: Trouble | None = None
        level = 0
        try:
            ending = attempt.run(self._hear, self._stop)
            trouble = self._trouble(attempt, ending)
        finally:
            fact = self._fact(attempt, ending, trouble)
            level = self._owner.spend.settle(hold, fact)
        if level:
            self._status(self._warning(level))
        if ending is Ending.STOPPED:
            raise self._failure(FailureKind.STOPPED, "stopped")
        return trouble or attempt.heard

    def _hold(self) -> Hold | str:
        """Counts the attempt before it is sent; the text says why it may not be.

        A text and no error, so that the failure that it becomes drags no other error along.
        """
        model, prompt = self._model, estimated_tokens(self._request)
        worst = self._worst()
        tokens = prompt + model.max_tokens
        role, meter = self._call.role, self._owner.spend
        try:
            return meter.hold(role, self._candidate, model.model, tokens, worst)
        except OverBudget as error:
            return str(error)

    def _trouble(self, attempt: Attempt, ending: Ending) -> Trouble | None:
        host = self._owner.host
        match ending:
            case Ending.BROKEN if attempt.error is not None:
                error, attempt.error = attempt.error, None
                return trouble_of(error, self._owner.keys, host, self._model.model)
            case Ending.LATE:
                seconds = self._limits.call_ms / 1000
                line = f"{host}: not done within {seconds:g} s"
                return Trouble(FailureKind.CONNECTION, line, True, billed=True)
            case Ending.TORN | Ending.BROKEN:
                line = f"{host}: the stream ended in the middle"
                return Trouble(FailureKind.CONNECTION, line, True)
            case _:
                return None

    def _fact(self, attempt: Attempt, ending: Ending | None, trouble: Trouble | None) -> SpendFact:
        """What an attempt has cost, with an estimate for what the server did not tell."""
        heard = attempt.heard
        usage, estimated = heard.usage(complete=ending is Ending.COMPLETE)
        left = ending in (None, Ending.STOPPED) or (trouble is not None and trouble.billed)
        if not heard.started and left and attempt.sent:
            # It went away in our hands or ran out of time: the server may have read it all.
            estimated = estimated_tokens(self._request)
            usage = Usage(input=estimated)
        micro = None if self._price is None else self._price.cost(usage)
        if not usage.total:
            micro = 0
        self._usage += usage
        self._micro = None if micro is None or self._micro is None else self._micro + micro
        self._by = heard.model or self._by
        name = self._model.model
        return SpendFact(self._call.role, self._candidate, usage, micro, name, estimated)

    def _judge(self, heard: Heard) -> ModelReply | _Fault:
        """A reply that was heard to its end: usable, or what is wrong with it."""
        notes = _notes()
        if heard.stop_reason == "refusal":
            why = self._owner.keys.hide(one_line(heard.refusal))
            line = "the model declined" + (f": {why}" if why else "")
            return _Fault(FailureKind.REFUSED, line, notes["refused"])
        if heard.stop_reason in _CUT_REASONS:
            limit = self._model.max_tokens
            line = f"the reply was cut ({heard.stop_reason}); max_tokens is {limit}"
            return _Fault(FailureKind.CUT, line, _filled(notes["cut"], limit=str(limit)))
        tools: list[ToolUse] = []
        problem = ""
        for name, text in heard.tools:
            used = self._used(name, text)
            if isinstance(used, str):
                problem = problem or used
            else:
                tools.append(used)
        if self._call.must_use and not heard.tools:
            names = " or ".join(tool.name for tool in self._call.tools)
            problem = f"it calls no tool, but {names} has to be called"
        if problem:
            given = "\n".join(text for _, text in heard.tools) or heard.text
            note = _filled(notes["malformed"], problem=problem, reply=given[:_SHOWN_AGAIN])
            return _Fault(FailureKind.MALFORMED, one_line(problem), note)
        if not tools and not heard.text.strip():
            return _Fault(FailureKind.MALFORMED, "the reply is empty", notes["empty"])
        model = heard.model or self._model.model
        return ModelReply(heard.text, tuple(tools), model, self._usage, self._micro, self._attempts)

    def _used(self, name: str, text: str) -> ToolUse | str:
        """The call of a tool, or what is wrong with it."""
        for tool in self._call.tools:
            if tool.name == name:
                try:
                    return ToolUse(name, parse_input(text, tool.schema))
                except InputProblem as error:
                    return f"{name}: {error}"
        known = ", ".join(tool.name for tool in self._call.tools) or "none"
        return f"{one_line(name)!r} is not a tool here; known: {known}"

    def _again_with_note(self, fault: _Fault) -> None:
        if self._reasks >= self._limits.reasks:
            times = f" {self._attempts} times" if self._attempts > 1 else ""
            raise self._failure(fault.kind, f"{fault.line}{', asked' + times if times else ''}")
        self._reasks += 1
        self._request = with_note(request_of(self._call, self._model), fault.note)
        self._again(f"{fault.line}; asked again ({self._reasks} of {self._limits.reasks})")

    def _again_after_a_while(self, trouble: Trouble) -> None:
        self._failures += 1
        limits = self._limits
        if not trouble.again:
            raise self._failure(trouble.kind, trouble.line)
        if self._failures >= limits.attempts:
            line = f"{trouble.line}; given up after {self._failures} attempts"
            raise self._failure(trouble.kind, line, trouble.wait_ms or 0)
        asked = trouble.wait_ms
        if asked is not None and asked > limits.longest_wait_ms:
            line = f"{trouble.line}; the server asks to wait {asked / 1000:g} s, which is too long"
            raise self._failure(trouble.kind, line, asked)
        dice = self._owner.waiting.dice()
        wait = wait_ms(self._failures, asked, limits.first_wait_ms, limits.longest_wait_ms, dice)
        self._again(
            f"{trouble.line}; attempt {self._failures + 1} of {limits.attempts} in {wait / 1000:.1f} s"
        )
        if self._owner.waiting.pause(wait, self._stop):
            raise self._failure(FailureKind.STOPPED, "stopped")

    def _again(self, text: str) -> None:
        """Says that there is a further attempt, and what all of them may have cost then."""
        worst = self._worst()
        whole = None if worst is None or self._micro is None else self._micro + worst
        self._hear(Chunk(ChunkKind.STATUS, text, whole))

    def _worst(self) -> int | None:
        """What one attempt may cost at most; None if nobody knows."""
        if self._price is None:
            return None
        return self._price.worst(estimated_tokens(self._request), self._model.max_tokens)

    def _status(self, text: str) -> None:
        self._hear(Chunk(ChunkKind.STATUS, text))

    def _warning(self, level: int) -> str:
        view = self._owner.spend.view
        budget = self._owner.spend.budget_micro_usd
        of = "" if budget is None else f" of {usd(budget)}"
        return f"{level} % of the budget{of} is spent: {view.total.text}"

    def _failure(self, kind: FailureKind, line: str, wait_ms: int = 0) -> ModelFailure:
        return ModelFailure(
            kind,
            line,
            model=self._by or self._model.model,
            usage=self._usage,
            micro_usd=self._micro,
            attempts=self._attempts,
            wait_ms=wait_ms,
        )


def _filled(note: str, **values: str) -> str:
    """Puts values in once, so that braces inside of them stay what they are."""
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), note)


@cache
def _notes() -> Mapping[str, str]:
    source: Any = resources.files("kerneltui.agents").joinpath("prompts", "reask.toml")
    return tomllib.loads(source.read_text(encoding="utf-8"))
