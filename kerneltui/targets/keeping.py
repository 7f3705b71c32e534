"""Small files that spare a measurement the next time, and may be missing at any time."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

__all__ = ["keep"]


def keep(file: Path, text: str) -> str:
    """Writes a file of a cache; half of one never stands there.

    Returns:
        Why it could not be kept, in a line for the user, or nothing. What was measured is good all the same.
    """
    temporary = file.with_suffix(f".{secrets.token_hex(4)}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        temporary.replace(file)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        why = error.strerror or type(error).__name__
        return f"{file.parent} cannot be written ({why}): what is kept there is measured each time"
    return ""
