from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.model.limit import Ceilings, bound, reachable_ns
from kerneltui.model.measurement import BoundKind
from kerneltui.model.workload import Shape
from kerneltui.model.workload_file import load_workload

WORKLOAD = load_workload(Path(__file__).parents[2] / "workloads" / "gemm_allgather")
SIZES = st.integers(1, 5000)
RATES = st.floats(1e6, 1e14)
CEILINGS = st.builds(
    Ceilings, ranks=st.just(2), flops=RATES, peak_flops=RATES, memory_bytes=RATES, link_bytes=RATES,
    latency_ns=st.floats(0, 1e4),
)  # fmt: skip


def shape_of(m: int, n: int, k: int, ranks: int = 2) -> Shape:
    return Shape("s", {"M": m, "N": n, "K": k}, ("tune",), ranks)


def test_the_bound_by_hand():
    ceilings = Ceilings(2, 1e9, 2e9, 1e8, 1e7, 500.0)
    found = bound(WORKLOAD.limit, shape_of(100, 100, 100), ceilings)
    # one rank: 2*100*100*100/2 operations, 4*(5000 + 10000 + 10000) bytes, 4*100*100/2 bytes
    assert found.kind is BoundKind.LINK
    assert found.time_ns == 2_000_000
    assert found.floor_ns == 500_000


@given(SIZES, SIZES, SIZES, st.integers(1, 8), CEILINGS)
def test_the_bound_is_the_slowest_of_three(m: int, n: int, k: int, ranks: int, ceilings: Ceilings):
    found = bound(WORKLOAD.limit, shape_of(m, n, k, ranks), ceilings)
    times = {
        BoundKind.ARITHMETIC: 2 * m * n * k / ranks / ceilings.flops,
        BoundKind.MEMORY: 4 * (m * k / ranks + k * n + m * n) / ceilings.memory_bytes,
        BoundKind.LINK: 4 * m * n * (ranks - 1) / ranks / ceilings.link_bytes,
    }
    assert found.time_ns == pytest.approx(max(times.values()) * 1e9, abs=1, rel=1e-9)
    assert times[found.kind] == pytest.approx(max(times.values()), rel=1e-9)
    assert found.floor_ns == pytest.approx(2 * m * n * k / ranks / ceilings.peak_flops * 1e9, abs=1)


@given(SIZES, SIZES, SIZES, CEILINGS, st.floats(1, 10))
def test_a_faster_machine_has_no_higher_bound(m: int, n: int, k: int, slow: Ceilings, gain: float):
    fast = Ceilings(
        2, slow.flops * gain, slow.peak_flops * gain, slow.memory_bytes * gain,
        slow.link_bytes * gain, slow.latency_ns,
    )  # fmt: skip
    one, other = (bound(WORKLOAD.limit, shape_of(m, n, k), c) for c in (slow, fast))
    assert other.time_ns <= one.time_ns
    assert other.floor_ns <= one.floor_ns


def test_one_rank_needs_no_link():
    tight = Ceilings(1, 1e12, 1e12, 1e12, 1.0, 0.0)
    assert bound(WORKLOAD.limit, shape_of(64, 64, 64, ranks=1), tight).kind is not BoundKind.LINK


def test_the_tail_of_the_last_wave_by_hand():
    # 2048 rows of 4096 columns are 16 x 16 tiles of 128 x 256: two waves of 132, the last one of 124
    ceilings = Ceilings(2, 800e12, 900e12, 4e12, 350e9, 5_000.0)
    shape = Shape("4096x4096x4096", {"M": 4096, "N": 4096, "K": 4096}, ("tune",), 2, 2)
    arithmetic = 4096**3 / 800e12 * 264 / 256
    tail = 2 * 4096 * 4096 / 2 * 124 / 256 / 350e9 + 5e-6
    assert reachable_ns(WORKLOAD.limit, shape, ceilings, 132) == round((arithmetic + tail) * 1e9)


SHAPES = st.builds(shape_of, SIZES, SIZES, SIZES, st.integers(1, 8))


@given(SHAPES, CEILINGS, st.integers(1, 200))
def test_nothing_reachable_is_below_the_bound(shape: Shape, ceilings: Ceilings, sms: int):
    found = reachable_ns(WORKLOAD.limit, shape, ceilings, sms)
    assert found >= bound(WORKLOAD.limit, shape, ceilings).time_ns - 1


def test_without_gpus_or_tiles_nobody_knows_what_is_reachable():
    ceilings = Ceilings(2, 1e9, 2e9, 1e8, 1e7, 500.0)
    assert reachable_ns(WORKLOAD.limit, shape_of(9, 9, 9), ceilings, 0) == 0
    unknown = replace(WORKLOAD.limit, tiles=None)
    assert reachable_ns(unknown, shape_of(9, 9, 9), ceilings, 132) == 0
