"""Prices: whole millionths, rounded up, never free by accident."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.agents.model_port import Usage
from kerneltui.agents.pricing import SHIPPED_PRICES, ModelPrice, Rates, price_of, usd

TOKENS = st.integers(0, 5_000_000)
USAGES = st.builds(Usage, TOKENS, TOKENS, TOKENS, TOKENS)
AMOUNTS = st.integers(0, 100_000_000)
RATES = st.builds(Rates, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
PRICES = st.one_of(
    st.builds(ModelPrice, RATES),
    st.builds(ModelPrice, RATES, RATES, st.integers(1, 10_000_000)),
)


@given(RATES, USAGES)
def test_a_cost_is_the_exact_one_rounded_up(rates: Rates, usage: Usage):
    exact = Fraction(
        usage.input * rates.input
        + usage.output * rates.output
        + usage.cache_write * rates.cache_write
        + usage.cache_read * rates.cache_read,
        1_000_000,
    )
    cost = rates.cost(usage)
    assert isinstance(cost, int)
    assert exact <= cost < exact + 1


@given(RATES, USAGES, USAGES)
def test_parts_cost_at_least_the_whole(rates: Rates, one: Usage, other: Usage):
    parts = rates.cost(one) + rates.cost(other)
    assert rates.cost(one + other) <= parts <= rates.cost(one + other) + 1


@given(PRICES, TOKENS, TOKENS, st.data())
def test_nothing_costs_more_than_the_worst_case(price: ModelPrice, prompt: int, most: int, data):
    fresh = data.draw(st.integers(0, prompt))
    written = data.draw(st.integers(0, prompt - fresh))
    said = data.draw(st.integers(0, most))
    usage = Usage(fresh, said, prompt - fresh - written, written)
    assert price.cost(usage) <= price.worst(prompt, most)


def test_long_prompts_have_a_price_of_their_own():
    price = SHIPPED_PRICES["claude-haiku-5-5"]
    assert price.cost(Usage(input=100_000, output=1_000_000)) == 10_000 + 500_000
    assert price.cost(Usage(input=100_001)) == 50_001
    # what is read from the cache belongs to the prompt
    assert price.cost(Usage(input=1, cache_read=100_000)) == 5_001


def test_a_dated_name_is_the_same_model_and_a_similar_one_is_not():
    known = SHIPPED_PRICES["claude-haiku-4-5"]
    assert price_of(SHIPPED_PRICES, "claude-haiku-4-5") is known
    assert price_of(SHIPPED_PRICES, "claude-haiku-4-5-20251001") is known
    assert price_of(SHIPPED_PRICES, "claude-haiku-4-5-turbo") is None
    assert price_of(SHIPPED_PRICES, "vendor/claude-haiku-4-5") is None
    assert price_of(SHIPPED_PRICES, "") is None


def test_shipped_prices_are_ordered_as_prices_are():
    for name, price in SHIPPED_PRICES.items():
        for rates in (price.base, price.long or price.base):
            assert 0 < rates.cache_read < rates.input < rates.cache_write < rates.output, name


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "$0.00"), (1, "$0.000001"), (9_000, "$0.009"), (10_000, "$0.01"), (1_234_567, "$1.23")],
)
def test_small_amounts_do_not_look_free(micro: int, text: str):
    assert usd(micro) == text
