"""Tables and texts of the main panel: shapes, directive, log of a candidate; and the machine panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kerneltui.model.candidate import Candidate, DecisionKind
from kerneltui.model.measurement import GpuUse, Measurement, MeasurementStage
from kerneltui.model.state import State
from kerneltui.model.units import milliseconds
from kerneltui.model.winners import shape_winners
from kerneltui.tui.draw.chart import chart_lines, shape_charts
from kerneltui.tui.draw.spend import call_lines
from kerneltui.tui.format import (
    counted,
    difference,
    elapsed,
    percent_change,
    ratio,
    share,
    state_style,
    verdict_style,
)
from kerneltui.tui.text import Line, clean, cut, fit, wrap

__all__ = ["bench_table", "candidate_log", "directive_lines", "gpu_table", "machine_lines"]


def bench_table(state: State, candidate: Candidate, width: int) -> Sequence[Line]:
    """Returns the table over shapes: times in milliseconds, ratio, verdict and share of the bound."""
    measurement = candidate.measurement
    if measurement is None:
        return [((f" {candidate.id} has no measurement: {_why_unmeasured(candidate)}", "dim"),)]
    names = max(7, *(len(part.shape) for part in measurement.shapes))
    room = width - names
    # What goes first when it gets narrow: the reference's name, its time, the interval.
    named, referenced, interval = room >= 84, room >= 72, room >= 61
    head = f" {'shape':<{names}} {'ms':>8} {'BEST ms':>8}"
    head += f" {'ref ms':>8}" if referenced else ""
    head += f" {'ratio':>7} {'vs BEST %' if interval else 'vs %':>{14 if interval else 6}}"
    lines: list[Line] = [((f"{head}  {'verdict':<8}{'bound':>6}", "dim"),)]
    for part in measurement.shapes:
        middle, low, high = percent_change(part.interval)
        change = f"{low:+.1f},{high:+.1f}" if interval else f"{middle:+.1f}"
        row: list[tuple[str, str]] = [
            (f" {fit(clean(part.shape), names)}", "ink"),
            (f" {milliseconds(part.candidate_ns):>8}", "strong"),
            (f" {milliseconds(part.incumbent_ns):>8}", "dim"),
        ]
        if referenced:
            row.append((f" {milliseconds(part.reference_ns):>8}", "dim"))
        row += [
            (f" {ratio(part.ratio):>7}", "ink"),
            (f" {change:>{14 if interval else 6}}  ", "dim"),
            (f"{part.verdict:<8}", verdict_style(part.verdict)),
            (f"{share(part.bound_share):>6}", "dim"),
        ]
        if named:
            row.append((f"  {clean(part.reference)}, n={part.rounds}", "faint"))
        lines.append(cut(tuple(row), width))
    lines += _summary(state, candidate, names, width)
    lines += _remarks(measurement, width)
    lines += _winner_lines(state, candidate, names, width)
    lines += gpu_table(measurement, names, width)
    for chart in shape_charts(state, candidate):
        lines += [(), ((f" {clean(chart.title)}", "title"),), *chart_lines(chart, width, 3)]
    return lines


def _remarks(measurement: Measurement, width: int) -> Sequence[Line]:
    lines: list[Line] = []
    for remark in measurement.remarks:
        first, *rest = wrap(remark, max(width - 3, 10))
        lines.append(((" ! ", "warn"), (first, "warn")))
        lines += [(("   " + part, "warn"),) for part in rest]
    return lines


def gpu_table(measurement: Measurement, names: int, width: int) -> Sequence[Line]:
    """Returns what the GPUs did on each shape; nothing for a target without."""
    used = [(part.shape, part.gpu) for part in measurement.shapes if part.gpu is not None]
    if not used:
        return []
    head = f" {'on the GPUs':<{names}} {'MHz':>6} {'W':>6} {'mJ/call':>9} {'FLOP/clk/SM':>12}"
    lines: list[Line] = [(), cut(((f"{head}  held by (rounds)", "dim"),), width)]
    for shape, use in used:
        energy = None if use.energy_j is None else use.energy_j * 1e3
        row: Line = (
            (f" {fit(clean(shape), names)}", "ink"),
            (f" {_known(use.sm_clock_mhz):>6}", "ink"),
            (f" {_known(use.power_w):>6}", "ink"),
            (f" {_known(energy, 1) + ('~' if _rough(use) else ''):>9}", "ink"),
            (f" {_known(use.flop_per_clock):>12}", "strong"),
            (f"  {_held(use)}", "dim"),
        )
        lines.append(cut(row, width))
    if any(_rough(use) for _, use in used):
        lines.append(
            ((" ~ power times time: too short for the GPU's own count of energy", "faint"),)
        )
    if any(use.power_w is None for _, use in used):
        lines.append(((" - samples too short for the driver's average of power, 100 ms", "faint"),))
    return lines


def _rough(use: GpuUse) -> bool:
    return use.energy_j is not None and not use.counted


def _known(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _held(use: GpuUse) -> str:
    """What held the clock down, in how many rounds of the candidate and of the incumbent."""
    parts = [
        f"{cause} {mine}/{use.rounds}, BEST {other}"
        for cause, mine, other in (
            ("power", use.power_rounds, use.incumbent_power_rounds),
            ("heat", use.heat_rounds, use.incumbent_heat_rounds),
        )
        if mine or other
    ]
    return "; ".join(parts) or "nothing"


def _summary(state: State, candidate: Candidate, names: int, width: int) -> Sequence[Line]:
    measurement = candidate.measurement
    if measurement is None:
        return ()
    confirmed = (
        f"confirmed over {measurement.groups} process groups"
        if measurement.stage is MeasurementStage.CONFIRMED
        else "one process group, not confirmed yet"
    )
    lines: list[Line] = [
        (
            (f" {'geomean':<{names}}", "strong"),
            (f"  {ratio(measurement.ratio)}", "strong"),
            (f"   vs {measurement.against} ", "dim"),
            (difference(measurement.geomean, measurement.verdict), "ink"),
        ),
        ((f" {share(measurement.bound_share)} of the bound, {confirmed}", "dim"),),
        ((f" FASTER and SLOWER begin at {measurement.delta * 100:.1f}%", "dim"),),
    ]
    if measurement.graph_shapes:
        shapes = ", ".join(map(clean, measurement.graph_shapes))
        lines += [
            ((f" {part}", "faint"),) for part in wrap(f"calls in a CUDA graph: {shapes}", width - 2)
        ]
    if measurement.quarantine:
        lines.append(((f" quarantined: {clean(measurement.quarantine)}", "state-quar"),))
    return lines


def _winner_lines(state: State, candidate: Candidate, names: int, width: int) -> Sequence[Line]:
    """Who is faster than this one on a shape alone, with what it loses elsewhere."""
    winners = shape_winners(state.candidates.values(), candidate.id)
    if not winners:
        return ()
    head = f" faster on a shape than {candidate.id}, not over all (the best of many, not confirmed)"
    lines: list[Line] = [(), cut(((head, "dim"),), width)]
    for winner in winners:
        gain, low, high = percent_change(winner.part.interval)
        loss = percent_change(winner.worst.interval)[0]
        row: Line = (
            (f" {fit(clean(winner.part.shape), names)}", "ink"),
            (f" {winner.candidate.id} {gain:+.1f}% [{low:+.1f}, {high:+.1f}]", "verdict-faster"),
            (f"  {loss:+.1f}% on {clean(winner.worst.shape)}", "dim"),
            (f"  {clean(winner.candidate.reason)}", "faint"),
        )
        lines.append(cut(row, width))
    return lines


def _why_unmeasured(candidate: Candidate) -> str:
    if candidate.failure:
        return f"it failed in {candidate.failure.stage}"
    return f"it is {candidate.phase}"


def directive_lines(state: State, candidate: Candidate, width: int) -> Sequence[Line]:
    """Returns the directive, the configuration with what changed, the origin and the decision."""
    lines: list[Line] = [((" Directive", "title"),)]
    parent = state.candidates.get(candidate.parents[0]) if candidate.parents else None
    if candidate.directive is None:
        lines.append((("   none stated", "dim"),))
    else:
        before = parent.directive.items() if parent and parent.directive else {}
        lines += _pairs(candidate.directive.items(), before, width)
    if candidate.findings:
        lines += [(), ((" Lint: the directive and the code", "title"),)]
        for finding in candidate.findings:
            parts = wrap(finding, max(width - 5, 10))
            lines += [
                ((f"   {'' if not index else '  '}{part}", "warn" if not index else "ink"),)
                for index, part in enumerate(parts)
            ]
    if candidate.configuration:
        lines += [(), ((" Configuration", "title"),)]
        before = parent.configuration if parent else {}
        lines += _pairs(candidate.configuration, before, width)
    lines += [(), ((" Origin", "title"),)]
    parents = ", ".join(candidate.parents) or "none"
    facts = {
        "commit": candidate.sha,
        "parents": parents,
        "origin": f"{candidate.origin} by {candidate.agent}, generation {candidate.generation}",
        "seed": candidate.seed_file,
    }
    if candidate.island:
        guest = (
            f", guest of {', '.join(map(str, candidate.guest_of))}" if candidate.guest_of else ""
        )
        facts["island"] = f"{candidate.island}{guest}"
    if candidate.arm:
        facts["arm"] = candidate.arm
    if candidate.inspirations:
        facts["shown, too"] = ", ".join(candidate.inspirations)
    lines += _pairs(facts, facts, width)
    for index, part in enumerate(wrap(candidate.reason, max(width - 16, 10))):
        lines.append(((f"   {'reason' if not index else '':<12} ", "dim"), (part, "ink")))
    lines += call_lines(state, candidate, width)
    if candidate.decision is not DecisionKind.NONE:
        text = f"{candidate.decision} by {candidate.decided_by}"
        lines += [(), ((" Decision", "title"),), ((f"   {text}", "ink"),)]
        if candidate.note:
            lines += [((f"   {part}", "ink"),) for part in wrap(candidate.note, max(width - 4, 10))]
    return lines


def _pairs(now: Mapping[str, str], before: Mapping[str, str], width: int) -> Sequence[Line]:
    names = max((len(name) for name in now), default=0)
    lines: list[Line] = []
    for name, value in now.items():
        old = before.get(name)
        changed = old is not None and old != value
        line: Line = (
            (f"   {name:<{max(names, 12)}} ", "dim"),
            (clean(value), "strong" if changed else "ink"),
            (f"   was {clean(old)}" if changed and old else "", "warn"),
        )
        lines.append(cut(line, width))
    return lines


def candidate_log(state: State, candidate: Candidate, log: str, width: int) -> Sequence[Line]:
    """Returns the story of a candidate's evaluation, and the log of its failure when it has one."""
    word = state.state_of(candidate.id)
    lines: list[Line] = [
        (
            (f" {candidate.id} ", "strong"),
            (str(word), state_style(word)),
            (f"   attempt {candidate.attempt}" if candidate.attempt > 1 else "", "dim"),
        )
    ]
    if candidate.build_ns:
        lines.append(((" compile  ok   ", "dim"), (f"{candidate.build_ns / 1e9:.1f} s", "ink")))
    if candidate.verify_note:
        lines += _named(" correct  ok   ", candidate.verify_note, width)
    if candidate.measurement:
        measurement = candidate.measurement
        text = f"{ratio(measurement.ratio)}  vs {measurement.against} "
        text += difference(measurement.geomean, measurement.verdict)
        lines.append(((" bench    ok   ", "dim"), (text, "ink")))
        if measurement.quarantine:
            parts = wrap(f"quarantined: {clean(measurement.quarantine)}", max(width - 2, 10))
            lines += [((f" {part}", "state-quar"),) for part in parts]
    elif not candidate.parents and state.calibrations:
        text = "verified and timed in the calibration, as the first incumbent"
        lines += _named(" bench    ok   ", text, width)
    if candidate.failure:
        failure = candidate.failure
        kind = failure.kind.replace("_", " ")
        lines.append(((f" {failure.stage:<8} ", "dim"), (f"FAILED: {kind}", "bad")))
        lines += [((f"   {part}", "ink"),) for part in wrap(failure.reason, max(width - 4, 10))]
    if log:
        lines.append(())
        lines += [((f" {clean(part)}", "ink"),) for part in log.split("\n")]
    return lines


def _named(name: str, text: str, width: int) -> Sequence[Line]:
    parts = wrap(text, max(width - len(name) - 1, 10))
    return [
        ((name if not index else " " * len(name), "dim"), (part, "ink"))
        for index, part in enumerate(parts)
    ]


def _budget_text(state: State) -> str:
    """What is used of the candidates, and the limits: `30 of 40 candidates, 10m 00s, $5`."""
    attempted = max(0, len(state.candidates) - 1)
    limits: list[str] = []
    if state.budget_ns is not None:
        limits.append(elapsed(state.budget_ns))
    if state.budget_micro_usd is not None:
        limits.append(f"${state.budget_micro_usd / 1e6:.2f}".removesuffix(".00"))
    if state.budget_candidates is not None:
        return ", ".join([f"{attempted} of {state.budget_candidates} candidates", *limits])
    most = f"at most {', '.join(limits)}" if limits else "no limit"
    return f"{counted(attempted, 'candidate')} so far, {most}"


def _noise_text(state: State) -> str:
    """What a verdict needs, and the noise of single shapes: of all together it is less than of the widest."""

    def percent(share: float) -> str:
        return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"

    text = f"verdicts need {percent(state.delta)}"
    noise = sorted(part.noise for part in state.calibrations.values())
    if not noise:
        return text
    low, high = percent(noise[0]), percent(noise[-1])
    return f"{text}  shapes ±{high if low == high else f'{low[:-1]}-{high}'}"


def machine_lines(state: State, width: int, height: int) -> Sequence[Line]:
    """Returns the machine panel: processor, tools, noise, budget and constraints."""
    environment = state.environment
    lines: list[Line] = []

    def add(name: str, text: str, style: str = "ink") -> None:
        lines.append(cut(((f" {name:<8}", "dim"), (clean(text), style)), width))

    processor = environment.get("machine", environment.get("cpu", environment.get("device", "")))
    if processor:
        add("machine", processor)
    gpus = [text for name, text in environment.items() if name.startswith("gpu ")]
    if gpus:
        kinds = ", ".join(f"{gpus.count(kind)}x {kind}" for kind in dict.fromkeys(gpus))
        add("gpus", f"{kinds}, driver {environment.get('driver', 'unknown')}")
    others = [text for name, text in environment.items() if name.startswith("others on gpu ")]
    if others:
        add("others", "; ".join(others), "warn")
    tools = [environment[key] for key in ("compiler", "torch") if key in environment]
    if tools:
        add("tools", " · ".join(tools))
    if state.delta:
        add("noise", _noise_text(state))
    add("budget", _budget_text(state))
    if "sandbox" in environment:
        add("sandbox", environment["sandbox"])
    asked = [
        f"{part.kind} {part.field}={part.value}" if part.field else f"{part.kind} {part.value}"
        for part in state.constraints
    ]
    if state.goal:
        asked.insert(0, f"goal {state.goal}")
    if asked:
        # What the human asked for is never cut off by the rest.
        lines = lines[: max(height - 1, 0)]
        add("asked", ", ".join(asked), "warn")
    return lines[:height]
