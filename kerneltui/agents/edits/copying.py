"""What careless copying does to code: line numbers, placeholders, typographic characters, HTML entities."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Sequence

__all__ = [
    "FENCE",
    "edit_mark",
    "numbered",
    "placeholder",
    "plain",
    "unescaped",
    "unfenced",
    "unnumbered",
]

FENCE = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`]*)$")
"""The first or the last line of a code block."""

_NUMBER = re.compile(r"^[ \t]*[Ll]?(?P<number>[0-9]{1,6})(?:[ \t]*[|:→│](?: |$)|\t| |$)")
_EDIT_MARK = re.compile(r"^\s*(?:<{5,9}|>{5,9})\s*(?:\w[^<>=]*)?$")
_TYPOGRAPHY = str.maketrans(
    {
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033", '"'),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009", " "),
        **dict.fromkeys("\u200a\u202f\u205f\u3000", " "),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
        "\u2026": "...",
        "\u00d7": "*",
        "\u2264": "<=",
        "\u2265": ">=",
        "\u2260": "!=",
    }
)
_DOTS = r"(?:\.{3,}|\u2026)"
_OPEN = r"(?://+|\#+|/\*+|\*+|<!--|--)"
_BARE = re.compile(rf"^{_OPEN}?\s*[\[(<{{]?\s*{_DOTS}\s*[\])>}}]?\s*(?:\*/|-->)?$")
_COMMENT = re.compile(rf"^(?:{_OPEN}|{_DOTS}|[\[(<]\s*{_DOTS})")
_LEFT_OUT = re.compile(
    r"\b(?:(?:rest|remainder|remaining|existing|other|previous|same|original)\b.{0,30}?"
    r"\b(?:code|kernel|file|body|lines?|regions?|functions?|implementation|logic|part|above|before)\b"
    r"|unchanged|not changed|no changes?|omitted|elided"
    r"|(?:stays?|remains?|is) the same|as (?:before|above|is)\b)",
    re.IGNORECASE,
)
_SURE = re.compile(
    r"^\W*(?:the\s+)?(?:rest|remainder)\b.{0,40}\b(?:unchanged|the same|as before|as is|here)\b"
    r"|^\W*(?:existing|previous|original|unchanged) code(?: here)?\W*$"
    r"|^\W*(?:keep|insert|put|same) (?:the )?(?:existing|original|previous|rest of the) code\b",
    re.IGNORECASE,
)


def plain(line: str) -> str:
    """Returns a line with typographic quotes, dashes and spaces as a keyboard has them."""
    return line.translate(_TYPOGRAPHY)


def unescaped(line: str) -> str:
    """Returns a line with HTML entities as the characters they mean."""
    return html.unescape(line) if "&" in line else line


def unfenced(lines: Sequence[str]) -> tuple[str, ...]:
    """Takes a fence away that encloses all the lines."""
    full = [at for at, line in enumerate(lines) if line.strip()]
    if len(full) >= 2:
        opening = FENCE.match(lines[full[0]])
        if opening and lines[full[-1]].strip() == opening["fence"]:
            return tuple(lines[full[0] + 1 : full[-1]])
    return tuple(lines)


def edit_mark(line: str) -> bool:
    """Whether a line is a fence or a mark of an edit, which are no code."""
    return bool(_EDIT_MARK.match(line) or line.strip().startswith(("```", "~~~")))


def unnumbered(lines: Sequence[str]) -> tuple[str, ...] | None:
    """Returns lines without the numbers in front, or None if they are not all numbered one by one."""
    matches = [_NUMBER.match(line) for line in lines]
    if not lines or not all(matches):
        return None
    numbers = [int(match["number"]) for match in matches if match]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return None
    return tuple(line[match.end() :] for line, match in zip(lines, matches, strict=True) if match)


def numbered(lines: Sequence[str], known: Collection[str]) -> bool:
    """Whether at least two lines, and half of them, have a number in front that the code has not."""
    full = [line for line in lines if line.strip() and line.strip() not in known]
    found = sum(1 for line in full if _NUMBER.match(line))
    return found >= 2 and 2 * found >= len(full)


def placeholder(line: str) -> bool:
    """Whether a line stands for code that was left out, such as `// ... rest unchanged ...`."""
    text = line.strip()
    if len(text) > 200:
        return False
    if _BARE.match(text):
        return True
    if not _COMMENT.match(text):
        return False
    dots = "..." in text or "\u2026" in text
    return bool((dots and _LEFT_OUT.search(text)) or _SURE.match(text))
