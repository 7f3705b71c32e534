"""What is known to be quick on a machine like this one: rows for the choice of a directive, as data."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Set
from dataclasses import dataclass

from kerneltui.agents.prompt_files import prompt_text

__all__ = ["FEATURES", "Row", "applying", "features_of", "rows", "rows_text", "unknown_of"]

FEATURES = frozenset({"cuda", "tma", "multicast", "two_ranks", "several_ranks"})
"""What a row may need, or must not find."""

_FIRST_WITH_TMA = 90


@dataclass(frozen=True, slots=True)
class Row:
    """When to do what, and why; `needs` and `without` say where it holds."""

    id: str
    when: str
    do: str
    because: str
    needs: frozenset[str]
    without: frozenset[str]


def rows() -> tuple[Row, ...]:
    """All rows of `prompts/directive_rows.toml`."""
    return tuple(
        Row(
            id=row["id"],
            when=row["when"],
            do=row["do"],
            because=row["because"],
            needs=frozenset(row.get("needs", ())),
            without=frozenset(row.get("without", ())),
        )
        for row in tomllib.loads(prompt_text("directive_rows.toml"))["row"]
    )


def features_of(target: str, ranks: int, machine: Iterable[str]) -> frozenset[str]:
    """What a machine has of `FEATURES`. NVLink multicast is never told of: it may be forbidden.

    Args:
        target: The name of the target.
        ranks: How many ranks the tune shapes have.
        machine: Words of the environment, among them the GPUs' architectures (`sm_90a`).
    """
    found = {"two_ranks"} if ranks == 2 else {"several_ranks"} if ranks > 2 else set[str]()
    if target == "cuda":
        found.add("cuda")
        levels = [level for word in machine if (level := _level(word)) is not None]
        if levels and min(levels) >= _FIRST_WITH_TMA:
            found.add("tma")
    return frozenset(found)


def unknown_of(target: str, machine: Iterable[str]) -> frozenset[str]:
    """Which of `FEATURES` nobody knows of, since no GPU was looked at yet."""
    looked = any(_level(word) is not None for word in machine)
    return frozenset() if looked or target != "cuda" else frozenset({"tma"})


def applying(features: Set[str], unknown: Set[str] = frozenset()) -> tuple[Row, ...]:
    """The rows that hold where a machine has these features, whatever the unknown ones are."""
    return tuple(
        row for row in rows() if row.needs <= features and not row.without & (features | unknown)
    )


def rows_text(features: Set[str], unknown: Set[str] = frozenset()) -> str:
    """The rows that apply, a line each; empty if none does."""
    found = applying(features, unknown)
    return "\n".join(f"- {row.when}: {row.do} ({row.because})" for row in found)


def _level(word: str) -> int | None:
    """`sm_90a` is 90; None for other words."""
    head, _, digits = word.rstrip("af,").partition("sm_")
    return int(digits) if not head and digits.isdigit() else None
