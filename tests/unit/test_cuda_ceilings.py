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
    {
        "flops": 7e14,
        "sustained_flops": 6e14,
        "memory_bytes": 4e12,
        "links": {"copy engine": 3.6e11, "stores of 32 CTAs": 2e11},
        "flag_ns": 1300.0,
    },
    {
        "flops": 7.5e14,
        "sustained_flops": 5e14,
        "memory_bytes": 4.1e12,
        "links": {"copy engine": 3.5e11, "stores of 32 CTAs": 3.7e11},
        "flag_ns": 1300.0,
    },
]


def place(folder: Path, driver: str = "580.1") -> Any:
    device = SimpleNamespace(items=lambda: {"gpu 0": "H200", "driver": driver}.items())
    described = SimpleNamespace(items=lambda: dict(device.items()))
    return SimpleNamespace(cache=folder, gpus=SimpleNamespace(describe=lambda index: described))


def test_each_rate_is_the_best_of_all_ranks() -> None:
    found = best_of(2, RATES)
    assert (found.flops, found.sustained_flops) == (7.5e14, 6e14)
    assert (found.memory_bytes, found.latency_ns) == (4.1e12, 1300.0)
    assert found.links == {"copy engine": 3.6e11, "stores of 32 CTAs": 3.7e11}
    assert found.peak_flops > found.flops


def test_the_link_is_as_fast_as_its_best_way() -> None:
    assert best_of(2, RATES).link_bytes == 3.7e11
    alone = best_of(1, [{**RATES[0], "links": {}, "flag_ns": 0.0}])
    assert alone.link_bytes == float("inf")
    assert alone.latency_ns > 0


def test_rates_in_words_name_every_way_to_a_peer() -> None:
    words = best_of(2, RATES).words()
    assert words["to a peer, copy engine"] == "360 GB/s"
    assert words["to a peer, stores of 32 CTAs"] == "370 GB/s"
    assert words["flag to a peer"] == "1.30 us"
    assert words["GEMM"] == "750.0 TFLOP/s in bursts, 600.0 without a pause"
    assert not any("peer" in name for name in best_of(1, RATES[:1]).words())


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_written_is_read_again(tmp_path: Path, ranks: int) -> None:
    rates = [{**rate, "links": {} if ranks == 1 else rate["links"]} for rate in RATES[:ranks]]
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
