"""`agents.toml`: which models the agents ask, how, and for how much money.

Everything has a default, so the file need not exist. Keys are not in it: they come from the environment.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from kerneltui.agents.model_port import Role
from kerneltui.agents.pricing import SHIPPED_PRICES, ModelPrice, Rates
from kerneltui.agents.role_models import (
    Asking,
    RoleModel,
    Thinking,
    default_roles,
    read_models,
    read_roles,
)
from kerneltui.model.errors import DefinitionError
from kerneltui.model.toml_table import TableReader
from kerneltui.search.islands import MIGRATE_EVERY

__all__ = [
    "AGENTS_FILE",
    "AHEAD",
    "AgentConfig",
    "CallLimits",
    "IslandConfig",
    "RoleModel",
    "Thinking",
    "load_agent_config",
    "parse_agent_config",
]

AGENTS_FILE = "agents.toml"
_MICRO = 1_000_000
_MOST_USD = 1_000_000
_MOST_ISLANDS = 8
AHEAD = 1
_MOST_AHEAD = 8
_SECRET = re.compile(r"(^|_)(key|token|secret|password|auth)($|_)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class IslandConfig:
    """Islands of the slow path.

    Attributes:
        count: How many; 1 is none.
        migrate_every: Results between two migrations.
    """

    count: int = 2
    migrate_every: int = MIGRATE_EVERY


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long and how often. Times in milliseconds.

    Attributes:
        connect_ms: To make a connection.
        silence_ms: Without any byte, the server's signs of life among them.
        call_ms: For one attempt from its begin to its end.
        attempts: Of one question at most, where the server or the line is at fault.
        reasks: Of one question at most, where the reply is at fault: refused, cut, malformed.
        first_wait_ms: Before the second attempt; doubled from then on.
        longest_wait_ms: Between two attempts. A server that asks for more is given up.
    """

    connect_ms: int = 10_000
    silence_ms: int = 120_000
    call_ms: int = 1_200_000
    attempts: int = 6
    reasks: int = 2
    first_wait_ms: int = 1_000
    longest_wait_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Everything in `agents.toml`.

    Attributes:
        roles: The model of each role.
        models: How a model is asked, whatever role it has; what is not said follows from the role.
        base_url: Of the server; empty is the vendor's, or `ANTHROPIC_BASE_URL`.
        limits: Times and attempts.
        prices: By the name of the model.
        budget_micro_usd: For a session; None is no limit.
        token_limit: For a session, all tokens; None is no limit. The only limit for models without a price.
        islands: Of the slow path.
        ahead: How many proposals of an agent may wait, made while evaluations run; 0: none is made then.
    """

    roles: Mapping[Role, RoleModel] = field(default_factory=default_roles)
    models: Mapping[str, Asking] = field(default_factory=dict[str, Asking])
    base_url: str = ""
    limits: CallLimits = field(default_factory=CallLimits)
    prices: Mapping[str, ModelPrice] = field(default_factory=lambda: dict(SHIPPED_PRICES))
    budget_micro_usd: int | None = 20 * _MICRO
    token_limit: int | None = None
    islands: IslandConfig = field(default_factory=IslandConfig)
    ahead: int = AHEAD

    def asked(self, role: Role, model: str = "") -> RoleModel:
        """How one of a role's models is asked; an empty name is the first."""
        found = self.roles[role].named(model)
        own = self.models.get(found.model)
        return own.applied(found) if own is not None else found

    def with_model(self, role: Role, model: str) -> AgentConfig:
        """The same with another model for a role, or several with blanks between, asked in the same way."""
        first, *others = model.split()
        changed = replace(self.roles[role], model=first, others=tuple(others))
        return replace(self, roles={**self.roles, role: changed})


def load_agent_config(folder: Path) -> AgentConfig:
    """Reads `agents.toml` of a folder; without the file, the defaults.

    Raises:
        DefinitionError: It cannot be read or says something that it must not.
    """
    path = folder / AGENTS_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return AgentConfig()
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(str(path), "file", f"cannot be read: {error}") from error
    return parse_agent_config(text, str(path))


def parse_agent_config(text: str, file: str = AGENTS_FILE) -> AgentConfig:
    """Reads the text of `agents.toml`.

    Raises:
        DefinitionError: With file and key.
    """
    try:
        # Decimal keeps 6.25 dollars what they are.
        table = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(file, "file", f"is not TOML: {error}") from error
    _refuse_secrets(file, "", table)
    table = _dollars_to_micro(file, table)
    empty = {
        key: {} for key in ("roles", "models", "limits", "prices", "budget", "islands", "search")
    }
    whole = TableReader(file, "", {**empty, **table})
    config = AgentConfig(
        roles=read_roles(whole, table.get("roles", {})),
        models=read_models(whole, table.get("models", {})),
        base_url=_base_url(whole),
        limits=_limits(whole.table("limits")),
        prices=_prices(whole),
        islands=_islands(whole.table("islands")),
    )
    _check_thinking(whole, config)
    search = whole.table("search")
    config = replace(config, ahead=_within(search, "ahead", (0, _MOST_AHEAD), AHEAD))
    search.finish()
    budget = whole.table("budget")
    usd = budget.optional_integer("usd", minimum=0)
    tokens = budget.optional_integer("tokens", minimum=0)
    if budget.flag("unlimited"):
        if usd is not None:
            raise budget.error("unlimited", "there is a limit in usd; say one of the two")
        config = replace(config, budget_micro_usd=None)
    elif usd is not None:
        config = replace(config, budget_micro_usd=usd)
    budget.finish()
    whole.finish()
    return replace(config, token_limit=tokens)


def _check_thinking(whole: TableReader, config: AgentConfig) -> None:
    """Refuses a model that may think more than it may say, in a role that it has."""
    for role, chosen in config.roles.items():
        for name in chosen.names:
            asked = config.asked(role, name)
            if asked.thinking is Thinking.BUDGET and asked.thinking_tokens >= asked.max_tokens:
                table = f"models.{name}" if name in config.models else f"roles.{role}"
                raise whole.error(
                    f"{table}.thinking_tokens",
                    f"is {asked.thinking_tokens}, expected less than max_tokens, which is "
                    f"{asked.max_tokens} in the role {role}",
                )


def _refuse_secrets(file: str, prefix: str, table: Mapping[str, Any]) -> None:
    """A key in a file ends up in backups and bundles, so there is no place for one."""
    for key, value in table.items():
        if isinstance(value, dict):
            _refuse_secrets(file, f"{prefix}{key}.", cast("dict[str, Any]", value))
        elif _SECRET.search(key):
            raise DefinitionError(
                file,
                f"{prefix}{key}",
                "keys come from the environment only: set ANTHROPIC_API_KEY or "
                "ANTHROPIC_AUTH_TOKEN, and take it out of this file",
            )


def _dollars_to_micro(file: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """The same table with amounts of dollars as whole millionths."""

    def within(prefix: str, part: Any, names: frozenset[str]) -> Any:
        if not isinstance(part, dict):
            return part  # the reader refuses it by name
        made: dict[str, Any] = {}
        for key, value in cast("dict[str, Any]", part).items():
            if key in names:
                made[key] = _micro(file, f"{prefix}.{key}", value)
            else:
                made[key] = within(f"{prefix}.{key}", value, names)
        return made

    rates = frozenset(item.name for item in fields(Rates))
    return {
        **table,
        **{key: within(key, table[key], rates) for key in ("prices",) if key in table},
        **{key: within(key, table[key], frozenset({"usd"})) for key in ("budget",) if key in table},
    }


def _micro(file: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise DefinitionError(file, key, f"expected dollars, found {value!r}")
    amount = Decimal(value)
    if not amount.is_finite() or amount < 0 or amount > _MOST_USD:
        raise DefinitionError(file, key, f"is {amount}, expected dollars from 0 to {_MOST_USD}")
    micro = amount * _MICRO
    if micro != int(micro):
        raise DefinitionError(file, key, f"is {amount}, finer than a millionth of a dollar")
    return int(micro)


def _base_url(reader: TableReader) -> str:
    text = reader.word("base_url", "")
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
        parts = urlsplit("")
    if not usable:
        raise reader.error("base_url", "expected a server's address, such as http://localhost:8000")
    if parts.username or parts.password:
        raise reader.error("base_url", "has a name or a password in it; use the environment")
    return text.rstrip("/")


def _islands(reader: TableReader) -> IslandConfig:
    default = IslandConfig()
    made = IslandConfig(
        count=_within(reader, "count", (1, _MOST_ISLANDS), default.count),
        migrate_every=reader.integer("migrate_every", minimum=1, default=default.migrate_every),
    )
    reader.finish()
    return made


def _within(reader: TableReader, key: str, bounds: tuple[int, int], default: int) -> int:
    value = reader.integer(key, minimum=bounds[0], default=default)
    if value > bounds[1]:
        raise reader.error(key, f"is {value}, expected at most {bounds[1]}")
    return value


def _limits(reader: TableReader) -> CallLimits:
    default = CallLimits()
    made = {
        item.name: reader.integer(
            item.name,
            minimum=0 if item.name in ("reasks", "first_wait_ms") else 1,
            default=getattr(default, item.name),
        )
        for item in fields(CallLimits)
    }
    reader.finish()
    return CallLimits(**made)


def _prices(whole: TableReader) -> dict[str, ModelPrice]:
    made = dict(SHIPPED_PRICES)
    for name, reader in whole.tables("prices").items():
        rates = _rates(reader)
        above = reader.optional_integer("long_above", minimum=1)
        long = None
        if above is not None:
            part = reader.table("long")
            long = _rates(part)
            part.finish()
        reader.finish()
        made[name] = ModelPrice(rates, long, above or 0)
    return made


def _rates(reader: TableReader) -> Rates:
    return Rates(*(reader.integer(item.name, minimum=0) for item in fields(Rates)))
