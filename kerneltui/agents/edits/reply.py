"""Reads the text of a reply into edits.

Three blocks are known; each may stand in a code fence, and what is around them is ignored::

    <<<<<<< SEARCH                <<<<<<< REGION name          <<<<<<< FILE
    lines of the kernel           all lines of the region      all lines of the file
    =======                       >>>>>>> REGION               >>>>>>> FILE
    the lines to put there
    >>>>>>> REPLACE

A mark has 5 to 9 characters. A file may be named on the first mark, in the fence's first line, or alone on
the line above. Without any block, these are read too: JSON of the form of the tool's input, a fenced
evolve region with its marks, and a fenced file.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kerneltui.agents.edits.copying import FENCE, unfenced
from kerneltui.agents.edits.edit import Edit, Reply, Rewrite
from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.tool_input import MOST_CHARACTERS, read_tool_input

__all__ = ["read_reply"]

_OPENING = re.compile(
    r"^(?P<indent>[ \t]*)(?P<mark><{2,})[ \t]*(?P<word>SEARCH|REGION|FILE)\b"
    r"[ \t]*:?[ \t]*(?P<name>.*?)[ \t]*$",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"^\s*(?:>|[-*+]|\d+[.)])\s*<{5,9} ?(?:SEARCH|REGION|FILE)\b", re.IGNORECASE)
_DIVIDER = re.compile(r"^[ \t]*(?P<mark>={5,9})[ \t]*$")
_CLOSING = re.compile(
    r"^[ \t]*(?P<mark>>{5,9})[ \t]*(?:(?P<word>REPLACE|REGION|FILE)\b[^`~]*)?(?:`{3,}|~{3,})?[ \t]*$",
    re.IGNORECASE,
)
_STRAY = re.compile(r"^[ \t]*(?:<{5,9}|>{5,9})(?![<>=])")
_FILE_NAME = re.compile(
    r"[\w./\\+-]*\w\.(?:cu|cuh|cpp|cc|cxx|c|h|hpp|hxx|py|ptx|txt|md|toml|json)\b", re.IGNORECASE
)
_DECORATION = re.compile(r"(?:\b(?:in|file|path|edit|filename)\b|[\s#*`:>\"'_-])+", re.IGNORECASE)
_HUNK = re.compile(r"^@@ .*@@", re.MULTILINE)
_BEGIN = re.compile(r"^\s*(?://|#)\s*kerneltui:\s*evolve begin\b[ \t]*(?P<name>.*?)\s*$")
_END = re.compile(r"^\s*(?://|#)\s*kerneltui:\s*evolve end\s*$")
_ESCAPED = re.compile(r"^\s*(?:&lt;){5,9}\s*(?:SEARCH|REGION|FILE)\b", re.MULTILINE)
_JSON_EDIT = re.compile(r"\{\s*\"(?:edits|search|rewrite)\"\s*:")
_MOST_EDITS = 200
_MOST_BRACES = 200


def read_reply(text: str, *, whole_file: bool = False) -> Reply:
    """Reads the edits of a reply.

    Args:
        text: All that the model wrote, without its thinking.
        whole_file: Whether a fenced block that is not marked may be the new file.

    Raises:
        EditFailure: There is no edit, or one that cannot be read in one way only.
    """
    if len(text) > MOST_CHARACTERS:
        raise EditFailure(
            EditKind.TOO_LONG, f"the reply has {len(text)} characters; kernels are shorter"
        )
    notes: tuple[str, ...] = ()
    text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    if _ESCAPED.search(text) and not any(_OPENING.match(line) for line in lines):
        lines = html.unescape(text).split("\n")
        notes = ("HTML entities were read as the characters they mean",)
    edits = _Blocks(lines).read()
    if edits:
        if len(edits) > _MOST_EDITS:
            raise EditFailure(EditKind.TOO_LONG, f"the reply has {len(edits)} edits")
        return Reply(tuple(edits), notes)
    found = _json(text) or _fenced(lines, whole_file=whole_file)
    if found:
        return found
    raise _nothing(text)


def _nothing(text: str) -> EditFailure:
    if not text.strip():
        return EditFailure(EditKind.EMPTY, "the reply is empty")
    if _HUNK.search(text) or re.search(r"^--- .*\n\+\+\+ ", text, re.MULTILINE):
        return EditFailure(
            EditKind.UNIFIED_DIFF,
            "the reply is a unified diff, whose line numbers and context cannot be trusted",
        )
    told = "code, but no edit" if "```" in text or "~~~" in text else "no edit"
    return EditFailure(EditKind.EMPTY, f"the reply has {told}")


@dataclass(slots=True)
class _Blocks:
    """Reads marked blocks, line by line."""

    lines: Sequence[str]
    _at: int = 0
    _edits: list[Edit | Rewrite] = field(default_factory=list[Edit | Rewrite])
    _above: str = ""
    """The file that the fence's first line, or the line above, names for the next block."""

    def read(self) -> list[Edit | Rewrite]:
        """Returns all edits.

        Raises:
            EditFailure: A block is not well formed.
        """
        while self._at < len(self.lines):
            line = self.lines[self._at]
            opening = _OPENING.match(line)
            if opening and self._counts(opening["mark"], opening["name"]):
                self._block(opening)
                self._above = ""
            else:
                self._outside(line)
                self._at += 1
        return self._edits

    def _counts(self, mark: str, name: str) -> bool:
        """Whether an opening is one; `<< search` in a sentence is not."""
        if 5 <= len(mark) <= 9:
            return True
        if len(mark) < 3 or (len(mark) == 3 and " " in name):
            return False
        raise EditFailure(
            EditKind.MALFORMED,
            f"line {self._at + 1} of the reply: a mark has 7 characters, this one {len(mark)}",
        )

    def _outside(self, line: str) -> None:
        number = self._at + 1
        if _QUOTED.match(line):
            raise EditFailure(
                EditKind.MALFORMED, f"line {number} of the reply: text stands before the mark"
            )
        if _STRAY.match(line):
            raise EditFailure(
                EditKind.MALFORMED,
                f"line {number} of the reply: a mark that begins no block, and no block is open",
            )
        fence = FENCE.match(line)
        if fence:
            named = _FILE_NAME.search(fence["info"])
            self._above = named[0] if named else self._above
        elif line.strip():
            named = _FILE_NAME.search(line) if len(line) < 200 else None
            alone = named and not _DECORATION.sub("", line.replace(named[0], "", 1))
            self._above = named[0] if named and alone else ""

    def _block(self, opening: re.Match[str]) -> None:
        start = self._at
        word = opening["word"].upper()
        body: list[str] = []
        self._at += 1
        while self._at < len(self.lines):
            line = self.lines[self._at]
            other = _OPENING.match(line)
            if other and len(other["mark"]) >= 5:
                break
            if self._closes(line, word, len(opening["mark"])):
                self._at += 1
                lines = _outdented(body, opening["indent"])
                self._edits.append(self._edit(word, opening, lines, start + 1))
                return
            body.append(line)
            self._at += 1
        raise EditFailure(
            EditKind.UNFINISHED,
            f"the block that begins in line {start + 1} of the reply is never closed",
            number=len(self._edits) + 1,
        )

    def _closes(self, line: str, word: str, length: int) -> bool:
        closing = _CLOSING.match(line)
        if not closing:
            return False
        said = (closing["word"] or "").upper()
        if not said:
            return len(closing["mark"]) == length
        return said == ("REPLACE" if word == "SEARCH" else word)

    def _edit(
        self, word: str, opening: re.Match[str], body: Sequence[str], start: int
    ) -> Edit | Rewrite:
        number = len(self._edits) + 1
        name = opening["name"].strip().rstrip("<>=").strip().strip("`'\"")
        if word == "REGION":
            if not name:
                raise EditFailure(EditKind.WRONG_REGION, "the block names no region", number=number)
            return Rewrite(unfenced(body), self._above, name)
        named = _FILE_NAME.search(name)
        file = named[0] if named else self._above
        if word == "FILE":
            return Rewrite(unfenced(body), file)
        divider = _divider(body, len(opening["mark"]), start, number)
        return Edit(unfenced(body[:divider]), unfenced(body[divider + 1 :]), file)


def _divider(body: Sequence[str], length: int, start: int, number: int) -> int:
    """Where search ends and replacement begins: the one divider, or the one as long as the first mark."""
    found = [(at, len(m["mark"])) for at, line in enumerate(body) if (m := _DIVIDER.match(line))]
    same = [at for at, size in found if size == length]
    if len(same) == 1 or (not same and len(found) == 1):
        return same[0] if same else found[0][0]
    problem = "two dividers" if found else "no divider"
    raise EditFailure(
        EditKind.MALFORMED,
        f"the block that begins in line {start} of the reply has {problem} (=======)",
        number=number,
    )


def _outdented(lines: Sequence[str], indent: str) -> list[str]:
    """Takes the indentation of a whole block away, as in a list of a text."""
    marks = [line for line in lines if line.strip()]
    if not indent or not all(line.startswith(indent) for line in marks):
        return list(lines)
    return [line.removeprefix(indent) for line in lines]


def _json(text: str) -> Reply | None:
    """Reads the one JSON object in a text that has the form of the tool's input."""
    decoder = json.JSONDecoder()
    found: list[Reply] = []
    rest: list[str] = []
    at = done = 0
    for _ in range(_MOST_BRACES):
        at = text.find("{", at)
        if at < 0:
            break
        try:
            data, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        reply = _json_reply(data)
        if reply:
            found.append(reply)
            rest.append(text[done:at])
            done = end
        at = end
    rest.append(text[done:])
    if any(map(_JSON_EDIT.search, rest)):
        raise EditFailure(EditKind.MALFORMED, "the reply has JSON that is cut or cannot be read")
    if not found:
        return None
    return Reply(tuple(edit for reply in found for edit in reply.edits), ("read from JSON",))


def _json_reply(data: object) -> Reply | None:
    if not isinstance(data, dict):
        return None
    if {"edits", "rewrite"} & data.keys():
        return read_tool_input(data)
    return read_tool_input({"edits": [data]}) if {"search", "replace"} <= data.keys() else None


@dataclass(slots=True)
class _Fenced:
    info: str
    lines: list[str]
    closed: bool
    above: str


def _fences(lines: Sequence[str]) -> Iterator[_Fenced]:
    """The fenced blocks of a text; a fence ends with as many marks as it began with, or more."""
    opened: _Fenced | None = None
    fence = above = ""
    for line in lines:
        match = FENCE.match(line)
        if opened is None:
            if match:
                fence = match["fence"]
                opened = _Fenced(match["info"].strip(), [], False, above)
            above = line if line.strip() else above
        elif match and match["fence"].startswith(fence) and not match["info"].strip():
            opened.closed = True
            yield opened
            opened, above = None, ""
        else:
            opened.lines.append(line)
    if opened is not None:
        yield opened


def _fenced(lines: Sequence[str], *, whole_file: bool) -> Reply | None:
    """Reads fenced regions with their marks or, if that may be, a fenced file."""
    blocks = list(_fences(lines))
    marked = [block for block in blocks if any(map(_BEGIN.match, block.lines))]
    chosen = marked or (blocks if whole_file else [])
    if not chosen:
        return None
    for block in chosen:
        if not block.closed:
            raise EditFailure(EditKind.UNFINISHED, "the code fence of the reply is never closed")
    if not marked and len(blocks) > 1:
        named = [block for block in blocks if _fence_file(block)]
        if len(named) != 1:
            raise EditFailure(
                EditKind.MALFORMED,
                f"the reply has {len(blocks)} code blocks and does not say which one is the file",
            )
        chosen = named
    edits = [edit for block in chosen for edit in _marked(block)]
    return Reply(tuple(edits), ("read from a code block without marks of an edit",))


def _fence_file(block: _Fenced) -> str:
    named = _FILE_NAME.search(block.info)
    if named is None and len(block.above) < 200:
        named = _FILE_NAME.search(block.above)
        if named and _DECORATION.sub("", block.above.replace(named[0], "", 1)):
            named = None
    return named[0] if named else ""


def _marked(block: _Fenced) -> list[Rewrite]:
    """The regions of a block that has nothing but regions in it, else the block as a file."""
    file = _fence_file(block)
    regions: list[Rewrite] = []
    name: str | None = None
    body: list[str] = []
    for line in block.lines:
        begin = _BEGIN.match(line)
        if name is None and begin and begin["name"]:
            name, body = begin["name"], []
        elif name is not None and _END.match(line):
            regions.append(Rewrite(tuple(body), file, name))
            name = None
        elif name is not None and not begin:
            body.append(line)
        elif line.strip() or begin:
            return [Rewrite(tuple(block.lines), file)]
    if name is not None:
        raise EditFailure(EditKind.UNFINISHED, f"the region {name} of the reply has no end mark")
    return regions
