"""What `kerneltui doctor` says of this machine, beside its GPUs."""

from __future__ import annotations

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


def test_processes_find_the_same_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """They start without PYTHONPATH and the current folder."""
    asked: list[tuple[str, ...]] = []
    answer = str(Path(doctor.__file__).parents[1] / "__init__.py")

    def first_line(*command: str) -> str | None:
        asked.append(command)
        return answer

    monkeypatch.setattr(doctor, "first_line", first_line)
    assert doctor._python().state == OK
    assert "-I" in asked[0]
    answer = str(tmp_path / "kerneltui" / "__init__.py")
    found = doctor._python()
    assert found.state == MISSING and answer in found.text and "pip install -e" in found.remedy
    monkeypatch.setattr(doctor, "first_line", lambda *_: None)
    assert "do not find it" in doctor._python().text
