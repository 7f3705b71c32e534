"""The file of a side-by-side run: rewritten after every shape, and gone on with by a later run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerneltui.evaluation.bench_result import ShapeResult
from kerneltui.evaluation.bench_summary import BandSummary
from kerneltui.headless.bench_head import difference
from kerneltui.headless.bench_machine import compare_machines
from kerneltui.headless.output import say
from kerneltui.model.errors import UserError

__all__ = ["BenchFile"]


def _no_parts() -> list[dict[str, Any]]:
    return []


@dataclass
class BenchFile:
    """A run, and the file that it goes to.

    Attributes:
        path: The file, or None if nothing is written.
        head: What is measured; see `bench_head.head_of`.
        parts: The runs that it is made of: when, where, how long.
        results: What was found, and in which part.
        remarks: What could not be compared with the parts before, or differs, and is no reason to refuse.
    """

    path: Path | None
    head: Mapping[str, Any]
    parts: list[dict[str, Any]] = field(default_factory=_no_parts)
    results: list[tuple[int, ShapeResult]] = field(default_factory=list[tuple[int, ShapeResult]])
    remarks: list[str] = field(default_factory=list[str])

    @property
    def measured(self) -> tuple[ShapeResult, ...]:
        """All shapes so far."""
        return tuple(result for _, result in self.results)

    @property
    def done(self) -> frozenset[str]:
        """Names of the shapes that need not be measured any more."""
        return frozenset(result.shape for result in self.measured if not result.left_out)

    def check(self) -> None:
        """Finds out now, and not after minutes, that the file cannot be written.

        Raises:
            UserError: It cannot.
        """
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            probe = self._fresh(self.path)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from error

    def go_on(self) -> None:
        """Takes over what the file has, if there is one.

        Raises:
            UserError: It is of another run: of other kernels, shapes or settings.
        """
        if self.path is None:
            raise UserError("--resume goes on with a file; name it with --output")
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            say(f"{self.path} is not there yet: a new run")
            return
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: is no file of a benchmark ({error})") from error
        plain = json.loads(json.dumps(self.head))
        other = difference(found if isinstance(found, dict) else {}, plain)
        if other:
            raise self._refusal(f"is of another run ({other})")
        try:
            self.parts = [dict(part) for part in found["parts"]]
            self.results = [
                (range(len(self.parts))[int(row["part"])], ShapeResult.from_record(row))
                for row in found["shapes"]
            ]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.path}: is no file of a benchmark ({error!r})") from error

    def compare(self, machine: Mapping[str, str], ranks: int) -> None:
        """Holds the machine against those of the parts whose shapes are kept.

        Args:
            machine: What measures now; see `bench_machine.machine_of`.
            ranks: How many GPUs take part.

        Raises:
            UserError: It is another kind of machine, or has other versions.
        """
        for number in sorted({part for part, result in self.results if not result.left_out}):
            before: Mapping[str, str] = self.parts[number].get("environment") or {}
            refused, told = compare_machines(before, machine, ranks)
            if refused:
                raise self._refusal(f"was measured on another machine ({'; '.join(refused)})")
            if told:
                self._remark(f"part {number} was measured elsewhere: {'; '.join(told)}")

    def begin(self) -> dict[str, Any]:
        """Begins a part; what is known of it only later goes into what is returned."""
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        part: dict[str, Any] = {"began": began, "remarks": self.remarks}
        self.parts.append(part)
        return part

    def add(self, result: ShapeResult) -> None:
        """Adds a shape to the part that runs, in place of one that was left out, and writes the file."""
        self.results = [row for row in self.results if row[1].shape != result.shape]
        self.results.append((len(self.parts) - 1, result))
        self.write()

    def write(self, bands: Sequence[BandSummary] = ()) -> None:
        """Writes the file anew; half of one is never there.

        Raises:
            UserError: It cannot be written.
        """
        if self.path is None:
            return
        record = {
            **self.head,
            "parts": self.parts,
            "bands": [row.to_record() for row in bands],
            "shapes": [{"part": part, **result.to_record()} for part, result in self.results],
        }
        fresh = self._fresh(self.path)
        try:
            fresh.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
            fresh.replace(self.path)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from error

    def _refusal(self, why: str) -> UserError:
        return UserError(f"{self.path}: {why}; choose another --output")

    def _remark(self, text: str) -> None:
        """Says what whoever reads the file must know too."""
        say(f"{self.path}: {text}")
        self.remarks.append(text)

    @staticmethod
    def _fresh(path: Path) -> Path:
        return path.with_name(f".{path.name}.new")
