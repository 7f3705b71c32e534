"""The steer line's language: messages to agents, and commands that begin with a slash."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kerneltui.model.command import (
    ChooseModel,
    Command,
    Constrain,
    SetBudget,
    SetPaused,
    Steer,
)
from kerneltui.model.event import ConstraintKind
from kerneltui.model.state import State
from kerneltui.model.steering import GOAL

__all__ = ["HELP", "SteerError", "SteerLine", "parse_steer"]

HELP = (
    ("@fast @slow @all text", "write to an agent; the address stays for the next line"),
    ("/pin c0012, /unpin", "the next proposals start from this candidate; lift that"),
    ("/ban field=value, /unban …", "never propose this value; lift that"),
    ("/force field=value, /unforce …", "always propose this value; lift that"),
    ("/pause, /resume", "pause after the current evaluation; go on"),
    ("/budget 40, 10m, $5, 40 10m $5", "candidates, time, money; the rest stays; - lifts the rest"),
    ("/budget $none, /budget none", "no limit in money; no limit at all"),
    ("/goal text, /goal -", "what all agents aim for until you say otherwise; lift that"),
    ("/model slow name", "the model of a role: fast, slow, judge, meta"),
)

_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MONEY = re.compile(r"\$(\d+(?:\.\d{1,6})?)")
_ROLES = ("fast", "slow", "judge", "meta")
_ALONE = ("unpin", "pause", "resume")
_ADDRESS = re.compile(r"@(\w+)(?:\s+|$)")


class SteerError(Exception):
    """The line cannot be sent; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class SteerLine:
    """What a line means: a command, and whom the next line is for."""

    command: Command
    to: str


def parse_steer(text: str, to: str, state: State) -> SteerLine:
    """Reads a line of the steer input.

    Args:
        text: What the human wrote; `↵` stands for a new line.
        to: The address in front of the line: `fast`, `slow` or `all`.
        state: The session, to check what the line names.

    Raises:
        SteerError: It is empty, an unknown command or address, or names what does not exist.
    """
    text = text.strip().replace("↵", "\n")
    if text.startswith("/"):
        return SteerLine(_command(text, state), to)
    found = _ADDRESS.match(text)
    if found:
        to, text = found.group(1), text[found.end() :].strip()
        if to not in ("fast", "slow", "all"):
            raise SteerError(f"there is no agent '@{to}'; write @fast, @slow or @all")
    if not text:
        raise SteerError("nothing to send; write a message or a command such as /pin c0012")
    return SteerLine(Steer(to, text), to)


def _command(text: str, state: State) -> Command:
    name, _, rest = text[1:].partition(" ")
    name, rest = name.lower(), rest.strip()
    if rest and name in _ALONE:
        raise SteerError(f"/{name} stands alone; '{rest}' means nothing here")
    match name:
        case "pin" | "unpin":
            return _pin(rest, state, active=name == "pin")
        case "ban" | "unban" | "force" | "unforce":
            return _value(name, rest)
        case "pause" | "resume":
            return SetPaused(name == "pause")
        case "budget":
            return _budget(rest, state)
        case "goal":
            if not rest:
                raise SteerError("/goal needs a text, or - to lift the goal")
            if rest == "-" and not state.goal:
                raise SteerError("there is no goal to lift")
            return Steer("all", GOAL.rstrip() if rest == "-" else f"{GOAL}{rest}")
        case "model":
            return _model(rest)
        case _:
            raise SteerError(
                f"unknown command '/{name}'; known: /pin /unpin /ban /unban /force /unforce "
                "/pause /resume /budget /goal /model"
            )


def _pin(rest: str, state: State, *, active: bool) -> Constrain:
    if not active:
        pinned = [part.value for part in state.constraints if part.kind is ConstraintKind.PIN]
        if not pinned:
            raise SteerError("no candidate is pinned")
        return Constrain(ConstraintKind.PIN, "", pinned[-1], active=False)
    if rest not in state.candidates:
        raise SteerError(
            f"/pin needs a candidate such as {state.incumbent or 'c0001'}, not '{rest}'"
        )
    return Constrain(ConstraintKind.PIN, "", rest)


def _value(name: str, rest: str) -> Constrain:
    field, equals, value = rest.partition("=")
    if not equals or not field.strip() or not value.strip():
        raise SteerError(f"/{name} needs field=value, for example /{name} placement=fused")
    kind = ConstraintKind.BAN if name.endswith("ban") else ConstraintKind.FORCE
    return Constrain(kind, field.strip(), value.strip(), active=not name.startswith("un"))


def _model(rest: str) -> ChooseModel:
    role, _, name = rest.partition(" ")
    if role not in _ROLES or not name.strip():
        raise SteerError(f"/model needs a role ({', '.join(_ROLES)}) and the name of a model")
    return ChooseModel(role, name.strip())


def _budget(rest: str, state: State) -> SetBudget:
    """Reads a budget; what is not named stays; `none` lifts it, and so does `-`, money excepted."""
    words = rest.split()
    if not words:
        raise SteerError("/budget needs candidates, a time, money or several: /budget 40 10m $5")
    lifted = "-" in words or "none" in words
    free = "$none" in words or "none" in words
    candidates = None if lifted else state.budget_candidates
    time_ns = None if lifted else state.budget_ns
    money: int | None = None
    for word in words:
        time, dollars = _TIME.fullmatch(word), _MONEY.fullmatch(word)
        if time:
            time_ns = round(float(time.group(1)) * _UNITS[time.group(2)] * 1e9)
        elif dollars and float(dollars.group(1)) > 0:
            money = round(float(dollars.group(1)) * 1e6)
        elif word.isdigit() and int(word) > 0:
            candidates = int(word)
        elif word not in ("-", "none", "$none"):
            raise SteerError(f"/budget does not understand '{word}'; write /budget 40 10m $5")
    if "$none" in words and money is not None:
        raise SteerError("/budget: $none and a sum exclude one another")
    return SetBudget(candidates, time_ns, money, no_money_limit=free and money is None)
