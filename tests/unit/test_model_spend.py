"""What models have cost: begun calls count with what was reserved, an unknown price is never zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.model.agent_event import ModelCallEnded, ModelCallStarted, ProposalFailed
from kerneltui.model.errors import RecordError
from kerneltui.model.event import decode_event, encode_event
from kerneltui.model.spend import spent
from kerneltui.model.state import State, fold


def started(number: int, reserved: int | None = 500_000) -> ModelCallStarted:
    return ModelCallStarted(
        at=number, number=number, agent="slow", role="slow", model="m", purpose="propose",
        reserved_micro_usd=reserved,
    )  # fmt: skip


def ended(number: int, cost: int | None, outcome: str = "ok") -> ModelCallEnded:
    return ModelCallEnded(
        at=number + 1, number=number, model="m-1", outcome=outcome, input_tokens=10,
        output_tokens=5, cache_read_tokens=100, micro_usd=cost,
    )  # fmt: skip


def test_a_running_call_costs_what_was_reserved_and_an_ended_one_what_it_cost() -> None:
    state = fold([started(1), started(2), ended(1, 20_000)])
    found = state.spent()
    assert (found.calls, found.micro_usd, found.reserved) == (2, 520_000, 500_000)
    assert found.tokens == 115
    assert state.spent([1]).text == "$0.02"


def test_an_unknown_price_is_said_and_not_counted_as_nothing() -> None:
    state = fold([started(1, None), ended(1, None)])
    assert state.spent().text == "price unknown"
    state = fold([started(1, None), ended(1, None), started(2), ended(2, 1_500_000)])
    assert state.spent().text == "$1.50 + price unknown"


def test_an_end_without_a_begin_is_a_broken_journal() -> None:
    with pytest.raises(RecordError, match="call 3 ended and never began"):
        fold([ended(3, 0)])


def test_a_failed_proposal_is_told_among_the_messages() -> None:
    event = ProposalFailed(at=5, agent="slow", parent="c0002", reason="nothing matched", calls=(1,))
    state = fold([event])
    assert state.messages[-1].text == "no proposal from c0002: nothing matched"


numbers = st.lists(st.integers(1, 40), unique=True, max_size=12)
price = st.none() | st.integers(0, 10**9)


@given(numbers, st.data())
def test_the_order_of_ends_does_not_change_the_sum_and_a_copy_is_the_same(
    begun: list[int], data: st.DataObject
) -> None:
    events = [started(n, data.draw(price)) for n in begun]
    over = data.draw(st.lists(st.sampled_from(begun), unique=True)) if begun else []
    ends = [ended(n, data.draw(price), data.draw(st.sampled_from(["ok", "lost"]))) for n in over]
    one = fold([*events, *ends])
    other = fold([*events, *reversed(ends)])
    assert one.spent() == other.spent() == spent(one.calls.values())
    assert State.from_canonical(one.canonical()).canonical() == one.canonical()
    for event in [*events, *ends]:
        assert decode_event(encode_event(event)) == event
