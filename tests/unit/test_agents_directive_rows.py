from __future__ import annotations

import pytest

from kerneltui.agents.directive_rows import FEATURES, applying, features_of, rows, rows_text

H200 = (["2x", "NVIDIA", "H200,", "143771", "MiB,", "sm_90a"], {"cuda", "tma", "two_ranks"})
A100 = (["NVIDIA", "A100-SXM4-80GB,", "81920", "MiB,", "sm_80"], {"cuda", "several_ranks"})


@pytest.mark.parametrize(
    ("machine", "ranks", "features"), [(*H200[:1], 2, H200[1]), (*A100[:1], 8, A100[1])]
)
def test_a_machine_has_what_its_slowest_gpu_has(machine: list[str], ranks: int, features: set[str]):
    assert features_of("cuda", ranks, machine) == features
    assert "tma" not in features_of("cuda", ranks, [*machine, "sm_80"])


def test_the_cpu_has_none_of_it():
    assert features_of("cpu", 2, ["sm_90a"]) == {"two_ranks"}
    assert rows_text(features_of("cpu", 2, [])) == ""


def test_rows_name_known_features_and_every_row_applies_somewhere():
    for row in rows():
        assert row.needs | row.without <= FEATURES
        assert row in applying(row.needs)
        assert row.when and row.do and row.because


def test_only_rows_that_hold_here_are_told():
    h200, a100 = rows_text(H200[1]), rows_text(A100[1])
    assert "bulk stores (TMA)" in h200 and "bulk stores" not in a100
    assert "76 SMs" in a100 and "or chunks by the copy engine" not in h200
    assert "each rank beginning at another one" in a100 and "one store for each tile" in h200
    assert all(line.startswith("- ") for line in (h200 + "\n" + a100).splitlines())


@pytest.mark.parametrize("features", [H200[1], A100[1]])
def test_one_piece_of_advice_for_each_case(features: set[str]):
    names = [row.id for row in applying(features)]
    assert len(names) == len(set(names))
