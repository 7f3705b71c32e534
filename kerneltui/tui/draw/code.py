"""Source text with highlighting: tokens from Pygments, spans for the screen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from rich.cells import cell_len

from kerneltui.tui.text import LazyLines, Line, Span, clean

__all__ = ["Tokens", "code_lines", "code_spans", "highlight"]

Tokens = Sequence[Sequence[tuple[int, int, str]]]

_LARGEST = 400_000  # characters; larger texts are shown without highlighting


@lru_cache(maxsize=64)
def highlight(source: str, language: str = "cpp") -> Tokens:
    """Returns for each line the ranges of its tokens with their style names.

    Takes some 60 ms per thousand lines, so it is called in a thread, and kept for the last texts.
    Positions are those of the line as `clean` shows it.
    """
    if len(source) > _LARGEST:
        return ()
    # Imported here: 40 ms that the first frame does not have to wait for.
    from pygments.lexers.c_cpp import CppLexer
    from pygments.lexers.python import PythonLexer
    from pygments.token import Token

    names = {
        Token.Comment.Preproc: "macro",
        Token.Comment.PreprocFile: "string",
        Token.Comment: "comment",
        Token.Keyword.Type: "type",
        Token.Keyword: "keyword",
        Token.Name.Function: "function",
        Token.Name.Class: "type",
        Token.Name.Builtin: "function",
        Token.Literal.String: "string",
        Token.Literal.Number: "literal",
        Token.Literal: "literal",
    }
    lexer = (PythonLexer if language == "python" else CppLexer)(stripnl=False, ensurenl=False)
    text = "\n".join(clean(line) for line in source.split("\n"))
    lines: list[list[tuple[int, int, str]]] = [[]]
    column = 0
    for kind, value in lexer.get_tokens(text):
        name = ""
        at = kind
        while at is not None and at is not Token:
            if at in names:
                name = names[at]
                break
            at = at.parent
        for index, part in enumerate(value.split("\n")):
            if index:
                lines.append([])
                column = 0
            if part and name:
                lines[-1].append((column, column + len(part), name))
            column += len(part)
    return lines


def code_spans(
    text: str,
    tokens: Sequence[tuple[int, int, str]],
    base: str,
    marks: Sequence[tuple[int, int]] = (),
    mark_style: str = "",
) -> tuple[Span, ...]:
    """Returns a line of code as spans: base style, token styles on it, marks on top."""
    if not tokens and not marks:
        return ((text, base),)
    cuts = {0, len(text)}
    for start, end, _ in tokens:
        cuts |= {start, end}
    for start, end in marks:
        cuts |= {start, end}
    points = sorted(point for point in cuts if 0 <= point <= len(text))
    spans: list[Span] = []
    for start, end in pairwise(points):
        names = [base, *(name for a, b, name in tokens if a <= start < b)]
        if any(a <= start < b for a, b in marks):
            names.append(mark_style)
        spans.append((text[start:end], " ".join(filter(None, names))))
    return tuple(spans)


def code_lines(source: str, tokens: Tokens, changed: frozenset[int]) -> LazyLines:
    """Returns the whole source with numbers; lines changed against the parent have a bar."""
    lines = source.split("\n")
    digits = max(3, len(str(len(lines))))

    def draw(index: int) -> Line:
        number = index + 1
        spans = tokens[index] if index < len(tokens) else ()
        bar = ("│ ", "add-sign") if number in changed else ("  ", "")
        text = clean(lines[index])
        return ((f" {number:>{digits}} ", "number"), bar, *code_spans(text, spans, "name"))

    return LazyLines(len(lines), draw, digits + 4 + max(cell_len(clean(raw)) for raw in lines))
