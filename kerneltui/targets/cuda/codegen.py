"""What the compiler made of a kernel: registers, spills, shared memory, instructions, and its warnings.

Numbers come from what `ptxas -v` prints; launch bounds and the lines of warnings from the PTX, which has
the lines of the source in it; instructions from a disassembler, where there is one.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from kerneltui.targets.cuda.occupancy import Occupancy, limits_of, occupancy
from kerneltui.targets.cuda.sass import count_instructions, parse_sass

__all__ = [
    "CodegenChange",
    "CodegenFinding",
    "CodegenReport",
    "KernelCode",
    "compare_reports",
    "demangle",
    "has_kernels",
    "make_report",
    "ptx_lines",
]

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_MESSAGE = re.compile(r"^ptxas (info|warning)\s*: (?:\((C\d+)\) )?(.*)$")
_NVCC_WARNING = re.compile(r"^kernel\.cu\((\d+)\): warning (#\S+): (.*)$")
_PTX_LINE = re.compile(r"around line (\d+)|line (\d+)")
_IN_FUNCTION = re.compile(r"function '([^']+)'")
_LOUD = re.compile(r"serialized|ignored|Potential Performance Loss|spilled|[Ss]tack size")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"(?:[^"]*/)?kernel\.cu"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s")
_PTX_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_BOUNDS = re.compile(r"^\s*\.(maxntid|reqntid|minnctapersm|reqnctapercluster)\s+([\d, ]+)")
_WORSE_IF_MORE = frozenset({"spill stores", "spill loads", "stack", "LDL", "STL"})


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One kernel as it was compiled. Sizes in bytes.

    Attributes:
        symbol: Its mangled name.
        name: The name that the source gives it.
        registers: Of a thread, at its start.
        spill_stores: Stores of spilled registers, over the whole code.
        spill_loads: Loads of them.
        stack: Stack of a thread.
        shared: Static shared memory of a CTA; what a launch adds is not known here.
        barriers: Named barriers.
        max_threads: Threads of a CTA by its launch bounds; 0 without.
        min_ctas: CTAs on an SM that its launch bounds ask for; 0 without.
        cluster: CTAs of a cluster that it demands; 0 without.
        instructions: How many of each that matters, and "all"; empty without a disassembler.
    """

    symbol: str
    name: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    barriers: int
    max_threads: int = 0
    min_ctas: int = 0
    cluster: int = 0
    instructions: Mapping[str, int] = field(default_factory=dict[str, int])

    def metrics(self) -> dict[str, int]:
        """All numbers by name, in the order in which they are shown."""
        return {
            "registers": self.registers,
            "spill stores": self.spill_stores,
            "spill loads": self.spill_loads,
            "stack": self.stack,
            "static smem": self.shared,
            "barriers": self.barriers,
            **self.instructions,
        }

    def occupancy(
        self, arch: str, *, threads: int = 0, dynamic_shared: int = 0
    ) -> Occupancy | None:
        """CTAs of it on an SM; None if neither a launch nor its bounds say how many threads it has.

        Args:
            arch: Such as "sm_90a".
            threads: Of a CTA; by its launch bounds if 0.
            dynamic_shared: What the launch adds to the static shared memory.
        """
        limits = limits_of(arch)
        threads = threads or self.max_threads
        if limits is None or not threads:
            return None
        return occupancy(
            limits,
            threads=threads,
            registers=self.registers,
            shared=self.shared + dynamic_shared,
            cluster=max(1, self.cluster),
        )


@dataclass(frozen=True, slots=True)
class CodegenFinding:
    """Something that the compiler said.

    Attributes:
        code: Its number, such as "C7510"; empty if it has none.
        loud: True if it costs speed for certain: shown as an alarm.
        line: Line of the source; 0 if unknown.
        kernel: Name of the kernel; empty if the message names none.
        text: One line.
    """

    code: str
    loud: bool
    line: int
    kernel: str
    text: str


@dataclass(frozen=True, slots=True)
class CodegenReport:
    """What the compiler made of a source.

    Attributes:
        arch: Such as "sm_90a".
        compiler: nvcc's version.
        kernels: In the order of the compiler's output.
        findings: Loud ones first.
        missing: Why there are no counts of instructions; empty if there are.
        schema: Version of this record.
    """

    arch: str
    compiler: str
    kernels: tuple[KernelCode, ...]
    findings: tuple[CodegenFinding, ...]
    missing: str = ""
    schema: int = 1


@dataclass(frozen=True, slots=True)
class CodegenChange:
    """One number that is not what it was in the parent.

    Attributes:
        kernel: Name of the kernel.
        metric: Name of the number; "kernel" for one that is new (before 0) or gone (after 0).
        before: In the parent.
        after: Now.
        worse: True, False, or None where more is neither.
    """

    kernel: str
    metric: str
    before: int
    after: int
    worse: bool | None


def make_report(
    log: str, ptx: str, sass: str, *, arch: str, compiler: str, missing: str = ""
) -> CodegenReport:
    """Reads a report out of what the tools printed.

    Args:
        log: Output of nvcc with `-Xptxas -v`.
        ptx: The PTX, compiled with `-lineinfo`.
        sass: Output of the disassembler, or nothing.
        arch: What was compiled for.
        compiler: nvcc's version.
        missing: Why there is no output of the disassembler.
    """
    counts = {part.name: count_instructions(part) for part in parse_sass(sass)}
    bounds = _launch_bounds(ptx)
    kernels = tuple(
        KernelCode(
            symbol=symbol,
            name=demangle(symbol),
            **numbers,
            **bounds.get(symbol, {}),
            instructions=counts.get(symbol, {}),
        )
        for symbol, numbers in _resources(log).items()
    )
    findings = sorted(_findings(log, ptx), key=lambda finding: (not finding.loud, finding.line))
    return CodegenReport(arch, compiler, kernels, tuple(findings), missing)


def has_kernels(log: str) -> bool:
    """Whether nvcc's output, with `-Xptxas -v`, speaks of any kernel at all."""
    return _ENTRY.search(log) is not None


def compare_reports(before: CodegenReport, after: CodegenReport) -> tuple[CodegenChange, ...]:
    """What got more and what got less since the parent.

    Kernels are the same if their names are; a template with other arguments is the one of the same
    name in the same place.
    """
    old = _by_family(before)
    changes: list[CodegenChange] = []
    for family, kernel in _by_family(after).items():
        was = old.pop(family, None)
        if was is None:
            changes.append(CodegenChange(kernel.name, "kernel", 0, 1, None))
            continue
        then, now = was.metrics(), kernel.metrics()
        if not was.instructions or not kernel.instructions:  # one without disassembler says nothing
            then = {name: then[name] for name in then if name not in was.instructions}
            now = {name: now[name] for name in now if name not in kernel.instructions}
        for name in dict.fromkeys((*then, *now)):
            first, last = then.get(name, 0), now.get(name, 0)
            if first != last:
                worse = last > first if name in _WORSE_IF_MORE else None
                changes.append(CodegenChange(kernel.name, name, first, last, worse))
    changes += [CodegenChange(kernel.name, "kernel", 1, 0, None) for kernel in old.values()]
    return tuple(changes)


def ptx_lines(ptx: str) -> list[int]:
    """For every line of the PTX, from 1, the line of kernel.cu that it comes from; 0 if unknown."""
    lines = [0]
    mine: str | None = None
    for row in ptx.splitlines():  # the file's number is given at the end of the PTX
        found = _FILE.match(row)
        if found:
            mine = found[1]
    current = 0
    for row in ptx.splitlines():
        place = _LOC.match(row)
        if place and place[1] == mine:
            current = int(place[2]) or current
        elif _PTX_ENTRY.search(row):
            current = 0
        lines.append(current)
    return lines


@cache
def demangle(symbol: str) -> str:
    """The name that the source gives a symbol; the symbol itself if it cannot be told."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        function = library.__cxa_demangle
    except (OSError, AttributeError):
        return symbol
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    status = ctypes.c_int()
    result = function(symbol.encode(), None, None, ctypes.byref(status))
    if not result:
        return symbol
    try:
        return ctypes.string_at(result).decode("utf-8", "replace")
    finally:
        libc = ctypes.CDLL(None)
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(result)


def _resources(log: str) -> dict[str, dict[str, int]]:
    """Registers, spills, stack, shared memory and barriers of every entry function."""
    found: dict[str, dict[str, int]] = {}
    entry = owner = ""
    for line in log.splitlines():
        match = _ENTRY.search(line)
        if match:
            entry = match[1]
            found[entry] = dict.fromkeys(
                ("registers", "spill_stores", "spill_loads", "stack", "shared", "barriers"), 0
            )
            continue
        match = _PROPERTIES.search(line)
        if match:
            owner = match[1]
            continue
        match = _FRAME.search(line)
        if match and owner == entry and entry:
            sizes = map(int, match.groups())
            found[entry] |= dict(zip(("stack", "spill_stores", "spill_loads"), sizes, strict=True))
            continue
        match = _USED.search(line)
        if match and entry:
            barriers, shared = _BARRIERS.search(match[2]), _SHARED.search(match[2])
            found[entry]["registers"] = int(match[1])
            found[entry]["barriers"] = int(barriers[1]) if barriers else 0
            found[entry]["shared"] = int(shared[1]) if shared else 0
            entry = ""  # what follows belongs to functions that are called
    return found


def _launch_bounds(ptx: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    entry = ""
    for line in ptx.splitlines():
        match = _PTX_ENTRY.search(line)
        if match:
            entry = match[1]
            found[entry] = {}
            continue
        match = _BOUNDS.match(line)
        if match and entry:
            product = 1
            for part in match[2].split(","):
                product *= int(part)
            name = {"minnctapersm": "min_ctas", "reqnctapercluster": "cluster"}.get(match[1])
            found[entry][name or "max_threads"] = product
    return found


def _findings(log: str, ptx: str) -> list[CodegenFinding]:
    lines = ptx_lines(ptx)
    found: dict[CodegenFinding, None] = {}
    for row in log.splitlines():
        match = _NVCC_WARNING.match(row)
        if match:
            finding = CodegenFinding(match[2], False, int(match[1]), "", match[3])
            found[finding] = None
            continue
        match = _MESSAGE.match(row)
        if match is None or (match[1] == "info" and match[2] is None):
            continue
        code, text = match[2] or "", match[3]
        function = _IN_FUNCTION.search(text)
        symbol = function[1] if function else ""
        place = _PTX_LINE.search(text)
        if place:
            number = int(place[1] or place[2])
            line = lines[number] if number < len(lines) else 0
        else:
            line = _line_of_cause(ptx, lines, code, symbol)
        name = demangle(symbol) if symbol else ""
        readable = _PTX_LINE.sub(f"line {line}", text) if place and line else text
        loud = match[1] == "warning" or bool(_LOUD.search(text))
        found[CodegenFinding(code, loud, line, name, readable.replace(symbol, name))] = None
    return list(found)


def _line_of_cause(ptx: str, lines: list[int], code: str, symbol: str) -> int:
    """The source line of the instruction that a message without a line is about."""
    if code != "C7508":
        return _first_line(ptx, lines, symbol, "wgmma.mma_async")
    # the message names no kernel; most often it is one without launch bounds
    unbound = [name for name, bounds in _launch_bounds(ptx).items() if "max_threads" not in bounds]
    found = (_first_line(ptx, lines, name, "setmaxnreg") for name in [*unbound, ""])
    return next((line for line in found if line), 0)


def _first_line(ptx: str, lines: list[int], symbol: str, instruction: str) -> int:
    """The source line of an instruction's first use in a function, or anywhere if none is named."""
    inside = not symbol
    for number, row in enumerate(ptx.splitlines(), start=1):
        match = _PTX_ENTRY.search(row)
        if match and symbol:
            inside = match[1] == symbol
        if inside and instruction in row and not row.lstrip().startswith("//"):
            return lines[number]
    return 0


def _by_family(report: CodegenReport) -> dict[tuple[str, int], KernelCode]:
    found: dict[tuple[str, int], KernelCode] = {}
    for kernel in report.kernels:
        stem = re.split(r"[<(]", kernel.name.removeprefix("void "))[0]
        number = sum(1 for known, _ in found if known == stem)
        found[stem, number] = kernel
    return found
