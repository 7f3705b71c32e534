"""CUDA source as its checks see it: continued lines joined, comments and texts taken out.

Every offset into `code` is one into `text`, and has a line of the file that the user sees.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Call", "CudaSource", "Literal", "argument_spans", "own_lines", "split_arguments"]

_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t\v\f]*\r?\n")
_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<raw>\b(?:u8|[uUL])?R\"(?P<mark>[^()\\\s]{0,16})\((?P<body>.*?)\)(?P=mark)\")"
    r"|(?P<string>(?:\b(?:u8|[uUL]))?\"(?P<text>(?:\\.|[^\"\\\n])*)\")"
    r"|(?P<char>'(?:\\.|[^'\\\n])*')"
    r"|[A-Za-z_]\w*|\.?\d(?:[\w.]|'(?=\w))*",
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]+)|([0-7]{1,3})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL
)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "a": "\a", "b": "\b"}
_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\s*(?:\b(?:volatile|__volatile__|goto|inline)\s*)*\(")
_MARKER = re.compile(r"^#(?:line)?\s+(\d+)\s+\"((?:\\.|[^\"\\])*)\"")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Literal:
    """A text in the source; neighbours that the compiler joins are one.

    Attributes:
        offset: Where its first quote stands.
        line: The same as a line.
        value: What it means, escapes resolved.
        assembly: True inside of an asm statement.
    """

    offset: int
    line: int
    value: str
    assembly: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A name with arguments behind it: a call, or something that looks like one.

    Attributes:
        name: The name.
        offset: Where it begins.
        line: The same as a line.
        arguments: Texts of the arguments, comments out, texts blanked, outer space stripped.
        end: Offset behind the closing parenthesis.
    """

    name: str
    offset: int
    line: int
    arguments: tuple[str, ...]
    end: int


class CudaSource:
    """One source text.

    Args:
        text: The file.
        lines: Line numbers of the text's lines, where they are not 1, 2, 3, ...
    """

    def __init__(self, text: str, lines: Sequence[int] | None = None) -> None:
        self._lines = lines
        pieces: list[str] = []
        self._starts = [0]  # offsets at which lines of the file begin
        length = last = 0
        for splice in [*_SPLICE.finditer(text), None]:
            piece = text[last : splice.start()] if splice else text[last:]
            position = piece.find("\n")
            while position >= 0:
                self._starts.append(length + position + 1)
                position = piece.find("\n", position + 1)
            pieces.append(piece)
            length += len(piece)
            if splice:
                self._starts.append(length)
                last = splice.end()
        self.text = "".join(pieces)
        self.code, self._found = _blank(self.text)

    def line(self, offset: int) -> int:
        """The line of an offset, from 1."""
        index = bisect_right(self._starts, offset) - 1
        if self._lines is None:
            return index + 1
        return self._lines[min(index, len(self._lines) - 1)] if self._lines else 1

    @cached_property
    def literals(self) -> tuple[Literal, ...]:
        """All texts, neighbours joined."""
        inside = [(m.start(), self.closing(m.end() - 1)) for m in _ASM.finditer(self.code)]
        joined: list[tuple[int, int, str]] = []
        for begin, end, value in self._found:
            if joined and not self.code[joined[-1][1] : begin].strip():
                first, _, before = joined[-1]
                joined[-1] = (first, end, before + value)
            else:
                joined.append((begin, end, value))
        return tuple(
            Literal(begin, self.line(begin), value, any(a < begin < b for a, b in inside))
            for begin, _, value in joined
        )

    def closing(self, opening: int) -> int:
        """Offset of the bracket that closes the one at an offset; the end if none does."""
        return _closing(self.code, opening)

    def calls(self, pattern: str) -> Iterator[Call]:
        """All calls of names that match, and variables of such a type that are made with arguments."""
        for match in re.finditer(rf"\b({pattern})(?:\s+[A-Za-z_]\w*)?\s*(?=[<(])", self.code):
            opening = match.end()
            if self.code[opening] == "<":
                opening = _behind_template(self.code, opening)
                if opening < 0:
                    continue
            close = self.closing(opening)
            arguments = split_arguments(self.code[opening + 1 : close])
            begin = match.start()
            yield Call(match[1], begin, self.line(begin), tuple(arguments), close + 1)


def split_arguments(text: str) -> list[str]:
    """Splits at commas that stand in no brackets."""
    parts = [text[begin:end].strip() for begin, end in argument_spans(text)]
    return parts if len(parts) > 1 or parts[0] else []


def argument_spans(text: str) -> Iterator[tuple[int, int]]:
    """Begin and end of what stands between commas that are in no brackets."""
    depth = begin = 0
    for index, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            yield begin, index
            begin = index + 1
    yield begin, len(text)


def own_lines(preprocessed: str, file: str) -> CudaSource:
    """The lines of a preprocessed text that come from one file, macros expanded."""
    kept: list[str] = []
    numbers: list[int] = []
    number, inside = 1, False
    for line in preprocessed.split("\n"):  # the preprocessor knows no other end of a line
        marker = _MARKER.match(line)
        if marker:
            number = int(marker[1])
            inside = marker[2].rpartition("/")[2] == file
            continue
        if inside:
            kept.append(line)
            numbers.append(number)
        number += 1
    return CudaSource("\n".join(kept), numbers)


def _blank(text: str) -> tuple[str, list[tuple[int, int, str]]]:
    """Text without comments and contents of literals, and the texts: begin, end, value."""
    pieces: list[str] = []
    found: list[tuple[int, int, str]] = []
    last = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind is None:
            continue
        pieces.append(text[last : match.start()])
        last = match.end()
        whole = match[0]
        if match["comment"] is not None:
            pieces.append(_spaces(whole))
            continue
        if match["char"] is None:
            raw = match["body"]
            value = raw if match["raw"] is not None else _unescape(match["text"])
            found.append((match.start(), match.end(), value))
        quote = whole[-1]
        pieces.append(quote + _spaces(whole[1:-1]) + quote)
    pieces.append(text[last:])
    return "".join(pieces), found


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if number := match[1] or match[3] or match[4]:
            return chr(min(int(number, 16), 0x10FFFF))
        if match[2]:
            return chr(int(match[2], 8))
        return _SIMPLE.get(match[5], match[5])

    return _ESCAPE.sub(one, text)


def _closing(code: str, opening: int) -> int:
    wanted: list[str] = []
    for index in range(opening, len(code)):
        character = code[index]
        if character in _CLOSING:
            wanted.append(_CLOSING[character])
        elif wanted and character == wanted[-1]:
            wanted.pop()
            if not wanted:
                return index
    return len(code)


def _behind_template(code: str, opening: int) -> int:
    """Offset of the parenthesis behind template arguments and a name; -1 if there is none."""
    depth = 0
    for index in range(opening, min(len(code), opening + 400)):
        character = code[index]
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character in ";{":
            return -1
        if depth == 0:
            match = re.compile(r"\s*(?:[A-Za-z_]\w*\s*)?(?=\()").match(code, index + 1)
            return match.end() if match else -1
    return -1
