"""Rates of GPUs are kept for the same devices, and measured again for others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kerneltui.targets.cuda.ceilings import (
    best_of,
    read_ceilings,
    stored_ceilings,
    write_ceilings,
)

RATES = [
    {"flops": 7e14, "sustained_flops": 6e14, "memory_bytes": 4e12, "link_bytes": 3.6e11},
    {"flops": 7.5e14, "sustained_flops": 5e14, "memory_bytes": 4.1e12, "link_bytes": 3.5e11},
]


def place(folder: Path, driver: str = "580.1") -> Any:
    device = SimpleNamespace(items=lambda: {"gpu 0": "H200", "driver": driver}.items())
    described = SimpleNamespace(items=lambda: dict(device.items()))
    return SimpleNamespace(cache=folder, gpus=SimpleNamespace(describe=lambda index: described))


def test_each_rate_is_the_best_of_all_ranks() -> None:
    found = best_of(2, RATES)
    assert (found.flops, found.sustained_flops) == (7.5e14, 6e14)
    assert (found.memory_bytes, found.link_bytes) == (4.1e12, 3.6e11)
    assert found.peak_flops > found.flops


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_written_is_read_again(tmp_path: Path, ranks: int) -> None:
    rates = [{**rate, "link_bytes": 0.0 if ranks == 1 else 3e11} for rate in RATES[:ranks]]
    stored = stored_ceilings(place(tmp_path), ranks, "bfloat16")
    assert read_ceilings(stored) is None
    write_ceilings(stored, best_of(ranks, rates))
    assert read_ceilings(stored) == best_of(ranks, rates)
    assert [file.name for file in stored.parent.iterdir()] == [stored.name]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ranks": 2}', '{"other": 1}'])
def test_a_damaged_file_is_measured_anew(tmp_path: Path, text: str) -> None:
    stored = stored_ceilings(place(tmp_path), 2, "bfloat16")
    stored.parent.mkdir(parents=True)
    stored.write_text(text)
    assert read_ceilings(stored) is None


def test_another_driver_dtype_or_number_of_ranks_is_another_file(tmp_path: Path) -> None:
    names = {
        stored_ceilings(place(tmp_path), 2, "bfloat16").name,
        stored_ceilings(place(tmp_path), 1, "bfloat16").name,
        stored_ceilings(place(tmp_path), 2, "float16").name,
        stored_ceilings(place(tmp_path, driver="590"), 2, "bfloat16").name,
    }
    assert len(names) == 4
