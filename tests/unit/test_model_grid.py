from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.model.errors import DefinitionError
from kerneltui.model.grid import combinations, sampled
from kerneltui.model.workload import Workload
from kerneltui.model.workload_file import parse_workload

HEAD = """\
schema = 1
title = "Rows"
dimensions = ["M", "N"]
dtype = "float32"
accumulate = "float64"

[target.cpu]
ranks = 1
seed = "host.cpp"
baselines = ["torch_gloo"]

[target.cuda]
ranks = 2
seed = "host.cu"
baselines = ["torch_nccl"]

[tolerance]
factor = 8.0
reduction = "N"
library = 4

[limit]
flops = "2 * M * N"
memory_bytes = "4 * M * N"
link_bytes = 0

[[tensor]]
name = "C"
shape = ["M", "N"]
role = "output"

[[shape]]
M = 64
N = 32
tags = ["tune"]
"""

CUBE = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384]


def parsed(grid: str, target: str | None = None) -> Workload:
    return parse_workload(f"{HEAD}\n[[grid]]\n{grid}", Path("work") / "rows", target)


def test_every_combination_is_a_shape():
    workload = parsed('M = [8, 16]\nN = [4, 2]\ntags = ["bench"]')
    names = [shape.name for shape in workload.shapes_for("bench")]
    assert names == ["8x4", "8x2", "16x4", "16x2"]
    assert [shape.name for shape in workload.shapes_for("tune")] == ["64x32"]


def test_a_combination_that_is_listed_gets_the_tags_of_both():
    workload = parsed('M = [64]\nN = [32, 16]\ntags = ["bench", "tune"]')
    (listed,) = (shape for shape in workload.shapes if shape.name == "64x32")
    assert listed.tags == ("tune", "bench")
    assert len(workload.shapes) == 2


def test_a_grid_can_be_for_some_targets_and_have_ranks_of_its_own():
    grid = 'M = [8]\nN = [4]\ntags = ["bench"]\ntargets = ["cuda"]\nranks = 1'
    assert not parsed(grid, "cpu").shapes_for("bench")
    (shape,) = parsed(grid, "cuda").shapes_for("bench")
    assert (shape.name, shape.ranks) == ("8x4 P1", 1)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ('N = [4]\ntags = ["bench"]', "grid[0].M: is missing, expected a list of integers"),
        ('M = 8\nN = [4]\ntags = ["bench"]', "grid[0].M: expected a list of integers, found 8"),
        ('M = []\nN = [4]\ntags = ["bench"]', "grid[0].M: expected a list of integers, found []"),
        ('M = [true]\nN = [4]\ntags = ["bench"]', "grid[0].M: expected a list of integers"),
        ('M = [8, 8]\nN = [4]\ntags = ["bench"]', "grid[0].M: 8 is listed twice"),
        ('M = [0]\nN = [4]\ntags = ["bench"]', "grid[0].M: has 0, expected at least 1"),
        ('M = [8]\nN = [4]\ntags = ["big"]', "grid[0].tags: 'big' is not one of"),
        ('M = [8]\nN = [4]\nsample = 2\ntags = ["bench"]', "is 2, but there are 1 combinations"),
        ('M = [8]\nN = [4]\nsample = 0\ntags = ["bench"]', "grid[0].sample: is 0"),
        ('M = [8]\nN = [4]\ntags = ["bench"]\nK = [1]', "grid[0].K: unknown key"),
    ],
)
def test_mistakes_name_the_key(grid: str, message: str):
    with pytest.raises(DefinitionError) as caught:
        parsed(grid)
    assert message in str(caught.value)


def test_too_many_combinations_are_refused():
    row = list(range(1, 151))
    with pytest.raises(DefinitionError) as caught:
        parsed(f'M = {row}\nN = {row}\ntags = ["bench"]')
    assert "22500 combinations, at most 20000" in str(caught.value)


def test_a_sample_of_the_cube_has_two_or_three_of_every_band():
    rows = sampled(combinations({"M": CUBE, "N": CUBE, "K": CUBE}), 64)
    bands: dict[int, int] = {}
    for row in rows:
        bands[prod(row.values()).bit_length()] = bands.get(prod(row.values()).bit_length(), 0) + 1
    assert len(rows) == 64
    assert set(bands) == set(range(19, 44))
    # The smallest and the largest band have one combination each.
    assert all(count in (2, 3) for band, count in bands.items() if band not in (19, 43))


axis = st.lists(st.integers(1, 1 << 15), min_size=1, max_size=6, unique=True)


@given(m=axis, n=axis, data=st.data())
def test_samples_are_combinations_each_once_and_always_the_same(
    m: list[int], n: list[int], data: st.DataObject
):
    rows = combinations({"M": m, "N": n})
    count = data.draw(st.integers(1, len(rows)))
    found = sampled(rows, count)
    names = [tuple(row.items()) for row in found]
    assert len(names) == len(set(names)) == count
    assert set(names) <= {tuple(row.items()) for row in rows}
    again = sampled(list(reversed(combinations({"M": m[::-1], "N": n}))), count)
    assert [tuple(row.items()) for row in again] == names


@given(m=axis, n=axis, data=st.data())
def test_no_band_is_left_out_while_another_has_two_more(
    m: list[int], n: list[int], data: st.DataObject
):
    rows = combinations({"M": m, "N": n})
    count = data.draw(st.integers(1, len(rows)))
    of = lambda row: prod(row.values()).bit_length()  # noqa: E731
    there, taken = [of(row) for row in rows], [of(row) for row in sampled(rows, count)]
    for band in set(there):
        room = there.count(band) - taken.count(band)
        others = [taken.count(other) for other in set(there)]
        assert room == 0 or taken.count(band) >= max(others) - 1
