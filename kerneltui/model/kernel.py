"""What a kernel file declares about itself: tunables, evolve regions, its directive.

Declarations are comments, so the file compiles as it stands::

    // kerneltui: tunable CHUNK_ROWS in 16 32 64 128 if CHUNK_ROWS <= M / RANKS
    #define CHUNK_ROWS 64
    // kerneltui: runtime PEER_OFFSET in 0 1 default 0
    // kerneltui: directive placement from PLACEMENT
    // kerneltui: directive chunk_bytes = CHUNK_ROWS * N * 4
    // kerneltui: evolve begin mainloop
    // kerneltui: evolve end

In a Python kernel (a file that ends in .py) they begin with `#`, and a tunable is an assignment::

    # kerneltui: tunable BLOCK_M in 64 128
    BLOCK_M = 128

A value is an integer or a word. `from` takes the value of a tunable as a word, in lower case and without
the tunable's name in front (`PLACEMENT_FUSED` of PLACEMENT is `fused`).
"""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kerneltui.model.directive import Directive
from kerneltui.model.errors import DefinitionError, ExpressionError, RecordError
from kerneltui.model.expression import Expression, Value, parse_expression

__all__ = ["Kernel", "Language", "Region", "Tunable", "TunableKind", "parse_kernel"]

_MARK = re.compile(r"^\s*(?://|#)\s*kerneltui:\s*(?P<body>.*?)\s*$")
_DECLARATION = re.compile(
    r"^(?P<kind>tunable|runtime)\s+(?P<name>[A-Za-z_]\w*)\s+in\s+(?P<values>.*?)"
    r"(?:\s+default\s+(?P<default>\S+))?(?:\s+if\s+(?P<condition>.+))?$"
)
_DIRECTIVE = re.compile(
    r"^directive\s+(?P<field>\w+)\s+(?:from\s+(?P<tunable>\w+)|=\s*(?P<expression>.+)|(?P<word>\w+))$"
)
_VALUE = re.compile(r"^(?:-?\d+|[A-Za-z_]\w*)$")
_RUNTIME = re.compile(r"^(.*?[\s:]runtime\s+\w+\s+in\s.*?\sdefault\s+)\S+")
# Comments first, then literals, so that neither `//` in a text nor a quote in a comment misleads.
_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<line>(?m:^)[ \t]*\#(?:\\\n|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?!//|/\*)[^\n])*)"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\.?\d[\w.']*"
    r"|\+\+|--|->|&&|\|\||<<|>>|[-+*/%&|^=<>!]=|\S",
    re.DOTALL,
)


class Language(StrEnum):
    """What a kernel file is written in; its name says so."""

    CPP = "c++"
    """C++ or CUDA: built by a compiler before anything runs."""
    PYTHON = "python"
    """Loaded by the ranks; what it compiles, it compiles in its `setup`."""

    @classmethod
    def of(cls, file: str) -> Language:
        """The language of a file."""
        return cls.PYTHON if file.endswith(".py") else cls.CPP


class TunableKind(StrEnum):
    """Compile-time tunables stand in the text; run-time tunables share one build."""

    COMPILE = "compile"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class Tunable:
    """A declared parameter, its legal values in order, and its value in this text."""

    name: str
    kind: TunableKind
    values: tuple[Value, ...]
    value: Value
    condition: Expression | None
    line: int

    def text(self, value: Value) -> str:
        """Returns a value as it stands in the source."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Region:
    """An evolve region: the lines that agents may change, marks excluded (1-based, inclusive)."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _DirectiveRule:
    field: str
    tunable: str | None
    expression: Expression | None
    word: str | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel source and what it declares."""

    file: str
    source: str
    tunables: tuple[Tunable, ...]
    regions: tuple[Region, ...]
    _directive: tuple[_DirectiveRule, ...]

    @property
    def language(self) -> Language:
        """What it is written in."""
        return Language.of(self.file)

    @property
    def configuration(self) -> dict[str, Value]:
        """The value of every tunable in this text."""
        return {tunable.name: tunable.value for tunable in self.tunables}

    @property
    def runtime(self) -> dict[str, int]:
        """The values of the run-time tunables."""
        return {
            tunable.name: int(tunable.value)
            for tunable in self.tunables
            if tunable.kind is TunableKind.RUNTIME
        }

    def valid(
        self, configuration: Mapping[str, Value], shapes: Sequence[Mapping[str, int]]
    ) -> bool:
        """Whether all constraints hold for every one of the shapes (dimensions and RANKS)."""
        conditions = [tunable.condition for tunable in self.tunables if tunable.condition]
        return all(
            condition.holds({**shape, **configuration})
            for condition in conditions
            for shape in (shapes or ({},))
        )

    def render(self, configuration: Mapping[str, Value]) -> str:
        """Returns the source with other tunable values.

        Raises:
            DefinitionError: A name is not declared or a value is not legal.
        """
        known = {tunable.name: tunable for tunable in self.tunables}
        lines = self.source.split("\n")
        for name, value in configuration.items():
            tunable = known.get(name)
            if tunable is None:
                raise DefinitionError(self.file, name, "no such tunable is declared")
            if value not in tunable.values:
                legal = " ".join(str(item) for item in tunable.values)
                raise DefinitionError(self.file, name, f"'{value}' is not one of {legal}")
            text = str(tunable.values[tunable.values.index(value)])
            if tunable.kind is TunableKind.RUNTIME:
                index = tunable.line - 1
                lines[index] = _RUNTIME.sub(rf"\g<1>{text}", lines[index])
            else:
                index = tunable.line
                lines[index] = _define(lines[index], name, text, self.language)
        return "\n".join(lines)

    def build_text(self) -> str:
        """Returns the text that is compiled: run-time values at their first, so builds are shared."""
        first = {t.name: t.values[0] for t in self.tunables if t.kind is TunableKind.RUNTIME}
        return self.render(first)

    def frozen_text(self) -> str:
        """Returns all that agents must not change: text outside evolve regions, values blanked."""
        text = self.render({t.name: t.values[0] for t in self.tunables})
        free = {line for r in self.regions for line in range(r.first, r.last + 1)}
        lines = enumerate(text.split("\n"), start=1)
        return "\n".join(line for number, line in lines if number not in free)

    def token_hash(self) -> str:
        """Returns a hash of the meaning of the text: tokens without comments, plus the configuration."""
        python = self.language is Language.PYTHON
        tokens = _python_tokens(self.source) if python else _tokens(self.source)
        values = [f"{name}={value}" for name, value in sorted(self.configuration.items())]
        return hashlib.sha256("\0".join([*tokens, *values]).encode()).hexdigest()[:16]

    def directive(self, dimensions: Mapping[str, int]) -> Directive:
        """Evaluates the declared directive for a shape.

        Raises:
            DefinitionError: The declaration is incomplete or has an illegal value.
        """
        values: dict[str, Value] = {**dimensions, **self.configuration}
        items: dict[str, str] = {}
        for rule in self._directive:
            if rule.tunable is not None:
                word = str(self.configuration.get(rule.tunable, ""))
                items[rule.field] = word.lower().removeprefix(rule.tunable.lower() + "_")
            elif rule.expression is not None:
                try:
                    items[rule.field] = str(int(rule.expression.number(values)))
                except ExpressionError as error:
                    raise DefinitionError(
                        self.file, f"directive {rule.field}", str(error)
                    ) from error
            else:
                items[rule.field] = rule.word or ""
        try:
            return Directive.from_items(items)
        except RecordError as error:
            raise DefinitionError(self.file, "directive", str(error)) from error


def parse_kernel(source: str, file: str = "kernel.cpp") -> Kernel:
    """Reads the declarations of a kernel file.

    Raises:
        DefinitionError: A declaration is malformed, doubled, or its `#define` is missing.
    """
    lines = source.split("\n")
    tunables: dict[str, Tunable] = {}
    regions: list[Region] = []
    rules: list[_DirectiveRule] = []
    rule_lines: list[str] = []
    opened: tuple[str, int] | None = None
    for number, line in enumerate(lines, start=1):
        mark = _MARK.match(line)
        if not mark:
            continue
        body = mark["body"]
        where = f"line {number}"
        if body.startswith(("tunable", "runtime")):
            tunable = _parse_tunable(body, lines, number, file)
            if tunable.name in tunables:
                raise DefinitionError(file, where, f"tunable {tunable.name} is declared twice")
            tunables[tunable.name] = tunable
        elif body.startswith("directive"):
            rule = _parse_directive(body, where, file)
            if any(other.field == rule.field for other in rules):
                raise DefinitionError(file, where, f"directive {rule.field} is declared twice")
            rules.append(rule)
            rule_lines.append(where)
        elif re.match(r"evolve begin(\s|$)", body):
            if opened:
                raise DefinitionError(file, where, f"evolve region opened twice (line {opened[1]})")
            name = body.removeprefix("evolve begin").strip() or f"region {len(regions) + 1}"
            opened = (name, number)
        elif body == "evolve end":
            if not opened:
                raise DefinitionError(file, where, "evolve end without a begin")
            regions.append(Region(opened[0], opened[1] + 1, number - 1))
            opened = None
        else:
            raise DefinitionError(
                file, where, f"'{body}': expected tunable, runtime, directive, evolve begin or end"
            )
    if opened:
        raise DefinitionError(file, f"line {opened[1]}", "evolve region is never closed")
    for where, rule in zip(rule_lines, rules, strict=True):
        if rule.tunable is not None and rule.tunable not in tunables:
            raise DefinitionError(file, where, f"no tunable {rule.tunable} is declared")
    return Kernel(file, source, tuple(tunables.values()), tuple(regions), tuple(rules))


def _parse_tunable(body: str, lines: Sequence[str], number: int, file: str) -> Tunable:
    where = f"line {number}"
    match = _DECLARATION.match(body)
    if not match:
        raise DefinitionError(file, where, "expected 'tunable NAME in VALUES [if CONDITION]'")
    words = match["values"].split()
    bad = [word for word in words if not _VALUE.match(word)]
    if not words or bad:
        raise DefinitionError(file, where, f"'{bad[0] if bad else ''}' is not an integer or a word")
    values = tuple(_value(word) for word in words)
    if len(set(values)) != len(values):
        raise DefinitionError(file, where, f"{match['name']} lists a value twice")
    try:
        condition = parse_expression(match["condition"]) if match["condition"] else None
    except ExpressionError as error:
        raise DefinitionError(file, where, str(error)) from error
    kind = TunableKind.RUNTIME if match["kind"] == "runtime" else TunableKind.COMPILE
    if kind is TunableKind.RUNTIME:
        if match["default"] is None:
            raise DefinitionError(file, where, "a runtime tunable needs 'default VALUE'")
        if not all(isinstance(value, int) for value in values):
            raise DefinitionError(file, where, "the values of a runtime tunable are integers")
        text = match["default"]
    else:
        if match["default"] is not None:
            raise DefinitionError(file, where, "only a runtime tunable has a 'default'")
        following = lines[number] if number < len(lines) else ""
        define = _definition(match["name"], Language.of(file)).match(following)
        if not define:
            wanted = "{} = …" if Language.of(file) is Language.PYTHON else "#define {} …"
            expected = wanted.format(match["name"])
            raise DefinitionError(file, where, f"the next line must be '{expected}'")
        text = define["value"]
    if _value(text) not in values:
        raise DefinitionError(file, where, f"{match['name']} is {text}, not one of its values")
    return Tunable(match["name"], kind, values, _value(text), condition, number)


def _parse_directive(body: str, where: str, file: str) -> _DirectiveRule:
    match = _DIRECTIVE.match(body)
    if not match:
        raise DefinitionError(
            file, where, "expected 'directive FIELD from TUNABLE | = EXPR | WORD'"
        )
    try:
        expression = parse_expression(match["expression"]) if match["expression"] else None
    except ExpressionError as error:
        raise DefinitionError(file, where, str(error)) from error
    return _DirectiveRule(match["field"], match["tunable"], expression, match["word"])


def _tokens(text: str) -> list[str]:
    """Splits C++ into tokens; a preprocessor line keeps its end, which is part of its meaning."""
    found: list[str] = []
    for match in _TOKEN.finditer(text):
        if match["line"] is not None:
            found += ["#", *_tokens(match["line"].lstrip()[1:]), "\n"]
        elif match["comment"] is None:
            found.append(match[0])
    return found


def _value(word: str) -> Value:
    return int(word) if re.fullmatch(r"-?\d+", word) else word


def _python_tokens(text: str) -> list[str]:
    """Splits Python into tokens; ends of lines and indents are part of its meaning."""
    found: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
                found.append(tokenize.tok_name[token.type])
            elif token.type not in (tokenize.COMMENT, tokenize.NL):
                found.append(token.string)
    except (tokenize.TokenError, SyntaxError):
        return [text]  # it will be refused; until then it is no other program's equal
    return found


def _definition(name: str, language: Language) -> re.Pattern[str]:
    """The line that gives a compile-time tunable its value."""
    if language is Language.PYTHON:
        head = rf"{name}(?:\s*:\s*[\w.]+)?\s*=\s*[\"']?"
        return re.compile(rf"^(?P<head>{head})(?P<value>-?\w+)(?=[\"']?\s*(?:#.*)?$)")
    # Nothing but a comment follows: code in this line would be a part of the value that nobody reads.
    rest = r"(?=\s*(?://(?!.*\\\s*$).*|/\*(?:(?!\*/).)*\*/\s*)?$)"
    return re.compile(rf"^(?P<head>\s*#\s*define\s+{name}\s+)(?P<value>\S+){rest}")


def _define(line: str, name: str, value: str, language: Language) -> str:
    return _definition(name, language).sub(rf"\g<head>{value}", line, count=1)
