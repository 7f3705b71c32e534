"""The codegen tab: what the compiler made of a candidate, beside its parent; the machine code below.

The report comes from a note of the session, which anybody may have written, so nothing in it is taken
for granted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from kerneltui.model.launch_words import launched_shapes
from kerneltui.tui.reports import MachineCode, Report
from kerneltui.tui.text import Line, clean, cut, fit, wrap

__all__ = ["codegen_lines", "is_machine_head"]

_WORSE_IF_MORE = frozenset({"spill stores", "spill loads", "stack", "LDL", "STL"})
_ALWAYS = ("registers", "spill stores", "spill loads", "stack", "static smem")
_MACHINE_HEAD = (" Machine code", "title")
_NAMES = {"all": "instructions"}
_NAME, _VALUE = 16, 9
_DIFF_STYLES = {"+": "add-plain", "-": "del-plain", "@": "hunk", "#": "title"}


def codegen_lines(report: Report, width: int) -> Sequence[Line]:
    """Returns the table of the compiler's report, and the difference of the machine code below it."""
    if report.error:
        return [((f" {clean(report.error)}", "dim"),)]
    code = report.code
    if not code:
        text = f"{report.candidate} has no report of the compiler: not built yet, or not for a GPU"
        return [((f" {text}", "dim"),), (), *_machine(report, width)]
    lines: list[Line] = []
    if code.get("arch"):
        lines.append(((f" nvcc {_text(code, 'compiler')} for {_text(code, 'arch')}", "dim"),))
    for finding in _list(code, "findings"):
        lines += _finding(finding, width)
    if code.get("missing"):
        lines += _wrapped(_text(code, "missing"), "warn", width)
    kernels = _list(code, "kernels")
    if not kernels and code.get("arch"):
        lines.append(((" no kernel of its own: it calls libraries", "dim"),))
    before = _by_family(_list(report.parent_code, "kernels"))
    if kernels:
        lines += [(), _head(report)]
    for family, kernel in _by_family(kernels).items():
        lines += _kernel(kernel, before.pop(family, None), report, width)
    for gone in before.values() if code.get("arch") else ():
        lines += [(), ((f" {clean(_text(gone, 'name'))}", "strong"), ("   gone", "warn"))]
    more = code.get("more")
    if isinstance(more, int) and more:
        lines.append(((f" and {more} more kernels", "dim"),))
    lines += _launches(code, width)
    return [*lines, (), *_machine(report, width)]


def is_machine_head(line: Line) -> bool:
    """Whether the difference of the machine code begins with this line."""
    return bool(line) and line[0] == _MACHINE_HEAD


def _head(report: Report) -> Line:
    parent = report.parent if report.parent_code.get("kernels") else ""
    return (
        (" " * (_NAME + 3), ""),
        (f"{report.candidate:>{_VALUE}}", "dim"),
        (f"{parent:>{_VALUE}}{'change' if parent else '':>{_VALUE}}", "dim"),
    )


def _finding(finding: Mapping[str, Any], width: int) -> list[Line]:
    where = finding.get("line")
    text = _text(finding, "text") + (f" (line {where})" if where else "")
    if finding.get("loud"):
        first, *rest = wrap(text, max(width - 12, 10))
        alarm: Line = ((" WARNING ", "banner"), (f" {first}", "bad"))
        return [alarm, *[((" " * 10 + part, "bad"),) for part in rest]]
    return [cut(((f" {clean(text)}", "dim"),), width)]


def _launches(code: Mapping[str, Any], width: int) -> list[Line]:
    """What a call launches, shape by shape, and how it falls onto the device."""
    lines: list[Line] = []
    for shape, launches in launched_shapes(code):
        lines += [(), cut((((" Launches on "), "title"), (clean(shape), "strong")), width)]
        for text in launches:
            first, *rest = wrap(clean(text), max(width - 6, 10))
            lines += [((f"   {first}", "dim"),), *[((f"     {part}", "dim"),) for part in rest]]
    if code.get("unread"):
        lines += [(), *_wrapped(f"launches not known: {_text(code, 'unread')}", "dim", width)]
    return lines


def _kernel(
    kernel: Mapping[str, Any], before: Mapping[str, Any] | None, report: Report, width: int
) -> list[Line]:
    lines: list[Line] = [()]
    name: Line = ((f" {clean(_text(kernel, 'name'))}", "strong"),)
    if before is None and report.parent_code.get("kernels"):
        name = (*name, ("   new", "warn"))
    lines.append(cut(name, width))
    fits = _fits(kernel)
    if fits:
        then = _fits(before) if before else ""
        was: Line = ((f"   was {then}", "warn"),) if then and then != fits else ()
        lines.append(cut(((f"   {fits}", "dim"), *was), width))
    now, old = _metrics(kernel), _metrics(before or {})
    counted = _has_counts(now) and _has_counts(old)
    for metric in dict.fromkeys((*now, *old)):
        value = now.get(metric, 0)
        past = old.get(metric, 0 if counted else None) if before else None
        if value or past or metric in _ALWAYS:
            lines.append(_row(metric, value, past))
    return lines


def _fits(kernel: Mapping[str, Any]) -> str:
    """Threads of a CTA, CTAs on an SM and what limits them, by what the compiler knows."""
    ctas, warps, threads = kernel.get("ctas"), kernel.get("warps"), kernel.get("threads")
    if not isinstance(ctas, int):
        return "no launch bounds: CTAs on an SM are not known" if kernel else ""
    share = f", {warps:.0%} of warps" if isinstance(warps, int | float) else ""
    by = f"by {_text(kernel, 'limiter')}"
    return f"{threads} threads, at most {ctas} CTA/SM {by} and static smem{share}"


def _row(metric: str, value: int, past: int | None) -> Line:
    name = _NAMES.get(metric, metric)
    head: Line = ((f"   {fit(clean(name), _NAME)}", "dim"), (f"{value:>{_VALUE}}", "ink"))
    if past is None:
        return head
    change = value - past
    style = "dim"
    if change:
        worse = change > 0 if metric in _WORSE_IF_MORE else None
        style = {True: "bad", False: "good", None: "warn"}[worse]
    return (
        *head,
        (f"{past:>{_VALUE}}", "dim"),
        (f"{f'{change:+d}' if change else '=':>{_VALUE}}", style),
    )


def _machine(report: Report, width: int) -> list[Line]:
    machine = report.machine
    if machine is None:
        return [((" M", "key"), (" compares the machine code with the parent's", "dim"))]
    lines: list[Line] = [(_MACHINE_HEAD, (_same(machine), "dim"))]
    if machine.text:
        lines += _wrapped(machine.text, "dim", width)
    for line in machine.lines:
        style = _DIFF_STYLES.get(line[:1], "dim")
        text = line[3:] if line.startswith("## ") else line
        lines.append(((f" {clean(text)}", style),))
    return lines


def _same(machine: MachineCode) -> str:
    if machine.text:
        return ""
    same = f"the same in {', '.join(map(clean, machine.same))}" if machine.same else ""
    if not machine.lines:
        same = same or "nothing to compare"
    return f"   {same}"


def _wrapped(text: str, style: str, width: int) -> list[Line]:
    return [((f" {part}", style),) for part in wrap(text, max(width - 2, 10))]


def _by_family(kernels: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Kernels by name without template arguments, and place among those of that name."""
    found: dict[tuple[str, int], Mapping[str, Any]] = {}
    for kernel in kernels:
        stem = _text(kernel, "name").partition("<")[0]
        found[stem, sum(1 for known, _ in found if known == stem)] = kernel
    return found


def _metrics(kernel: Mapping[str, Any]) -> dict[str, int]:
    part = kernel.get("metrics")
    if not isinstance(part, dict):
        return {}
    known = cast("Mapping[str, Any]", part)
    found = {str(name): value for name, value in known.items() if isinstance(value, int)}
    # The record keeps no order; what everybody looks at first comes first.
    order = [*_ALWAYS, "barriers", "all"]
    return {
        name: found[name] for name in (*order, *sorted(found.keys() - set(order))) if name in found
    }


def _has_counts(metrics: Mapping[str, int]) -> bool:
    return "all" in metrics


def _list(part: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = part.get(name)
    if not isinstance(found, list):
        return []
    items = cast("list[Any]", found)
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, dict)]


def _text(part: Mapping[str, Any], name: str) -> str:
    return str(part.get(name) or "")
