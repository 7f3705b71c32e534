"""All cheats that have a CPU form."""

from __future__ import annotations

from .cheat import Cheat
from .cheats_of_results import RESULT_CHEATS
from .cheats_on_harness import HARNESS_CHEATS

__all__ = ["CHEATS"]

CHEATS: dict[str, Cheat] = {**RESULT_CHEATS, **HARNESS_CHEATS}
