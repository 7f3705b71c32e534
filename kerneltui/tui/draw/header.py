"""The first line of a screen, and the hints at its foot."""

from __future__ import annotations

from collections.abc import Sequence

from kerneltui.model.state import State
from kerneltui.tui.draw.spend import spend_line
from kerneltui.tui.format import elapsed, mode_word, ratio
from kerneltui.tui.text import Line, clean, join, line_width, pad
from kerneltui.tui.view import Snapshot

__all__ = ["header_line", "hints_line"]

_BAR = (" | ", "faint")


def header_line(snapshot: Snapshot, now: int, width: int) -> Line:
    """Returns the header; as width shrinks, what is least needed for a decision goes first."""
    state, link = snapshot.state, snapshot.link
    banner = _banner(snapshot)
    if not state.session:
        name: Line = ((" kerneltui", "title"),)
        return pad(join([name, ((link.text, "dim"),)], _BAR), width, banner)
    pending = sum(1 for _ in state.pending())
    generation = max((c.generation for c in state.candidates.values()), default=0)
    auto = mode_word(state.rule)
    best = state.candidates.get(state.incumbent)
    measured = best.measurement if best else None
    target = f"{state.target} {state.ranks} ranks" if state.ranks > 1 else state.target
    # (what, how soon it is dropped: 0 never)
    parts: list[tuple[Line, int]] = [
        (((f" {clean(state.workload)}", "title"),), 0),
        (((clean(target), "ink"),), 3),
        (((f"session {clean(state.session)}", "dim"),), 8),
        (((f"gen {generation}", "dim"),), 7),
        (((auto, "warn" if auto == "AUTO" else "ink"),), 1),
        (((f"{pending} pending", "state-pend" if pending else "dim"),), 0),
        (((f"best {ratio(measured.ratio)}", "good"),) if measured else (), 4),
        (((elapsed(now - state.opened_at), "dim"),) if state.opened_at else (), 5),
        (spend_line(state), 2),
        (_budget(state), 6),
    ]
    if state.paused:
        parts.insert(1, ((("PAUSED", "warn"),), 0))
    room = width - line_width(banner) - bool(banner)
    for rank in range(8, -1, -1):
        line = join([part for part, drop in parts if not drop or drop <= rank], _BAR)
        if line_width(line) <= room or rank == 0:
            return pad(line, width, banner)
    return ()


def _budget(state: State) -> Line:
    if not state.budget_candidates:
        return ()
    return ((f"{len(state.candidates) - 1} of {state.budget_candidates} candidates", "dim"),)


def _banner(snapshot: Snapshot) -> Line:
    link = snapshot.link
    if link.status == "gone":
        return ((" ENGINE GONE ", "banner"),)
    if link.status == "replay":
        return ((" REPLAY (read only) ", "banner"),)
    if link.status == "live" and not link.writer:
        return ((" READ ONLY ", "banner"),)
    return ()


def hints_line(hints: Sequence[tuple[str, str]], width: int, right: str = "") -> Line:
    """Returns `key description` pairs, as many as fit; the last ones are kept (help, palette)."""
    kept = list(hints)
    tail: Line = ((right + " ", "dim"),) if right else ()

    def build() -> Line:
        parts: list[Line] = [((key, "key"), (f" {text}", "dim")) for key, text in kept]
        return ((" ", ""), *join(parts, ("  ", "")))

    while len(kept) > 2 and line_width(build()) + line_width(tail) >= width:
        del kept[-3]
    return pad(build(), width, tail)
