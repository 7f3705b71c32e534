"""What the record of an evaluation says of a candidate, for a prompt: compiler, profiler, time, log.

A record is a note of the session, which anybody may have written with git: nothing in it is taken for
granted, and all of it is data. Each part has a bound, so that no record can crowd out the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from kerneltui.agents.bounded import first_lines, last_lines
from kerneltui.agents.fenced import fenced
from kerneltui.agents.port import SearchView
from kerneltui.agents.prompt_files import phrase
from kerneltui.model.candidate import Candidate, Phase
from kerneltui.model.launch_words import launched_shapes
from kerneltui.model.measurement import Stage

__all__ = ["failed_children_text", "log_text", "record_text"]

_REPORT_TOKENS = 700
_COUNTER_TOKENS = 500
_LOG_TOKENS = 600
_NAME = 80
_MOST_SHAPES = 3  # whose launches are told
_REASON = 200
# What everybody looks at first; of the instructions, those that move data or synchronise.
_METRICS = ("registers", "spill stores", "spill loads", "stack", "static smem", "barriers", "all")


def record_text(candidate: Candidate, view: SearchView) -> str:
    """What compiler, profiler and clock say of a candidate, beside its parent; empty if nothing does."""
    record = view.record(candidate.id)
    parent = candidate.parents[0] if candidate.parents else ""
    before = view.record(parent) if parent else {}
    parts = [
        first_lines("\n".join(_report(record, before, parent)), _REPORT_TOKENS),
        first_lines("\n".join(_counters(record, before, parent)), _COUNTER_TOKENS),
        _stages(record),
    ]
    return "\n\n".join(part for part in parts if part)


def log_text(candidate: Candidate, view: SearchView) -> str:
    """The end of the log of a failed candidate, fenced; empty if it left none."""
    if candidate.failure is None:
        return ""
    log = view.log(candidate.id)
    if not log.strip():
        return ""
    shown = fenced(last_lines(log, _LOG_TOKENS))
    return f"{phrase('log_end')}\n\n{shown}"


def failed_children_text(parent: str, view: SearchView) -> str:
    """The newest failure that was made from a candidate, with the end of its log."""
    failed = [
        c
        for c in view.state.candidates.values()
        if parent in c.parents and c.phase is Phase.FAILED and not c.harness_fault
    ]
    if not failed:
        return ""
    last = failed[-1]
    text = log_text(last, view)
    return f"{last.id}, {_line(last.reason, _REASON)}\n\n{text}" if text else ""


def _report(record: Mapping[str, Any], before: Mapping[str, Any], parent: str) -> Iterator[str]:
    code = _part(record, "codegen")
    if not code:
        return
    if code.get("missing"):
        yield f"the compiler's report: {_line(code['missing'])}"
    kernels = _items(code, "kernels")
    if kernels:
        yield f"What the compiler made of it ({_line(code.get('arch', ''))}):"
    for finding in _items(code, "findings"):
        if finding.get("loud"):
            yield f"- WARNING, line {finding.get('line', '?')}: {_line(finding.get('text', ''), 300)}"
    past = {_stem(kernel): kernel for kernel in _items(_part(before, "codegen"), "kernels")}
    for kernel in kernels:
        old = past.pop(_stem(kernel), None)
        yield f"- {_line(kernel.get('name', ''))}: {', '.join(_code(kernel, old, parent))}"
    for gone in past.values():
        yield f"- {_line(gone.get('name', ''))}: only in {parent}"
    for shape, launches in launched_shapes(code)[:_MOST_SHAPES]:
        yield f"A call launches on {_line(shape)}:"
        yield from (f"- {_line(text, _REASON)}" for text in launches)


def _code(kernel: Mapping[str, Any], old: Mapping[str, Any] | None, parent: str) -> Iterator[str]:
    """Numbers of a kernel, with the parent's where they differ."""
    now, past = _numbers(kernel), _numbers(old or {})
    instructions = sorted((now.keys() | past.keys()) - set(_METRICS))
    for name in (*_METRICS, *instructions):
        value, was = now.get(name, 0), past.get(name, 0)
        if name in now or was:
            shown = "instructions" if name == "all" else name
            more = f" ({parent}: {was})" if old is not None and was != value else ""
            yield f"{shown} {value}{more}"
    if isinstance(kernel.get("ctas"), int):
        by = f"by {_line(kernel.get('limiter', ''))}, without dynamic shared memory"
        fits = f"at most {kernel['ctas']} CTAs on an SM {by}"
        was_fit = (old or {}).get("ctas")
        yield fits + (f" ({parent}: {was_fit})" if was_fit not in (None, kernel["ctas"]) else "")


def _counters(record: Mapping[str, Any], before: Mapping[str, Any], parent: str) -> Iterator[str]:
    counters = _part(record, "counters")
    kernels = _items(counters, "kernels")
    if not kernels:
        return
    alone = f", {phrase('alone')}" if counters.get("alone") else ""
    yield f"What the profiler counted ({_line(counters.get('shape', ''))}{alone}):"
    past = {
        _stem(kernel): {str(row[0]): row[1] for row in _rows(kernel)}
        for kernel in _items(_part(before, "counters"), "kernels")
    }
    for kernel in kernels:
        known = past.get(_stem(kernel), {})
        texts = [
            f"{_line(name)} {_value(value)} {_line(unit)}".rstrip()
            + (f" ({parent}: {_value(known[name])})" if known.get(name, value) != value else "")
            for name, value, unit in _rows(kernel)
        ]
        yield f"- {_line(kernel.get('name', ''))}: {', '.join(texts)}"


def _stages(record: Mapping[str, Any]) -> str:
    """Where the time of its evaluation went: a stage that is long is a stage to look at."""
    found: list[str] = []
    spent = _part(record, "spent")
    order = [str(stage) for stage in Stage]
    for stage in sorted(spent, key=lambda name: order.index(name) if name in order else -1):
        part = spent[stage]
        wall = cast("Mapping[str, Any]", part).get("wall") if isinstance(part, dict) else None
        if isinstance(wall, int | float) and not isinstance(wall, bool) and wall >= 0.05:
            found.append(f"{_line(stage)} {wall:.1f} s")
    return f"Its evaluation took: {', '.join(found[:12])}" if found else ""


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _items(record: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = record.get(name)
    items = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, dict)]


def _numbers(kernel: Mapping[str, Any]) -> dict[str, int]:
    metrics = _part(kernel, "metrics")
    return {_line(name): value for name, value in metrics.items() if isinstance(value, int)}


def _rows(kernel: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    found = kernel.get("counters")
    rows = cast("list[Any]", found) if isinstance(found, list) else []
    kept = [cast("Sequence[Any]", row) for row in rows if isinstance(row, list)]
    return [(str(row[0]), row[1], str(row[2])) for row in kept if len(row) == 3]


def _stem(kernel: Mapping[str, Any]) -> str:
    return str(kernel.get("name", "")).partition("<")[0]


def _value(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.5g}" if number else _line(value)


def _line(value: Any, most: int = _NAME) -> str:
    """One line of a value that may be anything."""
    return " ".join(str(value).split())[:most]
