"""The models of the agents' roles and how each is asked: `[roles]` and `[models]` of `agents.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from kerneltui.agents.model_port import Role
from kerneltui.model.toml_table import TableReader
from kerneltui.search.arms import OFFLINE

__all__ = ["Asking", "RoleModel", "Thinking", "default_roles", "read_models", "read_roles"]

_LEAST_THINKING = 1024
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Thinking(StrEnum):
    """What is said about thinking in a request; models differ in what they take."""

    DEFAULT = "default"
    """Nothing: the model does as it does."""
    ADAPTIVE = "adaptive"
    """The model decides how much; newer models."""
    BUDGET = "budget"
    """At most `thinking_tokens`; older models."""
    OFF = "off"
    """None; not every model can."""


@dataclass(frozen=True, slots=True)
class RoleModel:
    """The model of a role and how it is asked.

    Attributes:
        model: Its name at the server.
        max_tokens: Of a reply, thinking among them.
        thinking: What is said about thinking.
        thinking_tokens: For `budget`.
        effort: How hard it tries, in the server's words; empty says nothing.
        strict_tools: Whether the server is asked to hold the schemas of tools; they are held here anyway.
        force_tools: Whether a call of a tool is forced by the server. Models that think refuse that; without
            it, a reply without a tool where one must be is asked again.
        cache: Whether the ends of stable context are marked for the server's cache.
        others: Further models of the role, asked in the same way: arms of a bandit.
    """

    model: str
    max_tokens: int = 32_000
    thinking: Thinking = Thinking.ADAPTIVE
    thinking_tokens: int = 16_000
    effort: str = ""
    strict_tools: bool = True
    force_tools: bool = False
    cache: bool = True
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All models of the role."""
        return (self.model, *self.others)

    def named(self, model: str) -> RoleModel:
        """The same with another model; an empty name is its own."""
        return replace(self, model=model) if model else self


@dataclass(frozen=True, slots=True)
class Asking:
    """How a model is asked, as far as it is said: the fields of `RoleModel` of those names, or None."""

    max_tokens: int | None = None
    thinking: Thinking | None = None
    thinking_tokens: int | None = None
    effort: str | None = None
    strict_tools: bool | None = None
    force_tools: bool | None = None
    cache: bool | None = None

    def applied(self, model: RoleModel) -> RoleModel:
        """The same model, asked in this way."""
        said = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(model, **{key: value for key, value in said.items() if value is not None})


def default_roles() -> dict[Role, RoleModel]:
    """The models that are asked if nobody says others."""
    return {
        Role.FAST: RoleModel("claude-opus-5-5"),
        Role.SLOW: RoleModel("claude-opus-5-5"),
        Role.JUDGE: RoleModel("claude-sonnet-5-5", max_tokens=8_000),
        Role.META: RoleModel("claude-haiku-5-5", max_tokens=8_000),
    }


def read_roles(whole: TableReader, raw: Any) -> dict[Role, RoleModel]:
    """The models of the roles, from the tables `[roles.ROLE]`.

    Raises:
        DefinitionError: With file and key.
    """
    made = default_roles()
    for name, reader in whole.tables("roles").items():
        if name not in list(Role):
            raise whole.error("roles", f"'{name}' is not one of {', '.join(Role)}")
        made[Role(name)] = _role(reader, raw[name], made[Role(name)], Role(name))
    return made


def read_models(whole: TableReader, raw: Any) -> dict[str, Asking]:
    """How single models are asked, from the tables `[models.NAME]`.

    Raises:
        DefinitionError: With file and key.
    """
    made: dict[str, Asking] = {}
    for name, reader in whole.tables("models").items():
        if not name.strip() or name.split() != [name]:
            raise whole.error("models", f"'{name}' is no name of a model")
        made[name] = _asking(reader, raw[name])
        reader.finish()
    return made


def _role(reader: TableReader, raw: Mapping[str, Any], default: RoleModel, role: Role) -> RoleModel:
    model, *others = _models(reader, raw, default, role)
    asking = _asking(reader, raw)
    reader.finish()
    return asking.applied(replace(default, model=model, others=tuple(others)))


def _asking(reader: TableReader, raw: Mapping[str, Any]) -> Asking:
    """What a table says of how a model is asked; None for what it does not say."""
    wants = RoleModel("")  # for the keys that are there; what is not is left out below
    said: dict[str, Any] = {
        "max_tokens": reader.integer("max_tokens", minimum=1, default=wants.max_tokens),
        "thinking": Thinking(reader.choice("thinking", list(Thinking), str(wants.thinking))),
        "thinking_tokens": reader.integer(
            "thinking_tokens", minimum=_LEAST_THINKING, default=wants.thinking_tokens
        ),
        "effort": reader.choice("effort", _EFFORTS)
        if "effort" in raw
        else reader.word("effort", ""),
        **{key: reader.flag(key) for key in ("strict_tools", "force_tools", "cache")},
    }
    return Asking(**{key: value for key, value in said.items() if key in raw})


def _models(
    reader: TableReader, raw: Mapping[str, Any], default: RoleModel, role: Role
) -> tuple[str, ...]:
    """One model, or a list where a bandit chooses among them."""
    model = reader.word("model", default.model)
    if not model.strip():
        raise reader.error("model", "is empty, expected the name of a model")
    if "models" not in raw:
        return (model,)
    names = reader.words("models")
    if role is not Role.SLOW:
        raise reader.error("models", "only the slow path chooses among several; use model")
    if "model" in raw:
        raise reader.error("models", "there is a model, too; say one of the two")
    if not names or any(name.split() != [name] for name in names):
        raise reader.error("models", f"expected names of models, found {list(names)!r}")
    if OFFLINE in names:
        raise reader.error("models", f"'{OFFLINE}' is the search, which takes part anyway")
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise reader.error("models", f"'{doubled[0]}' is listed twice")
    return names
