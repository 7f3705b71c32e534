"""Random kernels with evolve regions, and edits of them whose result is made without the product's code."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from kerneltui.agents.edits.edit import Edit
from kerneltui.model.kernel import Kernel, parse_kernel

CALLS = ("load", "store", "wait_for", "raise_flag", "copy")


@st.composite
def code_lines(draw: st.DrawFn, numbers: st.SearchStrategy[int], least: int, most: int):
    """Lines of code, the first not blank; with few numbers many of them are alike."""
    count = draw(st.integers(least, most))
    return [
        f"{'    ' * draw(st.integers(0, 3))}{draw(st.sampled_from(CALLS))}(x{draw(numbers)}, {at % 2});"
        if at == 0 or draw(st.integers(0, 9))
        else ""
        for at in range(count)
    ]


@dataclass(frozen=True)
class Sample:
    """A kernel by its parts: frozen lines before, between and after the regions' lines."""

    frozen: tuple[tuple[str, ...], ...]
    regions: tuple[tuple[str, ...], ...]
    newline: str
    final: bool

    def text(self, regions: list[list[str]] | None = None) -> str:
        """The source, with other lines in its regions if given."""
        bodies = [list(body) for body in self.regions] if regions is None else regions
        lines = list(self.frozen[0])
        for at, body in enumerate(bodies):
            lines.append(f"// kerneltui: evolve begin part{at}")
            lines += body
            lines.append("// kerneltui: evolve end")
            lines += self.frozen[at + 1]
        return self.newline.join(lines) + (self.newline if self.final else "")

    @property
    def kernel(self) -> Kernel:
        """What the product reads."""
        return parse_kernel(self.text(), "kernel.cpp")


def unlike(samples: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    """Kernels no two lines of which are the same but for their indentation."""

    def renumbered(sample: Sample) -> Sample:
        count = 1000

        def fresh(line: str) -> str:
            nonlocal count
            count += 1
            return line.replace("(x", f"(x{count}_") if line else ""

        frozen = tuple(tuple(map(fresh, part)) for part in sample.frozen)
        return Sample(
            frozen,
            tuple(tuple(map(fresh, part)) for part in sample.regions),
            sample.newline,
            sample.final,
        )

    return samples.map(renumbered)


@st.composite
def samples(draw: st.DrawFn, least: int = 1) -> Sample:
    """Kernels of up to three regions."""
    count = draw(st.integers(least, 3))
    few = st.integers(0, 4)
    return Sample(
        tuple(tuple(draw(code_lines(few, 1, 4))) for _ in range(count + 1)),
        tuple(tuple(draw(code_lines(few, 1, 9))) for _ in range(count)),
        draw(st.sampled_from(["\n", "\n", "\r\n"])),
        draw(st.booleans()),
    )


@dataclass(frozen=True)
class Span:
    """Lines [first, end) of a region become others."""

    region: int
    first: int
    end: int
    new: tuple[str, ...]

    def edit(self, sample: Sample) -> Edit:
        """The edit that asks for it, exactly copied."""
        return Edit(sample.regions[self.region][self.first : self.end], self.new)


@st.composite
def spans(
    draw: st.DrawFn, sample: Sample, most: int = 3, only: frozenset[int] = frozenset(range(3))
) -> list[Span]:
    """Changes that do not touch each other, one at least, from top to bottom."""
    found: list[Span] = []
    for number, body in enumerate(sample.regions):
        if number not in only:
            continue
        at = 0
        while at < len(body) and len(found) < most and draw(st.booleans()):
            first = draw(st.integers(at, len(body) - 1))
            end = draw(st.integers(first + 1, min(len(body), first + 4)))
            old = body[first:end]
            fresh = draw(code_lines(st.integers(500, 900), 0, 3))
            keep = draw(st.sampled_from(["none", "front", "back"]))
            new = {"none": fresh, "front": [*old, *fresh], "back": [*fresh, *old]}[keep]
            if any(line.strip() for line in old) and tuple(new) != old:
                found.append(Span(number, first, end, tuple(new)))
            at = end + 1
    if not found:
        number = draw(st.sampled_from(sorted(only & set(range(len(sample.regions))))))
        found.append(Span(number, 0, 1, tuple(draw(code_lines(st.integers(500, 900), 1, 3)))))
    return found


def changed(sample: Sample, wanted: list[Span]) -> str:
    """The text that has to come out."""
    bodies = [list(body) for body in sample.regions]
    for span in reversed(wanted):
        bodies[span.region][span.first : span.end] = span.new
    return sample.text(bodies)


def occurrences(sample: Sample, search: tuple[str, ...]) -> int:
    """How often lines stand in a row inside a region."""
    return sum(
        body[at : at + len(search)] == search
        for body in sample.regions
        for at in range(len(body) - len(search) + 1)
    )
