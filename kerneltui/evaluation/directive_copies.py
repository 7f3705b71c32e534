"""Whether the copies to a kernel's peers are all of a rank's rows at once, as far as a text can say so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kerneltui.evaluation.device_code import Function
from kerneltui.evaluation.directive_claim import Claim

__all__ = ["whole_copies"]

# By name: which arguments are the ends of a copy, and which one is its size.
_COPIES = {
    "memcpy": ((0, 1), 2),
    "cudaMemcpy": ((0, 1), 2),
    "cudaMemcpyAsync": ((0, 1), 2),
    "cudaMemcpyPeerAsync": ((0, 2), 4),
    "cuMemcpyDtoDAsync": ((0, 1), 2),
}
_PEER = r"\bpeers\s*\[[^\]]*\]|\bnccl(?:GetLsaPointer|GetPeerPointer)\s*\("
_SIGNALS = re.compile(r"\bsignals\s*\[")
_PIECE = re.compile(
    r"chunk|block|tile|piece|part|step|slice|band|group|segment|stripe|panel|box|batch|quant|\bmin\b|\bmax\b"
    r"|clamp|\?",
    re.IGNORECASE,
)
_WHOLE = re.compile(r"rows|shard|bytes|size|count|total|length", re.IGNORECASE)
_MEMBER = re.compile(r"\b(\w+)\s*(?:\([^()]*\))?\s*(?:->|\.)\s*")
_CAST = re.compile(
    r"\b(?:static_cast|reinterpret_cast|const_cast)\s*<[^<>]*>|\b(?:u?int\d*_t|size_t|sizeof|int|unsigned"
    r"|long|char|float|double|half|std|const|void)\b(?:\s*\*)*|::"
)
_DEPTH = 4


class _Size(StrEnum):
    WHOLE = "whole"
    PIECE = "piece"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Copy:
    line: int
    size: _Size
    begin: int
    end: int


def whole_copies(claim: Claim) -> tuple[int, ...]:
    """Lines of the copies to peers, if each of them plainly moves all that a rank has; else nothing.

    A copy in a loop over pieces, of a size that a caller gives or that names a piece, and any other way
    to reach a peer's memory than a copy make it undecided.
    """
    copies = list(_copies(claim))
    if not copies or any(copy.size is not _Size.WHOLE for copy in copies):
        return ()
    elsewhere = [
        match
        for match in re.finditer(_PEER, claim.text)
        if not any(copy.begin <= match.start() < copy.end for copy in copies)
        and not _names_a_copy(claim, match, copies)
    ]
    return () if elsewhere else tuple(copy.line for copy in copies)


def _copies(claim: Claim) -> Iterator[_Copy]:
    for call in claim.code.source.calls("|".join(_COPIES)):
        ends, size = _COPIES[call.name]
        function = claim.code.function_at(call.offset)
        if function is None or len(call.arguments) <= size:
            continue
        resolved = [_resolve(claim, function, call.arguments[end]) for end in ends]
        if not any(re.search(_PEER, text) for text in resolved) or _SIGNALS.search(resolved[0]):
            continue
        places = re.sub(r"\[[^\]]*\]", "", " ".join(resolved))
        kind = _size(claim, function, call.offset, call.arguments[size], places)
        yield _Copy(call.line, kind, call.offset, call.end)


def _names_a_copy(claim: Claim, match: re.Match[str], copies: list[_Copy]) -> bool:
    """Whether the peer's pointer is first given a name, which a copy of the same function then takes."""
    function = claim.code.function_at(match.start())
    if function is None:
        return False
    begin = max(claim.text.rfind(mark, 0, match.start()) for mark in ";{}") + 1
    name = re.search(r"\b(\w+)\s*=[^=]", claim.text[begin : match.start()])
    return name is not None and any(
        function.begin <= copy.begin < function.end
        and re.search(rf"\b{name[1]}\b", claim.text[copy.begin : copy.end])
        for copy in copies
    )


def _resolve(claim: Claim, function: Function, text: str) -> str:
    """An expression with the names of the function's variables replaced by what they are given."""
    known = claim.initialisers(function)
    for _ in range(_DEPTH):
        names = [name for name in known if re.search(rf"(?<![.>]){name}\b", text)]
        fresh = text
        for name in names:
            fresh = re.sub(rf"(?<![.>\w]){name}\b(?!\s*(?:\(|->|\.))", f"({known[name]})", fresh)
        if fresh == text or len(fresh) > 4000:
            break
        text = fresh
    return text


def _size(claim: Claim, function: Function, offset: int, size: str, places: str) -> _Size:
    text = _resolve(claim, function, size)
    loops = claim.loop_names(function, offset)
    pieces = {name for name, head in loops.items() if not re.search(r"peers|ranks", head)}
    if _PIECE.search(text) or _PIECE.search(places):
        return _Size.PIECE
    if any(re.search(rf"\b{name}\b", f"{text} {places}") for name in loops):
        return _Size.PIECE
    if any(tunable.name in text for tunable in claim.kernel.tunables) or pieces:
        return _Size.UNKNOWN
    names = set(re.findall(r"\b[A-Za-z_]\w*", _MEMBER.sub("@", _CAST.sub(" ", text))))
    members = set(re.findall(r"@(\w+)", _MEMBER.sub("@", _CAST.sub(" ", text))))
    if (names - members) & claim.parameters(function) or not any(map(_WHOLE.search, names)):
        return _Size.UNKNOWN
    unknown = names - members - {name for name in names if name.isupper()}
    return _Size.UNKNOWN if unknown - set(claim.initialisers(function)) else _Size.WHOLE
