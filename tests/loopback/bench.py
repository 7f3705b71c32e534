"""A scripted server, a model that asks it, and all that was heard."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anthropic  # noqa: F401 - takes seconds, which are no part of the first call's time
import pytest

from kerneltui.agents.agent_config import AgentConfig, CallLimits, RoleModel
from kerneltui.agents.claude import ClaudeModel
from kerneltui.agents.model_port import (
    Block,
    Chunk,
    ChunkKind,
    ModelCall,
    ModelFailure,
    ModelReply,
    Role,
    Tool,
    Turn,
    Usage,
)
from kerneltui.agents.pricing import SHIPPED_PRICES
from kerneltui.agents.retry import Waiting
from kerneltui.agents.spend import Spend
from loopback.script import Say, Step
from loopback.server import Loopback

KEY = "sk-ant-marker-0123456789-abcdef"


SCRIPTS = Path(__file__).parent / "scripts"


LIMITS = CallLimits(first_wait_ms=4, longest_wait_ms=1_000, attempts=4, reasks=1)


PATCH = Tool(
    "patch",
    "Changes the kernel.",
    {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "minLength": 1},
            "chunk": {"type": "integer", "minimum": 1},
        },
        "required": ["reason", "chunk"],
    },
)


GOOD = Say("tool", '{"reason": "smaller chunks", "chunk": 64}', "patch")


ANSWER = Step("answer", say=(GOOD,))


CALL = ModelCall(
    Role.FAST,
    (Block("contract", cached=True),),
    (Turn("user", "improve c0001"),),
    (PATCH,),
    must_use=True,
    purpose="propose c0012",
)


PROSE = replace(CALL, tools=(), must_use=False)


class Bench:
    """A server, a model that asks it, and all that was heard."""

    def __init__(self, server: Loopback, model: ClaudeModel) -> None:
        self.server = server
        self.model = model
        self.chunks: list[Chunk] = []
        self.slept: list[float] = []

    def ask(self, call: ModelCall = CALL, stop: Callable[[], bool] = lambda: False) -> ModelReply:
        return self.model.ask(call, self.chunks.append, stop)

    def fails(
        self, call: ModelCall = CALL, stop: Callable[[], bool] = lambda: False
    ) -> ModelFailure:
        with pytest.raises(ModelFailure) as caught:
            self.ask(call, stop)
        failure = caught.value
        assert "\n" not in failure.reason
        assert failure.__cause__ is None
        assert failure.__context__ is None
        assert self.model.spend.view.running == 0
        return failure

    def heard(self, kind: ChunkKind) -> str:
        return "".join(chunk.text for chunk in self.chunks if chunk.kind is kind)

    @property
    def statuses(self) -> list[str]:
        return [chunk.text for chunk in self.chunks if chunk.kind is ChunkKind.STATUS]


@contextmanager
def bench(
    *steps: Step,
    limits: CallLimits = LIMITS,
    budget: int | None = None,
    role: RoleModel | None = None,
    environment: dict[str, str] | None = None,
    patient: bool = False,
):
    """Opens both; unless `patient`, waits between attempts are only written down."""
    # a step remembers how often it was taken
    with Loopback([replace(step) for step in steps]) as server:
        roles = dict(AgentConfig().roles)
        if role is not None:
            roles[Role.FAST] = role
        config = AgentConfig(roles=roles, base_url=server.url, limits=limits)
        slept: list[float] = []
        waiting = Waiting(dice=lambda: 0.0) if patient else Waiting(slept.append, lambda: 0.0)
        keys = {"ANTHROPIC_API_KEY": KEY} if environment is None else environment
        model = ClaudeModel(config, Spend(budget), keys, waiting)
        made = Bench(server, model)
        made.slept = slept
        try:
            yield made
        finally:
            model.close()
        server.check()


def price(usage: Usage) -> int:
    return SHIPPED_PRICES["claude-opus-5-5"].cost(usage)
