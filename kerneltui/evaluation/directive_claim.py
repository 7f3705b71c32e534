"""What a candidate claims, beside its code: the ground of every rule that holds the one against the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod

from kerneltui.evaluation.device_code import DeviceCode, Function
from kerneltui.model.directive import Directive
from kerneltui.model.kernel import Kernel
from kerneltui.targets.cuda.source import CudaSource, split_arguments

__all__ = ["Claim"]

_DECLARED = re.compile(r"^\s*//\s*kerneltui:\s*directive\s+(?P<field>\w+)")
_ITEM_BYTES = (1, 2, 4, 8)
_FOR = re.compile(r"\bfor\s*\(")


@dataclass(frozen=True)
class Claim:
    """A directive and the kernel that states it.

    Attributes:
        kernel: The source, in C++ or CUDA.
        directive: What it says of itself.
        dimensions: Of the shape that the directive was worked out for.
        ranks: How many ranks there are.
    """

    kernel: Kernel
    directive: Directive
    dimensions: Mapping[str, int]
    ranks: int

    @cached_property
    def code(self) -> DeviceCode:
        """The functions of the source."""
        return DeviceCode(CudaSource(self.kernel.source))

    @property
    def text(self) -> str:
        """The code without comments and the contents of texts; offsets are the source's."""
        return self.code.source.code

    @property
    def assembly(self) -> str:
        """All inline assembly."""
        return "\n".join(literal.value for literal in self.code.source.literals if literal.assembly)

    def line_of(self, field: str) -> int:
        """The line that declares a field of the directive; 1 if none does."""
        for number, line in enumerate(self.kernel.source.split("\n"), start=1):
            match = _DECLARED.match(line)
            if match and match["field"] == field:
                return number
        return 1

    def lines(self, pattern: str) -> Iterator[tuple[int, re.Match[str]]]:
        """Every match in the code, with its line."""
        for match in re.finditer(pattern, self.text):
            yield self.code.source.line(match.start()), match

    def has(self, pattern: str) -> bool:
        """Whether the code or its assembly matches anywhere."""
        return bool(re.search(pattern, self.text) or re.search(pattern, self.assembly))

    def initialisers(self, function: Function) -> dict[str, str]:
        """By name, everything that a function gives its variables, joined."""
        found: dict[str, str] = {}
        for match in re.finditer(r"\b(\w+)\s*[+*|]?=\s*([^;={}]+);", self.code.body(function)):
            found[match[1]] = f"{found.get(match[1], '')} {match[2]}"
        return found

    def loop_names(self, function: Function, offset: int) -> dict[str, str]:
        """The variables of the for loops around an offset, each with what it runs over."""
        found: dict[str, str] = {}
        for match in _FOR.finditer(self.text, function.begin, offset):
            close = self.code.source.closing(match.end() - 1)
            stop = self.text.find(";", close)
            brace = re.compile(r"\s*\{").match(self.text, close + 1)
            if brace:
                stop = self.code.source.closing(brace.end() - 1)
            if not close < offset <= stop:
                continue
            head = self.text[match.end() : close]
            name = re.match(r"\s*(?:const\s+)?(?:[\w:<>]+[\s*&]+)*(\w+)\s*(?:=|:(?!:))", head)
            if name:
                found[name[1]] = head
        return found

    def parameters(self, function: Function) -> frozenset[str]:
        """Names of a function's parameters."""
        opening = self.text.find("(", self.text.find(function.name, function.head))
        inside = self.text[opening + 1 : self.code.source.closing(opening)]
        names = (re.search(r"(\w+)\s*(?:\[[^\]]*\])?\s*$", one) for one in split_arguments(inside))
        return frozenset(name[1] for name in names if name)

    @property
    def may_be_whole(self) -> bool:
        """Whether the stated chunk may be all that a rank has: 0, or a product of dimensions by ranks."""
        chunk = self.directive.chunk_bytes
        sizes = [value for name, value in self.dimensions.items() if name not in ("RANKS", "BYTES")]
        wholes = {
            prod(some) * item // divisor
            for count in range(1, len(sizes) + 1)
            for some in combinations(sizes, count)
            for item in _ITEM_BYTES
            for divisor in (1, max(1, self.ranks))
        }
        return chunk == 0 or chunk in wholes or chunk >= max(wholes, default=0)
