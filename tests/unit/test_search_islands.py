"""Islands and arms as folded from events: who can be a parent where, who migrates, what a pull gained."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_story import Story, gain_of

from kerneltui.model.candidate import Phase
from kerneltui.model.directive import Directive
from kerneltui.model.event import decode_event, encode_event
from kerneltui.model.state import State, fold
from kerneltui.search.arms import OFFLINE, pulls_of, slot_micro_usd
from kerneltui.search.islands import (
    home_of,
    migration,
    next_island,
    possible_parents,
    results_of,
)
from kerneltui.search.selection import choose_inspirations

HOST_DRIVEN, MOVES_ITSELF = (
    Directive.from_items(
        {
            "backend": backend,
            "issuer": "thread",
            "placement": "sequential",
            "sync": "world",
            "chunk_bytes": "0",
        }
    )
    for backend in ("host", "lsa")
)


@st.composite
def stories(draw: st.DrawFn) -> tuple[Story, int, int]:
    """A history as an engine makes it: results come late, migrations when they are due."""
    islands, every = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    story = Story()
    for _ in range(draw(st.integers(0, 25))):
        match draw(st.sampled_from(["propose", "search", "result", "result", "accept", "human"])):
            case "propose":
                island = next_island(story.state, islands)
                parents = sorted(possible_parents(story.state, island, islands))
                story.propose(draw(st.sampled_from(parents)), island=island, arm="large", paid=True)
            case "search":
                story.propose("c0000", arm=OFFLINE, island=next_island(story.state, islands))
            case "human":
                story.propose("c0000", human=True)
            case "accept":
                story.accept(draw(st.integers(0, 30)))
            case _:
                ratio = draw(st.none() | st.floats(0.5, 3.0))
                story.finish(draw(st.integers(0, 30)), ratio)
        moves = migration(story.state, islands, every)
        if moves:
            story.migrate(results_of(story.state), moves)
    return story, islands, every


@given(stories())
def test_the_same_events_give_the_same_islands(found: tuple[Story, int, int]) -> None:
    story, islands, every = found
    again = fold(decode_event(encode_event(event)) for event in story.events)
    assert again.canonical() == story.state.canonical()
    assert State.from_canonical(again.canonical()).canonical() == again.canonical()
    for island in range(islands + 1):
        assert possible_parents(again, island, islands) == possible_parents(
            story.state, island, islands
        )
    assert next_island(again, islands) == next_island(story.state, islands)
    assert migration(again, islands, every) == migration(story.state, islands, every)
    assert pulls_of(again) == pulls_of(story.state)


@given(stories())
def test_parents_are_natives_guests_what_is_common_and_main(found: tuple[Story, int, int]) -> None:
    story, islands, _ = found
    state = story.state
    everything = possible_parents(state, 0, islands)
    for island in range(1, islands + 1):
        parents = possible_parents(state, island, islands)
        assert state.incumbent in parents
        assert set(parents) <= set(everything)
        for name in set(parents) - {state.incumbent}:
            candidate = state.candidates[name]
            assert candidate.phase is Phase.MEASURED
            assert home_of(candidate, islands) in (0, island) or island in candidate.guest_of
        strangers = set(everything) - set(parents)
        assert all(
            home_of(state.candidates[name], islands) not in (0, island) for name in strangers
        )


@given(stories())
def test_islands_grow_evenly_and_guests_stay_at_home(found: tuple[Story, int, int]) -> None:
    story, islands, _ = found
    made = [c.island for c in story.state.candidates.values() if c.calls]
    if islands == 1:
        assert set(made) <= {0}
        assert not any(c.guest_of for c in story.state.candidates.values())
        return
    counts = [made.count(island) for island in range(1, islands + 1)]
    assert max(counts) - min(counts) <= 1
    for candidate in story.state.candidates.values():
        assert candidate.island not in candidate.guest_of


def test_the_best_of_an_island_is_a_guest_of_the_others_after_so_many_results() -> None:
    story = Story()
    for island, ratio in ((1, 1.1), (2, 1.3), (1, 1.4), (2, None)):
        story.propose("c0000", island=island, arm="large", paid=True)
        assert not migration(story.state, 2, 4)
        story.finish(0, ratio)
    moves = migration(story.state, 2, 4)
    assert [(move.candidate, move.to) for move in moves] == [("c0003", (2,)), ("c0002", (1,))]
    story.migrate(4, moves)
    assert story.state.candidates["c0003"].guest_of == (2,)
    assert story.state.candidates["c0003"].island == 1
    assert set(possible_parents(story.state, 2, 2)) == {"c0000", "c0002", "c0003"}
    assert not migration(story.state, 2, 4), "four more results first"


def test_with_fewer_islands_migration_goes_on() -> None:
    story = Story()
    for island, ratio in ((1, 1.1), (2, 1.3), (3, 1.2), (3, 1.25)):
        story.propose("c0000", island=island, arm="large", paid=True)
        story.finish(0, ratio)
    story.migrate(results_of(story.state), migration(story.state, 3, 4))
    for island, ratio in ((1, 1.5), (2, 1.6)):
        story.propose("c0000", island=island, arm="large", paid=True)
        story.finish(0, ratio)
    moves = migration(story.state, 2, 2)
    assert [(move.candidate, move.to) for move in moves] == [("c0005", (2,)), ("c0006", (1,))]


def test_nobody_migrates_twice_or_from_main() -> None:
    story = Story()
    for island, ratio in ((1, 1.4), (2, 1.3)):
        story.propose("c0000", island=island, arm="large", paid=True)
        story.finish(0, ratio)
    story.accept_named("c0001")
    moves = migration(story.state, 2, 1)
    assert [move.candidate for move in moves] == ["c0002"], "c0001 is on main, so everywhere"
    story.migrate(2, moves)
    story.propose("c0000", island=2, arm="large", paid=True)
    story.finish(0, 1.1)
    assert not migration(story.state, 2, 1)


def test_fewer_islands_than_before_make_the_rest_common() -> None:
    story = Story()
    story.propose("c0000", island=3, arm="large", paid=True)
    story.finish(0, 1.2)
    assert "c0001" not in possible_parents(story.state, 1, 3)
    assert "c0001" in possible_parents(story.state, 1, 2)


def seen_from(story: Story) -> list[set[str]]:
    """The possible parents on either of two islands, of a session whose seed the host drives."""
    return [set(possible_parents(story.state, island, 2, host_seed=True)) for island in (1, 2)]


def test_what_the_host_drives_is_left_behind_by_a_kernel_whose_ranks_move_data() -> None:
    story = Story()
    assert seen_from(story) == [{"c0000"}] * 2
    story.propose("c0000", directive=HOST_DRIVEN)
    story.finish(0, 1.3)
    story.accept_named("c0001")
    story.propose("c0001", directive=MOVES_ITSELF)
    assert seen_from(story) == [{"c0000", "c0001"}] * 2
    story.finish(0, None)
    assert seen_from(story) == [{"c0000", "c0001"}] * 2, "it failed"
    story.propose("c0001", directive=MOVES_ITSELF)
    story.finish(0, 1.2)
    assert seen_from(story) == [{"c0003"}] * 2, "also from main"
    story.propose("c0003", island=1, directive=MOVES_ITSELF)
    story.finish(0, 1.4)
    assert seen_from(story) == [{"c0003", "c0004"}, {"c0003"}]


def test_the_seed_stays_where_it_is_not_known_that_the_host_drives_it() -> None:
    story = Story()
    story.propose("c0000", directive=MOVES_ITSELF)
    story.finish(0, 1.2)
    assert set(possible_parents(story.state, 1, 2)) == {"c0000", "c0001"}
    assert seen_from(story) == [{"c0001"}] * 2


def test_an_island_without_any_kernel_of_its_own_has_the_one_on_main() -> None:
    story = Story()
    story.propose("c0000", island=1, directive=MOVES_ITSELF)
    story.finish(0, 1.2)
    assert seen_from(story) == [{"c0001"}, {"c0000"}]


def test_one_that_is_too_good_to_be_true_leaves_the_host_behind_once_it_is_accepted() -> None:
    story = Story()
    story.propose("c0000", directive=HOST_DRIVEN)
    story.finish(0, 1.1)
    story.propose("c0001", directive=MOVES_ITSELF)
    story.finish(0, 4.0, quarantine="somebody should look")
    assert seen_from(story) == [{"c0000", "c0001"}] * 2
    story.accept_named("c0002")
    assert seen_from(story) == [{"c0002"}] * 2


def test_one_rank_leaves_nothing_behind() -> None:
    story = Story()
    story.state.ranks = 1
    story.propose("c0000", directive=MOVES_ITSELF)
    story.finish(0, 1.2)
    story.propose("c0000", directive=HOST_DRIVEN)
    story.finish(0, 1.1)
    assert seen_from(story) == [{"c0000", "c0001", "c0002"}] * 2


def test_a_gain_is_over_the_better_parent_and_beyond_the_noise() -> None:
    story = Story(delta=0.01)
    story.propose("c0000", arm="large")
    story.finish(0, 1.2)
    story.propose("c0001", arm="large")
    story.finish(0, 1.5)
    story.propose("c0001", "c0002", arm="small")
    story.finish(0, 1.8)
    story.propose("c0003", arm=OFFLINE)
    story.finish(0, 1.805)
    story.propose("c0003", arm=OFFLINE)
    story.propose("c0003", arm="small")
    story.finish(1, None)
    pulls = pulls_of(story.state)
    assert [pull.arm for pull in pulls] == ["large", "large", "small", OFFLINE, OFFLINE, "small"]
    assert gain_of(pulls[:3]) == pytest.approx(
        [math.log(1.2), math.log(1.5 / 1.2), math.log(1.8 / 1.5)]
    )
    assert gain_of(pulls[3:]) == [0.0, None, 0.0]


def test_attempts_without_a_kernel_are_pulls_with_their_cost() -> None:
    story = Story()
    story.propose("c0000", arm="large", paid=True)
    story.fail_to_propose("small")
    story.fail_to_propose("")
    pulls = pulls_of(story.state)
    assert [(pull.arm, pull.gain, pull.micro_usd) for pull in pulls] == [
        ("large", None, 1000),
        ("small", 0.0, 1000),
    ]
    assert story.state.fruitless == {"slow small": 1, "slow": 1}
    story.propose("c0000", arm=OFFLINE)
    assert story.state.fruitless == {"slow small": 1, "slow": 1}, "the search is another arm"
    story.propose("c0000", arm="small")
    assert story.state.fruitless == {"slow": 1}


def test_what_a_proposal_is_worth_in_money() -> None:
    story = Story()
    assert slot_micro_usd(story.state) is None
    story.budget(candidates=20, micro_usd=10_000_000)
    assert slot_micro_usd(story.state) == 500_000
    story.budget(candidates=None, micro_usd=10_000_000)
    assert slot_micro_usd(story.state) == 250_000


def test_inspirations_are_the_best_other_one_and_then_any() -> None:
    scores = {"a": 0.1, "b": 0.4, "c": 0.3, "d": 0.2}
    chosen = choose_inspirations(scores, ("b",), 3, random.Random(1))
    assert chosen[0] == "c"
    assert set(chosen[1:]) == {"a", "d"}
    assert choose_inspirations(scores, (), 0, random.Random(1)) == ()
    assert choose_inspirations({"a": 1.0}, ("a",), 2, random.Random(1)) == ()
    drawn = {choose_inspirations(scores, (), 2, random.Random(seed))[1] for seed in range(40)}
    assert drawn == {"a", "c", "d"}
