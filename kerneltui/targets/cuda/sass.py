"""Machine code as text: instructions that matter, counted, and a diff that survives moved addresses.

Reads what `nvdisasm -c` and `cuobjdump --dump-sass` print.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["COUNTED", "SassFunction", "count_instructions", "parse_sass", "sass_diff"]

COUNTED = (
    "HMMA",
    "HGMMA",
    "IMMA",
    "DMMA",
    "QGMMA",
    "UTMALDG",
    "UTMASTG",
    "UTMAREDG",
    "UBLKCP",
    "UBLKRED",
    "LDGSTS",
    "LDSM",
    "BAR",
    "SYNCS",
    "WARPSYNC",
    "LDL",
    "STL",
    "MEMBAR",
    "FENCE",
    "ATOMG",
    "REDG",
    "RED",
    "LDGMC",
    "WARPGROUP",
)
"""Opcodes that are counted whole."""

_BY_WIDTH = ("LDG", "STG", "LDS", "STS")
_HEAD = re.compile(r"^\s*Function : (?P<dumped>\S+)|^\.text\.(?P<listed>[^\s:]+):")
_INSTRUCTION = re.compile(r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<text>[^;/]+?(?:;|(?=/\*)))")
_LABEL = re.compile(r"^(\.L_[\w.]*):")
_REFERENCE = re.compile(r"`\((\.L_[\w.]*)\)")
_ADDRESS = re.compile(
    r"(?P<before>\b(?:BRA|BSSY|CALL|JMP|RET|BREAK|BRX|WARPSYNC)\b.*?)0x(?P<to>[0-9a-f]+)"
)
_OPCODE = re.compile(r"^(?:\{\s*)?(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9_]*)((?:\.[\w:]+)*)")
_PADDING = re.compile(r"^(?:NOP\s*;|BRA \.L\d+;?)$")
_NUMBERED = re.compile(r"\.L\d+")
_MOST_LINES = 20_000


@dataclass(frozen=True, slots=True)
class SassFunction:
    """A function of the machine code.

    Attributes:
        name: Its symbol.
        lines: Instructions and labels, without addresses and encodings; labels count from 1.
    """

    name: str
    lines: tuple[str, ...]


def parse_sass(text: str) -> tuple[SassFunction, ...]:
    """Reads the functions of a listing, in its order."""
    functions: list[SassFunction] = []
    for name, rows in _functions(text):
        functions.append(SassFunction(name, tuple(_normal(rows))))
    return tuple(functions)


def count_instructions(function: SassFunction) -> Mapping[str, int]:
    """Counts what matters: opcodes of `COUNTED`, loads and stores by width, and "all"."""
    found: Counter[str] = Counter()
    for line in function.lines:
        match = _OPCODE.match(line.strip())
        if match is None or line.endswith(":"):
            continue
        found["all"] += 1
        opcode, modifiers = match[1], match[2].split(".")
        if opcode in _BY_WIDTH:
            width = next(
                (m for m in modifiers if m in ("U8", "S8", "U16", "S16", "64", "128")), "32"
            )
            found[f"{opcode}.{width.lstrip('US')}"] += 1
        elif opcode in COUNTED:
            found[opcode] += 1
    return dict(sorted(found.items()))


def sass_diff(before: SassFunction, after: SassFunction, *, context: int = 3) -> list[str]:
    """A unified diff of two functions; addresses, encodings and numbers of labels play no part."""
    old, new = before.lines[:_MOST_LINES], after.lines[:_MOST_LINES]
    # one more label renumbers all that follow, which is no change
    matcher = difflib.SequenceMatcher(None, _unlabelled(old), _unlabelled(new), autojunk=False)
    lines: list[str] = []
    for group in matcher.get_grouped_opcodes(context):
        first, last = group[0], group[-1]
        lines.append(
            f"@@ -{first[1] + 1},{last[2] - first[1]} +{first[3] + 1},{last[4] - first[3]} @@"
        )
        for kind, old_begin, old_end, new_begin, new_end in group:
            if kind == "equal":
                lines += [f" {line}" for line in new[new_begin:new_end]]
                continue
            lines += [f"-{line}" for line in old[old_begin:old_end]]
            lines += [f"+{line}" for line in new[new_begin:new_end]]
    return lines


def _unlabelled(lines: Sequence[str]) -> list[str]:
    return [_NUMBERED.sub(".L", line) for line in lines]


@dataclass(frozen=True, slots=True)
class _Row:
    address: int | None  # None for a label of the listing
    text: str


def _functions(text: str) -> Iterator[tuple[str, list[_Row]]]:
    name: str | None = None
    rows: list[_Row] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            if name is not None and rows:
                yield name, rows
            name, rows = head["dumped"] or head["listed"], []
            continue
        if name is None:
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction:
            rows.append(_Row(int(instruction["address"], 16), instruction["text"].strip()))
        else:
            label = _LABEL.match(line)
            if label:
                rows.append(_Row(None, label[1]))
    if name is not None and rows:
        yield name, rows


def _normal(rows: list[_Row]) -> list[str]:
    """Numbers the places that are jumped to, in the order in which they stand."""
    targets: set[str] = set()
    for row in rows:
        targets |= set(_REFERENCE.findall(row.text))
        targets |= {f"@{int(m['to'], 16)}" for m in _ADDRESS.finditer(row.text)}
    numbers: dict[str, str] = {}
    for row in rows:
        mark = row.text if row.address is None else f"@{row.address}"
        if mark in targets:
            numbers[mark] = f".L{len(numbers) + 1}"
    lines: list[str] = []
    for row in rows:
        mark = row.text if row.address is None else f"@{row.address}"
        if mark in numbers:
            lines.append(f"{numbers[mark]}:")
        if row.address is not None:
            lines.append(f"    {_rename(row.text, numbers)}")
    while lines and _PADDING.match(lines[-1].strip()):
        lines.pop()  # fills up the last line of the instruction cache
    if lines and lines[-1].endswith(":"):
        lines.pop()
    return lines


def _rename(text: str, numbers: Mapping[str, str]) -> str:
    text = _REFERENCE.sub(lambda m: numbers.get(m[1], m[1]), text)
    renamed = _ADDRESS.sub(
        lambda m: m["before"] + numbers.get(f"@{int(m['to'], 16)}", f"0x{m['to']}"), text
    )
    return re.sub(r"\s*;$", ";", renamed)
