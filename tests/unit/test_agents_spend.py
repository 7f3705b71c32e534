"""The meter: nothing is lost, the budget holds, and a crash changes nothing."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.agents.model_port import Role, Usage
from kerneltui.agents.spend import Account, OverBudget, Spend, SpendFact, facts_of
from kerneltui.model.agent_event import CallRecord

USAGES = st.builds(
    Usage,
    st.integers(0, 10_000),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
)
FACTS = st.builds(
    SpendFact,
    st.sampled_from(Role),
    st.sampled_from(["", "c0001", "c0002"]),
    USAGES,
    st.none() | st.integers(0, 2_000_000),
    st.sampled_from(["opus", "local"]),
    st.integers(0, 50),
)


@given(st.lists(FACTS, max_size=20), st.randoms(use_true_random=False))
def test_the_order_of_facts_changes_nothing(facts: list[SpendFact], dice: random.Random):
    shuffled = list(facts)
    dice.shuffle(shuffled)
    one, other = Spend.of(facts, 3_000_000, 40_000), Spend.of(shuffled, 3_000_000, 40_000)
    assert one.view == other.view


@given(st.lists(FACTS, max_size=20))
def test_parts_add_up_to_the_whole(facts: list[SpendFact]):
    view = Spend.of(facts).view
    for parts in (view.roles.values(), view.candidates.values()):
        assert sum(part.micro_usd for part in parts) == view.total.micro_usd
        assert sum(part.usage.total for part in parts) == view.total.usage.total
        assert sum(part.unpriced for part in parts) == view.total.unpriced
    assert view.total.micro_usd == sum(fact.micro_usd or 0 for fact in facts)
    assert view.running == view.held_micro_usd == view.held_tokens == 0


@given(st.lists(FACTS, max_size=20))
def test_what_was_settled_live_is_what_is_built_again(facts: list[SpendFact]):
    live = Spend(None)
    for fact in facts:
        hold = live.hold(fact.role, fact.candidate, fact.model, 30_000, fact.micro_usd)
        live.settle(hold, fact)
    assert live.view == Spend.of(facts).view


@given(
    st.integers(0, 1_000),
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 400), st.integers(0, 100)),
        max_size=40,
    ),
)
def test_what_may_still_be_spent_never_passes_the_budget(budget: int, steps):
    """As long as no call costs more than was held for it, which `ModelPrice.worst` sees to."""
    spend = Spend(budget)
    open_holds = []
    for begin, worst, share in steps:
        view = spend.view
        if begin:
            fits = view.total.micro_usd + view.held_micro_usd + worst <= budget
            try:
                open_holds.append(spend.hold(Role.FAST, "", "m", 1, worst))
                assert fits
            except OverBudget:
                assert not fits
        elif open_holds:
            hold = open_holds.pop(0)
            cost = (hold.micro_usd or 0) * share // 100
            spend.settle(hold, SpendFact(Role.FAST, "", Usage(1), cost))
        view = spend.view
        assert view.total.micro_usd + view.held_micro_usd <= budget
        assert view.running == len(open_holds)


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(0, 100))
def test_a_warning_comes_once_for_each_level(costs: list[int], budget: int):
    spend = Spend(budget)
    told = [
        level for cost in costs if (level := spend.record(SpendFact(Role.META, "", Usage(1), cost)))
    ]
    assert told == sorted(set(told))
    assert set(told) <= {50, 80, 100}
    total = sum(costs)
    if budget and total:
        reached = [level for level in (50, 80, 100) if total * 100 >= budget * level]
        assert spend.view.level == max(reached, default=0)
        assert told[-1:] == reached[-1:]


def test_the_journal_tells_what_was_spent():
    ended = CallRecord(
        agent="fast",
        role="fast",
        model="claude-opus-5-5",
        purpose="repair c0012 after c0011",
        reserved_micro_usd=900,
        at=1,
        outcome="ok",
        input_tokens=10,
        output_tokens=5,
        cache_read_tokens=3,
        cache_write_tokens=2,
        micro_usd=700,
    )
    lost = replace(ended, outcome="lost", purpose="analyse the seed", micro_usd=900)
    running = replace(ended, outcome="", purpose="x", micro_usd=0, reserved_micro_usd=30)
    unknown = replace(ended, role="judge", model="local", micro_usd=None)
    view = Spend.of(facts_of([ended, lost, running, unknown]), 2_000).view
    assert view.total.micro_usd == 1_630, "without an end it counts with what was reserved"
    assert view.total.unpriced == 20
    assert view.level == 80
    assert view.candidates["c0012"].usage == Usage(20, 10, 6, 4)
    assert view.candidates[""].micro_usd == 930
    assert set(view.roles) == {Role.FAST, Role.JUDGE}


def test_threads_cannot_pass_the_budget_together():
    spend = Spend(100)
    taken: list[int] = []
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait()
        for _ in range(50):
            try:
                hold = spend.hold(Role.SLOW, "", "m", 1, 7)
            except OverBudget:
                continue
            taken.append(7)
            spend.settle(hold, SpendFact(Role.SLOW, "", Usage(1), 7))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == spend.view.total.micro_usd <= 100
    assert spend.view.total.micro_usd + 7 > 100


def test_a_limit_of_tokens_stops_a_model_without_a_price():
    spend = Spend(1, token_limit=1_000)
    hold = spend.hold(Role.FAST, "c0001", "local", 800, None)
    with pytest.raises(OverBudget, match="800 held"):
        spend.hold(Role.FAST, "c0001", "local", 300, None)
    level = spend.settle(hold, SpendFact(Role.FAST, "c0001", Usage(600), None, "local"))
    assert level == 50
    assert spend.view.unknown_models == ("local",)
    with pytest.raises(OverBudget, match="600 used"):
        spend.hold(Role.FAST, "c0001", "local", 401, None)


def test_the_budget_can_be_raised():
    spend = Spend(10)
    with pytest.raises(OverBudget, match="raise the budget"):
        spend.hold(Role.FAST, "", "m", 1, 11)
    spend.set_budget(11)
    spend.hold(Role.FAST, "", "m", 1, 11)
    spend.set_budget(None)
    spend.hold(Role.FAST, "", "m", 1, 1_000_000)


def test_what_is_unknown_is_never_shown_as_nothing():
    unknown = SpendFact(Role.FAST, "", Usage(5), None, "local")
    known = SpendFact(Role.FAST, "", Usage(5), 1_200_000, "opus")
    assert Account().plus(unknown).text == "price unknown"
    assert Account().plus(unknown).plus(known).text == "$1.20 + price unknown"
    assert Account().plus(known).text == "$1.20"
    assert Account().text == "$0.00"
