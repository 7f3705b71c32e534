"""What `kerneltui doctor` says of this machine, beside its GPUs."""

from __future__ import annotations

import pytest

from kerneltui.headless import doctor
from kerneltui.headless.finding import OFF, OK

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


@pytest.mark.parametrize("name", KEYS)
def test_a_key_or_a_token_is_what_agents_take(monkeypatch: pytest.MonkeyPatch, name: str):
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    assert doctor._key().state == OFF
    monkeypatch.setenv(name, "  ")
    assert doctor._key().state == OFF
    monkeypatch.setenv(name, "not-a-real-one")
    found = doctor._key()
    assert found.state == OK
    assert name in found.text and "not-a-real-one" not in found.text
