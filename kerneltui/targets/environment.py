"""The environment that child processes get: a short list, and never a secret."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

__all__ = ["child_environment", "without_keys"]

_ALLOWED = frozenset(
    {"PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"}
)
_ALLOWED_PREFIXES = ("LC_",)
_KEYS = ("ANTHROPIC_",)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


def without_keys(parent: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment but for what belongs to model servers: keys, headers, addresses.

    For the user's own programs (git, an editor), which need the rest of it.

    Args:
        parent: The environment to take from; that of this process by default.
    """
    source = os.environ if parent is None else parent
    return {name: value for name, value in source.items() if not name.startswith(_KEYS)}


def child_environment(
    extra: Mapping[str, str], parent: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The allowed part of the parent's environment, and `extra` on top.

    A variable whose name smells of a secret is left out even if it is on the list.

    Args:
        extra: What the harness sets.
        parent: The environment to take from; that of this process by default.
    """
    source = os.environ if parent is None else parent
    kept = {
        name: value
        for name, value in source.items()
        if (name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)) and not _SECRET.search(name)
    }
    kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    return {**kept, **extra}
