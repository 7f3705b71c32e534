import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerneltui.search.parameter import Constraint, Parameter, SpaceError
from kerneltui.search.space import Space

CHUNK = Parameter("CHUNK", (16, 32, 64, 128), default=64)
COPY = Parameter("COPY", ("memcpy", "stream"), default="memcpy")
DEPTH = Parameter("DEPTH", (1, 2, 4), default=1)


def small(copy_limit: int = 64) -> Space:
    holds = Constraint(
        ("CHUNK", "COPY"), lambda v: v["COPY"] == "memcpy" or int(v["CHUNK"]) <= copy_limit
    )
    return Space.of((CHUNK, COPY, DEPTH), (holds,))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    modulus=st.integers(2, 5),
    data=st.data(),
)
def test_enumeration_equals_the_filtered_product(sizes: list[int], modulus: int, data: Any):
    parameters = [Parameter(f"p{i}", tuple(range(size))) for i, size in enumerate(sizes)]
    names = [parameter.name for parameter in parameters]
    subsets = data.draw(
        st.lists(st.lists(st.sampled_from(names), min_size=1, unique=True), max_size=3)
    )

    def holds(values: Any) -> Any:
        return sum(values.values()) % modulus != 1

    expected = [
        values
        for values in itertools.product(*(parameter.values for parameter in parameters))
        if all(holds({name: values[names.index(name)] for name in subset}) for subset in subsets)
    ]
    constraints = [Constraint(tuple(subset), holds) for subset in subsets]
    if not expected:
        with pytest.raises(SpaceError, match="no valid configuration"):
            Space.of(parameters, constraints)
        return
    space = Space.of(parameters, constraints)
    assert [space.at(i) for i in range(len(expected))] == expected
    assert [space.index(values) for values in expected] == list(range(len(expected)))
    everything = set(itertools.product(*(parameter.values for parameter in parameters)))
    assert {values for values in everything if space.contains(values)} == set(expected)


def test_a_constraint_is_evaluated_once_for_each_combination_it_reads():
    calls = []

    def holds(values: Any) -> Any:
        calls.append(dict(values))
        return values["p0"] < 5

    parameters = [Parameter(f"p{i}", tuple(range(10))) for i in range(5)]
    space = Space.of(parameters, [Constraint(("p0",), holds)])
    assert space.size == 50_000
    assert len(calls) == 10


def test_one_condition_on_all_names_is_enough():
    assert Space.of((CHUNK, DEPTH), lambda v: int(v["CHUNK"]) * int(v["DEPTH"]) <= 64).size == 6


def test_a_product_beyond_64_bits_is_still_indexed():
    parameters = [Parameter(f"p{i}", tuple(range(100))) for i in range(12)]
    names = tuple(parameter.name for parameter in parameters)
    prune = [Constraint((name,), lambda v, n=name: v[n] in (7, 93)) for name in names]
    space = Space.of(parameters, prune)
    assert space.size == 2**12
    assert all(space.index(space.at(i)) == i for i in range(0, 2**12, 97))
    assert not space.contains((8,) * 12)


def test_a_space_too_large_to_list_is_sampled_and_repaired():
    parameters = [Parameter(f"p{i}", tuple(range(10))) for i in range(12)]
    chain = [
        Constraint((f"p{i}", f"p{i + 1}"), lambda v, i=i: v[f"p{i}"] <= v[f"p{i + 1}"] + 2)
        for i in range(11)
    ]
    space = Space.of(parameters, chain)
    assert space.size is None
    rows = space.sample(np.random.default_rng(1), 20, ())
    assert len({tuple(row) for row in rows.tolist()}) == 20
    for row in rows.tolist():
        assert all(row[i] <= row[i + 1] + 2 for i in range(11))
    again = space.sample(np.random.default_rng(1), 20, ())
    assert (rows == again).all()
    narrowed = space.restricted((), {f"p{i}": 5 for i in range(8)})
    assert narrowed.size is not None
    assert all(narrowed.at(i)[:8] == (5,) * 8 for i in range(narrowed.size))


def test_sampling_a_listed_space_ends_when_it_is_used_up():
    space = small()
    rng = np.random.default_rng(0)
    everything = space.sample(rng, 1000, ())
    assert len(everything) == space.size
    assert len(space.sample(rng, 5, {tuple(row) for row in everything.tolist()})) == 0


def test_bans_and_forces_narrow_the_space():
    space = small()
    narrowed = space.restricted({("CHUNK", 16), ("DEPTH", 4)}, {"COPY": "stream"})
    assert [narrowed.at(i) for i in range(narrowed.size or 0)] == [
        (32, "stream", 1),
        (32, "stream", 2),
        (64, "stream", 1),
        (64, "stream", 2),
    ]
    assert not narrowed.contains((32, "memcpy", 1))


@pytest.mark.parametrize(
    ("bans", "forces", "message"),
    [
        ({("CHUNKS", 1)}, {}, "unknown parameter CHUNKS; the parameters are CHUNK, COPY, DEPTH"),
        ({("CHUNK", 17)}, {}, "parameter CHUNK: 17 is not a legal value; use one of 16 32 64 128"),
        ({("COPY", "memcpy"), ("COPY", "stream")}, {}, "COPY: every value is banned"),
        ({("COPY", "memcpy")}, {"COPY": "memcpy"}, "COPY: every value is banned"),
        ((), {"CHUNK": 128, "COPY": "stream"}, "leave no valid configuration"),
    ],
)
def test_a_restriction_that_makes_no_sense_is_refused(bans: Any, forces: Any, message: str):
    with pytest.raises(SpaceError, match=message):
        small().restricted(bans, forces)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Parameter("A", ()), "parameter A: no values"),
        (lambda: Parameter("A", (1, 1.0)), "parameter A: a value is listed twice"),
        (lambda: Parameter("A", (1, 2), default=3), "parameter A: default 3 is not a legal value"),
        (lambda: Space.of(()), "at least one parameter"),
        (lambda: Space.of((CHUNK, CHUNK)), "parameter CHUNK is declared twice"),
        (lambda: Space.of((CHUNK,), lambda v: False), "leave no valid configuration"),
        (lambda: Space.of((CHUNK,), (Constraint(("X",), lambda v: True),)), "reads X, which is"),
        (lambda: Space.of((CHUNK,), lambda v: 1 / 0), "cannot be evaluated at"),
        (lambda: Space.of_valid((CHUNK,), ()), "no valid configuration is listed"),
        (lambda: Space.of_valid((CHUNK,), [(5,)]), "5 is not a legal value"),
        (lambda: small().configuration({"CHUNK": 5}), "5 is not a legal value"),
        (lambda: small().encode((16, "memcpy")), "2 values for 3 parameters"),
        (lambda: small().at(10_000), "configuration 10000 does not exist"),
        (lambda: small().index((128, "stream", 1)), "is not in the space"),
        (lambda: CHUNK.parse("big"), "big is not a legal value; use one of 16 32 64 128"),
    ],
)
def test_errors_name_what_is_wrong(build: Callable[[], object], message: str):
    with pytest.raises(SpaceError, match=message):
        build()


def test_names_values_and_defaults():
    space = small()
    assert space.configuration({"COPY": "stream"}) == (64, "stream", 1)
    assert space.named((64, "stream", 1)) == {"CHUNK": 64, "COPY": "stream", "DEPTH": 1}
    assert space.default() == (64, "memcpy", 1)
    assert Space.of((Parameter("A", (1, 2)),)).default() is None
    assert CHUNK.parse(" 32 ") == 32
    assert COPY.parse("stream") == "stream"
