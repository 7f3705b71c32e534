"""Launches in words, whatever stands in a note."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kerneltui.model.launch_words import launch_lines, launched_shapes

LAUNCH = {
    "name": "copy", "grid": [16, 2, 1], "threads": 128, "dynamic": 0, "ctas": 8, "count": 3,
    "limiter": "CTAs", "waves": 1, "tail": 0, "places": 1056, "cluster": 1,
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3)
    ),
    max_leaves=8,
)


def test_a_launch_that_is_made_several_times_is_one_line() -> None:
    part = {"shape": "a", "kernels": [LAUNCH], "others": {"copies": 2, "memsets": 1}, "more": 4}
    lines = [
        "copy 3 times: 32 CTAs of 128 threads, 8 on an SM by CTAs, 1 wave",
        "and 4 more launches",
        "beside them 2 copies, 1 memsets",
    ]
    assert launch_lines(part) == lines
    assert launched_shapes({"launches": [part, {"shape": "b", "kernels": []}]}) == [("a", lines)]


@given(st.fixed_dictionaries({}, optional=dict.fromkeys((*LAUNCH, "more"), JSON)))
def test_no_note_breaks_the_words(launch: dict[str, object]) -> None:
    part = {"shape": launch, "kernels": [launch], "others": launch, "more": launch.get("more")}
    for shape, lines in launched_shapes({"launches": [part, launch]}):
        assert isinstance(shape, str) and all(isinstance(line, str) for line in lines)
