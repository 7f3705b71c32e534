"""The official SDK, opened for one server. Only here it is imported, and only when a model is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from kerneltui.agents.agent_config import CallLimits
from kerneltui.agents.claude_stream import current_line
from kerneltui.agents.secrets import Keys

__all__ = ["VENDOR_URL", "Server", "host_of", "server_address"]

VENDOR_URL = "https://api.anthropic.com"
_NO_KEY = "none"
_MOST_CONNECTIONS = 64


def server_address(configured: str, environment: Mapping[str, str]) -> str:
    """The address of the server: the configuration, else `ANTHROPIC_BASE_URL`, else the vendor's."""
    return configured or environment.get("ANTHROPIC_BASE_URL", "").strip() or VENDOR_URL


class Server:
    """A client of the SDK with its own retries off. May be used from several threads.

    Args:
        address: Of the server.
        keys: Of this user. A server of one's own may want none.
        limits: Times.
    """

    def __init__(self, address: str, keys: Keys, limits: CallLimits) -> None:
        import anthropic

        kind = cast("Callable[..., Any]", type(anthropic.DEFAULT_CONNECTION_LIMITS))
        http = anthropic.DefaultHttpxClient(
            # A connection of its own for every attempt: cutting one touches no other, and none is stale.
            limits=kind(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=0),
            event_hooks={"request": [_watch]},
        )
        silence = limits.silence_ms / 1000
        key = keys.api_key or (None if keys.auth_token else _NO_KEY)
        self._sdk = anthropic.Anthropic(
            api_key=key,
            auth_token=None if key else keys.auth_token,
            base_url=address,
            max_retries=0,
            timeout=anthropic.Timeout(
                connect=limits.connect_ms / 1000, read=silence, write=silence, pool=silence
            ),
            http_client=http,
        )

    def __repr__(self) -> str:
        return "Server()"

    def stream(self, request: Mapping[str, Any]) -> Iterator[Any]:
        """Sends a request and returns the events of its stream.

        Raises:
            Exception: Those of the SDK and of the HTTP client below it.
        """
        create = cast("Callable[..., Iterator[Any]]", self._sdk.messages.create)
        return create(**request)

    def close(self) -> None:
        """Ends all connections."""
        self._sdk.close()


def host_of(address: str) -> str:
    """The server's name for messages: no path, no name, no password."""
    parts = urlsplit(address)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.hostname or address}{port}"


def _watch(request: Any) -> None:
    line = current_line()
    if line is not None:
        request.extensions["trace"] = line.trace
