"""Folders of this user and the defaults of the commands."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["DEFAULT_CANDIDATES", "cache_folder", "config_folder", "parse_budget"]

DEFAULT_CANDIDATES = 40
_BUDGET = re.compile(r"^(\d+(?:\.\d+)?)(s|m|h)$")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def cache_folder() -> Path:
    """Returns the folder for builds and measured ceilings; it can be deleted at any time."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("kerneltui", appauthor=False))


def config_folder() -> Path:
    """Returns the folder for what the user sets, such as machine.toml."""
    import platformdirs

    return Path(platformdirs.user_config_dir("kerneltui", appauthor=False))


def parse_budget(text: str) -> int:
    """Turns `90s`, `10m` or `1.5h` into nanoseconds.

    Raises:
        ValueError: The text is none of these.
    """
    match = _BUDGET.match(text.strip())
    if not match or float(match[1]) <= 0:
        raise ValueError(f"'{text}' is not a time; write 90s, 10m or 1.5h")
    return round(float(match[1]) * _SECONDS[match[2]] * 1e9)
