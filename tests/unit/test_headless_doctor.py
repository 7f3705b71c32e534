"""What `kerneltui doctor` says of this machine, beside its GPUs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kerneltui.headless import doctor
from kerneltui.headless.finding import MISSING, OFF, OK
from kerneltui.targets.device_lock import DEVICE_LOCK

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


def test_the_locks_of_the_site_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(doctor, "config_folder", lambda: tmp_path)
    monkeypatch.delenv(DEVICE_LOCK, raising=False)
    assert "locked" not in doctor._policy().text
    (tmp_path / "machine.toml").write_text('version = 1\ndevice_lock = "/var/lock/gpu.lock"\n')
    assert doctor._policy().text.endswith("while GPUs are used /var/lock/gpu.lock is locked")
    monkeypatch.setenv(DEVICE_LOCK, "gpu.lock")
    found = doctor._policy()
    assert found.state == MISSING and "no absolute path" in found.remedy


def test_a_package_that_only_the_environment_finds_is_told(monkeypatch: pytest.MonkeyPatch):
    assert doctor._python().state == OK
    # The interpreter that the environment was made of does not have it.
    monkeypatch.setattr(sys, "executable", os.path.realpath(sys.executable))
    monkeypatch.setenv("PYTHONPATH", str(Path(doctor.__file__).parents[2]))
    found = doctor._python()
    assert found.state == MISSING and "PYTHONPATH" in found.text
    assert "pip install -e" in found.remedy
