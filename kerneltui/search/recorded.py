"""Exhaustively measured spaces, read from files, to judge strategies without measuring.

Two formats are read, plain or gzipped: the cache files of Kernel Tuner (``tune_params_keys``,
``tune_params``, ``cache``) and the T4 results of the auto-tuning community (``results`` with
``configuration``, ``invalidity`` and ``measurements``).
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from kerneltui.search.parameter import Configuration, Parameter, Value
from kerneltui.search.space import Space
from kerneltui.search.strategy import Strategy

__all__ = ["Recorded", "RecordedError", "read_recorded", "simulate"]

# Words for a combination that the constraints forbid; other words are failures to build or run.
_FORBIDDEN = {"InvalidConfig", "constraints"}
# Some old files mark a failure by this number instead of a word.
_FAILURE_TIME = 1e20


class RecordedError(ValueError):
    """A file that cannot be used; the text names the file, the place and what was expected."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A space with a known result for every configuration.

    Attributes:
        name: The file's name without its endings.
        space: All configurations that the file holds, also failed ones.
        times: In the file's unit; ``None`` for a failure.
        optimum: The shortest time.
    """

    name: str
    space: Space
    times: dict[Configuration, float | None]
    optimum: float


def read_recorded(path: Path) -> Recorded:
    """Reads a recorded space.

    Raises:
        RecordedError: The file cannot be read or is not of a known format.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        document: Any = json.loads(data)
    except OSError as error:
        raise RecordedError(f"{path}: {error.strerror or error}") from error
    except (ValueError, EOFError, zlib.error) as error:
        raise RecordedError(f"{path}: not complete JSON or gzip: {error}") from error
    try:
        if isinstance(document, dict) and "cache" in document:
            parameters, times = _from_cache(cast(dict[str, Any], document))
        elif isinstance(document, dict) and "results" in document:
            parameters, times = _from_t4(cast(dict[str, Any], document))
        else:
            raise RecordedError(
                f"{path}: neither a Kernel Tuner cache (key cache) nor T4 results (key results)"
            )
        if all(time is None for time in times.values()):
            raise RecordedError(f"{path}: no configuration has a time")
        space = Space.of_valid(parameters, times)
    except KeyError as error:
        raise RecordedError(f"{path}: key {error} is missing") from error
    except (TypeError, AttributeError, IndexError) as error:
        raise RecordedError(f"{path}: an entry has an unexpected form: {error}") from error
    except ValueError as error:
        text = str(error)
        raise RecordedError(text if text.startswith(str(path)) else f"{path}: {text}") from error
    optimum = min(time for time in times.values() if time is not None)
    return Recorded(path.name.split(".")[0], space, times, optimum)


def simulate(
    recorded: Recorded,
    strategy: Strategy,
    budget: int,
    batch: int,
    *,
    noise: float = 0.0,
    seed: int = 0,
) -> list[float]:
    """Lets a strategy search a recorded space.

    Args:
        recorded: The space.
        strategy: A fresh strategy on ``recorded.space``.
        budget: The number of evaluations; each configuration counts once.
        batch: Proposals that are asked for at a time.
        noise: Standard deviation of the log of a simulated measurement error.
        seed: Of the measurement errors.

    Returns:
        After each evaluation, optimum ÷ true time of the configuration that looks best so far;
        0 while nothing has run. If the space is used up, the last value is repeated.
    """
    rng = np.random.default_rng([seed, 1])
    curve: list[float] = []
    best_seen, quality = math.inf, 0.0
    while len(curve) < budget:
        proposals = strategy.ask(min(batch, budget - len(curve)))
        if not proposals:
            break
        for proposal in proposals:
            time = recorded.times[proposal.configuration]
            value = None if time is None else math.log(time) + noise * rng.standard_normal()
            strategy.tell(proposal.configuration, value)
            if time is not None and value is not None and value < best_seen:
                best_seen, quality = value, recorded.optimum / time
            curve.append(quality)
    return curve + [quality] * (budget - len(curve))


def _time(value: object) -> float | None:
    """Reads a time; a word or a number that is no time stands for a failure."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < _FAILURE_TIME else None


def _from_cache(
    document: dict[str, Any],
) -> tuple[list[Parameter], dict[Configuration, float | None]]:
    names: list[str] = document["tune_params_keys"]
    values: dict[str, list[Value]] = document["tune_params"]
    parameters = [Parameter(name, tuple(values[name])) for name in names]
    times: dict[Configuration, float | None] = {}
    for entry in document["cache"].values():
        if entry["time"] not in _FORBIDDEN:
            times[tuple(entry[name] for name in names)] = _time(entry["time"])
    return parameters, times


def _from_t4(document: dict[str, Any]) -> tuple[list[Parameter], dict[Configuration, float | None]]:
    results = [entry for entry in document["results"] if entry["invalidity"] not in _FORBIDDEN]
    if not results:
        return [], {}
    names: list[str] = list(results[0]["configuration"])
    times: dict[Configuration, float | None] = {}
    for entry in results:
        measured = {item["name"]: item["value"] for item in entry["measurements"]}
        time = _time(measured.get("time")) if entry["invalidity"] == "correct" else None
        times[tuple(entry["configuration"][name] for name in names)] = time
    # T4 results do not say which values are legal, so those that occur are; words keep no order.
    columns = [{configuration[place] for configuration in times} for place in range(len(names))]
    parameters = [
        Parameter(name, tuple(sorted(column, key=lambda value: (isinstance(value, str), value))))
        for name, column in zip(names, columns, strict=True)
    ]
    return parameters, times
