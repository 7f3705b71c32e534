"""What kernels may not do on this machine, as data, and the checks that hold them to it.

The default forbids NVLink multicast, changes of the environment, changes of the device's own settings,
and code that a kernel loads while it runs. A machine's file adds to it, and may allow multicast; a
user's file may only add::

    # /etc/kerneltui/machine.toml
    version = 1
    allow = ["nvlink_multicast"]
    device_lock = "/var/lock/gpu.lock"  # see targets/device_lock.py

    [forbid.gin]
    reason = "this machine has no RDMA network"
    identifiers = ["ncclGin*"]

    [environment]
    NCCL_DEBUG = "WARN"

A kernel is looked at four times, all before it is launched: as text; preprocessed, where no macro hides
anything; as PTX, where no asm statement does; and by the symbols that its object file asks for. Functions
that are found by name at run time must be asked for by a literal; see `lookups`. No look sees what machine
code does that is written as bytes, or a call of the kernel's driver that no library makes (`ioctl`): the
sandbox leaves a rank its devices, so it does not stop that either.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kerneltui.model.errors import DefinitionError
from kerneltui.model.record import canonical_json
from kerneltui.model.toml_table import TableReader
from kerneltui.targets.cuda.elf import read_symbols
from kerneltui.targets.cuda.finding import Finding, Level, one_line
from kerneltui.targets.cuda.forbidden import DEFAULT_FEATURES, ForbiddenFeature, matches
from kerneltui.targets.cuda.lookups import lookup_symbols, lookups
from kerneltui.targets.cuda.source import CudaSource, own_lines
from kerneltui.targets.errors import CompileFailure

__all__ = [
    "DEFAULT_POLICY",
    "MACHINE_FILE",
    "NO_POLICY",
    "MachinePolicy",
    "PolicyRefusal",
    "load_policy",
]

MACHINE_FILE = Path("/etc/kerneltui/machine.toml")
"""Where the administrator of a machine says what kernels may do there."""


class PolicyRefusal(CompileFailure):
    """A kernel uses what the machine's policy forbids.

    Attributes:
        findings: All that was found.
    """

    refused = True

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        first, *others = map(one_line, findings)
        more = f" (and {len(others)} more)" if others else ""
        reason = f"refused by the machine's policy: {first}{more}"
        super().__init__(reason, "\n".join((first, *others)))
        self.findings = findings


_LINE = re.compile(r"^[^\S\n]*(?:#|%:)[^\S\n]*(?:line\b|\d)", re.MULTILINE)
_MARKER = re.compile(r"^#(?:line)?[^\S\n]+\d+[^\S\n]+\"", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_PASTE = re.compile(r"\s*(?:##|%:%:)\s*")
_PASTED = re.compile(r"\b\w+(?:\s*(?:##|%:%:)\s*\w+)+")
_PASTING_MACRO = re.compile(
    r"^[ \t]*(?:#|%:)[ \t]*define[ \t]+(\w+)\(([^)\n]*)\)([^\n]*(?:##|%:%:)[^\n]*)", re.MULTILINE
)
_SWITCHED_OFF = re.compile(r"\s*=\s*(?:false|0)\b")


@dataclass(frozen=True, slots=True)
class MachinePolicy:
    """What is forbidden on this machine, and what every child process gets.

    Attributes:
        features: Forbidden features.
        extra_environment: Further variables for every child.
        files: Files that had a say.
        device_locks: Files that are locked while the devices are used.
    """

    features: tuple[ForbiddenFeature, ...]
    extra_environment: Mapping[str, str] = field(default_factory=dict[str, str])
    files: tuple[str, ...] = ()
    device_locks: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that must be set in every child process."""
        found = dict(self.extra_environment)
        for feature in self.features:
            found |= feature.environment
        return found

    @property
    def digest(self) -> str:
        """Changes when the policy does: part of a build's key."""
        plain = canonical_json((self.features, self.extra_environment))
        return hashlib.sha256(plain).hexdigest()[:16]

    def without(self, name: str) -> MachinePolicy:
        """The same, with one feature allowed."""
        return replace(self, features=tuple(f for f in self.features if f.name != name))

    def check_source(self, text: str) -> tuple[Finding, ...]:
        """Finds forbidden features in a source text."""
        source = CudaSource(text)
        found = [*self._hidden_lines(source), *self._names(source), *self._pasted(source)]
        return _sorted([*found, *self._arguments(source), *self._literals(source)])

    def check_preprocessed(self, text: str, file: str) -> tuple[Finding, ...]:
        """Finds forbidden features in what the preprocessor made of one file, and hidden names."""
        source = own_lines(text, file)
        found = [*self._names(source), *self._arguments(source), *self._literals(source)]
        return _sorted([*found, *(lookups(source) if self.features else ())])

    def check_ptx(self, text: str) -> tuple[Finding, ...]:
        """Finds forbidden instructions in PTX."""
        code = re.sub(r"//[^\n]*|^\s*\.file[^\n]*", "", text, flags=re.MULTILINE)
        return _sorted(
            self._refuse(feature, f"the instruction {match[0]}")
            for feature in self.features
            for match in _instructions(feature, code)
        )

    def check_symbols(self, file: Path, preprocessed: Sequence[str] = ()) -> tuple[Finding, ...]:
        """Finds forbidden functions in the symbols that an object file asks for.

        Args:
            file: The ELF file.
            preprocessed: The texts that it was compiled from, with headers: what they look up by a
                name that can be read may be asked for.

        Raises:
            TargetError: It is no ELF file.
        """
        # assembly may ask for one version of a symbol: name@VERSION
        names = sorted({name.partition("@")[0] for name in read_symbols(file).undefined})
        found = [
            self._refuse(feature, f"the symbol {name}")
            for feature in self.features
            if feature.in_objects
            for name in names
            if matches(feature.identifiers, name)
        ]
        return _sorted([*found, *(lookup_symbols(names, preprocessed) if self.features else ())])

    def _refuse(self, feature: ForbiddenFeature, what: str, line: int = 0) -> Finding:
        text = f"{what} is forbidden: {feature.reason} ({feature.name})"
        return Finding(feature.rule, Level.BLOCK, line, text)

    def _hidden_lines(self, source: CudaSource) -> Iterator[Finding]:
        # in a raw text such a line reaches the preprocessed text as it is, and counts there
        found = [*_LINE.finditer(source.code), *_MARKER.finditer(source.text)]
        for match in found:
            yield Finding(
                "P02",
                Level.BLOCK,
                source.line(match.end()),
                "a #line directive is forbidden: it hides which text belongs to the kernel",
            )

    def _names(self, source: CudaSource) -> Iterator[Finding]:
        for match in _WORD.finditer(source.code):
            for feature in self.features:
                if not matches(feature.identifiers, match[0]):
                    continue
                if feature.optional and _SWITCHED_OFF.match(source.code, match.end()):
                    continue
                yield self._refuse(feature, match[0], source.line(match.start()))

    def _pasted(self, source: CudaSource) -> Iterator[Finding]:
        """Names that `##` makes: in a macro's own text, or from the arguments of its calls."""
        for chain in _PASTED.finditer(source.code):
            yield from self._in_text(_PASTE.sub("", chain[0]), source.line(chain.start()))
        for macro in _PASTING_MACRO.finditer(source.code):
            parameters = [part.strip() for part in macro[2].split(",")]
            for call in source.calls(re.escape(macro[1])):
                values = dict(zip(parameters, call.arguments, strict=False))
                if "..." in parameters:
                    values["__VA_ARGS__"] = ",".join(call.arguments[len(parameters) - 1 :])
                body = _WORD.sub(lambda word, values=values: values.get(word[0], word[0]), macro[3])
                yield from self._in_text(_PASTE.sub("", body), call.line)

    def _in_text(self, text: str, line: int) -> Iterator[Finding]:
        for word in _WORD.findall(text):
            for feature in self.features:
                if matches(feature.identifiers, word):
                    yield self._refuse(feature, word, line)

    def _arguments(self, source: CudaSource) -> Iterator[Finding]:
        for feature in self.features:
            for pattern in feature.arguments:
                for match in re.finditer(pattern, source.code):
                    what = " ".join(match[0].split())
                    shown = what if len(what) <= 60 else f"{what[:40]} … {what[-15:]}"
                    yield self._refuse(feature, shown, source.line(match.start()))

    def _literals(self, source: CudaSource) -> Iterator[Finding]:
        for literal in source.literals:
            for feature in self.features:
                what = _forbidden_text(feature, literal.value, literal.assembly)
                if what:
                    yield self._refuse(feature, what, literal.line)


DEFAULT_POLICY = MachinePolicy(DEFAULT_FEATURES)
"""What holds where no file says anything."""

NO_POLICY = MachinePolicy(())
"""Forbids nothing: for code that is looked at and never run."""


def load_policy(user_folder: Path, machine_file: Path = MACHINE_FILE) -> MachinePolicy:
    """Reads the machine's policy, and what the user forbids beside it.

    Args:
        user_folder: The user's configuration folder; `machine.toml` in it is read if it is there.
        machine_file: The administrator's file, read if it is there.

    Raises:
        DefinitionError: A file is wrong; it names file and key.
    """
    policy = DEFAULT_POLICY
    for file, may_allow in ((machine_file, True), (user_folder / "machine.toml", False)):
        try:
            with file.open("rb") as stream:
                table = tomllib.load(stream)
        except FileNotFoundError:
            continue
        except (OSError, tomllib.TOMLDecodeError) as error:
            # a policy that cannot be read must not count as one that forbids nothing
            raise DefinitionError(str(file), "file", f"cannot be read: {error}") from error
        policy = _apply(policy, TableReader(str(file), "", table), table, may_allow)
        policy = replace(policy, files=(*policy.files, str(file)))
    return policy


def _apply(
    policy: MachinePolicy, reader: TableReader, table: Mapping[str, Any], may_allow: bool
) -> MachinePolicy:
    if reader.integer("version") != 1:
        raise reader.error("version", "is not 1; this kerneltui knows no other")
    allowed = reader.words("allow", ())
    if allowed and not may_allow:
        raise reader.error("allow", f"only {MACHINE_FILE} may allow; a user's file forbids more")
    known = {feature.name for feature in policy.features if feature.optional}
    for name in allowed:
        if name not in known:
            raise reader.error("allow", f"'{name}' is not one of {', '.join(sorted(known))}")
    features = [feature for feature in policy.features if feature.name not in allowed]
    for name, part in (reader.tables("forbid") if "forbid" in table else {}).items():
        features = [feature for feature in features if feature.name != name or not feature.optional]
        if any(feature.name == name for feature in features):
            raise part.error("reason", f"{name} is forbidden anyway; take another name")
        features.append(
            ForbiddenFeature(
                name=name,
                rule=f"forbid.{name}",
                reason=part.word("reason"),
                identifiers=part.words("identifiers", ()),
                instructions=part.words("instructions", ()),
                texts=part.words("texts", ()),
            )
        )
        part.finish()
    extra = dict(policy.extra_environment)
    if "environment" in table:
        variables = reader.table("environment")
        for name in table["environment"]:
            value = variables.word(name)
            if policy.environment.get(name, value) != value:
                raise variables.error(name, f"is set to {policy.environment[name]} already")
            extra[name] = value
    lock = reader.word("device_lock", "")
    if lock and not lock.startswith("/"):
        raise reader.error("device_lock", f"'{lock}' is no absolute path")
    locks = policy.device_locks + ((lock,) if lock else ())
    reader.finish()
    return replace(policy, features=tuple(features), extra_environment=extra, device_locks=locks)


def _instructions(feature: ForbiddenFeature, text: str) -> Iterator[re.Match[str]]:
    for opcode in feature.instructions:
        yield from re.finditer(rf"(?<![\w.$%]){re.escape(opcode)}(?:\.[\w:]+)+", text)


def _forbidden_text(feature: ForbiddenFeature, text: str, assembly: bool) -> str:
    for match in _instructions(feature, text):
        # outside of asm a text with one part is prose, one with more is for an asm statement
        if assembly or match[0].count(".") > 1:
            return f"the instruction {match[0]}"
    if _WORD.fullmatch(text) and matches(feature.identifiers, text):
        return f'the name "{text}"'
    name = text.partition("=")[0]
    if name in feature.environment:
        return f"the variable {name}"
    return next((f'"{part}"' for part in feature.texts if part in text), "")


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda finding: (finding.line, finding.rule, finding.text)))
