"""What tokens of a model cost, in whole millionths of a dollar.

The shipped prices are the list prices of the vendor (platform.claude.com/docs, "Models & pricing")
as read in November 2026, cache writes those of the five-minute cache. A model that is not in the table has
no known price; it is never taken to be free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kerneltui.agents.model_port import Usage

__all__ = ["SHIPPED_PRICES", "ModelPrice", "Rates", "price_of", "usd"]

_MILLION = 1_000_000
_DATE = re.compile(r"-20\d{6}$")


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices of a million tokens each, in millionths of a dollar: 6.25 dollars are 6_250_000."""

    input: int
    output: int
    cache_write: int
    cache_read: int

    def cost(self, usage: Usage) -> int:
        """Millionths of a dollar, rounded up."""
        parts = (
            usage.input * self.input
            + usage.output * self.output
            + usage.cache_write * self.cache_write
            + usage.cache_read * self.cache_read
        )
        return -(-parts // _MILLION)


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """What one model costs.

    Attributes:
        base: The ordinary rates.
        long: Rates of a request whose whole prompt, cached parts included, is longer than `long_above`.
        long_above: Tokens of prompt.
    """

    base: Rates
    long: Rates | None = None
    long_above: int = 0

    def cost(self, usage: Usage) -> int:
        """Price of one request in millionths of a dollar, rounded up."""
        return self._rates(usage.input + usage.cache_read + usage.cache_write).cost(usage)

    def worst(self, prompt: int, output: int) -> int:
        """Price of a request that finds nothing in the cache and says as much as it may."""
        rates = self._rates(prompt)
        dearest = max(rates.input, rates.cache_write, rates.cache_read)
        return -(-(prompt * dearest + output * rates.output) // _MILLION)

    def _rates(self, prompt: int) -> Rates:
        return self.long if self.long is not None and prompt > self.long_above else self.base


def usd(micro: int) -> str:
    """For people: `$0.42`; below a cent as many digits as it takes, so that nothing looks free."""
    if 0 < micro < 10_000:
        return f"${micro / _MILLION:.6f}".rstrip("0")
    return f"${micro / _MILLION:.2f}"


def price_of(prices: Mapping[str, ModelPrice], model: str) -> ModelPrice | None:
    """The price of a model, also under its dated name; None if it is not known.

    Nothing is guessed from a similar name: a gateway may sell a model at a price of its own.
    """
    return prices.get(model) or prices.get(_DATE.sub("", model))


def _rates(input_: str, output: str, cache_write: str, cache_read: str) -> Rates:
    return Rates(*(_micro(text) for text in (input_, output, cache_write, cache_read)))


def _micro(text: str) -> int:
    whole, _, part = text.partition(".")
    return int(whole) * _MILLION + int(part.ljust(6, "0") or "0")


_OPUS_UP_TO_5 = ModelPrice(_rates("5", "25", "6.25", "0.50"))

SHIPPED_PRICES: Mapping[str, ModelPrice] = {
    "claude-fable-5-1": ModelPrice(_rates("10", "50", "12.50", "0.25")),
    "claude-opus-5-5": ModelPrice(_rates("4", "20", "5", "0.20")),
    "claude-opus-5": _OPUS_UP_TO_5,
    "claude-opus-4-8": _OPUS_UP_TO_5,
    "claude-opus-4-7": _OPUS_UP_TO_5,
    "claude-opus-4-6": _OPUS_UP_TO_5,
    "claude-opus-4-5": _OPUS_UP_TO_5,
    "claude-sonnet-5-5": ModelPrice(_rates("2", "10", "2.50", "0.10")),
    "claude-sonnet-5": ModelPrice(_rates("2", "10", "2.50", "0.20")),
    "claude-haiku-5-5": ModelPrice(
        _rates("0.10", "0.50", "0.125", "0.01"),
        long=_rates("0.50", "2.50", "0.625", "0.05"),
        long_above=100_000,
    ),
    "claude-haiku-4-5": ModelPrice(_rates("1", "5", "1.25", "0.10")),
}
"""List prices by the name of the model."""
