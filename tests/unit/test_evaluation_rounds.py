import pytest
from evaluation_fakes import MS, burst, rounds, sample

from kerneltui.evaluation.rounds import Burst, ShapeRounds


def test_the_slowest_rank_counts_and_all_calls_share_the_time() -> None:
    found = Burst.of([sample((0, [2 * MS, 4 * MS]), (MS, [3 * MS, 6 * MS]))])
    assert found.value_ns == 3 * MS
    assert found.ranks_ns == (2 * MS, 2.5 * MS)


def test_a_burst_is_the_median_of_its_samples() -> None:
    found = Burst.of([sample((0, [value * MS])) for value in (5, 1, 2)])
    assert found.value_ns == 2 * MS


@pytest.mark.parametrize("end", [0, -5])
def test_a_time_that_is_not_positive_is_refused(end: int) -> None:
    with pytest.raises(ValueError, match="times"):
        Burst.of([sample((0, [end]))])


def test_a_few_conflicts_of_clocks_are_chance_and_a_quarter_is_not() -> None:
    one = rounds([1, 1, 1], [1, 1, 1])
    one.candidate[0] = burst(1, conflict="clocks disagree")
    assert one.conflict == ""
    one.candidate[2] = burst(1, conflict="clocks disagree")
    assert one.conflict == "clocks disagree"
    many = rounds([1] * 11, [1] * 11)
    many.candidate[:2] = [burst(1, conflict="clocks disagree")] * 2
    assert many.conflict == ""
    many.candidate[:3] = [burst(1, conflict="clocks disagree")] * 3
    assert many.conflict == "clocks disagree"


def test_conflicts_that_the_incumbent_has_beside_it_are_the_machines() -> None:
    both = rounds([1] * 4, [1] * 4)
    both.candidate[:2] = [burst(1, conflict="clocks disagree")] * 2
    both.incumbent[1] = burst(1, conflict="clocks disagree")
    assert both.conflict == ""
    both.candidate[2] = burst(1, conflict="clocks disagree")
    assert both.conflict == "clocks disagree"


def test_hidden_time_is_what_the_engine_saw_beyond_the_incumbent() -> None:
    part = ShapeRounds("s", 1, [burst(1, gap_ns=5 * MS)], [burst(1, gap_ns=MS)], [None])
    assert part.hidden_ns() == 4 * MS


def test_records_are_whole_nanoseconds() -> None:
    part = rounds([1.0000004], [2.0], [None])
    assert part.to_record()["candidate"] == [[1000000, 1000000, 1000000]]
    assert part.to_raw()["reference"] == [None]
