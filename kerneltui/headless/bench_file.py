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
from kerneltui.headless.output import say
from kerneltui.model.errors import UserError

__all__ = ["SCHEMA", "BenchFile"]

SCHEMA = 2  # since short calls are timed as graphs
_SAME = ("schema", "workload", "definition", "target", "kernels", "plan")
"""What must be the same for a run that goes on with a file."""


def _no_parts() -> list[dict[str, Any]]:
    return []


@dataclass
class BenchFile:
    """A run, and the file that it goes to.

    Attributes:
        path: The file, or None if nothing is written.
        head: What is measured: workload, target, kernels by their hash, plan.
        parts: The runs that it is made of: when, where, how long.
        results: What was found, and in which part.
    """

    path: Path | None
    head: Mapping[str, Any]
    parts: list[dict[str, Any]] = field(default_factory=_no_parts)
    results: list[tuple[int, ShapeResult]] = field(default_factory=list[tuple[int, ShapeResult]])

    @property
    def measured(self) -> tuple[ShapeResult, ...]:
        """All shapes so far."""
        return tuple(result for _, result in self.results)

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
        for key in _SAME:
            if not isinstance(found, dict) or found.get(key) != plain[key]:
                raise UserError(
                    f"{self.path}: is of another run (other {key}); choose another --output"
                )
        try:
            self.parts = [dict(part) for part in found["parts"]]
            self.results = [
                (int(row["part"]), ShapeResult.from_record(row)) for row in found["shapes"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.path}: is no file of a benchmark ({error!r})") from error

    def begin(self) -> dict[str, Any]:
        """Begins a part; what is known of it only later goes into what is returned."""
        part: dict[str, Any] = {"began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        self.parts.append(part)
        return part

    def add(self, result: ShapeResult) -> None:
        """Adds a shape to the part that runs, and writes the file."""
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

    @staticmethod
    def _fresh(path: Path) -> Path:
        return path.with_name(f".{path.name}.new")
