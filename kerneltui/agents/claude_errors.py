"""What the SDK raises, sorted by what to do about it: ask again, or give up with one readable line."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from kerneltui.agents.model_port import FailureKind
from kerneltui.agents.secrets import Keys, one_line

__all__ = ["Trouble", "asked_wait_ms", "trouble_of"]

_RETRIED = frozenset({408, 409, 425, 429})
_IN_STREAM = {
    "overloaded_error": (529, "overloaded"),
    "rate_limit_error": (429, "rate limited"),
    "api_error": (500, "an error of the server"),
    "timeout_error": (504, "a timeout of the server"),
}
"""Errors that come as an event of a stream whose status was 200."""
_MOST_WAIT_S = 24 * 60 * 60
"""What a server is believed to want at most; whoever is asked again after that may say it again."""
_WORDS = {408: "timed out", 425: "too early", 429: "rate limited", 529: "overloaded"}
_REMEDIES = {
    401: "the key was not accepted; set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN for a gateway)",
    402: "there is no credit; look at the account of ANTHROPIC_API_KEY",
    403: "the key of ANTHROPIC_API_KEY may not do this",
    404: "there is nothing at this address; look at base_url and model in agents.toml",
    413: "the prompt is too large for the server",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """An attempt that failed on the way.

    Attributes:
        kind: Of the failure that it becomes if it is not asked again.
        line: What happened, for people, without secrets.
        again: Whether asking again can help.
        wait_ms: What the server asks to wait; None if it says nothing.
        billed: Whether the server may have worked, and charge for it, without telling.
    """

    kind: FailureKind
    line: str
    again: bool
    wait_ms: int | None = None
    billed: bool = False


def trouble_of(error: BaseException, keys: Keys, host: str, model: str = "") -> Trouble:
    """Sorts an error of the SDK or of the HTTP client below it.

    Args:
        error: What was raised.
        keys: Kept out of the line.
        host: The server, for the line.
        model: Which was asked.
    """
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return _of_status(error, status, keys, host, model)
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"APITimeoutError", "TimeoutException"}:
        # Without a connection nobody has worked; after it, somebody may have.
        connecting = "ConnectTimeout" in names or _cause_named(error, "ConnectTimeout")
        what = "no connection in time" if connecting else "no sign of life in time"
        return Trouble(FailureKind.CONNECTION, f"{host}: {what}", True, billed=not connecting)
    if names & {"APIConnectionError", "HTTPError", "StreamError", "OSError", "JSONDecodeError"}:
        detail = keys.hide(one_line(str(error.__cause__ or error)))
        return Trouble(FailureKind.CONNECTION, f"{host}: connection lost: {detail}", True)
    detail = keys.hide(one_line(f"{type(error).__name__}: {error}"))
    return Trouble(FailureKind.REQUEST, f"{host}: the request could not be made: {detail}", False)


def asked_wait_ms(headers: Mapping[str, str], now: float | None = None) -> int | None:
    """What a server asks to wait: `retry-after-ms`, `retry-after` in seconds or as a date. A day at most."""
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None:
        return _bounded(exact / 1000)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return _bounded(seconds)
    try:
        date = email.utils.parsedate_to_datetime(text or "").timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return _bounded(max(0.0, date - (time.time() if now is None else now)))


def _bounded(seconds: float) -> int:
    return round(min(seconds, _MOST_WAIT_S) * 1000)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _of_status(error: BaseException, status: int, keys: Keys, host: str, model: str) -> Trouble:
    said, kind = _said(error)
    if status == 404 and model and (model in said or "model" in said.lower()):
        line = f"no such model {one_line(model)} at {host}, /model ROLE NAME to change"
        return Trouble(FailureKind.UNKNOWN_MODEL, keys.hide(line), False)
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", {})
    word = ""
    if status < 400:
        status, word = _IN_STREAM.get(kind, (400, ""))
    word = word or _WORDS.get(status, "")
    told = keys.hide(one_line(said))
    head = f"{host}: {status}" + (f" {word}" if word else "")
    line = f"{head}: {told}" if told else head
    if status in _RETRIED or status >= 500:
        return Trouble(FailureKind.OVERLOADED, line, True, asked_wait_ms(headers))
    remedy = _REMEDIES.get(status)
    return Trouble(FailureKind.REQUEST, f"{line} ({remedy})" if remedy else line, False)


def _said(error: BaseException) -> tuple[str, str]:
    """The server's own words and its name for the error."""
    body: Any = getattr(error, "body", None)
    if isinstance(body, dict):
        inner: Any = cast("dict[str, Any]", body).get("error")
        if isinstance(inner, dict):
            part = cast("dict[str, Any]", inner)
            return str(part.get("message") or part.get("type") or ""), str(part.get("type") or "")
    if isinstance(body, str):
        return body, ""
    return "", ""


def _cause_named(error: BaseException, name: str) -> bool:
    cause = error.__cause__
    return cause is not None and name in {kind.__name__ for kind in type(cause).__mro__}
