"""Who proposes: the agents that were asked for, or else those that this environment can have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kerneltui.agents.secrets import Keys

__all__ = ["choose_agents"]


def choose_agents(wanted: str | None, environment: Mapping[str, str], folder: Path) -> str:
    """Returns `claude` if there is a key for it, else `offline`, unless one was asked for.

    Args:
        wanted: Who was asked for.
        environment: Where keys are.
        folder: Where the configuration of the agents is.

    Raises:
        ValueError: Claude was asked for and cannot be had without a key.
        DefinitionError: That configuration is wrong.
    """
    has_key = Keys.of(environment).present
    if wanted == "claude" and not has_key and _asks_the_vendor(environment, folder):
        raise ValueError("claude needs a key: set ANTHROPIC_API_KEY")
    return wanted or ("claude" if has_key else "offline")


def _asks_the_vendor(environment: Mapping[str, str], folder: Path) -> bool:
    """Whether models are asked at the vendor's; a server of one's own may want no key."""
    # Only then, since a command is to start fast.
    from kerneltui.agents.agent_config import load_agent_config
    from kerneltui.agents.claude_client import VENDOR_URL, server_address

    return server_address(load_agent_config(folder).base_url, environment) == VENDOR_URL
