"""Kernel texts from the engine, compared and highlighted in a thread, kept by commit."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kerneltui.model.candidate import Candidate
from kerneltui.model.command import Command, ReadLog, ReadSource
from kerneltui.tui.draw.code import Tokens, highlight
from kerneltui.tui.draw.diff import Diff, make_diff
from kerneltui.tui.feed import Reply

__all__ = ["Loaded", "SourceError", "Sources"]

_KEPT = 64


class SourceError(Exception):
    """The engine has no such text; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The texts of one candidate: its kernel as it is, its diff, and the log of its failure."""

    candidate: str
    sha: str
    source: str
    diff: Diff
    tokens: Tokens
    log: str = ""


class Sources:
    """Loads texts once for each commit and keeps the last ones."""

    def __init__(self, ask: Callable[[Command], Awaitable[Reply]]) -> None:
        self._ask = ask
        self._kept: OrderedDict[tuple[str, str], Loaded] = OrderedDict()

    def ready(self, candidate: Candidate) -> Loaded | None:
        """Returns what is there already."""
        return self._kept.get(self._key(candidate))

    @staticmethod
    def _key(candidate: Candidate) -> tuple[str, str]:
        log = candidate.failure.log if candidate.failure else ""
        return candidate.sha, log

    async def load(self, candidate: Candidate) -> Loaded:
        """Asks the engine for a candidate's kernel and prepares it for the screen.

        Raises:
            SourceError: The engine refused.
        """
        key = self._key(candidate)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        reply = await self._ask(ReadSource(candidate.id))
        if reply.error:
            raise SourceError(f"{candidate.id}: no source: {reply.error}")
        log = ""
        if candidate.failure and candidate.failure.log:
            answer = await self._ask(ReadLog(candidate.failure.log))
            log = f"(no log: {answer.error})" if answer.error else str(answer.data.get("text", ""))
        loaded = await asyncio.to_thread(_prepare, candidate.id, reply, log)
        self._kept[key] = loaded
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return loaded


def _prepare(candidate: str, reply: Reply, log: str) -> Loaded:
    source = str(reply.data.get("source", ""))
    parent = str(reply.data.get("parent") or "")
    parent_source = str(reply.data.get("parent_source") or "")
    file = str(reply.data.get("file", ""))
    sha = str(reply.data.get("sha", ""))
    language = "python" if file.endswith(".py") else "cpp"
    tokens = highlight(source, language)
    old_tokens = highlight(parent_source, language) if parent else ()
    diff = make_diff(
        candidate,
        sha,
        parent=parent,
        file=file,
        texts=(parent_source, source),
        tokens=(old_tokens, tokens),
    )
    return Loaded(candidate, sha, source, diff, tokens, log)
