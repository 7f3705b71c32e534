"""The structure of device code as far as its checks need it: functions, branches, order of effects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kerneltui.targets.cuda.source import CudaSource

__all__ = ["DeviceCode", "Effect", "EffectKind", "Function"]

_NAME = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[^;(){}<>]*>)?\s*\(")
_BEHIND = re.compile(r"\s*(?:const\b|noexcept\b|override\b|->\s*[\w:<>*& ]+)*\s*\{")
_NO_FUNCTION = frozenset({"if", "for", "while", "switch", "catch", "return", "sizeof", "alignas"})
_LOOP = re.compile(r"\b(?:for|while)\s*\(|\bdo\b")
_GUARD = re.compile(r"\b(?:if(?:\s+constexpr)?|for|while)\s*\(")
_DEPTH = 6


class EffectKind(StrEnum):
    """What an instruction does to memory that others see."""

    BULK_STORE = "bulk_store"
    BULK_LOAD = "bulk_load"
    WAIT_ALL = "wait_all"
    WAIT_READ = "wait_read"
    PROXY_FENCE = "proxy_fence"
    FLAG_STORE = "flag_store"
    FLAG_WAIT = "flag_wait"
    CTA_BARRIER = "cta_barrier"


_ASSEMBLY = (
    (EffectKind.WAIT_READ, re.compile(r"\bcp\.async\.bulk\.wait_group\.read\b")),
    (EffectKind.WAIT_ALL, re.compile(r"\bcp\.async\.bulk\.wait_group\s+(?:0|%)")),
    (EffectKind.PROXY_FENCE, re.compile(r"\bfence\.proxy\.async(?:\.global)?\s*(?:;|$)")),
    (
        EffectKind.BULK_STORE,
        re.compile(r"\bcp\.(?:reduce\.)?async\.bulk(?:\.\w+)*\.global\.shared::cta"),
    ),
    (
        EffectKind.BULK_LOAD,
        re.compile(r"\bcp\.async\.bulk(?:\.tensor\.\w+)?\.shared::(?:cluster|cta)\.global"),
    ),
    (EffectKind.FLAG_STORE, re.compile(r"\b(?:st|red|atom)\.(?:async\.)?(?:release|acq_rel)\.sys")),
    (EffectKind.FLAG_WAIT, re.compile(r"\bld\.acquire\.sys")),
    (EffectKind.CTA_BARRIER, re.compile(r"\bbar(?:rier)?\.(?:cta\.)?sync\b")),
)
_BARRIER_CALLS = frozenset({"__syncthreads", "__syncthreads_and", "__syncthreads_or"})


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the source defines: offsets of head, body's braces, and what it is."""

    name: str
    head: int
    begin: int
    end: int
    kernel: bool


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect in the order of the text, helpers put in where they are called.

    Attributes:
        kind: What it does.
        line: Where it stands, or where the helper that does it is called.
        site: Offset in the kernel itself.
    """

    kind: EffectKind
    line: int
    site: int


class DeviceCode:
    """A source with its functions.

    Args:
        source: The text.
    """

    def __init__(self, source: CudaSource) -> None:
        self.source = source
        self.functions = tuple(_functions(source))
        self._by_name = {function.name: function for function in self.functions}
        self._assembly = [literal for literal in source.literals if literal.assembly]

    @property
    def kernels(self) -> tuple[Function, ...]:
        """Those that are launched."""
        return tuple(function for function in self.functions if function.kernel)

    def body(self, function: Function) -> str:
        """The text between the braces."""
        return self.source.code[function.begin : function.end]

    def function_at(self, offset: int) -> Function | None:
        """The function that an offset lies in."""
        found = [f for f in self.functions if f.begin <= offset < f.end]
        return min(found, key=lambda f: f.end - f.begin, default=None)

    def effects(self, kernel: Function) -> list[Effect]:
        """Effects of a kernel in the order of the text."""
        return list(self._effects(kernel, None, None, ()))

    def _effects(
        self, function: Function, site: int | None, line: int | None, above: tuple[str, ...]
    ) -> Iterator[Effect]:
        found: list[tuple[int, EffectKind | Function]] = []
        for literal in self._assembly:
            if function.begin <= literal.offset < function.end:
                found += [
                    (literal.offset, k) for k, form in _ASSEMBLY if form.search(literal.value)
                ]
        for call in _CALL.finditer(self.source.code, function.begin, function.end):
            helper = self._by_name.get(call[1])
            if call[1] in _BARRIER_CALLS:
                found.append((call.start(), EffectKind.CTA_BARRIER))
            elif helper and helper.name not in above and len(above) < _DEPTH and helper != function:
                found.append((call.start(), helper))
        for offset, what in sorted(found, key=lambda pair: pair[0]):
            here = self.source.line(offset)
            if isinstance(what, Function):
                names = (*above, function.name)
                yield from self._effects(what, offset if site is None else site, here, names)
            else:
                yield Effect(what, here if line is None else line, offset if site is None else site)

    def guarded(self, function: Function, offset: int) -> tuple[int, int]:
        """The innermost block or guarded statement that an offset lies in."""
        begin, end = function.begin, function.end
        for match in re.finditer(r"\{", self.source.code[begin:offset]):
            opening = function.begin + match.start()
            closing = self.source.closing(opening)
            if opening < offset < closing and opening >= begin:
                begin, end = opening, closing
        for match in _GUARD.finditer(self.source.code, begin, offset):
            condition = self.source.closing(match.end() - 1)
            behind = self.source.code[condition + 1 :].lstrip()
            stop = self.source.code.find(";", condition)
            if condition < offset <= stop and not behind.startswith("{"):
                return match.start(), stop
        return begin, end

    def conditions(self, function: Function, offset: int) -> list[str]:
        """The conditions of the ifs around an offset, outermost first."""
        code = self.source.code
        found: list[str] = []
        for match in re.finditer(r"\bif(?:\s+constexpr)?\s*\(", code[function.begin : offset]):
            opening = function.begin + match.end() - 1
            close = self.source.closing(opening)
            behind = re.compile(r"\s*").match(code, close + 1)
            start = behind.end() if behind else close + 1
            stop = (
                self.source.closing(start)
                if code[start : start + 1] == "{"
                else code.find(";", start)
            )
            if close < offset <= stop:
                found.append(code[opening + 1 : close])
        return found

    def loops(self, function: Function) -> list[tuple[int, int]]:
        """Ranges of the bodies of loops."""
        code = self.source.code
        found: list[tuple[int, int]] = []
        for match in _LOOP.finditer(code, function.begin, function.end):
            last = (
                self.source.closing(match.end() - 1) if match[0].endswith("(") else match.end() - 1
            )
            behind = re.compile(r"\s*").match(code, last + 1)
            start = behind.end() if behind else last + 1
            stop = (
                self.source.closing(start)
                if code[start : start + 1] == "{"
                else code.find(";", start)
            )
            found.append((start, stop))
        return found


def _functions(source: CudaSource) -> Iterator[Function]:
    code = source.code
    last = 0
    for match in _NAME.finditer(code):
        if match.start() < last or match[1] in _NO_FUNCTION:
            continue
        close = source.closing(match.end() - 1)
        behind = _BEHIND.match(code, close + 1)
        if behind is None:
            continue
        begin = behind.end() - 1
        end = source.closing(begin)
        head = max(code.rfind(mark, 0, match.start()) for mark in ";}{") + 1
        words = code[head : match.start()]
        if not re.search(r"[A-Za-z_]\w*", words) or re.search(r"[=]", words):
            continue  # a call before a block, or an initialiser
        yield Function(match[1], head, begin, end, "__global__" in words)
        last = end
