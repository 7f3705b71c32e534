"""Functions that are found by their names while a kernel runs: only by names that can be read before.

A name that is put together at run time would escape every look at the text. So a function of this kind
is called, and nothing else is done with it, and where it takes the name stands a literal without escapes.
That is asked of the preprocessed text, where no macro stands for the name. What finds its way past the
text (an alias, assembly) is found in the symbols of the object file: it asks for such a function, and no
text calls it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kerneltui.targets.cuda.finding import Finding, Level
from kerneltui.targets.cuda.source import CudaSource, argument_spans

__all__ = ["lookup_symbols", "lookups"]

_RULE = "P03"


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Functions that find something by its name.

    Attributes:
        names: Their own names, as a regular expression.
        place: Which argument is the name.
        arguments: How many there are; None if it does not matter.
        example: A call that is allowed.
    """

    names: str
    place: int
    arguments: int | None
    example: str


_LOOKUPS = (
    _Lookup(r"dlsym", 1, 2, 'dlsym(RTLD_DEFAULT, "name")'),
    _Lookup(r"dlvsym", 1, 3, 'dlvsym(RTLD_DEFAULT, "name", "version")'),
    _Lookup(r"cuGetProcAddress\w*", 0, None, 'cuGetProcAddress("cuName", ...)'),
    _Lookup(
        r"cudaGetDriverEntryPoint\w*", 0, None, 'cudaGetDriverEntryPointByVersion("cuName", ...)'
    ),
    _Lookup(r"(?:secure_)?getenv", 0, None, 'getenv("NAME")'),
)
_ANY = re.compile(rf"\b(?:{'|'.join(one.names for one in _LOOKUPS)})\b")
_LITERAL = re.compile(r'"[ \n]*"(?:\s*"[ \n]*")*')  # as blanked: contents are spaces
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")
_BINDING = re.compile(r"\b(?:__)?(?:alias|weakref|ifunc|symver)(?:__)?\s*\(\s*$")
_MARKERS = re.compile(r"^#[^\n]*$", re.MULTILINE)
_OPENING = re.compile(r"\s*\(")
_SHOWN = 60


def lookups(source: CudaSource) -> Iterator[Finding]:
    """Finds names that cannot be read, in preprocessed text."""
    for match in _ANY.finditer(source.code):
        what = _fault(source, match)
        if what:
            yield Finding(_RULE, Level.BLOCK, source.line(match.start()), what)
    for literal in source.literals:
        before = source.code[max(0, literal.offset - 40) : literal.offset]
        binds = literal.assembly or _BINDING.search(before)
        name = _ANY.search(literal.value) if binds else None
        if name:
            text = (
                f'{name[0]} stands in a text that binds names ("{_short(literal.value)}"); call it, '
                f"as in {_of(name[0]).example}"
            )
            yield Finding(_RULE, Level.BLOCK, literal.line, text)


def lookup_symbols(symbols: Iterable[str], texts: Iterable[str]) -> Iterator[Finding]:
    """Finds functions of this kind that an object file asks for though no text calls them by name.

    Args:
        symbols: What the object file asks for.
        texts: All that the preprocessor made, with headers: some of them look up names that can be read.
    """
    wanted = sorted(name for name in set(symbols) if _ANY.fullmatch(name))
    codes = [_MARKERS.sub("", text) for text in texts] if wanted else []
    for name in wanted:
        lookup = _of(name)
        before = r"[^;{}\"]*,\s*" if lookup.place else r"\s*"
        call = re.compile(rf'\b(?:{lookup.names})\s*\({before}"')
        if not any(call.search(code) for code in codes):
            text = (
                f"the symbol {name} is asked for, but no call has a name that can be read; write "
                f"such a call, as in {lookup.example}"
            )
            yield Finding(_RULE, Level.BLOCK, 0, text)


def _fault(source: CudaSource, match: re.Match[str]) -> str:
    """What is wrong with one use of such a function; empty if nothing is."""
    function, lookup = match[0], _of(match[0])
    opening = _OPENING.match(source.code, match.end())
    if opening is None:
        return (
            f"{function} is used other than in a call, so what it looks up cannot be read; call it, "
            f"as in {lookup.example}"
        )
    begin = opening.end()
    spans = list(argument_spans(source.code[begin : source.closing(begin - 1)]))
    shown, inside = source.text[begin : begin + spans[-1][1]], []
    if len(spans) > lookup.place and lookup.arguments in (None, len(spans)):
        first, last = (begin + offset for offset in spans[lookup.place])
        shown = source.text[first:last]
        if _LITERAL.fullmatch(source.code[first:last].strip()):
            inside = [one for one in source.literals if first <= one.offset < last]
    if not inside:
        return (
            f"{function} looks up a name that cannot be read ({_short(shown)}); write it there as a "
            f"literal, as in {lookup.example}"
        )
    if "\\" in shown or not _PLAIN_NAME.fullmatch(inside[0].value):
        return (
            f"{function} looks up {_short(shown)}, which is no plain name; write it without escapes"
        )
    if _ANY.fullmatch(inside[0].value):
        return (
            f'{function} looks up "{inside[0].value}", which finds names that cannot be read; call '
            "that by its name"
        )
    return ""


def _of(name: str) -> _Lookup:
    return next(one for one in _LOOKUPS if re.fullmatch(one.names, name))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]} …"
