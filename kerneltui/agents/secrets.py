"""Keys of model servers: where they come from, and how they are kept out of every text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Keys", "one_line"]

_LOOKS_LIKE_A_KEY = re.compile(r"sk-[A-Za-z0-9_\-]{8,}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_HIDDEN = "…"
_SHORTEST = 6
_LONGEST_LINE = 400


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of this user. Their text is in no representation of this object.

    Attributes:
        api_key: `ANTHROPIC_API_KEY`, empty if not set.
        auth_token: `ANTHROPIC_AUTH_TOKEN`, for gateways; empty if not set. The key wins over it.
    """

    api_key: str = field(default="", repr=False)
    auth_token: str = field(default="", repr=False)
    _others: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Keys:
        """Takes them from the environment."""
        headers = environment.get("ANTHROPIC_CUSTOM_HEADERS", "")
        others = [line.partition(":")[2].strip() for line in headers.splitlines()]
        return cls(
            environment.get("ANTHROPIC_API_KEY", "").strip(),
            environment.get("ANTHROPIC_AUTH_TOKEN", "").strip(),
            tuple(others),
        )

    @property
    def present(self) -> bool:
        """Whether there is one."""
        return bool(self.api_key or self.auth_token)

    def hide(self, text: str) -> str:
        """The text without any key, also without what only looks like one."""
        for secret in (self.api_key, self.auth_token, *self._others):
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, _HIDDEN)
        return _LOOKS_LIKE_A_KEY.sub(_HIDDEN, text)


def one_line(text: str) -> str:
    """What a server said as one line without control characters, of bounded length."""
    line = " ".join(_CONTROL.sub(" ", text).split())
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"
